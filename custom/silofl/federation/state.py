"""A site's state between rounds, one file a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from silofl.errors import TrainingError
from silofl.files import load_tensors, save_tensors

# 2: by part. Raised whenever an older file would be misread.
FORMAT = 2


class SiteState:
    """A site's files of one run, ``round_0001.pt`` and so on.

    Several rounds are kept because the server may go back: to its last checkpoint after a crash, and to the best round
    for the final test.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """Return the rounds on disk, ascending."""
        return sorted(int(path.stem.removeprefix("round_")) for path in self.folder.glob("round_*.pt"))

    def load(self, number: int) -> dict[str, Any]:
        """Return what each part kept after a round, or after the last one before it that the site took part in.

        Raises:
            TrainingError: Another version of SiloFL wrote it.
        """
        earlier = [n for n in self.rounds() if n <= number]
        if not earlier:
            return {}
        state = load_tensors(self._path(earlier[-1]))
        if state.get("format") != FORMAT:
            raise TrainingError(
                f"the site's state after round {earlier[-1]} must have format {FORMAT}, not {state.get('format', 1)}; "
                "go on with the version of SiloFL that wrote it, or start anew"
            )
        return state["parts"]

    def save(self, number: int, parts: dict[str, Any], best_round: int | None) -> None:
        """Save what each part keeps after a round; of the earlier ones keep the best round's and the one before."""
        save_tensors(self._path(number), {"format": FORMAT, "parts": parts})
        earlier = [n for n in self.rounds() if n < number]
        kept = {number, *earlier[-1:]}
        if best_round is not None:
            kept.update([n for n in earlier if n <= best_round][-1:])
        for n in self.rounds():
            if n not in kept:
                self._path(n).unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"round_{number:04d}.pt"
