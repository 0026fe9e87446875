import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from provisioning.build_wheel import build_wheel, describe_package
from provisioning.supply import LOCK, find_own_wheels, read_lock
from provisioning.workspace import REPOSITORY
from silofl.base.errors import ConfigError

from ..conftest import set_umask

SETTINGS = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "tiny"
version = "1"
readme = "README.md"
license-files = ["LICENSE"]
"""


@pytest.fixture
def source(tmp_path):
    """The source of a package of two modules."""
    folder = tmp_path / "source"
    (folder / "tiny").mkdir(parents=True)
    for name in ("__init__", "ä"):
        (folder / "tiny" / f"{name}.py").write_text(f'"""Tiny {name}."""\n', encoding="utf-8")
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / "README.md").write_text("# Tiny\n\n![Three dots](docs/dots.png)\n\n[How](docs/how.md#now).\n")
    (folder / "LICENSE").write_text("Take it.\n")
    return folder


def copy_otherwise(source, target):
    """Copy a source to where another account would have it, at another time."""
    copy = shutil.copytree(source, target)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o640)
        os.utime(path, (1e9, 1e9))
    return copy


@pytest.mark.slow
def test_a_wheel_is_the_same_bytes_everywhere(source, tmp_path):
    # What an earlier build left behind.
    (source / "build" / "lib" / "tiny").mkdir(parents=True)
    (source / "build" / "lib" / "tiny" / "deleted.py").write_text("")
    first = build_wheel(source, tmp_path / "first")
    with set_umask(0o077):
        second = build_wheel(copy_otherwise(source, tmp_path / "other place" / "clone"), tmp_path / "second")
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        modules = [name for name in wheel.namelist() if name.endswith(".py")]
        assert modules == ["tiny/__init__.py", "tiny/ä.py"] and wheel.testzip() is None
        # For everybody who may install it, and by no packing that differs between machines.
        assert {entry.external_attr >> 16 for entry in wheel.infolist()} == {0o100644}
        assert {entry.compress_type for entry in wheel.infolist()} == {zipfile.ZIP_STORED}
        assert wheel.namelist()[-1] == "tiny-1.dist-info/top_level.txt"


def test_the_readme_of_the_package_has_no_relative_link():
    text = describe_package((REPOSITORY / "README.md").read_text())
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all(link.startswith("https://") for link in links)
    assert "each of them [docs/figures/report.png]" in text
    assert "[docs/hospital-it.md], " in text and "docs/hospital-it.md [docs" not in text


def read_files(folder):
    """Return the content of all files of the jobs of a folder, but for what NVFlare writes into a job."""
    jobs = [path.parent for path in folder.glob("*/meta.json")]
    files = [path for job in jobs for path in job.rglob("*") if path.is_file() and not path.name.startswith(".__nvfl_")]
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.mark.slow
def test_the_command_prints_the_checksums_of_three_wheels(tmp_path):
    command = [sys.executable, "-m", "provisioning", "build-wheel", tmp_path / "wheel"]
    printed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    wheel, hospital, desk = (Path(path) for path in printed[1::2])
    assert printed[::2] == [hashlib.sha256(one.read_bytes()).hexdigest() for one in (wheel, hospital, desk)]
    assert wheel.parent == tmp_path / "wheel" and find_own_wheels(wheel, "lead") == [wheel, hospital, desk]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "installed"]
    subprocess.run([*install, wheel], check=True, capture_output=True)
    found, wanted = (
        {path.relative_to(root) for path in (root / "silofl").rglob("*.py")}
        for root in (tmp_path / "installed", REPOSITORY / "custom")
    )
    assert found == wanted
    jobs = tmp_path / "installed" / "silofl" / "jobs"
    assert read_files(jobs) == read_files(REPOSITORY / "jobs")
    # Outside the clone, with what was installed alone before all else.
    call = [sys.executable, "-m", "silofl", "estimate", "fedavg_phantoms", "--sites", "4"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    subprocess.run(call, cwd=tmp_path, env=environment, check=True, capture_output=True)


def test_the_wheel_is_built_by_the_locked_builder():
    (wanted,) = tomllib.loads((REPOSITORY / "custom" / "pyproject.toml").read_text())["build-system"]["requires"]
    assert wanted in {f"{one.name}=={one.version}" for one in read_lock(REPOSITORY / LOCK)}


def test_a_folder_that_is_no_package_is_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty must be a package that pip can build; .* --wheel"):
        build_wheel(tmp_path / "empty", tmp_path / "wheel")
