"""Put SiloFL's part into kits: wheels, checksums, lock and SBOM, the site's policies, a study, INSTALL.md.

    python -m provisioning fill-kits KIT... --wheel WHEEL [--study STUDY.yaml] [--data-root DIR] [--site-configs DIR]
        [--policies]

``make-kits`` does it for all kits of a workspace; a hospital that made its own kit (``nvflare package``) does it with
this command. Of NVFlare's own files, keys among them, none is written but the start script, which then keeps other
accounts from what it writes; policies that are there stay but for --policies.
"""

import argparse
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provisioning.guide import STUDY, write_guide, write_persons_guide
from provisioning.supply import LOCK, digest_file, find_own_wheels, is_for_gpu, name_package, read_lock, write_supply
from provisioning.workspace import CUDA_LOCKS, SCRIPT, SITE_CONFIGS, SITE_LOCK, UMASK, find_kits, write_yaml
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import read_json, write_json, write_text
from silofl.base.settings import read_yaml
from silofl.flare import line
from silofl.flare.kit import Kit
from silofl.flare.stores import is_volatile, read_stores, set_stores
from silofl.study import load_study

# These policies come into local/ of each kind of kit. An admin's kit decides nothing.
POLICIES = {
    "hospital": ("site.yaml", "resources.json", "authorization.json", "privacy.json"),
    "server": ("server.yaml", "resources.json", "authorization.json", "privacy.json"),
}
SERVER_STORES = "/var/lib/silofl/server"
# This stands at the head of a start script, and so holds however it is started: systemd, a container, Slurm, a person.
GUARD = f"""# What it writes, no other account reads; Python imports nothing from the kit, in which folders of jobs lie.
{UMASK}
export PYTHONSAFEPATH=1
"""
# These files of NVFlare's have people start a kit before they read INSTALL.md, and a person shut down the network.
FOREIGN = ("readme.txt", "startup/readme.txt", "startup/system_info.ipynb")
NO_PROJECT: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Contents:
    """What `fill_kit` puts into kits.

    Attributes:
        wheel: The package that sites install; what leads install with it is beside it.
        lock: The packages that are installed with it; those of provisioning/ for the site's device where not given.
        site_configs: Holds a folder of policies for each kind of site: ``hospital/``, ``server/``.
        data_root: Holds a folder of data for each site, as for ``silofl simulate --data``; state and results are kept
            below it too. Without it, site.yaml and server.yaml stay as they are in ``site_configs``.
        hospital_kind: The folder of ``site_configs`` that is for hospitals.
        study: The study.yaml with which hospitals check themselves; a kit keeps the one that it has where not given.
        line: What ``local/comm_config.json`` says of the network's line.
        has_new_policies: Whether policies replace those that a kit has, what its site has decided among them.
    """

    wheel: Path
    site_configs: Path = SITE_CONFIGS
    data_root: Path | None = None
    hospital_kind: str = "hospital"
    lock: Path | None = None
    study: Path | None = None
    line: Mapping[str, int] = field(default_factory=dict)
    has_new_policies: bool = False


def fill_kit(kit: Kit, contents: Contents) -> None:
    """Fill a kit: that of a person gets what its role installs, and its INSTALL.md.

    Raises:
        ConfigError: A wheel, a policy or the study is missing or wrong.
    """
    wheels = find_own_wheels(contents.wheel, kit.role)
    settings = None
    if kit.kind == "hospital":
        # The lock is for the device of the site.yaml that the kit will have.
        settings = kit.folder / "local" / "site.yaml"
        if contents.has_new_policies or not settings.exists():
            settings = _find_policies("hospital", contents) / settings.name
    lock = _choose_lock(contents, settings)
    _put_wheels(kit.folder, wheels)
    packages = [name_package(wheel, digest_file(wheel)) for wheel in wheels]
    if packages:
        write_supply(kit.folder, packages, lock)
    for name in FOREIGN:
        (kit.folder / name).unlink(missing_ok=True)
    if kit.kind == "admin":
        write_persons_guide(kit)
        return
    lock_checksum = digest_file(kit.folder / LOCK)
    _guard_start(kit.folder / SCRIPT)
    _put_policies(kit, contents)
    _put_line(kit.folder / "local" / line.COMM_CONFIG, contents.line)
    if kit.kind == "hospital" and contents.study:
        _put_study(kit.folder, contents.study)
    named = [{"name": wheel.name, "checksum": package.sha256} for wheel, package in zip(wheels, packages, strict=True)]
    write_guide(kit, {"packages": named, "lock_checksum": lock_checksum})


def _guard_start(script: Path) -> None:
    # The guard comes behind the line that names the shell, once however often the kit is filled.
    shell, _, rest = script.read_text(encoding="utf-8").partition("\n")
    write_text(script, f"{shell}\n{GUARD}{rest.removeprefix(GUARD)}")
    # NVFlare's start.sh calls it as a program.
    script.chmod(0o700)


def _put_line(path: Path, settings: Mapping[str, int]) -> None:
    # What else a site says of its line stays.
    if settings:
        write_json(path, read_json(path, absent={}) | settings)


def _put_wheels(folder: Path, wheels: Sequence[Path]) -> None:
    # Wheels of other versions go, since pip would not know which is meant.
    for old in set(folder.glob("*.whl")) - {folder / wheel.name for wheel in wheels}:
        old.unlink()
    for wheel in wheels:
        # The wheel may be the kit's own, which copyfile refuses to copy onto itself.
        if not (folder / wheel.name).exists() or not wheel.samefile(folder / wheel.name):
            shutil.copyfile(wheel, folder / wheel.name)


def _put_study(folder: Path, path: Path) -> None:
    for source, name in _study_files(path).items():
        if not (folder / name).exists() or not source.samefile(folder / name):
            shutil.copyfile(source, folder / name)


def _study_files(path: Path) -> dict[Path, str]:
    """Return the files of a study, with their names in a kit: study.yaml, and the model that it names."""
    names = {path: STUDY}
    study = load_study(path)
    if study.model_file:
        names[path.with_name(study.model_file)] = study.model_file
    for source in names:
        if not source.is_file():
            raise ConfigError(f"{source.name} must be beside {path}, which names it; put it there")
    return names


def _find_policies(kind: str, contents: Contents) -> Path:
    source = contents.site_configs / (contents.hospital_kind if kind == "hospital" else kind)
    missing = [name for name in POLICIES[kind] if not (source / name).is_file()]
    if missing:
        raise ConfigError(f"{source} must hold {', '.join(POLICIES[kind])}; missing: {', '.join(missing)}")
    return source


def _choose_lock(contents: Contents, settings: Path | None) -> Path:
    """Return the lock for what a site.yaml asks for, or for a machine without one; refuse one of another device."""
    device = read_yaml(settings).get("device") if settings else None
    if contents.lock is None:
        return next(iter(CUDA_LOCKS.values())) if device == "cuda" else SITE_LOCK
    # A machine that leaves its device open, or has no site.yaml, takes any lock.
    if device in ("cpu", "cuda") and is_for_gpu(read_lock(contents.lock)) != (device == "cuda"):
        raise ConfigError(
            f"--lock must install torch for {'a GPU' if device == 'cuda' else 'the CPU'}, as device: {device} of "
            f"{settings.parent.name}/{settings.name} asks; leave --lock out, or name another --kind with --policies"
        )
    return contents.lock


def _put_policies(kit: Kit, contents: Contents) -> None:
    source = _find_policies(kit.kind, contents)
    local = kit.folder / "local"
    for name in POLICIES[kit.kind]:
        if contents.has_new_policies or not (local / name).exists():
            shutil.copyfile(source / name, local / name)
        elif (local / name).read_bytes() != (source / name).read_bytes():
            print(f"{kit.name}: local/{name} stays as it is; --policies replaces it by {source / name}")
    if (contents.site_configs / "README.md").is_file():
        shutil.copyfile(contents.site_configs / "README.md", local / "README.md")
    root = contents.data_root.resolve() if contents.data_root else None
    if kit.kind == "server":
        _put_server_places(local, root)
    elif root:
        settings = read_yaml(local / "site.yaml")
        # Without one of its own, a site's cache is beside its state.
        settings.pop("cache_dir", None)
        settings["data"] = f"{root}/{{site}}"
        settings["state_dir"] = f"{root}/.silofl/{{study}}/{{site}}"
        write_yaml(local / "site.yaml", settings)


def _put_server_places(local: Path, root: Path | None) -> None:
    if root:
        run_dir = f"{root}/.silofl/server/runs/{{study}}/{{run}}"
        write_yaml(local / "server.yaml", read_yaml(local / "server.yaml") | {"run_dir": run_dir})
    resources = read_json(local / "resources.json")
    # Jobs and snapshots in a volatile folder would be lost with the machine's next start.
    if root or any(map(is_volatile, read_stores(resources))):
        set_stores(resources, f"{root}/.silofl/server" if root else SERVER_STORES)
        write_json(local / "resources.json", resources)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fill-kits``."""
    parser.add_argument("kits", type=Path, nargs="+", metavar="KIT", help="folder of a kit")
    parser.add_argument("--wheel", type=Path, required=True, help="silofl's, for leads beside silofl_desk's")
    policies = "replace the policies that a kit has, and with them what its site decided: pins, pauses, limits, rights"
    parser.add_argument("--policies", action="store_true", help=policies)
    add_contents_options(parser)


def add_contents_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe the contents of kits."""
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="holds a folder of data for each site")
    lock = "of all packages, as lock writes it (default: of provisioning/, for the device of the policies)"
    parser.add_argument("--lock", type=Path, metavar="FILE", help=lock)
    parser.add_argument("--site-configs", type=Path, default=SITE_CONFIGS, metavar="DIR", help="policies of sites")
    parser.add_argument("--kind", default="hospital", help="its folder for hospitals, as hospital_gpu")
    parser.add_argument("--study", type=Path, metavar="STUDY.yaml", help="with which hospitals check themselves")


def check_contents(options: argparse.Namespace, kinds: Iterable[str], roles: Iterable[str] = ()) -> None:
    """Refuse what the options describe before any key is made for kits of some kinds, and of people of some roles.

    Raises:
        ConfigError: A wheel, a policy or the study is missing or wrong.
    """
    if options.wheel:
        for role in ("", *roles):
            find_own_wheels(options.wheel, role)
    if options.lock:
        read_lock(options.lock)
    if options.study:
        _study_files(options.study)
    contents = describe_contents(options, options.wheel)
    for kind in kinds:
        _find_policies(kind, contents)
    _choose_lock(contents, _find_policies("hospital", contents) / "site.yaml")


def read_line(project: Mapping[str, Any]) -> dict[str, int]:
    """Return what kits say of the network's line, where project.yml gives its ``bandwidth``.

    Raises:
        ConfigError: It is no bandwidth.
    """
    if "bandwidth" not in project:
        return {}
    bits = line.parse_bandwidth(str(project["bandwidth"]), "bandwidth of project.yml")
    types = [participant.get("type") for participant in project["participants"]]
    return line.make_settings(bits, types.count("client"))


def describe_contents(options: argparse.Namespace, wheel: Path, project: Mapping[str, Any] = NO_PROJECT) -> Contents:
    """Return the contents that the options and the network's project describe."""
    return Contents(
        wheel,
        site_configs=options.site_configs,
        data_root=options.data_root,
        hospital_kind=options.kind,
        lock=options.lock,
        study=options.study,
        line=read_line(project),
    )


def run(options: argparse.Namespace) -> int:
    """Fill the named kits."""
    contents = replace(describe_contents(options, options.wheel), has_new_policies=options.policies)
    kits: list[Kit] = []
    for path in options.kits:
        kits += find_kits(path)
    # A wheel that is missing for the last kit must not leave the first ones filled.
    for kit in kits:
        find_own_wheels(contents.wheel, kit.role)
    for kit in kits:
        fill_kit(kit, contents)
        print(f"{kit.kind} {kit.name}: filled {kit.folder}")
    return ExitCode.COMPLETE
