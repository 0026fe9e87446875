"""Find an algorithm's presets by its name, and put a study's choices in their place.

An algorithm is a file or folder of ``algorithms/`` that defines ``PRESETS``; of all others none is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from silofl.base.errors import ConfigError, quote_value, suggest_nearest
from silofl.base.settings import describe_validation_error
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.recipe import PRESET_NAMES, WITHOUT, Recipe
from silofl.core.robust import Robust

ALGORITHMS = Path(__file__).parents[1] / "algorithms"
# What release 0.4 had, with what to do instead.
REMOVED = {
    "oneshot": "Choose fedavg. The mean of the sites' own models is tested by local with --leave-out.",
    "plan": "Run jobs/survey_hospitals, and give its survey.json to silofl new-study --survey, which chooses spacing, "
    "patch and window.",
    "monthly_answers": "Ask the hospitals to run silofl monitor.",
}


def algorithm_names() -> list[str]:
    """Return the names of all algorithms, the files and folders of ``algorithms/`` that define ``PRESETS``."""
    # Read and not imported: a half-written file must not disturb a study that does not name it.
    paths = {path.stem: path for path in ALGORITHMS.glob("*.py")}
    paths |= {path.parent.name: path for path in ALGORITHMS.glob("*/__init__.py")}
    names = []
    for name, path in paths.items():
        if "\nPRESETS" in path.read_text(encoding="utf-8", errors="replace"):
            names.append(name)
    return sorted(names)


def all_ingredients() -> list[type[AlgorithmOption]]:
    """Return the classes of all answers, those of the algorithms' recommended presets and `Robust`, by sections."""
    classes: set[type[AlgorithmOption]] = {Robust}
    for name in algorithm_names():
        classes.update(type(option) for option in load_presets(name)["recommended"].options)
    return sorted(classes, key=lambda option: option.section)


def load_presets(algorithm: str) -> Mapping[str, Recipe]:
    """Load one algorithm's presets, and no other algorithm's file.

    Raises:
        ConfigError: There is no such algorithm, or its file is broken.
    """
    _require_known("algorithm.name", algorithm, algorithm_names())
    try:
        presets: Mapping[str, Recipe] = importlib.import_module(f"silofl.algorithms.{algorithm}").PRESETS
        return presets
    except Exception as error:
        raise ConfigError(
            f"algorithms/{algorithm} cannot be loaded ({type(error).__name__}: {error}); repair it, or name another one"
        ) from error


def find_recipe(algorithm: str, preset: str, changes: Mapping[str, object]) -> Recipe:
    """Return an algorithm's preset with the study's choices in place of the preset's.

    Args:
        algorithm: Name of a file or folder of ``algorithms/`` that defines ``PRESETS``.
        preset: ``paper``, ``reference`` or ``recommended``.
        changes: Fields of `Recipe`, and constants by the sections of its answers.

    Raises:
        ConfigError: An unknown algorithm, preset, field, section or constant, or answers that do not go together.
        ValidationError: A field of `Recipe` is out of range.
    """
    refuse_removed(algorithm)
    changes = dict(changes)
    # Release 0.4 had this key, with 0 for no mean of rounds.
    if changes.pop("average_last", 0):
        raise ConfigError(
            "The key average_last of algorithm is not in this version any more. Remove it: the best round by "
            "validation is reported."
        )
    presets = load_presets(algorithm)
    _require_known("algorithm.preset", preset, PRESET_NAMES)
    names = [field.name for field in fields(Recipe)]
    # Answers first, then constants: which sections there are depends on which answers were chosen.
    chosen: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for name, value in changes.items():
        if name in names:
            chosen[name] = _resolve_choice(name, value)
        else:
            sections[name] = value
    recipe = replace(presets[preset], **chosen)
    if recipe.robust and "robust" in changes:
        # It may be chosen by the name of its rule alone, or with constants.
        rule = changes["robust"]
        sections[recipe.robust.section] = {"rule": rule} if isinstance(rule, str) else rule
    known = ["name", "preset", *names, *(option.section for option in recipe.options)]
    for name in sections:
        _require_known("a key of algorithm", name, known)
    changed = {option.section: _apply_constants(option, sections.get(option.section, {})) for option in recipe.options}

    def new(option: AlgorithmOption | None) -> Any:  # noqa: ANN401
        return option and changed[option.section]

    recipe = replace(
        recipe,
        input=new(recipe.input),
        step=new(recipe.step),
        mixing=new(recipe.mixing),
        robust=new(recipe.robust),
        parts=tuple(changed[option.section] for option in recipe.parts),
    )
    _check_recipe(recipe, sections)
    return recipe


def refuse_removed(algorithm: object) -> None:
    """Refuse an algorithm that an earlier release had.

    Raises:
        ConfigError: Names the algorithm, and what to choose instead.
    """
    if algorithm in REMOVED:
        raise ConfigError(f"Algorithm {algorithm!r} is not in this version any more. {REMOVED[str(algorithm)]}")


def _resolve_choice(field: str, value: object) -> object:
    if field not in WITHOUT:
        return value
    if field == "robust":
        return None if value in (None, WITHOUT[field]) else Robust()
    if field == "parts":
        if not isinstance(value, list | tuple):
            raise ConfigError(f"algorithm.parts must be a list of algorithms' names, not {quote_value(value)}")
        parts: list[AlgorithmOption] = []
        for name in value:
            parts += _borrow_answer(field, name)
        return tuple(parts)
    return None if value == WITHOUT[field] else _borrow_answer(field, value)


def _borrow_answer(field: str, algorithm: object) -> Any:  # noqa: ANN401
    refuse_removed(algorithm)
    option = None
    names = algorithm_names()
    suggestion = suggest_nearest(algorithm, [str(WITHOUT[field]), *names])
    if algorithm in names:
        option = getattr(load_presets(str(algorithm))["recommended"], field)
        suggestion = ""
    if not option:
        raise ConfigError(
            f"algorithm.{field} must be {WITHOUT[field]} or the name of an algorithm that has its own, not "
            f"{quote_value(algorithm)}{suggestion}"
        )
    return option


def _apply_constants(option: AlgorithmOption, constants: object) -> AlgorithmOption:
    where = f"algorithm.{option.section}"
    if not isinstance(constants, Mapping):
        raise ConfigError(
            f"{where} must hold constants, {', '.join(type(option).model_fields)}, not {quote_value(constants)}; "
            "write one a line"
        )
    try:
        # Not model_copy(update=...), which does not validate.
        return type(option).model_validate(option.model_dump() | dict(constants))
    except ValidationError as error:
        raise ConfigError(f"{where}.{describe_validation_error(error, type(option))}") from None


def _check_recipe(recipe: Recipe, sections: Mapping[str, Any]) -> None:
    """Refuse constants that would do nothing, and answers that do not go together."""
    for option in recipe.options:
        for name, (key, values) in option.only_with.items():
            if name in sections.get(option.section, ()) and getattr(option, key) not in values:
                raise ConfigError(
                    f"algorithm.{option.section}.{name} does nothing without {option.section}.{key}: "
                    f"{' or '.join(values)}; leave it out"
                )
    for option in recipe.options:
        if sentence := option.conflict(recipe):
            raise ConfigError(f"algorithm: {sentence}")
    if recipe.start_from_pretrained and recipe.input is not None:
        raise ConfigError(
            "the pretrained model has seen images as they are, and algorithm.input changes them; set algorithm.input "
            "to none, or start_from_pretrained to false"
        )
    if recipe.start_from_pretrained and len(recipe.traveling_roles) > 1:
        raise ConfigError(
            "a global and a personalised model, trained side by side, cannot both start from the pretrained one; set "
            "algorithm.start_from_pretrained to false"
        )


def _require_known(thing: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not known, with the nearest one."""
    if name not in known:
        raise ConfigError(
            f"{thing} must be one of {', '.join(known)}, not {quote_value(name)}{suggest_nearest(name, known)}"
        )
