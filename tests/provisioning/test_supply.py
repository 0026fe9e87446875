"""What sites install: the locks, the SBOM, and a wheelhouse from which pip installs nothing else."""

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from provisioning import lock
from provisioning.__main__ import main
from provisioning.supply import Package, is_for_gpu, lock_text, read_lock, read_target, sbom
from provisioning.workspace import CLINIC_LOCK, CUDA_LOCKS, REPOSITORY, SITE_LOCK
from silofl import __version__
from silofl.base.errors import ConfigError

EVERYTHING = REPOSITORY / "requirements.lock"


def pins(path):
    lines = [line for line in path.read_text().splitlines() if re.match(r"\w", line)]
    return {canonicalize_name(one.name): str(one.specifier) for one in map(Requirement, lines)}


def versions(path):
    return {one.name: f"=={one.version}" for one in read_lock(path)}


def test_the_lock_has_every_requirement_in_its_version():
    assert pins(REPOSITORY / "requirements.txt").items() <= versions(EVERYTHING).items()
    assert set(read_lock(SITE_LOCK)) < set(read_lock(EVERYTHING))
    assert {"torch", "nvflare", "pydicom", "cryptography"} <= versions(SITE_LOCK).keys()
    assert "pytest" not in versions(SITE_LOCK)
    assert set(read_lock(CLINIC_LOCK)) < set(read_lock(EVERYTHING))
    only_clinics = {"pynetdicom", "dicom-anonymizer", "highdicom"}
    assert only_clinics <= versions(CLINIC_LOCK).keys() and not only_clinics & versions(SITE_LOCK).keys()


def test_the_lock_has_every_package_that_is_installed_here():
    done = subprocess.run([sys.executable, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True)
    installed = {canonicalize_name(one["name"]) for one in json.loads(done.stdout)}
    assert installed - versions(EVERYTHING).keys() <= {
        "pip",
        "setuptools",
        "silofl",
        "silofl-hospital",
        "silofl-desk",
        "silofl-clinic",
    }


@pytest.mark.parametrize("python", CUDA_LOCKS)
def test_a_lock_for_gpus_has_the_cpus_versions(python):
    ours, known = read_lock(CUDA_LOCKS[python]), versions(SITE_LOCK)
    assert is_for_gpu(ours) and not is_for_gpu(read_lock(SITE_LOCK))
    others = {one.name for one in ours if known.get(one.name) != f"=={one.version}"}
    assert {name for name in others if not name.startswith(("nvidia-", "cuda-", "triton"))} == set()
    # What only an older Python needs may be missing.
    assert len(known.keys() - {one.name for one in ours}) <= 1
    assert read_target(CUDA_LOCKS[python])[0] == python and read_target(CUDA_LOCKS[python])[1].endswith(" GiB")


def test_locks_for_gpus_name_the_wheel_that_pip_takes(tmp_path, monkeypatch):
    pylock = """[[packages]]
name = "a"
version = "1.0"
wheels = [
    {url = "https://index.example/a-1.0-py3-none-any.whl", size = 1, hashes = {sha256 = "ANY"}},
    {url = "https://index.example/a-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", size = 2, hashes = {sha256 = "OLD"}},
    {url = "https://index.example/a-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", size = 4, hashes = {sha256 = "NEW"}},
]
"""
    asked = []

    def call(command, **_):
        asked.append(command)
        Path(command[-1]).write_text(pylock)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(lock.subprocess, "run", call)
    assert lock.resolve_for_cuda(tmp_path / "in", tmp_path / "versions", "3.12") == ([Package("a", "1.0", "NEW")], 4)
    # What is built for another Python is none of 3.13's.
    assert lock.resolve_for_cuda(tmp_path / "in", tmp_path / "versions", "3.13") == ([Package("a", "1.0", "ANY")], 1)
    assert asked[0][asked[0].index("--python-version") + 1] == "3.12"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="uv must be installed to write the locks for GPUs"):
        lock.resolve_for_cuda(tmp_path / "in", tmp_path / "versions", "3.12")


@pytest.mark.parametrize("line", ["torch", "torch==1", "torch>=1 --hash=sha256:" + "0" * 64, "torch==1 --hash=md5:0"])
def test_a_line_without_version_or_checksum_is_refused(tmp_path, line):
    (tmp_path / "a.lock").write_text(f"# a comment\n{line}\n")
    with pytest.raises(ConfigError, match="a.lock must hold NAME==VERSION --hash=sha256:DIGEST, not"):
        read_lock(tmp_path / "a.lock")


def test_a_kit_has_lock_and_sbom_of_what_it_installs(kits):
    for name in ("north", "server"):
        own, hospital, *others = read_lock(kits / name / "requirements.lock")
        assert own == Package("silofl", __version__, hashlib.sha256(b"reviewed package").hexdigest())
        assert hospital == Package("silofl-hospital", __version__, hashlib.sha256(b"what persons start").hexdigest())
        assert others == read_lock(SITE_LOCK)
        found = json.loads((kits / name / "sbom.json").read_text())
        assert found == sbom(own, [hospital, *others]) and found["metadata"]["component"]["name"] == "silofl"
        assert len(found["components"]) == len(others) + 1
        checksum = hashlib.sha256((kits / name / "requirements.lock").read_bytes()).hexdigest()
        assert f"| SHA-256 of `requirements.lock` | `{checksum}` |" in (kits / name / "INSTALL.md").read_text()


def write_wheel(folder, name, content="x = 1\n", entry_points=""):
    """Write a package of one module; returns its lock."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        f"{info}/entry_points.txt": entry_points,
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in files.items():
            archive.writestr(place, text)
    return Package(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A kit with a wheel of its own and a package that an index has."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    own, other = write_wheel(tmp_path / "kit", "ownpackage"), write_wheel(tmp_path / "index", "otherpackage")
    (tmp_path / "kit" / "requirements.lock").write_text(lock_text([own, other], "for here"))
    return tmp_path / "kit"


def install(kit, target):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), "--require-hashes"]
    command += ["--no-index", "--find-links", "wheelhouse", "-r", "requirements.lock"]
    return subprocess.run(command, cwd=kit, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


def test_a_wheelhouse_is_all_that_an_installation_needs(kit, tmp_path):
    assert main(["wheelhouse", str(kit)]) == 0
    names = {path.name.partition("-")[0] for path in (kit / "wheelhouse").iterdir()}
    assert names == {"ownpackage", "otherpackage"}
    done = install(kit, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "otherpackage.py").is_file() and (tmp_path / "site" / "ownpackage.py").is_file()


def test_a_wheelhouse_takes_only_the_locked_files(kit, tmp_path, capsys):
    write_wheel(tmp_path / "index", "otherpackage", "import os  # other bytes\n")
    assert main(["wheelhouse", str(kit)]) == 2
    assert "must be there with its checksum" in capsys.readouterr().err
    assert main(["wheelhouse", str(tmp_path)]) == 2
    assert "must be a filled kit, with requirements.lock" in capsys.readouterr().err
