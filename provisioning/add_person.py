"""Make the kit of one more person; no other kit is touched, and nobody restarts anything.

python -m provisioning add-person WORKSPACE NAME ORG ROLE [--wheel WHEEL]
"""

import argparse
from pathlib import Path

from provisioning.fill_kits import Contents, fill_kit
from provisioning.provisioner import add_participants
from provisioning.supply import find_own_wheels
from provisioning.workspace import find_wheel, project_folder
from silofl.base.errors import ExitCode
from silofl.flare.kit import read_kit

# What authorization.json of site_configs/ knows; NVFlare allows one project_admin, whom project.yml names.
ROLES = ("lead", "org_admin")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``add-person``."""
    parser.add_argument("workspace", type=Path, metavar="WORKSPACE", help="that make-kits wrote")
    parser.add_argument("name", metavar="NAME", help="the person's address, as lead2@study.example.org")
    parser.add_argument("org", metavar="ORG", help="the person's organisation, as study or west_hospital")
    parser.add_argument("role", choices=ROLES, help="lead submits studies, org_admin watches the own hospital")
    parser.add_argument("--wheel", type=Path, help="silofl's, beside silofl_desk's (default: those of the other kits)")


def run(options: argparse.Namespace) -> int:
    """Make the kit of one more person."""
    project = project_folder(options.workspace)
    wheel = options.wheel or find_wheel(project)
    find_own_wheels(wheel, options.role)
    person = {"name": options.name, "type": "admin", "org": options.org, "role": options.role}
    for folder in add_participants(project, [person]):
        kit = read_kit(folder)
        fill_kit(kit, Contents(wheel))
        print(f"{kit.kind} {kit.name}: {folder}")
    return ExitCode.COMPLETE
