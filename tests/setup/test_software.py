"""What machines say that they run, and which of them work together."""

import shutil
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from pydantic import ValidationError

import silofl
from silofl.base.errors import ConfigError
from silofl.setup.software import Software, digest_package, read_software

PACKAGE = Path(silofl.__file__).parent
SOURCES = Path(__file__).resolve().parents[2] / "custom"


def software(**changes):
    values = {"silofl": "0.3.0", "package": "a" * 64, "nvflare": "2.9.0", "torch": "2.13.0+cpu", "python": "3.11.7"}
    return Software(**values | changes)


def test_a_machine_says_what_is_installed_on_it():
    assert read_software().silofl == silofl.__version__ and read_software().package == digest_package(PACKAGE)
    assert read_software().nvflare == "2.9.0" and read_software().torch.startswith("2.13.0")


@pytest.mark.parametrize("name", ["setup/site.py", "inference/templates/notes.md.j2"])
def test_a_changed_new_or_missing_file_is_another_package(tmp_path, name):
    ignored = shutil.ignore_patterns("__pycache__")
    for copy in ("same", "changed", "more", "less"):
        shutil.copytree(PACKAGE, tmp_path / copy, ignore=ignored)
    # A bundled job is none of the package's files.
    (tmp_path / "same" / "jobs" / "fedavg_phantoms" / "meta.json").write_text("{}")
    path = tmp_path / "changed" / name
    path.write_text(path.read_text()[:-1] + " ")
    (tmp_path / "more" / "new.py").write_text("")
    (tmp_path / "less" / name).unlink()
    digests = [digest_package(tmp_path / copy) for copy in ("same", "changed", "more", "less")]
    assert len({*digests}) == 4 and digests[0] == read_software().package


def test_wheel_and_sources_have_the_same_digest(tmp_path):
    shutil.copytree(SOURCES, tmp_path / "custom", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "./custom"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    (wheel,) = tmp_path.glob("silofl-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    assert digest_package(tmp_path / "installed" / "silofl") == read_software().package


@pytest.mark.parametrize(("other", "works"), [("0.3.7", True), ("0.4.0", False), ("1.3.0", False)])
def test_versions_that_differ_in_their_last_number_work_together(other, works):
    refusal = pytest.raises(ConfigError, match=f"site 'north' runs silofl {other}, and this machine 0.3; install the")
    with nullcontext() if works else refusal:
        software().check_compatible(software(silofl=other), "site 'north'")


def test_other_differences_are_said_in_words():
    assert software().differences(software()) == []
    assert software().differences(software(torch="2.12.0", python="3.12.1")) == [
        "torch 2.12.0 instead of 2.13.0+cpu",
        "python 3.12.1 instead of 3.11.7",
    ]
    assert software().differences(software(package="b" * 64)) == [
        "other files of silofl 0.3.0 (bbbbbbbbbbbb instead of aaaaaaaaaaaa)"
    ]
    # Another version has other files anyway.
    assert software().differences(software(silofl="0.3.1", package="b" * 64)) == ["silofl 0.3.1 instead of 0.3.0"]


@pytest.mark.parametrize("value", ["patient Miller", "", "1" * 41, None, 2])
def test_no_text_can_hide_in_a_version(value):
    with pytest.raises(ValidationError):
        software(torch=value)
