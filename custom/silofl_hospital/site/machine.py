"""Checks of a machine: installed packages, the kit's folder, the firewall."""

import platform
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

import silofl
from silofl.base.errors import ConfigError
from silofl.flare.commands import check_start
from silofl.setup.software import find_installed_version
from silofl_hospital.site.candidate import Participant
from silofl_hospital.site.finding import Finding, expect, failed, ok, warning

# As the study lead puts it into the kit, and the site installs it.
LOCK = "requirements.lock"
FIREWALL = "silofl-firewall.service"
REPORTED = ("torch", "nvflare", "monai")


def check_versions(candidate: Participant) -> Finding:
    """Compare every package with the kit's lock, or where it has none with what the wheel asks for."""
    named: dict[str, Any] = {
        "python": platform.python_version(),
        "silofl": silofl.__version__,
        **{name: find_installed_version(name) for name in REPORTED},
    }
    try:
        source, wanted = _read_wanted(candidate.kit.folder / LOCK)
    except ConfigError as error:
        return failed(str(error), **named)
    except PackageNotFoundError:
        return warning("SiloFL must be installed from its wheel, which says what it needs; it is not", **named)
    wrong = []
    for requirement in wanted:
        installed = find_installed_version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} {installed or 'none'}")
    return expect(
        not wrong,
        f"{', '.join(f'{name} {value}' for name, value in named.items())} and all other packages are {source}",
        f"the packages must be {source}, not {', '.join(wrong)}; install the study's wheel in a new environment",
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
    said = ask_system(*command).split()
    if len(said) != 2 or said[0] == "not-found":
        return ok(f"{FIREWALL} is not known here: another firewall, or none, decides where this account gets")
    return expect(
        said[1] == "active",
        f"{FIREWALL} is active",
        f"{FIREWALL} must be active, not {said[1]}: until then this account reaches every address; as root: "
        f"systemctl restart {FIREWALL}, and where that fails systemctl status {FIREWALL}",
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


def _read_wanted(lock: Path) -> tuple[str, list[Requirement]]:
    """Return where it is said what packages must be there, the kit's lock or else the wheel, and the packages."""
    if not lock.is_file():
        wanted = [Requirement(text) for text in distribution("silofl").requires or []]
        # What belongs to an extra, as highdicom to `dicom`, nobody has to install.
        needed = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
        return "as SiloFL's wheel asks", needed
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    try:
        return f"as the kit's {LOCK} says", [Requirement(line.partition(" --hash=")[0]) for line in lines]
    except InvalidRequirement:
        raise ConfigError(
            f"{LOCK} must hold NAME==VERSION --hash=sha256:DIGEST in each line; take the kit's own"
        ) from None
