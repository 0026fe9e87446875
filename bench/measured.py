"""A promise of speed: what was measured, what stands beside it, and its bound."""

import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

REPEATS = 11


@dataclass(frozen=True)
class Row:
    """One promise.

    Attributes:
        what: What was measured.
        measured: Its seconds, GiB or times, as ``unit`` says.
        beside: What it is compared with, in words.
        reference: The same of that; None where the bound is of the measured number itself.
        bound: The most that ``measured / reference``, or ``measured``, may be.
        unit: ``s``, ``GiB`` or ``%``.
        aim: What was aimed at where the bound is wider; docs/performance.md says what is in the way.
    """

    what: str
    measured: float
    beside: str
    reference: float | None
    bound: float
    unit: str = "s"
    aim: float | None = None

    @property
    def found(self) -> float:
        """What the bound is of."""
        return self.measured if self.reference is None else self.measured / self.reference

    def is_kept(self, slack: float) -> bool:
        """Return whether the bound is kept, or with a slack above 1 so many times the bound."""
        return self.found <= slack * self.bound

    @property
    def is_reached(self) -> bool:
        """Whether what was aimed at is reached too."""
        return self.aim is None or self.found <= self.aim

    def cells(self, slack: float) -> tuple[str, ...]:
        """Return the row of the table."""
        sign = " x" if self.reference is not None else f" {self.unit}"
        reference = "-" if self.reference is None else _number(self.reference, self.unit)
        own, aim = _number(self.measured, self.unit), "-" if self.aim is None else f"{self.aim:g}{sign}"
        verdict = "BROKEN" if not self.is_kept(slack) else "kept" if self.is_reached else "kept, aim missed"
        found, bound = f"{self.found:.2f}{sign}", f"{self.bound:g}{sign}"
        return self.what, own, self.beside, reference, found, bound, aim, verdict


def _number(value: float, unit: str) -> str:
    return f"{1000 * value:.1f} ms" if unit == "s" and value < 1 else f"{value:.2f} {unit}"


def medians(*actions: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Return each action's median time in seconds; the actions take turns, after one turn that does not count."""
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(repeats + 1):
        for action, measured in zip(actions, times, strict=True):
            started = time.perf_counter()
            action()
            if turn:
                measured.append(time.perf_counter() - started)
    return [statistics.median(measured) for measured in times]


def show(rows: Iterable[Row], slack: float) -> bool:
    """Print the rows as they come, then the machine; returns whether all are kept."""
    table = Table("what", "measured", "beside", "of it", "found", "bound", "aimed at", "", box=None)
    all_kept, started = True, time.perf_counter()
    for row in rows:
        cells = row.cells(slack)
        print(f"{cells[-1]}: {row.what}: {cells[1]} beside {cells[3]}, {cells[4]}, at most {cells[5]}", flush=True)
        table.add_row(*cells)
        all_kept = all_kept and row.is_kept(slack)
    gross = f"; fails only beyond {slack:g} times the bound" if slack > 1 else ""
    print(f"\n{machine()}, {(time.perf_counter() - started) / 60:.1f} minutes in all{gross}")
    Console(width=170).print(table)
    return all_kept


def machine() -> str:
    """Return the processor, its cores and torch's version."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or "unknown processor"
    return f"{name}, {len(names) or '?'} cores, torch {torch.__version__}, one thread"
