"""Load the parts of a study: the models, and those that its recipe's answers name; no other file is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from silofl.base.errors import ConfigError
from silofl.core.mixing import Arrays
from silofl.parts.part import Kept, Kind, Part
from silofl.parts.task import TEST, TRAIN
from silofl.study import Study

if TYPE_CHECKING:
    from silofl.parts.work import SitePart


def start_parts(study: Study, sites: Sequence[str], pretrained: Arrays | None) -> dict[str, Part]:
    """Return the server halves at a run's start by role, the models first.

    Raises:
        ConfigError: A part does not fit the study or its sites, or its file is broken; or it sends arrays beside a
            robust rule that nothing bounds.
    """
    if study.recipe.robust is not None:
        for kind in list_kinds(study):
            if kind.is_mixed and not kind.is_entry and not kind.is_bounded:
                raise ConfigError(
                    f"Kind {kind.name!r} of part {kind.role!r} does not say how algorithm.robust bounds what one site "
                    "sends. Name its arrays in Wanted.averaged and set is_bounded, or leave algorithm.robust out."
                )
    parts = [part for half in _server_halves(study) for part in half.start(study, sites, pretrained)]
    return {part.role: part for part in parts}


def site_implementations(study: Study) -> list[type[SitePart]]:
    """Return the classes of the site halves, the models' first."""
    return [module.SITE for module in _load_modules(study)]


def list_kept(study: Study, number: int) -> list[Kept]:
    """Return what a site keeps of a study's parts after a round."""
    return [one for module in _load_modules(study) for one in module.SITE.list_kept(study, number)]


def describe_kept(study: Study) -> list[str]:
    """Return in words what a study's sites keep of its parts beside their models, which the recipe speaks of."""
    return [one.what for one in list_kept(study, study.total_rounds) if not one.is_of_model]


def is_learning(study: Study, task: str, number: int) -> bool:
    """Return whether something learns in a task, in a round of the models or in one of a part's own."""
    return task == TRAIN or (number > study.last_training and task in study.recipe.extra_tasks)


def keeps_in_extra_rounds(study: Study) -> bool:
    """Return whether a site keeps something of the parts that learn in rounds of their own."""
    own = [module.SITE for module in _load_modules(study) if {*module.SITE.tasks} & {*study.recipe.extra_tasks}]
    return any(half.list_kept(study, study.total_rounds) for half in own)


def leaves_state(study: Study, task: str, number: int) -> bool:
    """Return whether a task leaves a site the state from which its next round begins."""
    return task == TRAIN or (is_learning(study, task, number) and keeps_in_extra_rounds(study))


def list_kinds(study: Study) -> list[Kind]:
    """Return the kinds of all arrays that may leave a site in a study."""
    return [kind for half in _server_halves(study) for kind in half.kinds(study)]


def find_test_task(study: Study) -> str:
    """Return the task by which a study's sites test the run's model."""
    return next((half.test.task for half in _server_halves(study) if half.test), TEST)


def find_kind(kinds: Iterable[Kind], role: str, name: str) -> Kind | None:
    """Return the kind of an array; None where it is no part of the study."""
    return next((kind for kind in kinds if kind.holds(role, name)), None)


def _server_halves(study: Study) -> list[type[Part]]:
    return [module.PART for module in _load_modules(study) if module.PART]


def _load_modules(study: Study) -> list[ModuleType]:
    recipe = study.recipe
    if study.asks_alone:
        return [_load_module(one.implementation) for one in recipe.options if one.traits.asks_alone]
    if not study.rounds:
        return [_load_module("silofl.parts.finished_model")]
    shared = (
        ("model", True),
        ("collected", recipe.collects_personal),
        ("personal", recipe.tunes_personal),
    )
    beside = (
        ("dp_sgd", study.is_private),
        ("usual", not study.is_private),
        ("guard", study.is_guarded or recipe.trains_alone),
    )
    first, last = ([f"silofl.parts.{name}" for name, is_on in parts if is_on] for parts in (shared, beside))
    own = [one.implementation for one in recipe.options if one.implementation]
    return [_load_module(name) for name in dict.fromkeys([*first, *own, *last])]


def _load_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:
        path = name.removeprefix("silofl.").replace(".", "/")
        raise ConfigError(
            f"{path}.py must load; {type(error).__name__}: {error}: repair it, or choose another algorithm"
        ) from error
