"""Write the reference of every key of study.yaml, ``docs/study.md``, from the settings classes.

    python -m silofl_desk.studies.reference docs/study.md

A key's values and default come from its type, its meaning from the docstring of the class that holds it.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import BaseMetadata, Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from silofl.base.files import write_text
from silofl.base.schema import read_meanings, read_summary
from silofl.base.settings import NAME, flatten_keys
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.presets import algorithm_names, all_ingredients, find_recipe
from silofl.core.recipe import PRESET_NAMES, WITHOUT, Recipe
from silofl.core.robust import Robust
from silofl.study import Study

WORDS = {int: "whole number", float: "number", str: "text", bool: "true, false", Any: "anything"}
NUMBERS = {2: "two", 6: "six"}
# A whole number above 0.
COUNT = "count"
# The default of a key that may be left out and then has no value.
UNSET = "unset"
# A larger bound only catches slips of the pen; a reader learns nothing from it.
TOLD = 10**6


@dataclass(frozen=True)
class Key:
    """One key of a settings section.

    Attributes:
        name: The key, dotted from the top of the file.
        values: Its possible values, in words.
        default: Its default as YAML; None where it must be given.
        meaning: Its effect.
        inner: The settings class of a section; None for a plain value.
    """

    name: str
    values: str
    default: str | None
    meaning: str
    inner: type | None


def list_keys(section: type, prefix: str = "") -> list[Key]:
    """Return the keys of a settings class, pydantic model or dataclass, without those of its inner sections."""
    hints, meanings, found = get_type_hints(section, include_extras=True), read_meanings(section), []
    for name, default in _defaults(section).items():
        inner = _find_section(hints[name])
        text = None if default is PydanticUndefined or inner else _default_text(default)
        meaning = read_summary(inner) if inner else meanings.get(name, "")
        found.append(Key(prefix + name, "" if inner else describe_values(hints[name]), text, meaning, inner))
    return found


def all_keys(section: type, prefix: str = "") -> Iterator[Key]:
    """Go through the keys of a settings class and of all sections within it."""
    for key in list_keys(section, prefix):
        yield key
        if key.inner:
            yield from all_keys(key.inner, f"{key.name}.")


def study_keys(answers: Iterable[type[AlgorithmOption]]) -> Iterator[Key]:
    """Go through the keys that a study.yaml may hold.

    Args:
        answers: Those of the study's recipe, or of all algorithms.
    """
    yield from all_keys(Study)
    yield from recipe_keys()
    for answer in answers:
        yield from list_keys(answer, f"algorithm.{answer.section}.")


def recipe_keys(lenders: Callable[[str], str] = lambda field: "the name of an algorithm that has one") -> list[Key]:
    """Return the keys of a recipe.

    Args:
        lenders: Names the algorithms that have an answer of the recipe; the default loads no algorithm's file.
    """
    hints, meanings = get_type_hints(Recipe, include_extras=True), read_meanings(Recipe)
    keys = []
    for name, default in _defaults(Recipe).items():
        default = WITHOUT.get(name, default)
        # No algorithm has a rule of its own.
        other = describe_values(Robust.model_fields["rule"].annotation) if name == Robust.section else lenders(name)
        values = f"`{default}`, or {other}" if name in WITHOUT else describe_values(hints[name])
        keys.append(Key(f"algorithm.{name}", values, _default_text(default), meanings[name], None))
    return keys


def _list_lenders(field: str) -> str:
    """Return the names of the algorithms that have an answer of their own."""
    recipes = {name: find_recipe(name, "recommended", {}) for name in algorithm_names()}
    names = ", ".join(f"`{name}`" for name, recipe in recipes.items() if getattr(recipe, field))
    return f"list of {names}" if field == "parts" else names


def describe_values(kind: object) -> str:
    """Describe the values of a type in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _add_bounds(describe_values(inner[0]), _collect_constraints(inner[1:]))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return ", or ".join(describe_values(one) for one in inner if one is not NoneType)
    if origin is tuple and inner[-1] is Ellipsis:
        return f"list of {describe_values(inner[0])}"
    if origin is tuple:
        return f"list of {NUMBERS.get(len(inner), len(inner))}: {describe_values(inner[0])}"
    if origin is dict:
        return f"{describe_values(inner[0])}: {describe_values(inner[1])}, ..."
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.__name__.removesuffix("Settings").lower()
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def study_page() -> str:
    """Return the page."""
    sections = [key.name for key in list_keys(Study) if key.inner]
    lines = [
        "# study.yaml",
        "",
        "All that a study lead decides, in one file for all machines: `app/config/study.yaml` of a job. Defaults are",
        "bold; a key without one is unset. A *name* has letters, digits, `.`, `_` and `-`, a *count* is a whole number",
        "above 0.",
        "`silofl simulate`, `compare` and `estimate` set keys for one run: `--set training.learning_rate=0.01`.",
        "`--set algorithm.name=ditto` also drops the job's other keys of `algorithm`. What a site decides is in its",
        "[site.yaml](../site_configs/README.md#siteyaml). After `silofl schema study > study.schema.json` an",
        "editor checks files that begin with `# yaml-language-server: $schema=study.schema.json`.",
        "",
        f"- [The study](#the-study), {', '.join(f'[{name}](#{name})' for name in sections)}",
        "- Algorithm: [constants](#constants), [presets](#presets)",
        "",
        *_section_page("The study", Study, "", with_summary=False),
    ]
    for key in list_keys(Study):
        if key.inner and key.name == "algorithm":
            lines += _algorithm_page(key.inner)
        elif key.inner:
            lines += _section_page(f"`{key.name}`", key.inner, f"{key.name}.")
    return "\n".join(lines).rstrip() + "\n"


def _algorithm_page(settings: type) -> list[str]:
    lines = _section_page("`algorithm`", settings, "algorithm.")
    lines += [
        "The following keys override the preset. The name of an algorithm takes over what that algorithm does there;"
    ]
    lines += [f"[all {len(algorithm_names())}](algorithms.md) are in one table:"]
    lines += ["", *map(_key_item, recipe_keys(_list_lenders)), ""]
    lines += ["### Constants", ""]
    for answer in filter(list_keys, all_ingredients()):
        lines += [f"- **{answer.section}**: {read_summary(answer)}"]
        # Four spaces: two are enough for GitHub and not for the site.
        lines += [f"    {_key_item(key)}" for key in list_keys(answer, f"algorithm.{answer.section}.")]
    lines += [""]
    lines += ["### Presets", "", "Values of presets that differ from the defaults above:", ""]
    base = _preset_values(Recipe())
    base |= {f"{one.section}.{key}": value for one in all_ingredients() for key, value in _defaults(one).items()}
    alike: dict[str, list[str]] = {}
    for name in algorithm_names():
        chosen: dict[str, list[str]] = {}
        for preset in PRESET_NAMES:
            values = _preset_values(find_recipe(name, preset, {}))
            differing = [f"`{key}: {_default_text(value)}`" for key, value in values.items() if base.get(key) != value]
            if differing:
                chosen.setdefault(", ".join(differing), []).append(preset)
        for keys, of in chosen.items():
            presets = "all" if len(of) == len(PRESET_NAMES) else ", ".join(of)
            alike.setdefault(f"{presets}: {keys}", []).append(name)
    return [*lines, *(f"- {', '.join(names)}; {values}" for values, names in alike.items()), ""]


def _preset_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's plain values and the constants of its answers by dotted key."""
    named = recipe.as_dict()
    plain = {key: named[key] for key in ("stays_home", "weights", "server_lr", "start_from_pretrained", "extra_rounds")}
    constants = {section: values for section, values in named["constants"].items() if values}
    return dict(flatten_keys(constants)) | plain


def _section_page(title: str, section: type, prefix: str, with_summary: bool = True) -> list[str]:
    lines = [f"## {title}", ""]
    lines += [read_summary(section), ""] if with_summary else []
    return [*lines, *_key_items(section, prefix), ""]


def _key_items(section: type, prefix: str) -> Iterator[str]:
    """Go through the list of a section's keys; below the top of the file, with those of inner sections."""
    for key in list_keys(section, prefix):
        if key.inner and prefix:
            yield from _key_items(key.inner, f"{key.name}.")
        elif not key.inner:
            yield _key_item(key)


def _key_item(key: Key) -> str:
    return f"- `{key.name}` ({_mark_default(key)}): {key.meaning}"


def _mark_default(key: Key) -> str:
    """Return a key's values with its default in bold, which stands behind them where it is none of those listed."""
    if key.default in (None, UNSET):
        return key.values if key.default else f"{key.values}; required"
    named = key.values.split(", ")
    shown = next((one for one in (f"`{key.default}`", key.default) if one in named), None)
    return key.values.replace(shown, f"**{shown}**", 1) if shown else f"{key.values}; **`{key.default}`**"


def _defaults(section: type) -> dict[str, Any]:
    """Return a class's fields with their defaults, undefined where a value must be given."""
    if issubclass(section, BaseModel):
        return {name: field.get_default(call_default_factory=True) for name, field in section.model_fields.items()}
    missing = dataclasses.MISSING
    return {
        field.name: PydanticUndefined if field.default is missing else field.default
        for field in dataclasses.fields(section)
    }


def _find_section(kind: object) -> type | None:
    """Return the settings class that a type is, or is unless None; None for the type of a plain value."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for one in kinds:
        if isinstance(one, type) and (issubclass(one, BaseModel) or dataclasses.is_dataclass(one)):
            return one
    return None


def _collect_constraints(metadata: tuple[Any, ...]) -> list[BaseMetadata]:
    found = []
    for one in metadata:
        found += _collect_constraints(tuple(one.metadata)) if isinstance(one, FieldInfo) else [one]
    return found


def _add_bounds(text: str, constraints: list[BaseMetadata]) -> str:
    told = [one for one in constraints if all(abs(getattr(one, kind, 0)) < TOLD for kind in ("ge", "gt", "le", "lt"))]
    bounds = {kind: next((c for c in told if isinstance(c, kind)), None) for kind in (Gt, Ge, Lt, Le)}
    if text == WORDS[int] and bounds[Gt] and bounds[Gt].gt == 0:
        text = COUNT
    elif bounds[Gt]:
        text += f" above {bounds[Gt].gt}"
    elif bounds[Ge]:
        text += f" from {bounds[Ge].ge}"
    if bounds[Lt]:
        text += f" to below {bounds[Lt].lt}"
    if bounds[Le]:
        text += f", at most {bounds[Le].le}" if bounds[Gt] else f" to {bounds[Le].le}"
    # A bound says by itself that it is of a number.
    text = text.removeprefix(f"{WORDS[float]} ")
    if any(getattr(constraint, "pattern", None) == NAME for constraint in constraints):
        text = "name"
    least, most = (next((c for c in constraints if isinstance(c, kind)), None) for kind in (MinLen, MaxLen))
    if least and most and least.min_length == most.max_length:
        return text.replace("list of", f"list of {NUMBERS.get(least.min_length, least.min_length)}:", 1)
    return text


def _default_text(value: object) -> str:
    """Return a plain value as a study.yaml would hold it, on one line."""
    if value is None:
        return UNSET
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), study_page())
