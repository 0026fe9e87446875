"""The folders and files of a workspace: the project, its kits, and its certificates."""

from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError
from silofl.base.files import write_text
from silofl.base.settings import dump_yaml
from silofl.flare.kit import KINDS, Kit, read_kit

REPOSITORY = Path(__file__).resolve().parents[1]
SITE_CONFIGS = REPOSITORY / "site_configs"
# What a site installs with the wheel, as python -m provisioning lock writes it.
SITE_LOCK = REPOSITORY / "provisioning" / "site.lock"
CLINIC_LOCK = REPOSITORY / "provisioning" / "clinic.lock"
# Python of a site with GPUs -> what it installs.
CUDA_LOCKS = {python: REPOSITORY / "provisioning" / f"cuda-{python}.lock" for python in ("3.11", "3.12", "3.13")}
# The project file that users copy and change.
PROJECT = REPOSITORY / "provisioning" / "project.yml"
# This script of a kit starts its machine, and this line in it keeps other accounts from what that writes.
SCRIPT = "startup/sub_start.sh"
UMASK = "umask 077"


def find_kits(path: Path) -> list[Kit]:
    """Return the kit in a folder, or all kits below it: server, hospitals, people, each by path.

    Raises:
        ConfigError: There is none, or one is broken.
    """
    kits = [read_kit(startup.parent) for startup in sorted(path.rglob("startup")) if startup.is_dir()]
    if not kits:
        raise ConfigError(f"{path} must hold at least one startup kit; make them with make-kits")
    return sorted(kits, key=lambda kit: KINDS.index(kit.kind))


def project_folder(workspace: Path) -> Path:
    """Return the folder of the one project of a workspace, which holds project.yml, state/ and the kits.

    Raises:
        ConfigError: There is none, or more than one.
    """
    present = [record.parent.parent for record in workspace.glob("*/state/cert.json")]
    if len(present) != 1:
        raise ConfigError(f"{workspace} must hold one project, not {len(present)}; name the WORKSPACE of make-kits")
    return present[0]


def kits_folder(project: Path) -> Path:
    """Return the folder of a project's kits."""
    return project / "prod_00"


def find_wheel(project: Path) -> Path:
    """Return silofl's wheel that a project's kits hold, if possible in the kit of a lead, beside what leads install.

    Raises:
        ConfigError: They hold none, or different ones.
    """
    paths = sorted(kits_folder(project).glob("*/silofl-*.whl"), key=lambda wheel: len([*wheel.parent.glob("*.whl")]))
    # Of several kits with the same wheel the last one counts, which has most wheels.
    wheels = {wheel.name: wheel for wheel in paths}
    if len(wheels) != 1:
        raise ConfigError(f"the kits in {project} must hold one wheel, not {sorted(wheels)}; name it, --wheel")
    return wheels.popitem()[1]


def certificates_file(project: Path) -> Path:
    """Return NVFlare's record of a project's certificates; it also holds the root's private key."""
    return project / "state" / "cert.json"


def write_yaml(path: Path, values: dict[str, Any]) -> None:
    """Write keys and values as YAML, in their order."""
    write_text(path, dump_yaml(values))
