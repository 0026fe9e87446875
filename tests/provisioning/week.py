"""A week of a network on this machine, each event with its checks: what ``make federation-week`` does.

    python -m tests.provisioning.week --out OUT [--port N]

Phantoms of four hospitals; the commands are those of docs/study-lead.md, operations.md and hospital-it.md. The first
check that fails ends the week. ``OUT/week.md`` says what happened and what was seen, ``OUT/commands.txt`` has every
command with its output.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from silofl.base.errors import ExitCode, TrainingError
from silofl.base.files import write_text
from silofl.command_line.cli import Parser, run_command
from silofl.flare.commands import check_start
from silofl_desk.studies.network.run import check_new
from tests.provisioning.week_events import EVENTS, Event
from tests.provisioning.week_stage import Stage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    parser = Parser(prog="python -m tests.provisioning.week", description="A week of a network on this machine.")
    parser.add_argument("--out", type=Path, required=True, help="new folder of data, kits, results, logs and week.md")
    parser.add_argument("--port", type=int, default=8002, help="of the server, on this machine only")
    return run_command("week", run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Carry out the week; the exit code is 1 where a check fails."""
    check_new(options.out)
    check_start(options.out)
    with Stage(options.out.resolve(), options.port) as stage:
        return carry_out_events(stage, EVENTS, Console(highlight=False, markup=False, soft_wrap=True))


def carry_out_events(stage: Stage, events: tuple[Event, ...], console: Console) -> int:
    """Carry out events, one after the other, until a check fails, and write the page.

    Args:
        stage: The network.
        events: What happens.
        console: Shows each event and what was seen.

    Returns:
        The exit code: 0, or 1 where a check failed.
    """
    started, rows, code = time.monotonic(), [], ExitCode.COMPLETE
    for number, event in enumerate(events, start=1):
        console.print(f"{number}. {event.what}")
        begun = time.monotonic()
        try:
            seen = event.carry_out(stage)
        except TrainingError as error:
            seen, code = f"FAILED: {error}", ExitCode.FAILED
        rows.append((event.what, seen, time.monotonic() - begun))
        console.print(f"   {seen} ({rows[-1][2]:.0f} s)")
        _write_page(stage.out / "week.md", rows, len(events))
        if code:
            break
    minutes = (time.monotonic() - started) / 60
    console.print(f"{len(rows) - bool(code)} of {len(events)} events in {minutes:.1f} minutes: {stage.out / 'week.md'}")
    return code


def _write_page(path: Path, rows: list[tuple[str, str, float]], planned: int) -> None:
    """Write what has happened so far and what was seen."""
    lines = [f"# A week of a network, {len(rows)} of {planned} events", ""]
    for number, (what, seen, seconds) in enumerate(rows, start=1):
        lines += [f"{number}. **{what}** ({seconds:.0f} s): {seen}", ""]
    write_text(path, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
