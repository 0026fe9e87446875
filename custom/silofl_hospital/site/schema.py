"""JSON schemas of study.yaml and site.yaml, by which editors complete, explain and check each key."""

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from silofl.base.errors import ExitCode
from silofl.base.schema import read_meanings, read_summary
from silofl.core.presets import algorithm_names, all_ingredients, load_presets
from silofl.core.recipe import PRESET_NAMES, WITHOUT, Recipe
from silofl.setup.site import Site
from silofl.study import Study

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "minLength": 1}
# Study.data.transforms, which a validator of its own reads: a name, or a name with its arguments.
TRANSFORM: Schema = {"anyOf": [TEXT, {"type": "object", "minProperties": 1}]}
# Pydantic leaves its own words for bounds of numbers that a validator of ours looks at first.
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def run(options: argparse.Namespace) -> int:
    """Print a schema."""
    print(json.dumps(SCHEMAS[options.file](), indent=1, ensure_ascii=False))
    return ExitCode.COMPLETE


class _ExplainedSchema(GenerateJsonSchema):
    """Pydantic's schemas, with what the docstring of a settings class says of each key."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def generate_inner(self, schema: Any) -> Schema:  # noqa: ANN401 - of several types
        return {BOUNDS.get(key, key): value for key, value in super().generate_inner(schema).items()}

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        made = super().model_schema(schema)
        kind = schema["cls"]
        return made | {"description": read_summary(kind), "properties": _explain(made.get("properties", {}), kind)}


def study_schema() -> Schema:
    """Return the schema of study.yaml, with the keys of every algorithm."""
    classes: list[Any] = [(settings, "validation") for settings in (Study, Recipe, *all_ingredients())]
    schemas, schema = models_json_schema(classes, schema_generator=_ExplainedSchema)
    # In the order of the classes.
    study, _, *sections = schemas.values()
    definitions = schema["$defs"]
    definitions["Transform"] = TRANSFORM | {"description": definitions["Transform"]["description"]}
    keys = definitions["AlgorithmSettings"]["properties"]
    keys["name"]["enum"] = algorithm_names()
    keys["preset"]["enum"] = [*PRESET_NAMES]
    for settings, section in zip(all_ingredients(), sections, strict=True):
        keys[settings.section] = section
    # An answer is borrowed by the name of its algorithm; a rule has one of its own, or constants.
    answers = definitions.pop("Recipe")["properties"]
    for name, word in WITHOUT.items():
        answers[name] = {"enum": [word, *_list_lenders(name)], "default": word}
    answers["parts"] = {"type": "array", "items": {"enum": _list_lenders("parts")}, "default": []}
    rules = [WITHOUT["robust"], *definitions["Robust"]["properties"]["rule"]["enum"]]
    answers["robust"] = {"anyOf": [{"enum": rules}, keys["robust"]]}
    keys |= _explain(answers, Recipe)
    definitions["AlgorithmSettings"]["additionalProperties"] = False
    return study | schema


def _list_lenders(field: str) -> list[str]:
    """Return the algorithms that have an answer of their own."""
    return [name for name in algorithm_names() if getattr(load_presets(name)["recommended"], field)]


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "study": study_schema,
    "site": partial(Site.model_json_schema, schema_generator=_ExplainedSchema),
}


def _explain(properties: Mapping[str, Schema], kind: type) -> dict[str, Schema]:
    meanings = read_meanings(kind)
    return {key: one | ({"description": meanings[key]} if key in meanings else {}) for key, one in properties.items()}
