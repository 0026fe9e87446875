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
    # The kit of a person who installs nothing has neither.
    if not list_own(kit.role):
        return
    yield from _find_wheel_faults(kit)
    yield from _find_lock_faults(kit)


def _find_wheel_faults(kit: Kit) -> Iterator[str]:
    sums = _read_wheel_sums(kit)
    missing = set(list_own(kit.role)) - {wheel.partition("-")[0] for wheel in sums}
    if missing:
        names = " and ".join(sorted(missing))
        yield f"SHA256SUMS must have the checksum of the wheel of {names}; fill the kit with fill-kits"
    for name, checksum in sums.items():
        wheel = kit.folder / name
        if not wheel.is_file() or digest_file(wheel) != checksum:
            yield f"{name} must have the checksum in SHA256SUMS; fetch it again"
    for path in sorted(kit.folder.glob("*.whl")):
        # Without any checksum of a wheel the fault is that one.
        if sums and path.name not in sums:
            yield f"{path.name} must be a wheel in SHA256SUMS; it is another: delete it, or fill the kit with fill-kits"


def _read_wheel_sums(kit: Kit) -> dict[str, str]:
    # The other files that SHA256SUMS names are the site's to change once it has compared them.
    path = kit.folder / "SHA256SUMS"
    sums = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        checksum, _, name = line.partition("  ")
        if name.endswith(".whl"):
            sums[name] = checksum
    return sums


def _find_lock_faults(kit: Kit) -> Iterator[str]:
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
    if kit.kind != "hospital":
        return None
    study = kit.folder / STUDY
    try:
        device = load_settings(Site, kit.folder / "local" / "site.yaml").device
        if device is None and study.is_file():
            return STUDY if load_study(study).device == "cuda" else None
    except ConfigError:
        # What is wrong with them is told among the faults of settings.
        return None
    return "local/site.yaml" if device == "cuda" else None


def installs_for_gpu(kit: Kit) -> bool:
    """Return whether the torch of a kit's lock computes on a GPU; also where it has no lock, which is another fault."""
    try:
        return is_for_gpu(read_lock(kit.folder / LOCK))
    except ConfigError:
        return True


def _find_wheelhouse_faults(kit: Kit, packages: Iterable[Package]) -> Iterator[str]:
    # After a kit was filled with another wheel, its wheelhouse is that of the one before.
    wheelhouse = kit.folder / WHEELHOUSE
    if not wheelhouse.is_dir():
        return
    present = {digest_file(path) for path in wheelhouse.iterdir() if path.is_file()}
    missing = [package for package in packages if package.sha256 not in present]
    if missing:
        yield (
            f"{WHEELHOUSE}/ must hold all packages of {LOCK}, and {len(missing)} are missing, {missing[0].name} "
            f"{missing[0].version} among them; fill it again with wheelhouse"
        )
