"""Test the models of a finished simulation where none of them trained: at a left-out site (FedSM's Table 5).

Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from silofl.algorithms.fedsm.paper import THRESHOLDS
from silofl.base.errors import ConfigError
from silofl.base.files import write_json
from silofl.base.schema import dump_record
from silofl.data.manifest import PARTS
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData
from silofl.federation.results import read_results
from silofl.inference import SuperModel, directory
from silofl.inference.case_results import CaseResult, choose_models, predict_cases, score_choice, values_by_model
from silofl.inference.choice import ENSEMBLE
from silofl.inference.clinical import measure_evaluation
from silofl.inference.contents import Contents
from silofl.inference.evaluated_cases import SiteCases, evaluate_cases, sort_answers
from silofl.inference.geometry import check_images
from silofl.inference.super_results import ThresholdTest
from silofl.models.roles import GLOBAL
from silofl.training.device import choose_device, set_threads
from silofl.training.joined import CHOSEN, LOCAL
from silofl.training.metrics import value_or_none
from silofl_desk.report.unseen import UnseenTest, read_unseen

NO_SUPER_MODEL = "The run wrote no super model: the mean of {source} answers, which only a simulation can put together."


def run_unseen_test(run: Path, site: str, digest: str, load: Callable[[], SiteData], console: Console) -> UnseenTest:
    """Test a finished run's super model on a site that did not take part, write ``unseen.json`` and return it.

    An earlier test of the same super model on the same data is read, not repeated.

    Args:
        run: Folder of the finished run.
        site: The site that was left out.
        digest: `silofl.data.counts.digest_data`.
        load: Reads the site's data.
        console: Shows whether a super model had to be put together.

    Raises:
        ConfigError: There is no super model, and none can be put together; or it is broken.
        DataError: The site's images do not have the form of the training images, or it answers none of them.
    """
    folder = run / directory.FOLDER
    if not folder.is_dir():
        contents = assemble_models(run)
        console.print(NO_SUPER_MODEL.format(source=contents.facts["assembled_from"]))
        directory.write_model_folder(folder, contents)
    fingerprint = directory.read_fingerprint(folder)
    # A broken test is repeated.
    with suppress(ConfigError):
        earlier = read_unseen(run)
        if earlier and (earlier.site, earlier.evaluation.fingerprint, earlier.digest) == (site, fingerprint, digest):
            return earlier
    contents = directory.read_model_folder(folder)
    data = load()
    set_threads("auto")
    device = choose_device(contents.study.device)
    model = SuperModel(contents, device)
    # A hospital has its images without their labels before it uses a model.
    model.fix_home_statistics(data.training.images)
    site_cases = SiteCases.of(data, PARTS)
    answered, _ = sort_answers(evaluate_cases(model, site_cases))
    # A clinic refuses some cases, which then count in no comparison of models either.
    evaluation = measure_evaluation(model, fingerprint, site_cases, answered)
    names = {prediction.case for prediction in answered}
    parts = []
    for part in site_cases.parts.values():
        rows = [row for row, case in enumerate(part.cases) if case in names]
        parts.append(part.select_rows(rows))
    own_models = _read_models(run, directory.OWN)
    own_values = None
    if own_models:
        studies = {owner: contents.study for owner, contents in own_models.items()}
        local = SuperModel(_join_models(run, own_models), device, studies)
        local.fix_home_statistics(data.training.images)
        own_values = values_by_model(_predict_parts(local, parts))
    result = UnseenTest(
        site=site,
        digest=digest,
        evaluation=evaluation,
        **measure_models(model, parts),
        own=own_values,
        assembled_from=contents.facts.get("assembled_from"),
    )
    write_json(run / "unseen.json", dump_record(result))
    return result


def assemble_models(run: Path) -> Contents:
    """Return the mean of the sites' models as a super model, which only a simulation has in one place.

    Its fact ``assembled_from`` names the sites that kept none.

    Raises:
        ConfigError: No site kept its model, or one is broken.
    """
    models = _read_models(run, directory.FOLDER)
    if not models:
        raise ConfigError(f"{run} holds neither a super model nor the sites' models. Train it anew.")
    return _join_models(run, models)


def _read_models(run: Path, folder: str) -> dict[str, Contents]:
    """Return site -> the model that it holds in a folder of that name, of those that hold one."""
    results = read_results(run)
    models: dict[str, Contents] = {}
    if results is None or results.run is None:
        return models
    for site in sorted(results.sites):
        path = run / "sites" / site / results.run / folder
        joined = (results.joining or {}).get(site)
        # The local model that a site keeps lies in its folder of what is kept.
        if folder == directory.OWN and joined and joined.chosen == LOCAL:
            path = path.with_name(CHOSEN)
        if path.is_dir():
            models[site] = directory.read_model_folder(path)
    return models


def _join_models(run: Path, models: Mapping[str, Contents]) -> Contents:
    """Return the sites' models as one that answers with their mean."""
    results = read_results(run)
    facts: dict[str, Any] = {}
    source = "the sites' own models"
    if results:
        facts = {"run": results.run, "reported_round": results.best_round}
        missing = [site for site in sorted(results.sites) if site not in models]
        if missing:
            source += f" (without {', '.join(missing)})"
    facts["assembled_from"] = source
    profile, *profiles = (contents.data_profile for contents in models.values())
    for further in profiles:
        profile |= further
    # A site's own folder holds a single model.
    states = {site: next(iter(contents.models.values())) for site, contents in models.items()}
    # The sites' studies and images are alike; the first site's stand for all.
    shared = next(iter(models.values()))
    return Contents(shared.study, shared.image_shape, states, "mean", facts=facts, data_profile=profile)


def load_site_networks(contents: Contents, device: torch.device) -> Iterator[tuple[str, nn.Module]]:
    """Yield each site with its model in evaluation mode, one at a time in memory."""
    for site, state in contents.models.items():
        yield site, SuperModel(replace(contents, models={site: state}), device).network(site)


def measure_models(model: SuperModel, parts: Sequence[Examples]) -> dict[str, Any]:
    """Measure the models of a super model on all cases of a site that none of them has seen.

    Args:
        parts: All parts of the site's data, with different cases.

    Returns:
        Fields of `UnseenTest`: how it answers, each model's value and, with a selector, what that chooses, also with
        each candidate of the paper's gamma.

    Raises:
        DataError: The images do not have the form of the training images.
    """
    contents = model.contents
    results = _predict_parts(model, parts)
    models = values_by_model(results)
    if contents.rule != "selector":
        # Without a selector the ensemble is the mean, which is the model under test.
        del models[ENSEMBLE]
        return {"rule": contents.rule, "models": models}
    # Where the selector knows the global model too, or there is none, the most probable model answers.
    thresholds = () if contents.threshold is None else THRESHOLDS
    return {
        "rule": "ensemble" if contents.is_ensemble else "choice",
        "models": models,
        "choices": _count_choices(model, results, contents.threshold)[1],
        "threshold": contents.threshold,
        "by_threshold": tuple(ThresholdTest(gamma, *_count_choices(model, results, gamma)) for gamma in thresholds),
    }


def _predict_parts(model: SuperModel, parts: Sequence[Examples]) -> dict[str, CaseResult]:
    contents = model.contents
    results: dict[str, CaseResult] = {}
    for part in parts:
        if len(part) == 0:
            continue
        if part.patches:
            # Volumes that are cut into patches have sizes of their own.
            for image in part.images:
                check_images(image[None], contents.image_shape, is_in_patches=True)
        else:
            check_images(np.asarray(part.images), contents.image_shape)
        results |= predict_cases(model, part, contents.study)
    return results


def _count_choices(
    model: SuperModel, results: Mapping[str, CaseResult], threshold: float | None
) -> tuple[float | None, dict[str, int]]:
    """Return the value of the chosen models, and model -> number of cases for which it is chosen."""
    chosen = choose_models(model, results, threshold)
    counts = Counter(chosen.values())
    names = sorted(model.contents.models, key=lambda name: (name != GLOBAL, name))
    return value_or_none(score_choice(results, chosen)), {name: counts[name] for name in names}
