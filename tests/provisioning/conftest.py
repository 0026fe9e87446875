"""One network, provisioned once; a test gets a copy of its own."""

import shutil
from pathlib import Path

import pytest
import yaml

from provisioning.__main__ import main
from provisioning.workspace import PROJECT
from silofl import __version__


def replace_in(path, old, new):
    """Replace a text of a file, which must be there."""
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def desk_beside(wheel):
    """Return the place of the wheel that a lead installs besides."""
    return wheel.with_name(wheel.name.replace("silofl", "silofl_desk"))


def hospital_beside(wheel):
    """Return the place of the wheel that every machine installs besides."""
    return wheel.with_name(wheel.name.replace("silofl", "silofl_hospital"))


def write_wheels(folder):
    """Write what stands for the three wheels, and return the first."""
    wheel = folder / f"silofl-{__version__}-py3-none-any.whl"
    wheel.write_bytes(b"reviewed package")
    hospital_beside(wheel).write_bytes(b"what persons start")
    desk_beside(wheel).write_bytes(b"what leads have besides")
    return wheel


def set_floor(kit, least):
    """Have a hospital's numbers leave from so many patients on; nothing of another kit."""
    path = kit.folder / "local" / "site.yaml"
    if path.is_file():
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"min_patients": least}))


def make_small_network(folder, wheel, *options, role="lead"):
    """Make the kits of a server, one hospital and the lead, a third of all keys; returns the exit code."""
    project = yaml.safe_load(PROJECT.read_text())
    names = ("server", "north", "lead@study.example.org")
    project["participants"] = [one for one in project["participants"] if one["name"] in names]
    (lead,) = [one for one in project["participants"] if one["type"] == "admin"]
    lead["role"] = role
    folder.with_suffix(".yml").write_text(yaml.safe_dump(project))
    return main(["make-kits", str(folder.with_suffix(".yml")), str(folder), "--wheel", str(wheel), *options])


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return write_wheels(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def provisioned_once(tmp_path_factory, wheel):
    workspace = tmp_path_factory.mktemp("network") / "workspace"
    assert main(["make-kits", str(PROJECT), str(workspace), "--wheel", str(wheel), "--host", "localhost"]) == 0
    return workspace


@pytest.fixture
def workspace(tmp_path, provisioned_once):
    return Path(shutil.copytree(provisioned_once, tmp_path / "workspace"))


@pytest.fixture
def kits(workspace):
    return workspace / "silofl" / "prod_00"


@pytest.fixture
def files_of():
    """Return the bytes of every file below a folder, by path."""

    def read(folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return read
