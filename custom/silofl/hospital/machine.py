"""Checks of the site's machine: installed packages, disk, memory and GPU."""

import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import psutil
import torch
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

import silofl
from silofl.base.errors import ConfigError, SiloFLError, quote_value
from silofl.data.cache import describe_source, fingerprint_preparation, open_parts
from silofl.data.manifest import read_manifest
from silofl.data.preparation import build_preparation, prepare_case
from silofl.federation.needs import GIB, site_disk_bytes, site_memory_bytes
from silofl.flare.commands import check_start
from silofl.flare.policy import count_job_gpus
from silofl.hospital.candidate import Candidate, Participant
from silofl.hospital.finding import Finding, failed, ok, warning
from silofl.setup.software import find_installed_version
from silofl.training.device import choose_device

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


def check_disk(candidate: Candidate) -> Finding:
    """Compare the free space for state and cache with what the study needs."""
    needs = {
        candidate.state_folder: site_disk_bytes(candidate.study, candidate.num_sites),
        candidate.cache_folder: _cache_bytes(candidate) or 0,
    }
    wanted: dict[int, int] = {}
    for folder, need in needs.items():
        # The folder may not exist yet; the first existing one above it is on the same disk.
        place = next(place for place in (folder, *folder.parents) if place.exists())
        if not is_writable(place):
            return failed(
                f"{folder} must be a folder that this account can write; it cannot: grant it, or name another"
            )
        # State and cache may share a disk, which must then have room for both.
        device = place.stat().st_dev
        wanted[device] = wanted.get(device, 0) + need
        free = shutil.disk_usage(place).free
        if free < wanted[device]:
            return failed(
                f"the disk of {folder} must have {wanted[device] / GIB:.2f} GiB free, not {free / GIB:.2f}; make room, "
                "or name another in site.yaml"
            )
    state, cache = needs.values()
    return ok(
        f"the disks have room for {state / GIB:.2f} GiB of state and {cache / GIB:.2f} GiB of cache",
        state_bytes=state,
        cache_bytes=cache,
    )


def check_memory(candidate: Candidate) -> Finding:
    """Compare the free memory with the least that training needs."""
    need, free = site_memory_bytes(candidate.study), psutil.virtual_memory().available
    facts = {"needed_bytes": need, "free_bytes": free}
    if free < need:
        return warning(
            f"memory must be about {need / GIB:.1f} GiB free, not {free / GIB:.1f}; end other programs", **facts
        )
    return ok(f"{free / GIB:.1f} GiB of memory are free; training needs about {need / GIB:.1f}", **facts)


def check_gpu(candidate: Candidate) -> Finding:
    """Name the device that the site will use, with its free memory; NVFlare must not promise jobs more than there is.

    Raises:
        ConfigError: The site has no resources.json, or it cannot be read.
    """
    wanted = candidate.settings.device or candidate.study.device
    promised, here = count_job_gpus(candidate.kit), torch.cuda.device_count()
    if promised > here:
        return failed(
            f"num_of_gpus in local/resources.json must be at most the {here} GPUs of this machine, not {promised}: "
            "NVFlare would not start; correct it",
            num_of_gpus=promised,
        )
    try:
        device = choose_device(wanted)
    except ConfigError as error:
        return failed(str(error))
    if device.type == "cpu":
        return ok(f"device {wanted!r} is the CPU here, with {os.cpu_count()} cores", device="cpu")
    try:
        name, (free, total) = torch.cuda.get_device_name(), torch.cuda.mem_get_info()
    except RuntimeError as error:
        return failed(explain_gpu_fault(error))
    facts = {"device": name, "free_bytes": free}
    room = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if others := list_gpu_users():
        return warning(f"{name} must be this site's alone, not of process {others} too; it has {room}: end it", **facts)
    return ok(f"{name} has {room}", **facts)


def explain_gpu_fault(error: RuntimeError) -> str:
    """Return what is wrong with a GPU by torch's error, and what to do; raise the error where it is another's."""
    others = list_gpu_users() or "unknown"
    if isinstance(error, torch.OutOfMemoryError):
        return f"the GPU must have room for a training step; it has not: end process {others}, or use smaller batches"
    if "busy or unavailable" in str(error):
        return f"the GPU must be free; another process has it: end process {others}, or set device: cpu"
    if "CUDA" not in str(error) and "cuDNN" not in str(error):
        raise error
    return (
        "the GPU must stay there for a training step; it is gone, or its driver has failed: see nvidia-smi and dmesg, "
        "restart the machine, or set device: cpu"
    )


def list_gpu_users() -> str:
    """Return the numbers of the other processes that compute on a GPU here, as nvidia-smi says; none without it."""
    try:
        command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ", ".join(sorted({one for one in found if one.isdecimal()} - {str(os.getpid())}))


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


def _cache_bytes(candidate: Candidate) -> int | None:
    """Return the size of the cache as if every case were as large as the first; None where that cannot be read."""
    try:
        manifest = read_manifest(candidate.data_folder, candidate.study)
        entry = fingerprint_preparation(describe_source(manifest), candidate.study)
        if open_parts(candidate.cache_folder / entry) is not None:
            return 0
        first = next(filter(None, manifest.parts.values()))[0]
        case = prepare_case(first, manifest, build_preparation(candidate.study))
    except SiloFLError:
        return None
    return (case.images.nbytes + case.targets.nbytes) * sum(len(records) for records in manifest.parts.values())
