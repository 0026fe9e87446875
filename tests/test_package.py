import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools import find_packages

import silofl

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "custom" / "silofl"
SETTINGS = tomllib.loads((ROOT / "custom" / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
FURTHER = ("silofl_hospital", "silofl_desk", "silofl_clinic")
HOSPITAL, DESK, CLINIC = (tomllib.loads((ROOT / "custom" / name / "pyproject.toml").read_text()) for name in FURTHER)
TESTS = {"hypothesis", "pytest", "pytest-timeout", "pytest-xdist"}
DEVELOPMENT = TESTS | {"fire", "jsonschema", "mypy", "ruff", "pre_commit", "pre_commit_hooks", "twine"}


def pins():
    """Return the version of each requirement; every one has one."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_pins_of_requirements_txt_lie_in_the_wheels_ranges():
    extras = [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    # Of the further wheels what they ask for beside the project's own.
    further = [*HOSPITAL["project"]["dependencies"][1:], *CLINIC["project"]["dependencies"][2:]]
    wanted = [*PROJECT["dependencies"], *extras, *further]
    asked = {one.name: one.specifier for one in map(Requirement, wanted)}
    pinned = pins()
    assert asked.keys() == pinned.keys() - DEVELOPMENT
    assert [name for name, range_ in asked.items() if pinned[name] not in range_] == []
    # A range from below, and to where its authors may break what is called here.
    assert [name for name, range_ in asked.items() if {one.operator for one in range_} != {">=", "<"}] == []


def test_the_wheel_names_the_pythons_that_were_tried():
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert named == ["3.11", "3.12", "3.13"] and PROJECT["requires-python"] == f">={named[0]}"


def test_all_wheels_have_one_version():
    version = silofl.__version__
    assert {PROJECT["version"], *(one["project"]["version"] for one in (HOSPITAL, DESK, CLINIC))} == {version}
    assert HOSPITAL["project"]["dependencies"][0] == f"silofl=={version}"
    assert DESK["project"]["dependencies"] == [f"silofl-hospital=={version}"]
    assert CLINIC["project"]["dependencies"][:2] == [f"silofl[dicom]=={version}", f"silofl-hospital=={version}"]


def test_all_wheels_state_purpose_author_and_licence():
    told = ("readme", "license", "license-files", "authors", "keywords", "classifiers", "requires-python")
    assert all(PROJECT[key] == one["project"][key] for key in told for one in (HOSPITAL, DESK, CLINIC))
    for folder in (ROOT / "custom" / name for name in ("", *FURTHER)):
        for name in (PROJECT["readme"], *PROJECT["license-files"]):
            assert (folder / name).resolve() == ROOT / name
    # No address that nobody answers at.
    assert not any("urls" in project for project in (PROJECT, DESK["project"], CLINIC["project"]))


def find_texts(path):
    """Return all that a file of a wheel can print or write: a template, or a source's texts without its docstrings."""
    if path.suffix == ".j2":
        return [path.read_text()]
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    unread = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unread
    ]


def test_the_wheels_name_no_page_of_the_repository_only():
    page = re.compile(r"\b(?:docs|bench|jobs|provisioning|site_configs)/[\w-]+\.md(?!` of a hospital's kit)")
    files = [path for path in (ROOT / "custom").rglob("*") if path.suffix in (".py", ".j2")]
    # What writes pages of the repository.
    files = [path for path in files if path.name != "results.py"]
    named = {path.relative_to(ROOT): page.findall(" ".join(find_texts(path))) for path in files}
    assert len(named) > 300 and {path: pages for path, pages in named.items() if pages} == {}


def test_the_changelog_begins_with_this_version_and_its_day():
    heading = re.search(r"^## (\d.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    assert re.fullmatch(rf"{re.escape(silofl.__version__)} - 20\d\d-\d\d-\d\d", heading)


def test_a_page_that_names_a_version_names_this_one():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "provisioning").glob("*.md")]
    text = "".join(path.read_text() for path in pages if path.name != "CHANGELOG.md")
    named = re.findall(r"silofl(?:-|:| )(\d+\.\d+\.\d+)", text, flags=re.IGNORECASE)
    assert len(named) >= 4 and {*named} == {silofl.__version__}


def test_each_wheel_holds_its_own_package():
    found = find_packages(ROOT / "custom", include=SETTINGS["tool"]["setuptools"]["packages"]["find"]["include"])
    assert {"silofl", "silofl.reading"} <= {*found} and not any(name.startswith(FURTHER) for name in found)
    for name, settings in zip(FURTHER, (HOSPITAL, DESK, CLINIC), strict=True):
        held = {name, *(f"{name}.{room}" for room in find_packages(ROOT / "custom" / name))}
        assert {*settings["tool"]["setuptools"]["packages"]} == held


def packed_files(name="silofl", settings=SETTINGS):
    patterns = settings["tool"]["setuptools"]["package-data"][name]
    return {path for pattern in patterns for path in (ROOT / "custom" / name).glob(pattern)}


@pytest.mark.parametrize(("name", "settings"), [("silofl", SETTINGS), ("silofl_hospital", HOSPITAL)])
def test_every_template_is_packed(name, settings):
    folder = ROOT / "custom" / name
    templates = {*folder.rglob("*.j2")}
    assert templates and templates <= packed_files(name, settings) and not list(folder.glob("*/*.html"))


def test_every_file_of_every_job_is_packed_and_no_other():
    jobs = {path.parent for path in (ROOT / "jobs").glob("*/meta.json")}
    wanted = {path.relative_to(ROOT) for job in jobs for path in job.rglob("*") if path.is_file()}
    packed = {path.relative_to(PACKAGE) for path in packed_files() if path.is_relative_to(PACKAGE / "jobs")}
    assert len(jobs) >= 19 and packed == {path for path in wanted if not path.name.startswith(".__nvfl_")}


NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
BARE = {name: value for name, value in os.environ.items() if name not in NAMES}
# MONAI and torch's compiler ask for the account's name when they are imported; the last two are of site and server.
ENTRIES = "silofl.command_line.cli, monai.networks.nets, torch._dynamo, silofl.flare.executor, silofl.flare.controller"


@pytest.mark.parametrize(
    ("entries", "environment", "name"),
    [(ENTRIES, BARE, str(os.getuid())), ("silofl.command_line.cli", BARE | {"USER": "ann"}, "ann")],
    ids=["unnamed", "named"],
)
def test_an_account_without_a_name_is_called_by_its_number(entries, environment, name):
    # A container that runs as a bare number.
    code = f"""
import pwd
def find(number):
    raise KeyError(f"getpwuid(): uid not found: {{number}}")
pwd.getpwuid = find
import {entries}
import getpass
print(getpass.getuser())
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == f"{name}\n", done.stderr


@pytest.mark.parametrize(("given", "wanted"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_wait_without_computing_unless_the_machine_says_otherwise(given, wanted):
    # On busy cores two threads that compute while they wait take eight times as long as one.
    bare = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = "import silofl.command_line.cli, os; print(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run([sys.executable, "-c", code], env=bare | given, capture_output=True, text=True, check=True)
    assert done.stdout == f"{wanted}\n"


def test_the_package_loads_nothing_slow_and_leaves_the_environment():
    code = "import os; before = dict(os.environ); import sys, silofl; "
    code += "print({'torch', 'nvflare', 'pydantic'} & {*sys.modules}, before == dict(os.environ))"
    done = subprocess.run([sys.executable, "-c", code], env=BARE, capture_output=True, text=True, check=True)
    assert done.stdout == "set() True\n"
