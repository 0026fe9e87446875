"""Print one line for each finished round of a run, with the time that is left."""

from pathlib import Path

from rich.console import Console

from silofl.federation.ledger import FILE, read_ledger
from silofl.federation.round_line import round_line
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
        self.shown = read_ledger(run) or []
        self._stamp = 0

    def print_new_rounds(self) -> None:
        """Print the rounds that were written since the last call."""
        path = self.run / FILE
        stamp = path.stat().st_mtime_ns if path.is_file() else 0
        if stamp == self._stamp:
            return
        self._stamp = stamp
        ledger = read_ledger(self.run, self.shown) or []
        for number in range(len(self.shown), len(ledger)):
            self.console.print(round_line(self.study, ledger[: number + 1]), markup=False)
        self.shown = max(self.shown, ledger, key=len)
