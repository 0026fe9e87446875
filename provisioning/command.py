"""What every command here does with errors: one sentence, and an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from silofl.cli import Parser, carry_out

__all__ = ["Parser", "run"]


def run(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a command and return its exit code: 0 success, 1 failed, 2 bad input, 130 interrupted."""
    return carry_out(parser.prog, command, parser.parse_args(arguments))
