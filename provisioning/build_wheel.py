"""Build the package's wheel: of one source the same bytes, and so the same checksum, on every machine.

    python -m provisioning build-wheel FOLDER

``make-kits`` puts the same wheel into the kits: whoever builds it from the release that was reviewed gets the checksum
that is in the kit's INSTALL.md, SHA256SUMS and requirements.lock.
"""

import argparse
import hashlib
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from provisioning.workspace import REPOSITORY
from silofl.base.errors import ConfigError, ExitCode

# Of each file in a wheel, whatever it has in the folder of the source.
MODE = stat.S_IFREG | 0o644


def build_wheel(source: Path, target: Path) -> Path:
    """Build the package's wheel, reproducibly.

    Args:
        source: The folder of the package's pyproject.toml.
        target: Where the wheel goes.

    Raises:
        ConfigError: pip cannot build it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        # An earlier build/ beside the source would bring back modules that were deleted since.
        copied = Path(
            shutil.copytree(source, f"{scratch}/source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
        )
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(copied), "-w", f"{scratch}/wheel"]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            reason = (built.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"{source} must be a package that pip can build; {reason}; or name a built one, --wheel")
        (wheel,) = Path(scratch, "wheel").glob("*.whl")
        target.mkdir(parents=True, exist_ok=True)
        return _rewrite(wheel, target / wheel.name)


def _rewrite(wheel: Path, target: Path) -> Path:
    """Copy a wheel without what differs between machines: dates, modes and order of its files, and their packing."""
    with zipfile.ZipFile(wheel) as built, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as written:
        # What describes the wheel comes last, as its format asks.
        for name in sorted(built.namelist(), key=lambda name: (".dist-info/" in name, name)):
            # Without a date: the first day of the format's calendar.
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, MODE << 16
            written.writestr(entry, built.read(name))
    return target


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``build-wheel``."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the wheel")


def run(options: argparse.Namespace) -> int:
    """Build the wheel of ./custom and print its checksum."""
    wheel = build_wheel(REPOSITORY / "custom", options.folder)
    print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel}")
    return ExitCode.COMPLETE
