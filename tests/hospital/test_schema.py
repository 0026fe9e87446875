"""The schemas for editors: they take what the commands take, and mark what an editor should mark."""

import json
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from docs.site.study_page import study_keys
from silofl.command_line.cli import main
from silofl.setup.site import Site
from silofl_hospital.site.schema import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "jobs").glob("*/app/config/study.yaml"))
SITES = sorted((ROOT / "site_configs").glob("*/site.yaml"))


@cache
def checker(file):
    schema = SCHEMAS[file]()
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema)


def read_plain(path):
    """Return a YAML file as an editor sees it, with keys that are text."""
    return json.loads(json.dumps(yaml.safe_load(path.read_text())))


def faults(file, values):
    return [error.message for error in checker(file).iter_errors(values)]


FILES = [("study", path) for path in STUDIES] + [("site", path) for path in SITES]


@pytest.mark.parametrize(("file", "path"), FILES, ids=str)
def test_no_bundled_file_has_a_mark(file, path):
    assert faults(file, read_plain(path)) == []


def schema_of(key):
    """Return the schema of a dotted key of a study."""
    schema = checker("study").schema
    for part in key.split("."):
        while "$ref" in schema or "anyOf" in schema:
            forms = [form["$ref"] for form in schema.get("anyOf", [schema]) if "$ref" in form]
            schema = checker("study").schema["$defs"][forms[0].rpartition("/")[2]]
        schema = schema["properties"][part]
    return schema


def test_a_schema_explains_every_key_and_no_other():
    keys = [key for key in study_keys() if key.values]
    assert len(keys) > 130
    for key in keys:
        assert not key.meaning or schema_of(key.name)["description"]
    assert schema_of("algorithm.name").keys() >= {"enum", "description"}
    assert checker("site").schema["properties"].keys() == Site.model_fields.keys()


STUDY = {"name": "own", "task": "segmentation", "labels": {"1": "organ"}, "rounds": 4, "algorithm": {"name": "fedavg"}}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"round": 4}, "'round' was unexpected"),
        ({"rounds": -1}, "-1 is less than the minimum of 0"),
        ({"metric": "dise"}, "'dise' is not one of"),
        ({"training": {"lr": 0.1}}, "'lr' was unexpected"),
        ({"algorithm": {"name": "fedavgg"}}, "'fedavgg' is not one of"),
        ({"algorithm": {"name": "fedsm", "selektor": {}}}, "'selektor' was unexpected"),
        ({"algorithm": {"name": "fedsm", "selector": {"steps": 0}}}, "0 is less than or equal to the minimum of 0"),
        ({"algorithm": {"name": "fedavg", "robust": "clippd"}}, "'clippd' is not valid under any"),
        ({"algorithm": {"name": "fedavg", "parts": ["fedsn"]}}, "'fedsn' is not one of"),
    ],
)
def test_a_slip_in_a_study_is_marked(change, part):
    assert faults("study", STUDY) == []
    (message,) = faults("study", STUDY | change)
    assert part in message


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"name": "fedavg", "robust": "clipped", "step": "fedprox", "parts": ["fedsm"]}},
        {"algorithm": {"name": "fedavg", "robust": {"rule": "trimmed_mean", "attackers": 2}, "server_lr": 0.5}},
        {"data": {"transforms": ["Flip", {"Resize": {"spatial_size": [8, 8]}}]}},
        {
            "torch_threads": "auto",
            "federation": {"sites": ["north", "south"]},
            "training": {"class_weights": "balanced"},
        },
    ],
)
def test_all_forms_of_a_value_are_taken(change):
    assert faults("study", STUDY | change) == []


def test_the_command_prints_the_schema(capsys):
    for file, schema in SCHEMAS.items():
        assert main(["schema", file]) == 0
        assert json.loads(capsys.readouterr().out) == schema()
