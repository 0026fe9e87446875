import importlib
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
from silofl.core.presets import algorithm_names
from silofl.errors import ConfigError
from silofl.parts.load import find_kind, list_kinds, start_parts
from silofl.parts.part import Part
from silofl.parts.work import Work

from ..conftest import SMALL_UNET, UNET, assert_alike

NETWORK = UNET

INSTANCE = {"normalization": "instance"}
ROLES = {
    "fedavg": ["model"],
    "softpull": ["model", "softpull"],
    "local": ["model"],
    "harmofl": ["model", "amplitude"],
    "adafed": ["model", "statistics"],
}


@pytest.mark.parametrize("name", ROLES)
def test_a_study_has_the_models_and_what_its_recipe_sends_beside_them(make_study, name):
    assert list(start_parts(make_study(name=name), ["a", "b"], None)) == ROLES[name]


def test_the_models_come_first_and_every_part_is_known_by_its_role(make_study):
    study = make_study(name="fedsm", input="harmofl", model=INSTANCE)
    found = start_parts(study, ["a", "b"], None)
    assert list(found) == ["global", "personal", "amplitude", "softpull", "selector", "super_model"]
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


def test_site_halves_are_those_of_the_same_files(make_study):
    study = make_study(name="fedsm", input="harmofl", model=INSTANCE)
    names = [half.name for half in Work("a", study, None, None, None).parts if half.name]
    assert names == ["models", "amplitude", "selector", "super_model"]


def test_an_array_is_of_the_kind_that_holds_it(make_study):
    sent = list_kinds(make_study(name="harmofl"))
    assert find_kind(sent, "amplitude", "mean").name == "amplitude"
    assert find_kind(sent, "model", "network.final_conv.weight").name == "weights"
    assert find_kind(sent, "selector", "network.final_conv.weight") is None
    assert len({(kind.role, kind.name) for kind in sent}) == len(sent)


# --- files that are broken, or half written


BROKEN = {
    "name that is not there": ("print(nothing)\nPRESETS = {}\n", "NameError: name 'nothing' is not defined"),
    "half a line": ("def start(\n\nPRESETS = {\n", "SyntaxError: "),
}
RUN = """
import sys
from dataclasses import fields
from pathlib import Path
from silofl.federation.alone import run_alone
from silofl.site import Site
from silofl.study import load_study

study, data, out = map(Path, sys.argv[1:])
run_alone(
    load_study(study),
    out,
    ["east", "west"],
    Site(data=f"{data}/{{site}}", state_dir=f"{out}/sites/{{site}}", cache_dir=f"{out}/cache", has_progress=False),
    None,
)
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package, to be spoilt; with what is compiled of it, which the time of a changed file outdates."""
    shutil.copytree(Path(silofl.__file__).parent, tmp_path / "custom" / "silofl")
    return tmp_path / "custom" / "silofl"


@pytest.fixture
def carry_out(tmp_path, site_data, package):
    """Carry out a small study with the spoilt package; returns the process and the result that it wrote."""

    def run(**algorithm):
        study = {
            "name": "small",
            "task": "segmentation",
            "labels": {1: "blob"},
            "rounds": 2,
            "device": "cpu",
            "model": SMALL_UNET,
            "training": {"batch_size": 2},
            "algorithm": algorithm,
        }
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(study))
        command = [sys.executable, "-c", RUN, path, site_data, tmp_path / "out"]
        done = subprocess.run(
            list(map(str, command)),
            env={"PYTHONPATH": str(package.parent), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=200,
        )
        result = tmp_path / "out" / "results.json"
        return done, yaml.safe_load(result.read_text()) if result.is_file() else None

    return run


def test_broken_files_disturb_no_study_that_does_not_name_them(package, carry_out):
    spoil = cycle(content for content, _ in BROKEN.values())
    # FedAvg's own file holds the mean by examples, which the engine falls back to.
    others = [name for name in algorithm_names() if name != "fedavg"]
    assert {"harmofl", "fedsm", "adafed", "softpull", "fedprox"} <= set(others)
    for name in (*others, "unfinished"):
        folder = package / "algorithms" / name
        (folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")).write_text(next(spoil))
    for name in ("personal", "collected", "dp_sgd"):
        (package / "parts" / f"{name}.py").write_text(next(spoil))
    done, result = carry_out(name="fedavg")
    assert done.returncode == 0, done.stderr
    assert result["status"] == "COMPLETE" and result["reasons"] == []


def test_a_broken_algorithm_is_named_in_one_sentence_by_the_study_that_names_it(package, carry_out):
    content, reason = BROKEN["name that is not there"]
    (package / "algorithms" / "adafed" / "__init__.py").write_text(content)
    done, result = carry_out(name="adafed")
    assert done.returncode != 0 and result is None
    last = done.stderr.strip().splitlines()[-1]
    assert f"algorithms/adafed must load; {reason}" in last and "repair it, or name another one" in last


def test_a_broken_part_is_named_in_one_sentence_by_the_study_that_needs_it(package, carry_out):
    content, reason = BROKEN["half a line"]
    (package / "algorithms" / "adafed" / "statistics.py").write_text(content)
    _, result = carry_out(name="adafed")
    assert result["status"] == "FAILED"
    (sentence,) = result["reasons"]
    assert sentence.startswith(f"algorithms/adafed/statistics.py must load; {reason}")
    assert sentence.endswith(": repair it, or choose another algorithm")


def test_a_part_that_is_not_there_is_named_too(make_study, monkeypatch):
    study = make_study(name="adafed")
    monkeypatch.setattr(type(study.recipe.mixing), "halves", "silofl.algorithms.not_written_yet")
    with pytest.raises(ConfigError, match="algorithms/not_written_yet.py must load; ModuleNotFoundError"):
        start_parts(study, ["a", "b"], None)
