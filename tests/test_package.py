import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import silofl

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "custom" / "silofl"
SETTINGS = tomllib.loads((ROOT / "custom" / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
TESTS = {"hypothesis", "pytest", "pytest-timeout", "pytest-xdist"}
DEVELOPMENT = TESTS | {"fire", "jsonschema", "ruff", "pre_commit", "pre_commit_hooks"}


def pins():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_the_wheel_asks_for_what_requirements_txt_pins():
    asked = {*PROJECT["dependencies"], *(pin for extra in PROJECT["optional-dependencies"].values() for pin in extra)}
    assert asked == {pin for pin in pins() if pin.split("==")[0] not in DEVELOPMENT}


def test_every_requirement_is_pinned():
    assert all(pin.count("==") == 1 for pin in pins())


def test_the_package_and_the_wheel_have_one_version():
    assert silofl.__version__ == PROJECT["version"]


def test_every_template_of_the_reports_is_packed():
    templates = {*(PACKAGE / "report").rglob("*.j2")}
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]["silofl"]
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert templates and templates <= packed and not list(PACKAGE.glob("*/*.html"))


@pytest.mark.parametrize("entry", ["silofl.cli", "silofl.flare.executor", "silofl.flare.controller"])
def test_an_account_without_a_name_can_import_monai_and_torchs_compiler(entry):
    # A container that runs as a bare number: MONAI and torch ask for the account's name when they are imported.
    code = f"""
import pwd
def find(number):
    raise KeyError(f"getpwuid(): uid not found: {{number}}")
pwd.getpwuid = find
import {entry}, monai.networks.nets, torch._dynamo
import getpass
print(getpass.getuser())
"""
    names = ("LOGNAME", "USER", "LNAME", "USERNAME")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    for environment, name in ((bare, str(os.getuid())), (bare | {"USER": "ann"}, "ann")):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.stdout == f"{name}\n", done.stderr
