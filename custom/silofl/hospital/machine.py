"""Checks of a machine: installed packages, the kit's folder, the firewall."""

import platform
import subprocess
import tempfile
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

import silofl
from silofl.base.errors import ConfigError, quote_value
from silofl.flare.commands import check_start
from silofl.hospital.candidate import Participant
from silofl.hospital.finding import Finding, failed, ok, warning
from silofl.setup.software import find_installed_version

# As the study lead puts it into the kit, and the site installs it.
LOCK = "requirements.lock"
FIREWALL = "silofl-firewall.service"
REPORTED = ("torch", "nvflare", "monai")


def check_versions(candidate: Participant) -> Finding:
    """Compare every package with the kit's lock, or where it has none with what the wheel asks for, as Python is."""
    named = {
        "python": platform.python_version(),
        "silofl": silofl.__version__,
        **{name: find_installed_version(name) for name in REPORTED},
    }
    try:
        wheel = distribution("silofl")
    except PackageNotFoundError:
        return warning("SiloFL must be installed from its wheel, which says what it needs; it is not", **named)
    try:
        source, wanted = _read_wanted(candidate.kit.folder / LOCK, wheel)
    except ConfigError as error:
        return failed(str(error), **named)
    found = {one.name: find_installed_version(one.name) for one in wanted}
    wrong = [f"{one.name} {found[one.name] or 'none'}" for one in wanted if not _fits(one, found[one.name])]
    if not SpecifierSet(wheel.metadata.get_all("Requires-Python", [""])[0]).contains(str(named["python"])):
        wrong.insert(0, f"Python {named['python']}")
    if wrong:
        return failed(
            f"the packages must be {source}, not {', '.join(wrong)}; install the study's wheel in a new environment",
            **named,
        )
    listed = ", ".join(f"{name} {value}" for name, value in named.items())
    return ok(f"{listed} and all other packages are {source}", **named)


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
    said: list[str] = []
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["systemctl", "show", FIREWALL, "--property=LoadState,ActiveState", "--value"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.split()
    if len(said) != 2:
        return ok(
            f"{FIREWALL} cannot be asked here, where systemd does not answer; in a container the network around it "
            "decides where this account gets"
        )
    loaded, state = said
    if loaded == "not-found":
        return ok(f"{FIREWALL} is not installed here: another firewall, or none, decides where this account gets")
    if state != "active":
        return failed(
            f"{FIREWALL} must be active, not {state}: until then this account reaches every address; as root: "
            f"systemctl restart {FIREWALL}, and where that fails systemctl status {FIREWALL}"
        )
    return ok(f"{FIREWALL} is active")


def is_writable(place: Path) -> bool:
    """Try it: not even root can write everywhere, as to a file system that is mounted to be read."""
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def _read_wanted(lock: Path, wheel: Distribution) -> tuple[str, list[Requirement]]:
    """Return what packages must be there, after where it is said: in the kit's lock if there is one, or the wheel."""
    if not lock.is_file():
        wanted = [Requirement(text) for text in wheel.requires or []]
        # What belongs to an extra, as highdicom to `dicom`, nobody has to install.
        here = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
        return "as SiloFL's wheel asks", here
    pins = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        try:
            pins.append(Requirement(line.partition(" --hash=")[0]))
        except InvalidRequirement:
            raise ConfigError(
                f"{LOCK} must hold NAME==VERSION --hash=sha256:DIGEST in each line, not {quote_value(line)}; take the "
                "kit's own"
            ) from None
    return f"as the kit's {LOCK} says", pins


def _fits(wanted: Requirement, found: str | None) -> bool:
    return found is not None and wanted.specifier.contains(found, prereleases=True)
