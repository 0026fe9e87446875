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

# These extras of the package have what a study may ask every site for, and what the clinic's wheel asks for.
STUDIES_EXTRA = "dp"
CLINIC_EXTRA = "dicom"
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
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(map(_read_package, entries))


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
        lock = Path(scratch, "pylock.toml")
        command = ["uv", "pip", "compile", "--quiet", str(requirements), "-c", str(versions), "--format", "pylock.toml"]
        command += ["--python-version", python, "--python-platform", SYSTEM, "--only-binary", ":all:", "-o", str(lock)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            raise ConfigError("uv must be installed to write the locks for GPUs; it is not: pip install uv") from None
        if done.returncode:
            raise ConfigError(f"uv must find every package; {one_line(done.stderr)}; check its configuration")
        packages = tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]
    chosen = []
    size = 0
    for package in packages:
        wheel = min(package["wheels"], key=lambda wheel: _rank_wheel(wheel, python))
        chosen.append(Package(package["name"], package["version"], wheel["hashes"]["sha256"]))
        size += wheel["size"]
    return sorted(chosen), size


def _rank_wheel(wheel: dict, python: str) -> int:
    """Return how many tags pip would like better than those of a wheel."""
    version = tuple(map(int, python.split(".")))
    # These are in pip's order: the best first.
    accepted = [*cpython_tags(version, platforms=PLATFORMS), *compatible_tags(version, platforms=PLATFORMS)]
    tags = parse_wheel_filename(wheel["url"].rpartition("/")[2])[3]
    return min((rank for rank, tag in enumerate(accepted) if tag in tags), default=len(accepted))


def _read_package(entry: dict) -> Package:
    name = canonicalize_name(entry["metadata"]["name"])
    version = entry["metadata"]["version"]
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
    index = []
    if options.index:
        index = ["--no-index", "--find-links"] if Path(options.index).is_dir() else ["--index-url"]
        index.append(options.index)
    everything = resolve_packages([*index, "-r", str(REPOSITORY / "requirements.txt")])
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch, "versions.txt")
        constraints.write_text("".join(f"{package.name}=={package.version}\n" for package in everything))
        sites = _select(everything, [*index, "-c", str(constraints), *wanted])
        if options.out is not None:
            _write_lock(options.out, sites, header)
            return ExitCode.COMPLETE
        clinics = _select(everything, [*index, "-c", str(constraints), *of_clinic])
        _write_lock(REPOSITORY / LOCK, everything, header)
        _write_lock(SITE_LOCK, sites, header)
        _write_lock(CLINIC_LOCK, clinics, header)
        requirements = Path(scratch, "site.txt")
        requirements.write_text("".join(f"{requirement}\n" for requirement in wanted), encoding="utf-8")
        for python, path in CUDA_LOCKS.items():
            packages, size = resolve_for_cuda(requirements, constraints, python)
            about = f"Linux x86_64 with an NVIDIA GPU, Python {python}; {size / GIB:.1f} GiB to download, by uv."
            _write_lock(path, packages, f"Written by python -m provisioning lock for {about}")
    return ExitCode.COMPLETE


def _select(everything: Sequence[Package], arguments: Sequence[str]) -> list[Package]:
    # The checksums are those of the first answer: one index must not give two files of a version.
    by_name = {package.name: package for package in everything}
    return [by_name[package.name] for package in resolve_packages(arguments)]


def list_wanted() -> tuple[list[str], list[str]]:
    """Return what a site and a clinic install beside the project's own wheels, as ``pip install`` takes it."""
    project = tomllib.loads((REPOSITORY / "custom" / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    others = []
    for wheel in ("silofl_hospital", "silofl_clinic"):
        described = tomllib.loads((REPOSITORY / "custom" / wheel / "pyproject.toml").read_text())["project"]
        # The own wheels come from the kit, not from an index.
        others.append([requirement for requirement in described["dependencies"] if "silofl" not in requirement])
    of_hospital, of_clinic = others
    wanted = [*project["dependencies"], *of_hospital]
    return [*wanted, *extras[STUDIES_EXTRA]], [*wanted, *extras[CLINIC_EXTRA], *of_clinic]


def _write_lock(path: Path, packages: Sequence[Package], header: str) -> None:
    path.write_text(lock_text(packages, header), encoding="utf-8")
    print(f"{path}: {len(packages)} packages")
