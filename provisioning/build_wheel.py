"""Build a package's wheel and source archive: of one source the same bytes, and so the same checksum, everywhere.

    python -m provisioning build-wheel FOLDER

It builds the wheels of silofl and silofl_hospital, and silofl_desk's for study leads. ``make-kits`` puts the same ones
into the kits: whoever builds them from the release that was reviewed gets the checksums that are in a kit's SHA256SUMS
and requirements.lock.
"""

import argparse
import gzip
import hashlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from provisioning.workspace import REPOSITORY
from silofl.base.errors import ConfigError, ExitCode

# Each file in a wheel or archive has this mode, whatever it has in the folder of the source.
MODE = stat.S_IFREG | 0o644
README = "README.md"
# A link or picture of the README that leads to a file of the repository.
RELATIVE_LINK = re.compile(r"!?\[([^]]*)\]\((?!https?://)([^)#\s]+)[^)]*\)")
ELSEWHERE = "Files in square brackets are in SiloFL's repository.\n\n"
BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def build_wheel(source: Path, target: Path) -> Path:
    """Build a package's wheel, reproducibly.

    Args:
        source: The folder of the package's pyproject.toml.
        target: Where the wheel goes.

    Raises:
        ConfigError: pip cannot build it.
    """
    command = ("-m", "pip", "wheel", "--quiet", "--no-deps", ".", "-w", "dist")
    return _build(source, target, command, "*.whl", _rewrite_wheel)


def build_wheels(target: Path) -> list[Path]:
    """Build the wheels of kits into a folder: silofl's, silofl_hospital's, and silofl_desk's for study leads."""
    return [build_wheel(REPOSITORY / "custom" / name, target) for name in ("", "silofl_hospital", "silofl_desk")]


def build_sdist(source: Path, target: Path) -> Path:
    """Build a package's source archive, reproducibly, by the builder that is installed here.

    Args:
        source: The folder of the package's pyproject.toml.
        target: Where the archive goes.

    Raises:
        ConfigError: It cannot be built.
    """
    return _build(source, target, ("-c", BUILD_SDIST, "dist"), "*.tar.gz", _rewrite_sdist)


def describe_package(readme: str) -> str:
    """Return the README as a package index shows it: a path of the repository stands where a link to it would break."""
    text = RELATIVE_LINK.sub(lambda link: f"[{link[2]}]" if link[1] == link[2] else f"{link[1]} [{link[2]}]", readme)
    title, _, rest = text.partition("\n\n")
    return text if text == readme else f"{title}\n\n{ELSEWHERE}{rest}"


def _build(
    source: Path, target: Path, command: Sequence[str], pattern: str, rewrite: Callable[[Path, Path], Path]
) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        # An earlier build/ beside the source would bring back modules that were deleted since.
        ignored = shutil.ignore_patterns("build", "dist", "*.egg-info")
        copied = Path(shutil.copytree(source, f"{scratch}/source", ignore=ignored))
        readme = copied / README
        if readme.is_file():
            readme.write_text(describe_package(readme.read_text(encoding="utf-8")), encoding="utf-8")
        done = subprocess.run([sys.executable, *command], cwd=copied, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"{source} must be a package that pip can build; {reason}; or name a built one, --wheel")
        (built,) = copied.glob(f"dist/{pattern}")
        target.mkdir(parents=True, exist_ok=True)
        return rewrite(built, target / built.name)


def _rewrite_wheel(wheel: Path, target: Path) -> Path:
    """Copy a wheel without what differs between machines: dates, modes and order of its files, and their packing."""
    with zipfile.ZipFile(wheel) as built, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as written:
        # What describes the wheel comes last, as its format asks.
        for name in sorted(built.namelist(), key=lambda name: (".dist-info/" in name, name)):
            # Without a date an entry has the first day of the format's calendar.
            entry = zipfile.ZipInfo(name)
            # The modes are Unix's, also where the wheel is built on another system.
            entry.create_system = 3
            entry.external_attr = MODE << 16
            written.writestr(entry, built.read(name))
    return target


def _rewrite_sdist(sdist: Path, target: Path) -> Path:
    """Copy a source archive without what differs: dates, owners, modes and order of its files, and their packing."""
    with (
        tarfile.open(sdist) as built,
        target.open("wb") as stream,
        gzip.GzipFile("", "wb", compresslevel=0, fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as written,
    ):
        for member in sorted(filter(tarfile.TarInfo.isfile, built), key=lambda member: member.name):
            # A new entry has no date and no owner.
            entry = tarfile.TarInfo(member.name)
            entry.size = member.size
            entry.mode = stat.S_IMODE(MODE)
            written.addfile(entry, built.extractfile(member))
    return target


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``build-wheel``."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the wheels")


def run(options: argparse.Namespace) -> int:
    """Build the wheels of kits and print their checksums."""
    for wheel in build_wheels(options.folder):
        print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel}")
    return ExitCode.COMPLETE
