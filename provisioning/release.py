"""Make a release of a clean clone: wheels and source archives, checked, with checksums and SBOM; last of all its tag.

    python -m provisioning release FOLDER

Fresh environments install the wheels: one with a site's lock, which trains a round, and one with a clinic's, which
predicts by that model. Other Pythons that are here predict with the versions of the site's lock. The tag, ``v`` and the
version, is set where all of that went well, and is pushed by nobody but you.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from provisioning.build_wheel import build_sdist, build_wheel
from provisioning.supply import LOCK, digest_file, name_package, read_lock, write_supply
from provisioning.workspace import CLINIC_LOCK, REPOSITORY, SITE_LOCK
from silofl import __version__
from silofl.base.errors import ConfigError, ExitCode, one_line
from silofl.base.files import is_free, write_text

SOURCES = tuple(REPOSITORY / "custom" / name for name in ("", "silofl_hospital", "silofl_desk", "silofl_clinic"))
SUMS = "SHA256SUMS"
# These Pythons are tried besides this one, without checksums, since a lock's are of one Python's files.
PYTHONS = ("3.12", "3.13")
MODEL = "run/supermodel"
TRIAL = ("simulate", "fedavg_phantoms", "--rounds", "1", "--out", "run")


def check_repository(repository: Path, version: str) -> None:
    """Refuse a repository from which a version cannot be released.

    Raises:
        ConfigError: Something is not committed, the tag exists, or CHANGELOG.md does not begin with the version.
    """
    changed = _call(["git", "status", "--porcelain"], repository).splitlines()
    if changed:
        raise ConfigError(f"the clone must be clean before a release, not with {changed[0].strip()!r}; commit it")
    if _call(["git", "tag", "--list", f"v{version}"], repository):
        raise ConfigError(f"the tag v{version} must be new; it is not: count up the version")
    newest = re.search(r"^## (.+)$", (repository / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    if not newest or not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", newest[1]):
        raise ConfigError(f"CHANGELOG.md must begin with version {version} and its day; it does not: write its heading")


def build_release(folder: Path, sources: Sequence[Path] = SOURCES) -> None:
    """Fill a folder with the wheels and source archives, the lock and SBOM of both installations, and all checksums.

    Args:
        folder: Where they go; in its folder ``clinic`` those of a clinic.
        sources: The folders of the packages: of the first is the SBOM of a site, of the last that of a clinic.
    """
    wheels = [build_wheel(source, folder) for source in sources]
    for source in sources:
        build_sdist(source, folder)
    *sites, clinic = [name_package(wheel, digest_file(wheel)) for wheel in wheels]
    write_supply(folder, sites, SITE_LOCK)
    (folder / "clinic").mkdir()
    write_supply(folder / "clinic", [clinic, *sites[:2]], CLINIC_LOCK)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = [f"{digest_file(path)}  {path.relative_to(folder)}\n" for path in files]
    write_text(folder / SUMS, "".join(listed))


def check_descriptions(folder: Path) -> None:
    """Have twine check that a package index can show the packages.

    Raises:
        ConfigError: It cannot show one.
    """
    packages = [str(path.absolute()) for path in sorted(folder.iterdir()) if path.suffix in (".whl", ".gz")]
    _call([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *packages], folder)


def try_release(folder: Path, version: str) -> list[str]:
    """Install a release into fresh environments: a site trains one round, and a clinic predicts by its model.

    Returns:
        The Pythons that are not here, with which nothing was tried.

    Raises:
        ConfigError: It cannot be installed, is another version, or does not train or predict.
    """
    folder = folder.absolute()
    untried = []
    # The clinic's wheel has packages that the site's lock does not name.
    wheels = [str(path) for path in folder.glob("*.whl") if not path.name.startswith("silofl_clinic")]
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch)
        site = _install(trial / "site", sys.executable, _locked(folder, folder / LOCK))
        installed = _call([site, "--version"], trial).strip()
        if installed != f"silofl {version}":
            raise ConfigError(f"the wheel must be silofl {version}, not {installed}; install the clone anew")
        _call([site, *TRIAL], trial)
        clinic = _install(trial / "clinic", sys.executable, _locked(folder, folder / "clinic" / LOCK))
        _call([clinic, "monitor", _predict(clinic, trial), "--model", MODEL], trial)
        versions = trial / "versions.txt"
        versions.write_text("".join(f"{package.name}=={package.version}\n" for package in read_lock(folder / LOCK)))
        for name in PYTHONS:
            python = _find_python(name)
            if python is None:
                untried.append(name)
            else:
                _predict(_install(trial / name, python, ["-c", str(versions), *wheels]), trial)
    return untried


def _find_python(name: str) -> str | None:
    python = shutil.which(f"python{name}")
    # What pyenv leaves in the place of a Python that is not installed starts none.
    is_there = python and subprocess.run([python, "--version"], capture_output=True).returncode == 0
    return python if is_there else None


def _locked(folder: Path, lock: Path) -> list[str]:
    return ["--require-hashes", "--find-links", str(folder), "-r", str(lock)]


def _install(environment: Path, python: str, packages: Sequence[str]) -> str:
    """Have pip install packages into a fresh environment; returns its ``silofl``."""
    _call([python, "-m", "venv", environment.name], environment.parent)
    _call([str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages], environment.parent)
    return str(environment / "bin" / "silofl")


def _predict(silofl: str, trial: Path) -> str:
    """Predict an image of the site's trial by its model; returns the folder of the answer."""
    image = min(trial.glob("phantoms/*/images/*"))
    answer = f"{Path(silofl).parents[1].name}-answer"
    _call([silofl, "predict", MODEL, str(image), "--out", answer], trial)
    return answer


def _call(command: Sequence[str], folder: Path) -> str:
    # By PYTHONPATH the command would find the clone's own packages instead of those that were installed.
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        shown = " ".join([Path(command[0]).name, *command[1:5]])
        raise ConfigError(f"{shown} must end well; it said {one_line(reason)!r}: put that right, and begin again")
    return done.stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``release``."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="new folder for the release")


def run(options: argparse.Namespace) -> int:
    """Make the release of this clone's version, and set its tag."""
    check_repository(REPOSITORY, __version__)
    if not is_free(options.folder):
        raise ConfigError(f"{options.folder} must be a new folder, not one with files; name another, or remove it")
    build_release(options.folder)
    check_descriptions(options.folder)
    untried = try_release(options.folder, __version__)
    # The tag comes last: a release that cannot be installed has none.
    _call(["git", "tag", "--annotate", "--message", f"SiloFL {__version__}", f"v{__version__}"], REPOSITORY)
    print((options.folder / SUMS).read_text(encoding="utf-8"), end="")
    if untried:
        print(f"nothing was tried with Python {', '.join(untried)}, which is not here")
    print(f"tag v{__version__} is set; push it, and upload {options.folder}, when you have looked at it")
    return ExitCode.COMPLETE
