import tomllib
from pathlib import Path

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
