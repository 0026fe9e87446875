"""Write the locks: every package that is installed, with its version and the checksum of its one file.

    python -m provisioning lock [--out FILE]

``requirements.lock`` is of requirements.txt, ``provisioning/site.lock`` of what a site installs with the wheel, and has
all that a study may ask of every site, ``provisioning/clinic.lock`` of what a clinic installs with two wheels. pip
resolves them on this machine: the checksums are those of its platform and its package index, and of no other.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from provisioning.supply import LOCK, Package, lock_text
from provisioning.workspace import CLINIC_LOCK, REPOSITORY, SITE_LOCK
from silofl.base.errors import ConfigError, ExitCode

# The extras of the package: what a study may ask every site for, and what the clinic's wheel asks for.
STUDIES_EXTRA, CLINIC_EXTRA = "dp", "dicom"


def resolve_packages(arguments: Sequence[str]) -> list[Package]:
    """Return the packages that pip would install into an empty environment.

    Args:
        arguments: What to install, as for ``pip install``.

    Raises:
        ConfigError: pip cannot, or would take a file without a checksum or one that must be built first.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        command += ["--ignore-installed", "--only-binary", ":all:", "--report", str(report), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"pip must find every package; {reason}; check its configuration")
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(_read_package(one) for one in found)


def _read_package(entry: dict) -> Package:
    name, version = canonicalize_name(entry["metadata"]["name"]), entry["metadata"]["version"]
    digest = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is None:
        raise ConfigError(f"{name} {version} must come with a SHA-256 from the package index; it has none")
    return Package(name, Version(version).public, digest)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lock``."""
    out = "for what a site installs with the wheel, alone; as for hospitals with GPUs, on a machine like theirs"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)


def run(options: argparse.Namespace) -> int:
    """Write the locks, or that of sites alone where a file is named for it."""
    project, clinic = (
        tomllib.loads((REPOSITORY / "custom" / name / "pyproject.toml").read_text())["project"]
        for name in ("", "silofl_clinic")
    )
    wanted, extras = project["dependencies"], project["optional-dependencies"]
    of_clinic = [*wanted, *extras[CLINIC_EXTRA], *(one for one in clinic["dependencies"] if "silofl" not in one)]
    header = (
        f"Written by python -m provisioning lock for {platform.system()} {platform.machine()}, Python "
        f"{sys.version_info.major}.{sys.version_info.minor}, from the files that pip chose there."
    )
    everything = resolve_packages(["-r", str(REPOSITORY / "requirements.txt")])
    versions = {one.name: one for one in everything}
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch, "versions.txt")
        constraints.write_text("".join(f"{one.name}=={one.version}\n" for one in everything), encoding="utf-8")
        # The very files of the first answer: one index must not give two.
        sites, clinics = (
            [versions[one.name] for one in resolve_packages(["-c", str(constraints), *names])]
            for names in ([*wanted, *extras[STUDIES_EXTRA]], of_clinic)
        )
    locks = ((REPOSITORY / LOCK, everything), (SITE_LOCK, sites), (CLINIC_LOCK, clinics))
    for path, packages in locks if options.out is None else ((options.out, sites),):
        path.write_text(lock_text(packages, header), encoding="utf-8")
        print(f"{path}: {len(packages)} packages")
    return ExitCode.COMPLETE
