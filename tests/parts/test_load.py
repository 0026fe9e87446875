import importlib
import json
import pkgutil
import shutil
import subprocess
import sys
from dataclasses import fields
from itertools import cycle
from pathlib import Path

import pytest
import yaml

import silofl
from silofl import algorithms, parts
from silofl.base.errors import ConfigError
from silofl.core.presets import algorithm_names
from silofl.parts.load import find_kind, list_kinds, start_parts
from silofl.parts.part import Part
from silofl.parts.work import Work

from ..conftest import SMALL_UNET, assert_alike

INSTANCE = {"normalization": "instance"}
ROLES = {
    "fedavg": ["model", "usual"],
    "softpull": ["model", "softpull", "usual"],
    "local": ["model", "usual", "guard"],
    "harmofl": ["model", "amplitude", "usual"],
    "adafed": ["model", "statistics", "usual"],
}


@pytest.mark.parametrize("name", ROLES)
def test_a_study_has_the_models_and_what_its_recipe_sends_beside_them(make_study, name):
    assert list(start_parts(make_study(name=name), ["a", "b"], None)) == ROLES[name]


def test_the_models_come_first_and_every_part_is_known_by_its_role(make_study):
    study = make_study(name="fedsm", input="harmofl", model=INSTANCE)
    found = start_parts(study, ["a", "b"], None)
    assert list(found) == ["global", "personal", "amplitude", "softpull", "selector", "super_model", "usual"]
    assert all(part.role == role for role, part in found.items())
    assert_alike(found["global"].common, found["personal"].common)


def test_no_value_of_a_part_has_the_name_of_what_a_part_can_do():
    for package in (algorithms, parts):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found, abilities = Part.__subclasses__(), {name for name, value in vars(Part).items() if callable(value)}
    assert len(found) >= 10
    # A value with a default would take the place of the function.
    assert [kind for kind in found if {field.name for field in fields(kind)} & abilities] == []


def test_site_parts_are_those_of_the_same_files(make_study):
    study = make_study(name="fedsm", input="harmofl", model=INSTANCE)
    names = [half.name for half in Work("a", study, None, None, None).parts if half.name]
    assert names == ["models", "amplitude", "selector", "super_model"]


def test_an_array_is_of_the_kind_that_holds_it(make_study):
    sent = list_kinds(make_study(name="harmofl"))
    assert find_kind(sent, "amplitude", "mean").name == "amplitude"
    assert find_kind(sent, "model", "network.model.2.conv.weight").name == "weights"
    assert find_kind(sent, "selector", "network.model.2.conv.weight") is None
    assert len({(kind.role, kind.name) for kind in sent}) == len(sent)


# --- files that are broken, or half written


BROKEN = {
    "name that is not there": ("print(nothing)\nPRESETS = {}\n", "NameError: name 'nothing' is not defined"),
    "half a line": ("def start(\n\nPRESETS = {\n", "SyntaxError: "),
}
RUN = """
import sys
from pathlib import Path
from silofl.base.errors import ConfigError
from silofl_desk.studies.alone import run_alone
from silofl.setup.site import Site
from silofl.study import load_study

folder, data = map(Path, sys.argv[1:])
for path in sorted(folder.glob("*.yaml")):
    states = f"{folder}/{path.stem}/sites/{{site}}"
    site = Site(data=f"{data}/{{site}}", state_dir=states, cache_dir=f"{folder}/cache", has_progress=False)
    try:
        run_alone(load_study(path), folder / path.stem, ["east", "west"], site, None)
    except ConfigError as error:
        print(path.stem, error)
"""


def test_broken_files_are_named_in_one_sentence_by_the_studies_that_name_them_and_disturb_no_other(tmp_path, site_data):
    # With what is compiled of it, which the time of a changed file outdates.
    package = shutil.copytree(Path(silofl.__file__).parent, tmp_path / "custom" / "silofl")
    spoil = cycle(content for content, _ in BROKEN.values())
    # FedAvg's own file holds the mean by examples, which the engine falls back to.
    others = [name for name in algorithm_names() if name not in ("fedavg", "harmofl", "adafed")]
    assert {"fedsm", "softpull", "fedprox"} <= set(others)
    spoilt = [f"algorithms/{name}" for name in (*others, "unfinished")]
    for name in (*spoilt, "parts/personal", "parts/collected", "parts/dp_sgd"):
        folder = package / name
        (folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")).write_text(next(spoil))
    (wrong, reason), (half, reason_of_half) = BROKEN.values()
    (package / "algorithms" / "harmofl" / "__init__.py").write_text(wrong)
    (package / "algorithms" / "adafed" / "statistics.py").write_text(half)
    for name in ("fedavg", "harmofl", "adafed"):
        study = {"name": "small", "task": "segmentation", "labels": {1: "blob"}, "rounds": 2, "guard": False}
        study |= {"device": "cpu", "model": SMALL_UNET, "training": {"batch_size": 2}, "algorithm": {"name": name}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(study))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), str(site_data)],
        env={"PYTHONPATH": str(package.parent), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    results = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/results.json")}
    assert results.keys() == {"fedavg", "adafed"}
    assert (results["fedavg"]["status"], results["fedavg"]["reasons"]) == ("COMPLETE", [])
    (named,) = done.stdout.splitlines()
    assert named.startswith("harmofl") and f"algorithms/harmofl must load; {reason}" in named
    assert "repair it, or name another one" in named
    assert results["adafed"]["status"] == "FAILED"
    (sentence,) = results["adafed"]["reasons"]
    assert sentence.startswith(f"algorithms/adafed/statistics.py must load; {reason_of_half}")
    assert sentence.endswith(": repair it, or choose another algorithm")


def test_a_part_that_is_not_there_is_named_too(make_study, monkeypatch):
    study = make_study(name="adafed")
    monkeypatch.setattr(type(study.recipe.mixing), "implementation", "silofl.algorithms.not_written_yet")
    with pytest.raises(ConfigError, match="algorithms/not_written_yet.py must load; ModuleNotFoundError"):
        start_parts(study, ["a", "b"], None)
