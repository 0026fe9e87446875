"""Load the parts of a study: the models, and those that its recipe's answers name; no other file is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType

from silofl.base.errors import ConfigError
from silofl.core.algorithm_option import SecondModel
from silofl.core.mixing import Arrays
from silofl.parts.part import ClientState, OutboundPayload, Part
from silofl.parts.task import TEST, TRAIN
from silofl.study import Study


def start_parts(study: Study, sites: Sequence[str], pretrained: Arrays | None) -> dict[str, Part]:
    """Return the server halves at a run's start by role, the models first.

    Raises:
        ConfigError: A part does not fit the study or its sites, or its file is broken; or it sends arrays beside a
            robust rule that nothing bounds.
    """
    if study.recipe.robust is not None:
        for kind in list_outbound_payloads(study):
            if kind.is_mixed and not kind.is_metadata and not kind.is_bounded:
                raise ConfigError(
                    f"OutboundPayload {kind.name!r} of part {kind.role!r} does not say how algorithm.robust bounds "
                    "what one site sends. Name its arrays in PayloadSpec.averaged and set is_bounded, or leave "
                    "algorithm.robust out."
                )
    parts = {}
    for half in _server_halves(study):
        for part in half.start(study, sites, pretrained):
            parts[part.role] = part
    return parts


def list_client_state(study: Study, number: int) -> list[ClientState]:
    """Return what a site keeps of a study's parts after a round."""
    kept: list[ClientState] = []
    for module in load_modules(study):
        kept += module.SITE.list_client_state(study, number)
    return kept


def describe_kept(study: Study) -> list[str]:
    """Return in words what a study's sites keep of its parts beside their models, which the recipe speaks of."""
    return [kept.what for kept in list_client_state(study, study.total_rounds) if not kept.is_of_model]


def is_learning(study: Study, task: str, number: int) -> bool:
    """Return whether something learns in a task, in a round of the models or in one of a part's own."""
    return task == TRAIN or (number > study.last_training and task in study.recipe.extra_tasks)


def keeps_in_extra_rounds(study: Study) -> bool:
    """Return whether a site keeps something of the parts that learn in rounds of their own."""
    extra_tasks = {*study.recipe.extra_tasks}
    for module in load_modules(study):
        if extra_tasks & {*module.SITE.tasks} and module.SITE.list_client_state(study, study.total_rounds):
            return True
    return False


def leaves_state(study: Study, task: str, number: int) -> bool:
    """Return whether a task leaves a site the state from which its next round begins."""
    return task == TRAIN or (is_learning(study, task, number) and keeps_in_extra_rounds(study))


def list_outbound_payloads(study: Study) -> list[OutboundPayload]:
    """Return the kinds of all arrays that may leave a site in a study."""
    kinds: list[OutboundPayload] = []
    for half in _server_halves(study):
        kinds += half.outbound_payloads(study)
    return kinds


def find_test_task(study: Study) -> str:
    """Return the task by which a study's sites test the run's model."""
    for half in _server_halves(study):
        if half.test:
            return half.test.task
    return TEST


def find_outbound_payload(kinds: Iterable[OutboundPayload], role: str, name: str) -> OutboundPayload | None:
    """Return the kind of an array; None where it is no part of the study."""
    return next((kind for kind in kinds if kind.holds(role, name)), None)


def load_modules(study: Study) -> list[ModuleType]:
    """Return the files of a study's parts, each with the halves ``PART`` and ``SITE``, the models first."""
    recipe = study.recipe
    if study.asks_alone:
        return [_load_module(option.implementation) for option in recipe.options if option.traits.asks_alone]
    if not study.rounds:
        return [_load_module("silofl.parts.finished_model")]
    # The order matters: parts prepare, wrap the step and take the server's step in it, and the models come first.
    names = ["silofl.parts.model"]
    if recipe.collects_personal:
        names.append("silofl.parts.collected")
    if recipe.second_model == SecondModel.FINE_TUNED:
        names.append("silofl.parts.personal")
    names += [option.implementation for option in recipe.options if option.implementation]
    # DP-SGD wraps the steps of all others, and reference statistics and baseline comparison read a finished model.
    names.append("silofl.parts.dp_sgd" if study.is_private else "silofl.parts.reference_statistics")
    if study.compares_with_baseline or recipe.trains_alone:
        names.append("silofl.parts.baseline")
    # A file may be the part of several options.
    return [_load_module(name) for name in dict.fromkeys(names)]


def _server_halves(study: Study) -> list[type[Part]]:
    return [module.PART for module in load_modules(study) if module.PART]


def _load_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:
        path = name.removeprefix("silofl.").replace(".", "/")
        raise ConfigError(
            f"{path}.py cannot be loaded ({type(error).__name__}: {error}); repair it, or choose another algorithm"
        ) from error
