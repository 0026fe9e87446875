"""What a release is refused for, what it holds, and when it gets its tag."""

import hashlib
import json
import subprocess
import sys

import pytest

from provisioning import release
from provisioning.__main__ import main
from provisioning.supply import LOCK, SBOM, read_lock
from provisioning.workspace import CLINIC_LOCK, SITE_LOCK
from silofl import __version__
from silofl.base.errors import ConfigError

from .test_build_wheel import SETTINGS
from .test_supply import write_wheel


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=Ann", "-c", "user.email=ann@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A clean clone of which version 1.2.0 can be released."""
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "Ann")
    git(folder, "config", "user.email", "ann@example.org")
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 - 2026-11-29\n\n## 1.1.0 - 2026-01-01\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Begin")
    return folder


@pytest.mark.parametrize(
    ("change", "version", "sentence"),
    [
        (
            lambda clone: (clone / "new.py").touch(),
            "1.2.0",
            "the clone must be clean before a release, not with .*new.py'; commit it",
        ),
        (lambda clone: git(clone, "tag", "v1.2.0"), "1.2.0", "the tag v1.2.0 must be new; it is not: count up the ver"),
        (lambda clone: None, "1.1.0", "CHANGELOG.md must begin with version 1.1.0 and its day"),
    ],
)
def test_an_unclean_tagged_or_misversioned_clone_is_no_release(repository, change, version, sentence):
    change(repository)
    with pytest.raises(ConfigError, match=sentence):
        release.check_repository(repository, version)


@pytest.fixture
def sources(tmp_path):
    """The sources of three packages."""
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        (folder / "tiny").mkdir(parents=True)
        (folder / "tiny" / "__init__.py").write_text("")
        (folder / "pyproject.toml").write_text(SETTINGS.replace('"tiny"', f'"{folder.name}"'))
        (folder / "README.md").write_text("# Tiny\n")
        (folder / "LICENSE").write_text("Take it.\n")
    return folders


@pytest.mark.slow
def test_a_release_is_the_same_twice_with_all_checksums(sources, tmp_path):
    for name in ("a", "b"):
        release.build_release(tmp_path / name, sources)
    files = sorted(str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*.*") if path.is_file())
    files += ["SHA256SUMS"]
    names = ("first", "second", "third")
    packages = [f"{name}-1{end}" for name in names for end in ("-py3-none-any.whl", ".tar.gz")]
    assert sorted(files) == sorted([*packages, "SHA256SUMS", LOCK, SBOM, f"clinic/{LOCK}", f"clinic/{SBOM}"])
    assert [(tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files] == [
        True
    ] * 11
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "a", check=True)
    sums = dict(line.split()[::-1] for line in (tmp_path / "a" / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {*files} - {"SHA256SUMS"}
    first, second, *others = read_lock(tmp_path / "a" / LOCK)
    assert (first.name, second.name) == ("first", "second") and others == read_lock(SITE_LOCK)
    third, *further = read_lock(tmp_path / "a" / "clinic" / LOCK)
    assert third.name == "third" and further == [first, second, *read_lock(CLINIC_LOCK)]
    assert first.sha256 == hashlib.sha256((tmp_path / "a" / packages[0]).read_bytes()).hexdigest()
    listed = json.loads((tmp_path / "a" / SBOM).read_text())
    assert listed["metadata"]["component"]["name"] == "first"
    assert [one["name"] for one in listed["components"]] == ["second", *(one.name for one in others)]


# Writes down how it is called, and leaves what a trial looks for.
PROGRAM = """import os, pathlib, sys
def main():
    print('silofl 1.2.0')
    with open(os.environ['CALLS'], 'a') as log:
        print(pathlib.Path(sys.prefix).name, *sys.argv[1:3], file=log)
    pathlib.Path('phantoms/north/images').mkdir(parents=True, exist_ok=True)
    pathlib.Path('phantoms/north/images/a.png').touch()
"""


@pytest.mark.slow
def test_a_release_is_tried_with_all_pythons_here(tmp_path, monkeypatch):
    tools, folder = tmp_path / "tools", tmp_path / "dist"
    tools.mkdir()
    (tools / "python3.12").symlink_to(sys.executable)
    # As pyenv has it for a version that is not chosen.
    (tools / "python3.13").write_text("#!/bin/sh\nexit 127\n")
    (tools / "python3.13").chmod(0o755)
    for name, value in {"PIP_NO_INDEX": "1", "PATH": str(tools), "CALLS": str(tmp_path / "calls")}.items():
        monkeypatch.setenv(name, value)
    own = write_wheel(folder, "silofl", PROGRAM, "[console_scripts]\nsilofl = silofl:main\n")
    (folder / "clinic").mkdir()
    for lock in (folder / LOCK, folder / "clinic" / LOCK):
        lock.write_text(f"{own.line}\n")
    assert release.try_release(folder, "1.2.0") == ["3.13"]
    assert (tmp_path / "calls").read_text().splitlines() == [
        "site --version",
        "site simulate fedavg_phantoms",
        "clinic predict run/supermodel",
        "clinic monitor clinic-answer",
        "3.12 predict run/supermodel",
    ]


@pytest.fixture
def steps(repository, monkeypatch):
    """A release whose steps are only written down."""
    seen = []
    monkeypatch.setattr(release, "REPOSITORY", repository)
    monkeypatch.setattr(release, "check_repository", lambda *asked: seen.append("repository"))

    def build(folder):
        folder.mkdir()
        (folder / "SHA256SUMS").write_text("0  silofl.whl\n")
        seen.append("build")

    monkeypatch.setattr(release, "build_release", build)
    monkeypatch.setattr(release, "check_descriptions", lambda folder: seen.append("descriptions"))
    monkeypatch.setattr(release, "try_release", lambda *asked: seen.append("trial") or ["3.13"])
    return seen


def test_the_tag_is_set_last_and_only_on_success(steps, repository, tmp_path, monkeypatch, capsys):
    def fail(*asked):
        raise ConfigError("silofl simulate must end well")

    with monkeypatch.context() as patched:
        patched.setattr(release, "try_release", fail)
        assert main(["release", str(tmp_path / "failed")]) == 2
    assert git(repository, "tag") == "" and "simulate must end well" in capsys.readouterr().err
    steps.clear()
    assert main(["release", str(tmp_path / "dist")]) == 0
    assert steps == ["repository", "build", "descriptions", "trial"]
    assert git(repository, "tag") == f"v{__version__}" and git(repository, "cat-file", "-t", f"v{__version__}") == "tag"
    printed = capsys.readouterr().out
    assert "0  silofl.whl" in printed and "nothing was tried with Python 3.13, which is not here" in printed
