"""What every command here does with errors: one sentence, and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from silofl.cli import Parser
from silofl.errors import ExitCode, SiloFLError

__all__ = ["Parser", "run"]


def run(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a command and return its exit code: 0 success, 1 failed, 2 bad input, 130 interrupted."""
    options = parser.parse_args(arguments)
    try:
        return command(options)
    except SiloFLError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"{parser.prog}: {place}{error.strerror or error}; name another file or folder", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
