"""What a site says of its training data, to be compared with other sites."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from silofl.algorithms.adafed import collect_statistics
from silofl.algorithms.advice.comparison import KINDS, Portrait, Sketch, distances_between, merge_portraits
from silofl.core.findings import unpack_findings
from silofl.data.batches import evaluation_batches
from silofl.data.partition import group_sites
from silofl.data.parts import Examples
from silofl.errors import ConfigError, DataError
from silofl.models import build_plain_model
from silofl.models.names import write_arrays
from silofl.models.weights import read_pretrained, read_weights
from silofl.study import Study
from silofl.training.device import choose_device, derive_seed

# Cuts into halves; more change no ratio by a tenth.
SPLITS = 40
# A site's patients are dealt to at most so many groups, which are measured once each: halves are made of them.
MOST_GROUPS = 32


def build_fixed_network(study: Study, pretrained: str | None = None, weights: str | None = None) -> nn.Module:
    """Return the study's network, with BatchNorm layers to measure at: at its initial weights, a file's, or pretrained.

    Raises:
        ConfigError: A pretrained model is given for a network without BatchNorm, or is of another network.
    """
    if study.model.normalization != "batch":
        if pretrained:
            raise ConfigError(
                "--pretrained must go with model.normalization: batch, at whose layers sites are compared, not "
                f"{study.model.normalization}; leave it out"
            )
        settings = study.model.model_copy(update={"normalization": "batch"})
        study = study.model_copy(update={"model": settings})
    model = build_plain_model(study, study.seed)
    if pretrained:
        write_arrays(model.state_dict(), read_pretrained(Path(pretrained), study))
    elif weights:
        write_arrays(model.state_dict(), read_weights(Path(weights), study).arrays)
    return model.to(choose_device(study.device))


def sketch(site: str, part: Examples, study: Study, model: nn.Module) -> Sketch:
    """Return a site's sketch: a portrait of its training data, and how far apart random halves of its patients are.

    Args:
        site: Its name, which seeds the cuts.
        part: Its training data.
        study: The study.
        model: `build_fixed_network`, the same at every site.

    Raises:
        DataError: There are fewer than 2 cases.
    """
    is_by_patient = part.num_patients > 1 and None not in part.patients
    groups = _deal_groups(site, part.patients if is_by_patient else part.cases, study.seed)
    portraits = [_measure_portrait(model, part.select_rows(rows), study) for rows in groups]
    rng, middle, within = np.random.default_rng(derive_seed(study.seed, site, "cuts")), len(groups) // 2, []
    for _ in range(SPLITS):
        order = rng.permutation(len(groups))
        halves = [merge_portraits([portraits[i] for i in rows]) for rows in (order[:middle], order[middle:])]
        within.append({kind: distance[0, 1] for kind, distance in distances_between(halves).items()})
    distances = {kind: np.array([one[kind] for one in within]) for kind in KINDS}
    unit: Literal["patient", "case"] = "patient" if is_by_patient else "case"
    return Sketch(merge_portraits(portraits), distances, len(set(part.cases)), unit, len(groups), part.annotated)


def _deal_groups(site: str, units: Sequence[str | None], seed: int) -> list[list[int]]:
    """Deal a site's training examples to groups of whole units; returns the examples of each group."""
    count = min(len(set(units)), MOST_GROUPS)
    if count < 2:
        raise DataError(f"site {site!r} must have at least 2 cases in training to be cut into halves, not {count}")
    numbers = group_sites([str(unit) for unit in units], count, derive_seed(seed, site, "advise"))
    return [np.flatnonzero(numbers == number).tolist() for number in range(count)]


def _measure_portrait(model: nn.Module, part: Examples, study: Study) -> Portrait:
    device, count = next(model.parameters()).device, 1 + max(study.labels)
    amplitude = np.mean([np.abs(np.fft.rfftn(image, axes=(-2, -1))) for image in part.images], axis=0)
    batches = evaluation_batches(part, study.training.batch_size, device)
    features = collect_statistics(model, (images for images, _ in batches))
    targets = np.asarray(part.targets)
    if study.is_multilabel:
        share = unpack_findings(targets, count).mean(axis=0)
        labels = np.concatenate([share, 1 - share])
    else:
        labels = np.bincount(targets.ravel(), minlength=count)[:count]
    return Portrait(len(part), amplitude, features, labels / max(labels.sum(), 1))
