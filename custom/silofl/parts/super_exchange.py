"""A super model as it travels: ``MODEL/...`` and ``selector/...`` for its arrays, and its facts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import Tensor

from silofl.base import schema
from silofl.core.mixing import Arrays
from silofl.data.data_profile import DataProfile
from silofl.data.parts import Examples
from silofl.inference import SuperModel
from silofl.inference.case_results import CaseResult, choose_models, predict_cases, score_choice, values_by_model
from silofl.inference.choice import ENSEMBLE
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, write_model_folder
from silofl.models.roles import SELECTOR, read_role, select_role
from silofl.models.selector import build_selector
from silofl.parts.model import complete_state, fill_state
from silofl.parts.operating_points import choose_site_operating_point
from silofl.parts.part import Run
from silofl.parts.work import Work
from silofl.study import Study
from silofl.training.case_pictures import write_test_files
from silofl.training.evaluation import join_pieces, summarise_test
from silofl.training.metrics import Score, group_positions, value_or_none


def collect_facts(run: Run, outputs: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a run's super model, with the outputs of its selector; none without one."""
    return {"outputs": list(outputs), "facts": run.reported.facts, "domain": schema.dump_record(run.data_profile)}


def read_contents(
    arrays: Arrays,
    facts: Mapping[str, Any],
    study: Study,
    image_shape: tuple[int, ...],
    known: Mapping[str, dict[str, Tensor]] = MappingProxyType({}),
) -> Contents:
    """Build a super model from arrays; models that are not among them are taken from the known ones.

    Raises:
        AggregationError: An array does not fit the study's networks.
    """
    # Arrays without a role, as the shared amplitude, belong to every model.
    common = {name: array for name, array in arrays.items() if not read_role(name)}
    models = dict(known)
    # In the order of the arrays, which is that of the models.
    names = dict.fromkeys(read_role(name) for name in arrays)
    for name in names:
        if name not in ("", SELECTOR):
            models[name] = complete_state(study, image_shape, select_role(name, arrays) | common)
    run_facts = dict(facts["facts"])
    data_profile = read_data_profile(facts)
    if SELECTOR not in names:
        return Contents(study, image_shape, models, "mean", facts=run_facts, data_profile=data_profile)
    outputs = tuple(facts["outputs"])
    selector = fill_state(build_selector(study, len(outputs), study.seed), select_role(SELECTOR, arrays))
    threshold = facts.get("threshold")
    return Contents(study, image_shape, models, "selector", selector, outputs, threshold, run_facts, data_profile)


def read_data_profile(facts: Mapping[str, Any]) -> DataProfile:
    """Return what the super model's images are like."""
    return schema.read_record(DataProfile, facts.get("domain", {}), "the data profile of the super model")


def evaluate_super_model(work: Work, contents: Contents) -> dict[str, Any]:
    """Test a super model and each of its models; keep scores and pictures.

    Returns:
        A `silofl.training.site_score.SuperScore` as plain values.
    """
    model = SuperModel(contents, work.device)
    part = work.data.test
    results = predict_cases(model, part, work.study)
    chosen = choose_models(model, results, contents.threshold)
    answers = _name_answers(model, chosen)
    result = score_choice(results, answers)
    pieces = [results[case].predictions[answers[case]] for case in group_positions(part.cases)]
    predictions = join_pieces(part.targets, pieces)
    # All models have the same input normalisation, and the pictures need no more of one.
    write_test_files(work.folder, result, predictions, model.network(min(contents.models)), part, work.study.data.shown)

    def score_validation(examples: Examples) -> Score:
        # Asked for a classification only.
        validated = predict_cases(model, examples, work.study)
        return score_choice(validated, _name_answers(model, choose_models(model, validated, None)))

    operating_point, read = choose_site_operating_point(work, score_validation, result)
    # Written again only where the site reads the probabilities otherwise than the file says.
    if operating_point != contents.operating_point:
        write_model_folder(work.folder / FOLDER, replace(contents, operating_point=operating_point))
    numbers = {
        "models": values_by_model(results) | {"super": value_or_none(result)},
        "choices": dict(Counter(chosen.values())),
        "selector": {"cases": dict(Counter(contents.outputs[int(case.scores.argmax())] for case in results.values()))},
    }
    numbers |= summarise_test(predictions, result, part, work.study) | read
    return work.suppress_small_cells(numbers, result, part)


def counts_by_threshold(
    model: SuperModel, results: Mapping[str, CaseResult], thresholds: Sequence[float]
) -> list[list[float]]:
    """Return [sum of values, counted cases] of the chosen models by threshold."""
    scores = [score_choice(results, choose_models(model, results, threshold)) for threshold in thresholds]
    return [[float(sum(score.by_case.values())), score.num_cases] for score in scores]


def _name_answers(model: SuperModel, chosen: Mapping[str, str]) -> Mapping[str, str]:
    """Return what answers each case: the chosen model, or all where none is chosen."""
    return chosen if model.contents.is_choice else dict.fromkeys(chosen, ENSEMBLE)
