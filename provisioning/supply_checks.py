"""Checks of what a kit installs: the wheel, the lock and the wheelhouse, and whether they are for the site's device."""

from collections.abc import Iterable, Iterator

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from provisioning.guide import STUDY
from provisioning.supply import LOCK, WHEELHOUSE, Package, digest_file, is_for_gpu, list_own, read_lock
from silofl.base.errors import ConfigError
from silofl.base.settings import load_settings
from silofl.flare.kit import Kit
from silofl.setup.site import Site
from silofl.study import load_study


def find_supply_faults(kit: Kit) -> Iterator[str]:
    """Find a wheel or a lock that is not what was handed out, or that installs what the site cannot use."""
    if not list_own(kit.role):
        return
    yield from _find_wheel_faults(kit)
    yield from _find_lock_faults(kit)


def _find_wheel_faults(kit: Kit) -> Iterator[str]:
    known = _read_wheel_sums(kit)
    missing = set(list_own(kit.role)) - {wheel.partition("-")[0] for wheel in known}
    if missing:
        names = " and ".join(sorted(missing))
        yield f"SHA256SUMS must have the checksum of the wheel of {names}; fill the kit with fill-kits"
    for name, checksum in known.items():
        wheel = kit.folder / name
        if not wheel.is_file() or digest_file(wheel) != checksum:
            yield f"{name} must have the checksum in SHA256SUMS; fetch it again"
    for name in sorted({path.name for path in kit.folder.glob("*.whl")} - known.keys()) if known else ():
        yield f"{name} must be a wheel in SHA256SUMS; it is another: delete it, or fill the kit with fill-kits"


def _read_wheel_sums(kit: Kit) -> dict[str, str]:
    """Return wheel -> checksum of SHA256SUMS, of which the rest is the site's to change once it has compared it."""
    sums = kit.folder / "SHA256SUMS"
    lines = sums.read_text(encoding="utf-8").splitlines() if sums.is_file() else []
    return {name: checksum for checksum, _, name in (line.partition("  ") for line in lines) if name.endswith(".whl")}


def _find_lock_faults(kit: Kit) -> Iterator[str]:
    """Find a lock of another wheel, and one that has torch for the CPU where the site asks for a GPU."""
    try:
        packages = read_lock(kit.folder / LOCK)
    except ConfigError:
        yield f"{LOCK} must be there and have a version and a checksum of each package; fill the kit with fill-kits"
        return
    for wheel, checksum in _read_wheel_sums(kit).items():
        try:
            name, version, _, _ = parse_wheel_filename(wheel)
        except InvalidWheelFilename as error:
            yield f"{wheel} in SHA256SUMS must be named as pip names it; {error}; fill the kit with fill-kits"
            continue
        if Package(name, str(version), checksum) not in packages:
            yield f"{LOCK} must install {wheel}, with its checksum; fill the kit with fill-kits"
    yield from _find_wheelhouse_faults(kit, packages)
    asking = _find_gpu_wish(kit)
    if asking and not is_for_gpu(packages):
        yield (
            f"{LOCK} must install torch for a GPU, as device: cuda of {asking} asks, not for the CPU; fill the kit "
            "with fill-kits --lock provisioning/cuda-3.11.lock, or set device: cpu in local/site.yaml"
        )


def _find_gpu_wish(kit: Kit) -> str | None:
    """Return the file by which a hospital computes on a GPU, site.yaml or else the kit's study; None if none does."""
    name, study = "local/site.yaml", kit.folder / STUDY
    if kit.kind != "hospital":
        return None
    try:
        device = load_settings(Site, kit.folder / name).device
        if device is None and study.is_file():
            name, device = STUDY, load_study(study).device
    except ConfigError:
        # Named among the faults of settings.
        return None
    return name if device == "cuda" else None


def installs_for_gpu(kit: Kit) -> bool:
    """Return whether the torch of a kit's lock computes on a GPU; also where it has no lock, which is another fault."""
    try:
        return is_for_gpu(read_lock(kit.folder / LOCK))
    except ConfigError:
        return True


def _find_wheelhouse_faults(kit: Kit, packages: Iterable[Package]) -> Iterator[str]:
    """Find packages of the lock that are not in the kit's wheelhouse, as after it was filled with another wheel."""
    if not (kit.folder / WHEELHOUSE).is_dir():
        return
    there = {digest_file(path) for path in (kit.folder / WHEELHOUSE).iterdir() if path.is_file()}
    missing = [package for package in packages if package.sha256 not in there]
    if missing:
        yield (
            f"{WHEELHOUSE}/ must hold all packages of {LOCK}, and {len(missing)} are missing, {missing[0].name} "
            f"{missing[0].version} among them; fill it again with wheelhouse"
        )
