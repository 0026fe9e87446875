"""Checks of a machine: installed packages, the kit's folder, the firewall."""

import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

import silofl
from silofl.base.errors import ConfigError
from silofl.flare.commands import check_start
from silofl.setup.software import find_installed_version
from silofl_hospital.site.candidate import Participant
from silofl_hospital.site.finding import Finding, expect, failed, ok, warning

# The study lead puts it into the kit, and the site installs what it lists.
LOCK = "requirements.lock"
FIREWALL = "silofl-firewall.service"
REPORTED = ("torch", "nvflare", "monai")


def check_versions(candidate: Participant) -> Finding:
    """Compare every package with the kit's lock."""
    named: dict[str, Any] = {
        "python": platform.python_version(),
        "silofl": silofl.__version__,
        **{name: find_installed_version(name) or "none" for name in REPORTED},
    }
    lock = candidate.kit.folder / LOCK
    if not lock.is_file():
        return warning(f"the kit has no {LOCK}, which names the packages; ask the study lead for it", **named)
    wrong = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        try:
            requirement = Requirement(line.partition(" --hash=")[0])
        except InvalidRequirement:
            return failed(
                f"{LOCK} has a line other than NAME==VERSION --hash=sha256:DIGEST; take the kit's own", **named
            )
        installed = find_installed_version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} {installed or 'none'}")
    return expect(
        not wrong,
        f"{', '.join(map(' '.join, named.items()))} and all other packages are as the kit's {LOCK} says",
        f"packages differ from the kit's {LOCK}, {', '.join(wrong)}; install the study's wheel in a new environment",
        **named,
    )


def check_folder(candidate: Participant) -> Finding:
    """Check that NVFlare can start in the kit's folder, and jobs by this Python: its commands keep not every path."""
    try:
        check_start(candidate.kit.folder)
    except ConfigError as error:
        # It names the folders of kit and Python, and none of the data.
        return failed(str(error))
    return ok("the paths of kit and Python have no blank, quote, backslash or hash, at which NVFlare's commands break")


def check_firewall(_: Participant) -> Finding:
    """Check that the kit's firewall is loaded where it is installed."""
    command = ["systemctl", "show", FIREWALL, "--property=LoadState,ActiveState", "--value"]
    lines = ask_system(*command).split()
    # systemctl prints one value a line, in the order that was asked for.
    if len(lines) != 2 or lines[0] == "not-found":
        return ok(f"{FIREWALL} is not known here: another firewall, or none, decides where this account gets")
    return expect(
        lines[1] == "active",
        f"{FIREWALL} is active",
        f"{FIREWALL} is {lines[1]}, so that this account reaches every address; as root: systemctl restart {FIREWALL}, "
        f"and where that fails systemctl status {FIREWALL}",
    )


def ask_system(*command: str) -> str:
    """Return what a program of the system prints; nothing where it is not there or does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def is_writable(place: Path) -> bool:
    """Try it: not even root can write everywhere, as to a file system that is mounted to be read."""
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False
