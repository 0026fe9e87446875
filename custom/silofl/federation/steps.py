"""How far a site is in a long training, in a file beside its state for whoever follows the run on that machine."""

import time
from contextlib import suppress
from pathlib import Path

from silofl.base.files import write_text

FILE = "steps"
# Shorter trainings write nothing.
EVERY_S = 1.0


class StepFile:
    """The file of one task, which is gone with the task.

    Args:
        folder: The site's folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._written = time.monotonic()

    def write(self, step: int, steps: int) -> None:
        """Write which step of how many begins, at most every `EVERY_S`; no training fails because it cannot."""
        if time.monotonic() - self._written > EVERY_S:
            self._written = time.monotonic()
            with suppress(OSError):
                write_text(self._path, f"{step} {steps}")

    def close(self) -> None:
        """Delete it."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def describe_steps(run: Path, since: float) -> str:
    """Return ``, step 12 of 300 at north`` for the site furthest behind; nothing while no site has written it.

    Args:
        run: The run's folder, which holds the sites' own folders as in a simulation.
        since: When the task began, in seconds since 1970: a killed process leaves its file there.
    """
    behind: list[tuple[float, str]] = []
    for path in run.glob(f"sites/*/*/{FILE}"):
        # It may go at any time.
        with suppress(OSError):
            if path.stat().st_mtime >= since:
                step, steps = map(int, path.read_text(encoding="utf-8").split())
                behind.append((step / steps, f", step {step} of {steps} at {path.parts[-3]}"))
    return min(behind)[1] if behind else ""
