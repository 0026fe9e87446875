"""Checks of one kit: its folder, certificates, keys, settings and policies."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from provisioning.guide import STUDY
from provisioning.supply_checks import find_supply_faults, installs_for_gpu
from provisioning.workspace import SCRIPT, UMASK
from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.base.settings import Section, load_settings
from silofl.flare.commands import check_whole
from silofl.flare.egress import list_open_scopes
from silofl.flare.kit import DAYS_TO_WARN, Kit, is_exposed
from silofl.flare.policy import (
    WITHOUT_JOB_FILES,
    checks_files,
    count_job_gpus,
    launches_containers,
    list_old_rights,
    list_replaced,
    read_class_policy,
    read_site_rights,
    streams_logs,
)
from silofl.flare.stores import is_volatile, read_stores
from silofl.setup.site import Server, Site
from silofl.study import Study

KEY_MARK = b"PRIVATE KEY-----"
# Kind of kit -> the side of a job whose classes it builds.
SIDES = {"server": "server", "hospital": "client"}
# Kind of kit -> its machine's own settings.
SETTINGS: dict[str, tuple[str, type[Section]]] = {"server": ("server.yaml", Server), "hospital": ("site.yaml", Site)}
# A hospital or server that records results for people adds one of these lines by hand.
TRACKING = (
    "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver",
    "nvflare.app_opt.tracking.wandb.wandb_receiver.WandBReceiver",
)


@dataclass(frozen=True)
class Finding:
    """A fault of a kit or a workspace.

    Attributes:
        where: The kit's name, or a file outside all kits.
        is_failure: Whether it must be corrected now.
        text: One sentence, with the remedy.
    """

    where: str
    is_failure: bool
    text: str


def days_left(kit: Kit, now: datetime) -> int:
    """Return the whole days until the kit's certificate or its root expires; negative afterwards."""
    return (kit.valid_until - now).days


def check_kit(kit: Kit, root: x509.Certificate, classes: dict[str, set[str]], now: datetime) -> list[Finding]:
    """Return all faults of a kit.

    Args:
        root: The root certificate that all kits must share.
        classes: Names of the classes that jobs have the ``server`` and the ``client`` build.
        now: The time at which certificates must be valid.
    """
    failures = [
        *_find_place_faults(kit),
        *_find_mode_faults(kit),
        *_find_chain_faults(kit, root),
        *_find_key_faults(kit),
    ]
    failures += find_supply_faults(kit)
    if kit.address.security != "mtls":
        failures.append(f"connection_security must be 'mtls', not {kit.address.security!r}; make new kits")
    if kit.kind in SIDES:
        if not kit.requires_signed_jobs:
            failures.append(
                "signed jobs must be required; set require_signed_jobs: true in project.yml and make new kits"
            )
        failures += [*_find_class_faults(kit, classes[SIDES[kit.kind]]), *_find_policy_faults(kit)]
    findings = [Finding(kit.name, True, text) for text in failures]
    findings += [Finding(kit.name, False, text) for text in _find_warnings(kit)]
    return findings + _find_validity_faults(kit, now)


def _find_warnings(kit: Kit) -> Iterator[str]:
    script = kit.folder / SCRIPT
    # A kit for Docker has another script, which is not looked at.
    if kit.kind != "admin" and script.is_file() and UMASK not in script.read_text(encoding="utf-8").splitlines():
        yield (
            f"{SCRIPT} is an older version's, which does not set {UMASK}: other accounts may read logs and jobs; fill "
            f"the kit with fill-kits, and call: chmod -R go= {quote(str(kit.folder))}"
        )
    if kit.kind != "hospital":
        return
    if streams_logs(kit):
        yield (
            "the site's log, which may name a patient's file, goes to the server: set allow_log_streaming to false in "
            "local/resources.json, unless that is wanted"
        )
    if count_job_gpus(kit) and not installs_for_gpu(kit):
        yield (
            "num_of_gpus in local/resources.json gives jobs a GPU, and requirements.lock installs torch for the CPU: "
            "set device to cuda in local/site.yaml and fill the kit with fill-kits, or set num_of_gpus to 0"
        )


def _find_validity_faults(kit: Kit, now: datetime) -> list[Finding]:
    findings = []
    if now < kit.valid_from:
        text = (
            f"the certificates must hold now; they are valid from {kit.valid_from:%Y-%m-%d %H:%M} UTC on: wait until "
            "then, or set the clock where they were signed and renew them with renew-kit"
        )
        findings.append(Finding(kit.name, True, text))
    left = days_left(kit, now)
    if left < DAYS_TO_WARN:
        text = f"certificate must be valid for {DAYS_TO_WARN} days, not {left}"
        if kit.ends_with_root:
            text = f"the root {text}; make new kits for all, of a new root"
        else:
            text = f"the {text}; renew it with renew-kit"
        findings.append(Finding(kit.name, left < 0, text))
    return findings


def _find_place_faults(kit: Kit) -> Iterator[str]:
    """Find a folder in which NVFlare's start script and its commands for jobs break; a container has its own."""
    if kit.kind in SIDES and launches_containers(kit):
        return
    try:
        check_whole("the kit", kit.folder.resolve())
    except ConfigError as error:
        yield str(error)


def _find_mode_faults(kit: Kit) -> Iterator[str]:
    startup = kit.folder / "startup"
    local = kit.folder / "local"
    paths = [kit.folder, startup, local, *sorted(startup.rglob("*")), *sorted(local.rglob("*"))]
    exposed = [path for path in paths if not path.is_symlink() and path.stat().st_mode & stat.S_IWOTH]
    if exposed:
        which = "the kit's folder" if exposed[0] == kit.folder else exposed[0].relative_to(kit.folder)
        yield (
            f"{which} must not be writable for every account, which could put other code or rights there; call: chmod "
            f"-R o-w {quote(str(kit.folder))}"
        )


def _find_chain_faults(kit: Kit, root: x509.Certificate) -> Iterator[str]:
    if kit.root != root:
        yield "startup/rootCA.pem must be the root certificate of the other kits; hand out a kit of this network"
    try:
        kit.certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        yield f"startup/{kit.certificate_path.name} must be signed by the root; hand out a kit of this network"


def _find_key_faults(kit: Kit) -> Iterator[str]:
    key = kit.key_path
    for path in find_private_keys(kit.folder):
        if path != key:
            yield f"{path.relative_to(kit.folder)} must not be in this kit, for it is a private key; delete it"
    if not key.is_file():
        yield f"startup/{key.name} must exist; put the key back, or make a new kit"
        return
    if _public_key(key) != kit.certificate.public_key():
        yield f"startup/{key.name} must be the key of startup/{key.stem}.crt; put the pair back"
    if is_exposed(key):
        yield f"startup/{key.name} must be readable by its owner only; call: chmod 600 {quote(str(key))}"


def _public_key(path: Path) -> object:
    try:
        return load_pem_private_key(path.read_bytes(), password=None).public_key()
    except (ValueError, TypeError):
        return None


def find_private_keys(folder: Path) -> list[Path]:
    """Return the files below a folder that hold a private key."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and KEY_MARK in path.read_bytes()]


def _find_settings_faults(kit: Kit) -> Iterator[str]:
    name, section = SETTINGS[kit.kind]
    sections: dict[Path, type[Section]] = {kit.folder / "local" / name: section}
    if (kit.folder / STUDY).is_file():
        sections[kit.folder / STUDY] = Study
    for path, section in sections.items():
        try:
            load_settings(section, path)
        except ConfigError as error:
            yield str(error)


def _find_class_faults(kit: Kit, classes: set[str]) -> Iterator[str]:
    policy = read_class_policy(kit)
    if policy.gap:
        yield policy.gap
        return
    for name in sorted(classes):
        if not policy.allows(name):
            yield f"class_allow_list in local/{policy.file} must allow {name}, which a job names; add it"
    for name in policy.others:
        if name not in TRACKING:
            yield f"class_allow_list in local/{policy.file} must not have {name!r}, which no job needs; delete it"


def _find_policy_faults(kit: Kit) -> Iterator[str]:
    # `prepare-containers` puts the site's resources in the default's place, where NVFlare looks for them.
    names = ["authorization.json"] if launches_containers(kit) else ["resources.json", "authorization.json"]
    for name in names:
        if not (kit.folder / "local" / name).is_file():
            yield f"local/{name} must exist, or NVFlare's default decides; fill the kit with fill-kits"
    yield from _find_settings_faults(kit)
    if not checks_files(kit):
        yield WITHOUT_JOB_FILES
    yield from _find_foreign_rights(kit)
    if kit.kind == "hospital":
        try:
            for name in list_open_scopes(kit):
                yield f"local/privacy.json must have RunNote and Egress in scope {name!r} too; add them, or delete it"
        except ConfigError as error:
            yield str(error)
    yield from list_replaced(kit)
    # Jobs and snapshots are the server's.
    stores = read_stores(kit.local("resources.json")[1]) if kit.kind == "server" else []
    for store in filter(is_volatile, stores):
        yield f"local/resources.json must keep jobs and snapshots in a durable folder, not {store}; name another"


def _find_foreign_rights(kit: Kit) -> Iterator[str]:
    if not (kit.folder / "local" / "authorization.json").is_file():
        return
    rights = read_site_rights(kit)
    for right in ("byoc", "shell_commands"):
        roles = [role for role in rights.roles if rights.has(right, "anybody", f"not {kit.org}", role)]
        # The lead of the server's own organisation has no business on its machine either.
        if kit.kind == "server" and rights.has(right, "anybody", kit.org, "lead"):
            roles = sorted({*roles, "lead"})
        if roles:
            yield (
                f"{right} in local/{rights.file} must be for nobody from elsewhere, not for {', '.join(roles)}; set it "
                "to none"
            )
    yield from list_old_rights(kit)


def read_job_classes(jobs: Path) -> dict[str, set[str]]:
    """Return the names of the classes that jobs have the ``server`` and the ``client`` build.

    Raises:
        ConfigError: There is no job.
    """
    classes: dict[str, set[str]] = {}
    for side in SIDES.values():
        paths = sorted(jobs.glob(f"*/app*/config/config_fed_{side}.json"))
        if not paths:
            raise ConfigError(f"{jobs} must hold job folders; name them with --jobs")
        classes[side] = set()
        for path in paths:
            classes[side].update(_class_names(read_json(path)))
    return classes


def _class_names(value: object) -> Iterator[str]:
    # NVFlare builds what stands at these keys, at any depth.
    if isinstance(value, dict):
        for key in ("path", "class_path"):
            if isinstance(value.get(key), str):
                yield value[key]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _class_names(inner)
