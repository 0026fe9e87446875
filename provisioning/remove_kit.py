"""Block the kit of a person who left, or of a hospital whose kit was lost, and forget it; no other kit is touched.

    python -m provisioning remove-kit WORKSPACE NAME

Certificates cannot be taken back, so the server gets a list of those that it lets in no more, which it reads while it
runs. The name is free again: add-hospital and add-person make it a kit with another key.
"""

import argparse
import shutil
from pathlib import Path

from provisioning.provisioner import forget_participant
from provisioning.workspace import find_kits, kits_folder, project_folder
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import write_json
from silofl.flare.blocked import FILE, format_serial, read_blocked
from silofl.flare.kit import read_kit

KINDS = ("hospital", "admin")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``remove-kit``."""
    parser.add_argument("workspace", type=Path, metavar="WORKSPACE", help="that make-kits wrote")
    parser.add_argument("name", metavar="NAME", help="of the hospital or the person")


def run(options: argparse.Namespace) -> int:
    """Put a kit's certificate on the server's list, and forget the kit."""
    project = project_folder(options.workspace)
    folder = kits_folder(project) / options.name
    if not folder.is_dir():
        raise ConfigError(
            f"NAME must be that of a kit in {kits_folder(project)}, not {options.name!r}; see its folders"
        )
    kit = read_kit(folder)
    if kit.kind not in KINDS or kit.role == "project_admin":
        raise ConfigError(
            f"NAME must be a hospital or a person other than the project's administrator, not {kit.name}, without "
            "which no network runs; make new kits for all"
        )
    (server,) = [network_kit for network_kit in find_kits(kits_folder(project)) if network_kit.kind == "server"]
    path = server.folder / FILE
    # The list is written first: a call that is interrupted can be repeated for as long as the kit is there.
    write_json(path, read_blocked(path) | {format_serial(kit.certificate): kit.name})
    forget_participant(project, kit.name)
    shutil.rmtree(folder)
    print(f"{kit.kind} {kit.name}: certificate {format_serial(kit.certificate)} is blocked, and its kit is deleted")
    print(f"hand out {path}; at the server it goes to {FILE}, which works without a restart")
    return ExitCode.COMPLETE
