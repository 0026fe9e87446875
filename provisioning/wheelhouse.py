"""Put all packages that a site installs into its kit, for a hospital without a package index.

    python -m provisioning wheelhouse KIT...

``wheelhouse/`` of a kit then holds the very files that its requirements.lock names, some 400 MB; INSTALL.md says how to
install from it. They are of one platform: download them on a machine like the site's.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from provisioning.supply import LOCK, WHEELHOUSE
from silofl.base.errors import ConfigError, ExitCode


def fill_wheelhouse(kit: Path) -> Path:
    """Download what a kit's lock names, with the own wheel from the kit; returns the folder.

    Raises:
        ConfigError: The kit has no lock, or a file is not there, or is not the one whose checksum the lock has.
    """
    if not (kit / LOCK).is_file():
        raise ConfigError(f"{kit} must be a filled kit, with {LOCK}; it is not there: run fill-kits first")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--find-links", str(kit), "-r", str(kit / LOCK)]
    done = subprocess.run([*command, "--dest", str(kit / WHEELHOUSE)], capture_output=True, text=True)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        raise ConfigError(f"every package of {kit / LOCK} must be there with its checksum; {reason}")
    return kit / WHEELHOUSE


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wheelhouse``."""
    parser.add_argument("kits", type=Path, nargs="+", metavar="KIT", help="folder of a filled kit")


def run(options: argparse.Namespace) -> int:
    """Fill the wheelhouses of the named kits."""
    for kit in options.kits:
        print(f"{fill_wheelhouse(kit)}: {len(list((kit / WHEELHOUSE).glob('*.whl')))} packages")
    return ExitCode.COMPLETE
