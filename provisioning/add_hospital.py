"""Make the kit of one more hospital; no other kit is touched, and nobody restarts anything.

python provisioning/add_hospital.py WORKSPACE NAME ORG [--admin EMAIL] [--wheel WHEEL] [--data-root DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from command import Parser, run
from federation import add_participants
from fill_kits import add_options, contents_of, fill_kit
from kits import kits_folder, project_folder, read_kit

from silofl.errors import ConfigError, ExitCode


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the hospital's kit, and its administrator's, and return the exit code."""
    parser = Parser(prog="add_hospital.py", description="Make the kit of one more hospital.")
    parser.add_argument("workspace", type=Path, metavar="WORKSPACE", help="that make_kits.py wrote")
    parser.add_argument("name", metavar="NAME", help="of the hospital in reports, as west")
    parser.add_argument("org", metavar="ORG", help="its organisation, as west_hospital")
    parser.add_argument("--admin", metavar="EMAIL", help="also a kit for its administrator")
    parser.add_argument("--wheel", type=Path, help="the one that the other kits have by default")
    add_options(parser)
    return run(parser, _add, arguments)


def _add(options: argparse.Namespace) -> int:
    project = project_folder(options.workspace)
    contents = contents_of(options, options.wheel or _wheel_of(project))
    participants = [{"name": options.name, "type": "client", "org": options.org}]
    if options.admin:
        participants.append({"name": options.admin, "type": "admin", "org": options.org, "role": "org_admin"})
    for folder in add_participants(project, participants):
        kit = read_kit(folder)
        fill_kit(kit, contents)
        print(f"{kit.kind} {kit.name}: {folder}")
    return ExitCode.COMPLETE


def _wheel_of(project: Path) -> Path:
    """Return the wheel that the kits hold."""
    wheels = {wheel.name: wheel for wheel in sorted(kits_folder(project).glob("*/*.whl"))}
    if len(wheels) != 1:
        raise ConfigError(f"the kits in {project} must hold one wheel, not {sorted(wheels)}; name it, --wheel")
    return wheels.popitem()[1]


if __name__ == "__main__":
    sys.exit(main())
