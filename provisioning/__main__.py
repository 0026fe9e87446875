"""The command line: ``python -m provisioning COMMAND`` in the repository's folder; each command is a file here."""

import sys
from collections.abc import Sequence

from silofl.command_line.cli import Command, Parser, add_commands, run_command

PROGRAM = "provisioning"
# Command -> its module and what it is for.
COMMANDS = {
    "make-kits": ("provisioning.make_kits", "provision a network and fill its kits"),
    "check-kits": ("provisioning.check_kits", "check certificates, keys, policies, and who may do what"),
    "add-hospital": ("provisioning.add_hospital", "make the kit of one more hospital"),
    "add-person": ("provisioning.add_person", "make the kit of one more person"),
    "remove-kit": ("provisioning.remove_kit", "block and forget the kit of a person who left, or one that was lost"),
    "renew-kit": ("provisioning.renew_kit", "renew the certificate of one kit"),
    "fill-kits": ("provisioning.fill_kits", "put wheel, policies and INSTALL.md into kits"),
    "wheelhouse": ("provisioning.wheelhouse", "put all packages into kits, for hospitals without a package index"),
    "build-wheel": ("provisioning.build_wheel", "build the wheels of kits, the same bytes on every machine"),
    "release": ("provisioning.release", "build, check and try wheels and source archives, and set the version's tag"),
    "lock": ("provisioning.lock", "write the versions and checksums of all packages"),
    "prepare-containers": ("provisioning.prepare_containers", "have Docker start a container for each job"),
    "run-federation": ("provisioning.run_federation", "a whole network on this machine, from nothing to a result"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failed, 2 bad input, 3 incomplete, 130 interrupted."""
    parser = Parser(prog=f"python -m {PROGRAM}", description="A network of hospitals over mutual TLS.")
    add_commands(parser, {"commands": {name: Command(*about) for name, about in COMMANDS.items()}})
    options = parser.parse_args(arguments)
    return run_command(PROGRAM, options.command, options)


if __name__ == "__main__":
    sys.exit(main())
