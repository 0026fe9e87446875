"""Write the locks: every package that is installed, with its version and the checksum of its one file.

    python -m provisioning lock [--out FILE] [--index PLACE]

``requirements.lock`` is of requirements.txt, ``provisioning/site.lock`` of what a site installs with the wheel, and has
all that a study may ask of every site, ``provisioning/clinic.lock`` of what a clinic installs with two wheels. pip
resolves them on this machine: the checksums are those of its platform and its package index, and of no other.
``cuda-3.11.lock`` and so on are of sites with GPUs: uv resolves them for Linux x86_64 and a Python each, in the same
versions, from the index that it is configured for.
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

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from provisioning.supply import LOCK, Package, lock_text
from provisioning.workspace import CLINIC_LOCK, CUDA_LOCKS, REPOSITORY, SITE_LOCK
from silofl.base.errors import ConfigError, ExitCode, one_line
from silofl.federation.needs import GIB

# The extras of the package: what a study may ask every site for, and what the clinic's wheel asks for.
STUDIES_EXTRA, CLINIC_EXTRA = "dp", "dicom"
# The systems of sites with GPUs, in uv's word and as the wheels' names have them, the newest first.
SYSTEM = "x86_64-manylinux_2_28"
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64", "linux_x86_64"]


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


def resolve_for_cuda(requirements: Path, versions: Path, python: str) -> tuple[list[Package], int]:
    """Return the packages of a site with GPUs, as uv finds them, and the bytes of their files.

    Args:
        requirements: A file of what to install, as pip reads it.
        versions: A file of the versions to take where a package is among them.
        python: The site's Python, as ``3.12``.

    Raises:
        ConfigError: uv is not installed, or does not find every package.
    """
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch, "pylock.toml")
        command = ["uv", "pip", "compile", "--quiet", str(requirements), "-c", str(versions), "--format", "pylock.toml"]
        command += ["--python-version", python, "--python-platform", SYSTEM, "--only-binary", ":all:", "-o", str(found)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            raise ConfigError("uv must be installed to write the locks for GPUs; it is not: pip install uv") from None
        if done.returncode:
            raise ConfigError(f"uv must find every package; {one_line(done.stderr)}; check its configuration")
        packages = tomllib.loads(found.read_text(encoding="utf-8"))["packages"]
    wheels = [(one, min(one["wheels"], key=lambda wheel: _rank_wheel(wheel, python))) for one in packages]
    named = [Package(one["name"], one["version"], wheel["hashes"]["sha256"]) for one, wheel in wheels]
    return sorted(named), sum(wheel["size"] for _, wheel in wheels)


def _rank_wheel(wheel: dict, python: str) -> int:
    """Return the place of a wheel among those that pip would take, the best first."""
    version = tuple(map(int, python.split(".")))
    known = [*cpython_tags(version, platforms=PLATFORMS), *compatible_tags(version, platforms=PLATFORMS)]
    tags = parse_wheel_filename(wheel["url"].rpartition("/")[2])[3]
    return min((place for place, tag in enumerate(known) if tag in tags), default=len(known))


def _read_package(entry: dict) -> Package:
    name, version = canonicalize_name(entry["metadata"]["name"]), entry["metadata"]["version"]
    digest = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is None:
        raise ConfigError(f"{name} {version} must come with a SHA-256 from the package index; it has none")
    return Package(name, Version(version).public, digest)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lock``."""
    out = "for what a site installs with the wheel, alone; on a machine like the site's"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    index = "package index, or folder of wheels, that pip takes all packages from (default: as it is configured)"
    parser.add_argument("--index", metavar="PLACE", help=index)


def run(options: argparse.Namespace) -> int:
    """Write all locks, or that of sites alone where a file is named for it."""
    wanted, of_clinic = list_wanted()
    header = (
        f"Written by python -m provisioning lock for {platform.system()} {platform.machine()}, Python "
        f"{sys.version_info.major}.{sys.version_info.minor}, from the files that pip chose there."
    )
    given = options.index
    place = [] if given is None else ["--no-index", "--find-links"] if Path(given).is_dir() else ["--index-url"]
    place += [given] if given else []
    everything = resolve_packages([*place, "-r", str(REPOSITORY / "requirements.txt")])
    versions = {one.name: one for one in everything}
    with tempfile.TemporaryDirectory() as scratch:
        constraints, requirements = Path(scratch, "versions.txt"), Path(scratch, "site.txt")
        constraints.write_text("".join(f"{one.name}=={one.version}\n" for one in everything), encoding="utf-8")
        requirements.write_text("".join(f"{one}\n" for one in wanted), encoding="utf-8")
        # The very files of the first answer: one index must not give two.
        sites, clinics = (
            [versions[one.name] for one in resolve_packages([*place, "-c", str(constraints), *names])]
            for names in (wanted, of_clinic)
        )
        locks = ((REPOSITORY / LOCK, everything), (SITE_LOCK, sites), (CLINIC_LOCK, clinics))
        for path, packages in locks if options.out is None else ((options.out, sites),):
            _write_lock(path, packages, header)
        for python, path in CUDA_LOCKS.items() if options.out is None else ():
            packages, size = resolve_for_cuda(requirements, constraints, python)
            about = f"Linux x86_64 with an NVIDIA GPU, Python {python}; {size / GIB:.1f} GiB to download, by uv."
            _write_lock(path, packages, f"Written by python -m provisioning lock for {about}")
    return ExitCode.COMPLETE


def list_wanted() -> tuple[list[str], list[str]]:
    """Return what a site and a clinic install beside the project's own wheels, as ``pip install`` takes it."""
    project, clinic = (
        tomllib.loads((REPOSITORY / "custom" / name / "pyproject.toml").read_text())["project"]
        for name in ("", "silofl_clinic")
    )
    wanted, extras = project["dependencies"], project["optional-dependencies"]
    of_clinic = [one for one in clinic["dependencies"] if "silofl" not in one]
    return [*wanted, *extras[STUDIES_EXTRA]], [*wanted, *extras[CLINIC_EXTRA], *of_clinic]


def _write_lock(path: Path, packages: Sequence[Package], header: str) -> None:
    path.write_text(lock_text(packages, header), encoding="utf-8")
    print(f"{path}: {len(packages)} packages")
