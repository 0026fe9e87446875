"""A site's state between rounds, one file a round."""

import logging
from pathlib import Path
from typing import Any

from silofl.base.errors import DamagedError
from silofl.base.files import load_state, remove_unfinished, save_state

# 4: with the run, the site and the round that it is of.
FORMAT = 4
# The rounds that a task may begin from: the last that the server has taken, and the one before, should the server go
# back. The task's own is no such round yet.
GENERATIONS = 2
# A run that goes back finds as many at the most: the best round's, those, and the last.
LATER = 2 + GENERATIONS

logger = logging.getLogger(__name__)


class SiteState:
    """A site's files of one run, ``round_0001.pt`` and so on.

    Several rounds are kept because the server may go back: to its last checkpoint after a crash, and to the best round
    for the final test.
    """

    def __init__(self, folder: Path, run: str, site: str) -> None:
        self.folder = folder
        self._belongs_to = {"run": run, "site": site}

    def rounds(self) -> list[int]:
        """Return the rounds on disk, ascending."""
        numbers = (path.stem.removeprefix("round_") for path in self.folder.glob("round_*.pt"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def load(self, number: int) -> tuple[int, dict[str, Any]]:
        """Return the last round up to one whose file is whole, and what each part kept after it; else 0 and nothing.

        Raises:
            StateError: Another version of SiloFL wrote it.
        """
        for earlier in reversed(self.rounds()):
            if earlier > number:
                continue
            try:
                return earlier, load_state(self._path(earlier), FORMAT, self._belongs_to | {"round": earlier})
            except DamagedError as error:
                logger.warning("the state before it is used: %s", error)
        return 0, {}

    def save(self, number: int, parts: dict[str, Any], began: int, best_round: int | None) -> None:
        """Save what each part keeps after a round, and delete what nobody asks for any more.

        Of the rounds before it stay the one that it began from, the one before that, and the best round's. Later ones
        than the one that it began from are of rounds that the server did not take.

        Args:
            parts: Part -> what it keeps.
            began: The round whose state it began from, the last that the server has taken; 0 for none.
            best_round: The best round so far; None before any.
        """
        # Of a process that was killed while it wrote.
        remove_unfinished(self.folder)
        self.rewrite(number, parts)
        rounds = self.rounds()
        taken = [n for n in rounds if n <= min(began, number - 1)]
        # Of later ones the last stay: they are of a run that went back, and are written again, or of one that another
        # has replaced. A server that asks for rounds from the last to the first must not fill the disk.
        kept = {number, *taken[-GENERATIONS:], *[n for n in rounds if n > number][-LATER:]}
        if best_round is not None:
            # The best round may have left no state here, as of a site that was absent: then the one before it counts.
            kept.update([n for n in taken if n <= best_round][-1:])
        for n in rounds:
            if n not in kept:
                self._path(n).unlink()

    def rewrite(self, number: int, parts: dict[str, Any]) -> None:
        """Save what each part keeps after a round, in the place of what it kept."""
        save_state(self._path(number), FORMAT, self._belongs_to | {"round": number}, parts)

    def _path(self, number: int) -> Path:
        return self.folder / f"round_{number:04d}.pt"
