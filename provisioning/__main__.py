"""The command line: ``python -m provisioning COMMAND`` in the repository's folder; each command is a file here."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from provisioning import (
    add_hospital,
    check_kits,
    fill_kits,
    make_kits,
    prepare_containers,
    renew_kit,
    run_federation,
)
from silofl.cli import Parser, carry_out

PROGRAM = "provisioning"
COMMANDS = (make_kits, check_kits, add_hospital, renew_kit, fill_kits, prepare_containers, run_federation)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failed, 2 bad input, 3 incomplete, 130 interrupted."""
    parser = Parser(prog=f"python -m {PROGRAM}", description="A network of hospitals over mutual TLS.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for module in COMMANDS:
        module.add_command(commands)
    options = parser.parse_args(arguments)
    return carry_out(PROGRAM, options.command, options)


if __name__ == "__main__":
    sys.exit(main())
