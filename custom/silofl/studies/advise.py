"""``silofl advise``: compare the sites' training data, and advise an algorithm before anything trains."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from silofl.algorithms.adafed import collect_statistics
from silofl.algorithms.advice import (
    KINDS,
    Choice,
    Portrait,
    Ratio,
    advised,
    algorithm_of,
    half_distances,
    merged,
    site_ratio,
)
from silofl.data.batches import evaluation_batches
from silofl.data.partition import group_sites
from silofl.data.parts import Examples
from silofl.errors import ConfigError, DataError, ExitCode
from silofl.models import build_plain_model
from silofl.models.names import write_arrays
from silofl.models.pretrained import read_pretrained
from silofl.options import add_pretrained, add_seed, add_set, changes_of, console_for, text_of
from silofl.report.tables import TextTable, print_table
from silofl.studies import simulate
from silofl.studies.simulation import Simulation, settled
from silofl.study import Study
from silofl.training.device import choose_device, seed_of

# Cuts into halves; more change no ratio by a tenth.
SPLITS = 40
# A site's patients are dealt to at most so many groups, which are measured once each: halves are made of them.
MOST_GROUPS = 32
FEW_GROUPS = 4
PLACE = "{site}"


@dataclass(frozen=True)
class Advice:
    """What was measured, and what follows.

    Attributes:
        ratios: By the names of `KINDS`.
        choices: The advised answers.
        algorithm: They as the ``algorithm`` section of a study.
        cases: Site -> its training cases.
        notes: What makes the numbers less sure.
    """

    ratios: Mapping[str, Ratio]
    choices: tuple[Choice, ...]
    algorithm: dict[str, str]
    cases: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        sites = list(self.cases)
        return {
            "cases": dict(self.cases),
            "ratios": {
                kind: {
                    "value": ratio.value,
                    "range": ratio.range,
                    "pairs": {
                        site: dict(zip(sites, row, strict=True))
                        for site, row in zip(sites, ratio.pairs.tolist(), strict=True)
                    },
                }
                for kind, ratio in self.ratios.items()
            },
            "choices": {
                one.question: {"answer": one.answer, "reason": one.reason, "sureness": one.sureness}
                for one in self.choices
            },
            "algorithm": self.algorithm,
            "notes": list(self.notes),
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl advise``."""
    parser.add_argument("job", type=Path, help="job folder, whose study prepares the images and names the network")
    parser.add_argument("--data", type=Path, help="folder with one folder a site, or DIR/{site}; phantoms/ by default")
    add_pretrained(parser)
    add_seed(parser)
    add_set(parser)
    parser.add_argument("--json", action="store_true", help="the advice as JSON on standard output")


def run(options: argparse.Namespace) -> int:
    """Print what the sites differ in, and the advice."""
    console = console_for(options)
    data = options.data.parent if options.data and options.data.name == PLACE else options.data
    wanted = Simulation(data=text_of(data), pretrained=text_of(options.pretrained))
    study, simulation = settled(options.job, wanted, changes_of(options))
    advice = advise(study, simulation)
    if options.json:
        print(json.dumps(advice.as_dict(), indent=1))
        return ExitCode.COMPLETE
    print_advice(advice, console)
    algorithm = ", ".join(f"{key}: {value}" for key, value in advice.algorithm.items())
    command = f"python -m silofl compare {options.job} --data {simulation.data} --out RUNS --methods local,fedavg"
    command += " --pretrained f.pt" if study.recipe.needs_pretrained else ""
    console.print(f"\nto try it:\n  {command} --set 'algorithm={{{algorithm}}}' --as advised", markup=False)
    return ExitCode.COMPLETE


def advise(study: Study, simulation: Simulation) -> Advice:
    """Compare the sites of a simulation by their training data, and advise the answers of an algorithm.

    Raises:
        ConfigError: There is one site only, or the pretrained model is of another network.
        DataError: A site's data is wrong, or too little to be cut into halves.
    """
    model = _fixed_network(study, simulation.pretrained)
    if len(simulation.sites) < 2:
        raise ConfigError(f"--data must hold at least 2 sites to compare, not {len(simulation.sites)}; add another")
    sites = simulate.read_data(study, simulation, Path(simulation.data))
    torch.set_num_threads(study.torch_threads)
    groups = {site: _groups(site, data.training, study.seed) for site, data in sites.items()}
    portraits = {
        site: [_portrait(model, sites[site].training.taken(rows), study) for rows in found]
        for site, found in groups.items()
    }
    ratios = _ratios(list(portraits.values()), study.seed)
    cases = {site: len(set(data.training.cases)) for site, data in sites.items()}
    choices = advised(ratios, cases, has_batchnorm=study.model.normalization == "batch")
    notes = _notes({site: data.training for site, data in sites.items()}, groups)
    return Advice(ratios, tuple(choices), algorithm_of(choices), cases, tuple(notes))


def print_advice(advice: Advice, console: Console) -> None:
    """Print the ratios as a table, and each advised answer with its reason."""
    print_table(_ratio_table(advice), console)
    console.print()
    for one in advice.choices:
        console.print(f"{one.question}: {one.answer} ({one.sureness:.0%} sure). {one.reason}", markup=False)
    for note in advice.notes:
        console.print(f"note: {note}", markup=False)


def _ratio_table(advice: Advice) -> TextTable:
    """Return one row for each kind of distance: the ratio, its range, and the two sites that differ most."""
    sites, rows = list(advice.cases), []
    for kind, ratio in advice.ratios.items():
        left, right = np.unravel_index(ratio.pairs.argmax(), ratio.pairs.shape)
        low, high = ratio.range
        farthest = f"{sites[left]}, {sites[right]}: {ratio.pairs[left, right]:.2f}"
        rows.append((KINDS[kind], farthest, f"{ratio.value:.2f}", f"{low:.2f} to {high:.2f}"))
    columns = ("sites differ in", "most", "between / within sites", "90 % of the halves")
    return TextTable(columns, tuple(rows), num_text=2)


def _fixed_network(study: Study, pretrained: str | None) -> nn.Module:
    """Return the study's network, with BatchNorm layers to measure at: at its initial weights, or pretrained."""
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
    return model.to(choose_device(study.device))


def _groups(site: str, part: Examples, seed: int) -> list[list[int]]:
    """Deal a site's training examples to groups of whole patients, or of cases where fewer than 2 patients are known.

    Returns:
        The examples of each group.

    Raises:
        DataError: There are fewer than 2 cases.
    """
    units = part.patients if part.num_patients > 1 and None not in part.patients else part.cases
    count = min(len(set(units)), MOST_GROUPS)
    if count < 2:
        raise DataError(f"site {site!r} must have at least 2 cases in training to be cut into halves, not {count}")
    numbers = group_sites([str(unit) for unit in units], count, seed_of(seed, site, "advise"))
    return [np.flatnonzero(numbers == number).tolist() for number in range(count)]


def _portrait(model: nn.Module, part: Examples, study: Study) -> Portrait:
    device, count = next(model.parameters()).device, 1 + max(study.labels)
    amplitude = np.mean([np.abs(np.fft.rfftn(image, axes=(-2, -1))) for image in part.images], axis=0)
    batches = evaluation_batches(part, study.training.batch_size, device)
    features = collect_statistics(model, (images for images, _ in batches))
    labels = np.bincount(part.targets.ravel(), minlength=count)[:count]
    return Portrait(len(part), amplitude, features, labels / labels.sum())


def _ratios(portraits: list[list[Portrait]], seed: int) -> dict[str, Ratio]:
    """Cut each site's groups into random halves again and again, and return the ratio of each kind of distance."""
    rng, splits = np.random.default_rng(seed_of(seed, "advise")), {kind: [] for kind in KINDS}
    for _ in range(SPLITS):
        halves = []
        for groups in portraits:
            order, middle = rng.permutation(len(groups)), len(groups) // 2
            halves += [merged([groups[i] for i in rows]) for rows in (order[:middle], order[middle:])]
        for kind, distance in half_distances(halves).items():
            splits[kind].append(distance)
    return {kind: site_ratio(found) for kind, found in splits.items()}


def _notes(parts: Mapping[str, Examples], groups: Mapping[str, list[list[int]]]) -> list[str]:
    by_case = [site for site, part in parts.items() if part.num_patients < 2 or None in part.patients]
    few = [site for site, found in groups.items() if len(found) < FEW_GROUPS and site not in by_case]
    notes = []
    if by_case:
        notes.append(
            f"{', '.join(by_case)}: fewer than 2 patients known, so that halves are of cases; one person's images are "
            "alike, which makes the ratios too large"
        )
    if few:
        notes.append(f"{', '.join(few)}: fewer than {FEW_GROUPS} patients, so that there are few ways to halve them")
    return notes
