"""Write the reference of every key of study.yaml, ``docs/study.md``, from the schema that editors use.

python docs/site/study_page.py docs/study.md
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silofl.base.files import write_text
from silofl.base.settings import NAME, flatten_keys
from silofl.core.presets import algorithm_names, all_ingredients, find_recipe
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl_hospital.site.schema import study_schema

Schema = Mapping[str, Any]

WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false"}
NUMBERS = {2: "two", 3: "three", 6: "six"}
# The default of a key that may be left out and then has no value.
UNSET = "unset"
# A larger bound only catches slips of the pen; a reader learns nothing from it.
TOLD = 10**6


@dataclass(frozen=True)
class Key:
    """One key of a study.yaml.

    Attributes:
        name: The key, dotted from the top of the file.
        values: Its possible values, in words; empty of a section.
        default: Its default as YAML; None where it must be given.
        meaning: Its effect.
    """

    name: str
    values: str
    default: str | None
    meaning: str


def study_keys() -> list[Key]:
    """Return the keys that a study.yaml may hold, those of all algorithms among them."""
    definitions = study_schema()["$defs"]
    return list(_walk(definitions["Study"], definitions, ""))


def _walk(section: Schema, definitions: Schema, prefix: str) -> Iterator[Key]:
    """Go through the keys of a section and of all sections within it."""
    for name, value in section["properties"].items():
        inner = _find_section(value, definitions)
        if inner:
            yield Key(prefix + name, "", UNSET, inner["description"])
            yield from _walk(inner, definitions, f"{prefix}{name}.")
            continue
        is_required = name in section.get("required", ())
        default = None if is_required else _default_text(value.get("default"))
        yield Key(prefix + name, describe_values(value), default, value["description"])


def _find_section(value: Schema, definitions: Schema) -> Schema | None:
    """Return the section that a key holds, or holds unless null; None of a plain value."""
    for kind in (value, *value.get("anyOf", ())):
        found = definitions.get(kind.get("$ref", "").rpartition("/")[2], {})
        if "properties" in found:
            return found
    return None


def describe_values(value: Schema) -> str:
    """Describe in words the values that a schema allows."""
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2].removesuffix("Settings").lower()
    if "anyOf" in value:
        return ", or ".join(describe_values(one) for one in value["anyOf"] if one.get("type") != "null")
    if "enum" in value or "const" in value:
        return ", ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    if value.get("type") == "array":
        items = value.get("items") or value["prefixItems"][0]
        is_fixed = value.get("minItems") == value.get("maxItems") is not None
        number = f"{NUMBERS[value['minItems']]}: " if is_fixed else ""
        return f"list of {number}{describe_values(items)}"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"key: {describe_values(inner)}, ..." if isinstance(inner, dict) else "keys and values"
    if value.get("pattern") == NAME:
        return "name"
    return _describe_range(value)


def _describe_range(value: Schema) -> str:
    least, above = value.get("minimum"), value.get("exclusiveMinimum")
    below, most = value.get("exclusiveMaximum"), value.get("maximum")
    text = WORDS[value["type"]]
    if value["type"] == "integer" and above == 0:
        text = "count"
    elif above is not None:
        text += f" above {above}"
    elif least is not None and least > -TOLD:
        text += f" from {least}"
    if below is not None and below < TOLD:
        text += f" to below {below}"
    if most is not None and most < TOLD:
        text += f" to {most}"
    return text


def study_page() -> str:
    """Return the page."""
    keys = study_keys()
    inner = [key for key in keys if not key.values and "." not in key.name]
    # Of the sections of `algorithm` each constant has its own line.
    constants = [
        key for key in keys if key.name.startswith("algorithm.") and (not key.values or key.name.count(".") > 1)
    ]
    sections = ", ".join(f"[{key.name}](#{key.name})" for key in inner)
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
        f"- [The study](#the-study), {sections}",
        "- Algorithm: [constants](#constants), [presets](#presets)",
        "",
        "## The study",
        "",
        *(_key_item(key) for key in keys if key.values and "." not in key.name),
    ]
    for section in inner:
        within = [key for key in keys if key.name.startswith(f"{section.name}.") and key not in constants]
        lines += ["", f"## `{section.name}`", "", section.meaning, ""]
        lines += [_key_item(key) for key in within if key.values]
        if section.name == "algorithm":
            lines += ["", *_constants_page(constants), "", *_presets_page()]
    return "\n".join(lines) + "\n"


def _constants_page(keys: list[Key]) -> list[str]:
    lines = ["### Constants", "", f"Of [all {len(algorithm_names())} algorithms](algorithms.md):", ""]
    for key in keys:
        # Four spaces: two are enough for GitHub and not for the site.
        if key.values:
            lines.append(f"    {_key_item(key)}")
        elif any(other.name.startswith(f"{key.name}.") for other in keys):
            lines.append(f"- **{key.name.removeprefix('algorithm.')}**: {key.meaning}")
    return lines


def _presets_page() -> list[str]:
    """Return the values of presets that differ from the defaults, one line for those that are alike."""
    base = _preset_values(Recipe())
    for kind in all_ingredients():
        base |= {f"{kind.section}.{key}": field.default for key, field in kind.model_fields.items()}
    alike: dict[str, list[str]] = {}
    for name in algorithm_names():
        chosen: dict[str, list[str]] = {}
        for preset in PRESET_NAMES:
            values = _preset_values(find_recipe(name, preset, {}))
            differing = [f"`{key}: {_default_text(value)}`" for key, value in values.items() if base.get(key) != value]
            if differing:
                chosen.setdefault(", ".join(differing), []).append(preset)
        for keys, presets in chosen.items():
            word = "all" if len(presets) == len(PRESET_NAMES) else ", ".join(presets)
            alike.setdefault(f"{word}: {keys}", []).append(name)
    lines = ["### Presets", "", "Values of presets that differ from the defaults above:", ""]
    return [*lines, *(f"- {', '.join(names)}; {values}" for values, names in alike.items())]


def _preset_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's plain values and the constants of its answers by dotted key."""
    named = recipe.choices()
    plain = {key: named[key] for key in ("stays", "weights", "server_lr", "start_from_pretrained", "extra_rounds")}
    constants = {section: values for section, values in named["constants"].items() if values}
    return dict(flatten_keys(constants)) | plain


def _key_item(key: Key) -> str:
    return f"- `{key.name}` ({_mark_default(key)}): {key.meaning}"


def _mark_default(key: Key) -> str:
    """Return a key's values with its default in bold, which stands behind them where it is none of those listed."""
    if key.default in (None, UNSET):
        return key.values if key.default else f"{key.values}; required"
    named = key.values.split(", ")
    shown = next((one for one in (f"`{key.default}`", key.default) if one in named), None)
    return key.values.replace(shown, f"**{shown}**", 1) if shown else f"{key.values}; **`{key.default}`**"


def _default_text(value: object) -> str:
    """Return a plain value as a study.yaml would hold it, on one line."""
    if value is None:
        return UNSET
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), study_page())
