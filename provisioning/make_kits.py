"""Provision a network and make every kit ready to hand out.

    python -m provisioning make-kits PROJECT.yml WORKSPACE [--wheel WHEEL] [--data-root DIR] [--port N] [--host NAME]

Kits are in WORKSPACE/<project>/prod_00/<name>. A second call makes no new key and no new certificate: it only fills the
same kits again, with a new wheel or new policies.
"""

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from provisioning.build_wheel import build_wheels
from provisioning.fill_kits import add_contents_options, check_contents, describe_contents, fill_kit, read_line
from provisioning.provisioner import Project, provision_project
from provisioning.workspace import certificates_file, find_kits, kits_folder, write_yaml
from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.settings import NAME, WORDS, read_yaml

# NVFlare reads these keys of a participant; it takes others too, as properties of their own.
KEYS = "name type org role default_host host_names fed_learn_port admin_port connect_to".split()
# Type of a participant -> how it gets its kit in a network that is there.
ADDED = {"client": "add it with add-hospital", "admin": "add it with add-person"}


def make_project(path: Path, host: str | None = None, port: int | None = None) -> Project:
    """Read a project.yml and set the server's address.

    Args:
        host: Name or address under which others reach the server, instead of the file's.
        port: The server's one port, instead of the file's.

    Raises:
        ConfigError: The file cannot be read, has no server, or has a relay.
    """
    project = read_yaml(path)
    # What is no participant NVFlare refuses itself.
    participants = [entry for entry in project.get("participants") or () if isinstance(entry, dict)]
    servers = [participant for participant in participants if participant.get("type") == "server"]
    if len(servers) != 1 or not project.get("name"):
        raise ConfigError(
            f"{path} must have a name and participants with one server; start from provisioning/project.yml"
        )
    check_participants([{"name": str(project["name"])}, *participants])
    for participant in participants:
        _check_keys(path, participant)
        if participant.get("type") == "relay":
            raise ConfigError(
                f"{path} names relay {participant.get('name')!r}, which this version no longer has. Remove it, and let "
                "its hospitals connect to the server, through a proxy if need be."
            )
    read_line(project)
    if host:
        servers[0]["default_host"] = host
    if port:
        servers[0]["fed_learn_port"] = port
    return project


def _check_keys(path: Path, participant: Mapping[str, object]) -> None:
    for key in participant:
        # NVFlare ignores a misspelt key and takes its own default. The cutoff is far enough from its further keys, as
        # listening_host, which it takes as they are.
        meant = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8)
        if key not in KEYS and meant:
            raise ConfigError(
                f"{path} must not have the key {key!r} at {participant.get('name')!r}, which NVFlare would ignore; did "
                f"you mean {meant[0]!r}?"
            )


def check_participants(participants: Iterable[Mapping[str, object]]) -> None:
    """Refuse names that become folders and words of commands, and are none; those of people are checked by NVFlare.

    Raises:
        ConfigError: Quotes the first one.
    """
    for participant in participants:
        name = participant.get("name")
        if participant.get("type") != "admin" and not re.fullmatch(NAME, str(name)):
            raise ConfigError(
                f"a name must begin with a letter or a digit and hold {WORDS['string_pattern_mismatch']} only, not "
                f"{quote_value(name)}; rename it"
            )


def make_kits(project: Project, workspace: Path) -> Path:
    """Provision a project, unless it is provisioned already.

    Returns:
        The project's folder in the workspace.

    Raises:
        ConfigError: NVFlare refuses the project, or the workspace holds it with other participants.
    """
    folder = workspace / str(project["name"])
    if certificates_file(folder).exists():
        _check_unchanged(project, folder)
        return folder
    if folder.exists():
        raise ConfigError(f"{folder} must be new or a provisioned project; name another WORKSPACE")
    with provision_project(workspace, project) as new:
        return new.rename(folder)


def _check_unchanged(project: Project, folder: Path) -> None:
    saved = read_yaml(folder / "project.yml")
    earlier = {participant["name"]: participant for participant in saved["participants"]}
    for participant in project["participants"]:
        name = participant.get("name")
        if name not in earlier:
            remedy = ADDED.get(participant.get("type"), "name a new WORKSPACE")
            raise ConfigError(f"participant {name!r} must have a kit in {folder}; {remedy}")
        if participant != earlier[name]:
            raise ConfigError(f"participant {name!r} must be as it was provisioned in {folder}; name a new WORKSPACE")
    if "bandwidth" in project:
        # The kits of hospitals that are added later need it too.
        write_yaml(folder / "project.yml", saved | {"bandwidth": project["bandwidth"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``make-kits``."""
    parser.add_argument("project", type=Path, metavar="PROJECT.yml", help="as provisioning/project.yml")
    parser.add_argument("workspace", type=Path, metavar="WORKSPACE", help="folder of the project's keys and kits")
    wheel = "silofl's, beside silofl_desk's, both built before (default: they are built from ./custom)"
    parser.add_argument("--wheel", type=Path, help=wheel)
    parser.add_argument("--port", type=int, help="of the server, instead of the project's")
    parser.add_argument("--host", help="name or address of the server, instead of the project's")
    add_contents_options(parser)


def run(options: argparse.Namespace) -> int:
    """Make the kits of a network, or fill them again."""
    project = make_project(options.project, options.host, options.port)
    participants = [entry for entry in project["participants"] if isinstance(entry, dict)]
    # All is checked before the first key is made.
    check_contents(options, ["server", "hospital"], [str(participant.get("role")) for participant in participants])
    folder = make_kits(project, options.workspace)
    wheel = options.wheel or build_wheels(folder / "wheel")[0]
    for kit in find_kits(kits_folder(folder)):
        fill_kit(kit, describe_contents(options, wheel, project))
        print(f"{kit.kind} {kit.name}: {kit.folder}")
    print(f"keep to yourself: {certificates_file(folder).parent}, which holds the root's private key")
    return ExitCode.COMPLETE
