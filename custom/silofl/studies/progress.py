"""Print one line for each finished round of a run, with the time that is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from silofl.federation.ledger import Round, read_ledger
from silofl.study import Study


class RoundLines:
    """A follower of a run's ledger that prints each new round once.

    Args:
        study: The study that runs.
        run: The run's folder.
        console: Where the lines go.
    """

    def __init__(self, study: Study, run: Path, console: Console) -> None:
        self.study, self.run, self.console = study, run, console
        # The rounds of earlier starts are not printed again.
        self.shown = len(read_ledger(run) or ())
        self._stamp = 0

    def show(self) -> None:
        """Print the rounds that were written since the last call."""
        path = self.run / "ledger.json"
        stamp = path.stat().st_mtime_ns if path.is_file() else 0
        if stamp == self._stamp:
            return
        self._stamp = stamp
        ledger = read_ledger(self.run) or []
        for number in range(self.shown, len(ledger)):
            self.console.print(self._line(ledger, number))
        self.shown = max(self.shown, len(ledger))

    def _line(self, ledger: list[Round], number: int) -> str:
        record = ledger[number]
        loss = np.mean([values["loss"] for values in record.metrics.values()])
        mean = ledger[number - 1].validation_mean if number else None
        parts = [
            f"round {record.round:>3}/{self.study.total_rounds}",
            f"loss {loss:.4f}",
            # Sites validate a round's model in the next round, so this is the round before.
            "" if mean is None else f"validation {self.study.metric} {mean:.4f} (round {number})",
            f"{len(record.answered)} of {len(record.asked)} sites",
            f"{record.seconds:.1f} s",
        ]
        # The first round's time holds the start of all processes.
        recent = [r.seconds for r in ledger[1 : number + 1][-5:]] or [record.seconds]
        parts.append(f"about {_duration(float(np.mean(recent)) * (self.study.total_rounds - record.round))} left")
        missing = {"late": record.late, "failed": record.failed, "refused": record.refused}
        parts += [f"{kind}: {', '.join(sites)}" for kind, sites in missing.items() if sites]
        return "  ".join(part for part in parts if part)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
