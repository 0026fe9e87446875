"""Make the kit of one more hospital; no other kit is touched, and nobody restarts anything.

python -m provisioning add-hospital WORKSPACE NAME ORG [--admin EMAIL] [--wheel WHEEL] [--data-root DIR]
"""

import argparse
from pathlib import Path

from provisioning.fill_kits import add_contents_options, check_contents, describe_contents, fill_kit
from provisioning.make_kits import check_participants
from provisioning.provisioner import add_participants
from provisioning.workspace import find_wheel, project_folder
from silofl.base.errors import ExitCode
from silofl.base.settings import read_yaml
from silofl.flare.kit import read_kit


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``add-hospital``."""
    parser.add_argument("workspace", type=Path, metavar="WORKSPACE", help="that make-kits wrote")
    parser.add_argument("name", metavar="NAME", help="of the hospital in reports, as west")
    parser.add_argument("org", metavar="ORG", help="its organisation, as west_hospital")
    parser.add_argument("--admin", metavar="EMAIL", help="also a kit for its administrator")
    parser.add_argument("--wheel", type=Path, help="the one that the other kits have by default")
    add_contents_options(parser)


def run(options: argparse.Namespace) -> int:
    """Make the kit of one more hospital, and its administrator's."""
    check_contents(options, ["hospital"])
    project = project_folder(options.workspace)
    contents = describe_contents(options, options.wheel or find_wheel(project), read_yaml(project / "project.yml"))
    participants = [{"name": options.name, "type": "client", "org": options.org}]
    if options.admin:
        participants.append({"name": options.admin, "type": "admin", "org": options.org, "role": "org_admin"})
    check_participants(participants)
    for folder in add_participants(project, participants):
        kit = read_kit(folder)
        fill_kit(kit, contents)
        print(f"{kit.kind} {kit.name}: {folder}")
    return ExitCode.COMPLETE
