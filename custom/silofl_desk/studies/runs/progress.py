"""Show what a run is doing: a line per finished round and task, and never half a minute of silence."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from silofl.federation.ledger import FILE, read_ledger
from silofl.federation.round_line import last_round, round_line
from silofl.federation.run_folder import PHASE
from silofl.federation.steps import describe_steps
from silofl.parts.baseline import CHOOSE, TRAIN_LOCAL
from silofl.parts.task import TEST, TRAIN, VALIDATE
from silofl.study import Study
from silofl.training.local_model import local_rounds
from silofl_hospital.report.tables import format_duration

# After so many seconds without a line something is said.
QUIET_S = 25.0
POLL_S = 0.3
# A line that goes on in marks is ended before it is wider; the next one is indented.
WIDTH = 100
INDENT = "  "
STARTING = "starting the sites"
# Task -> what the sites do; an algorithm's own is shown by its name.
DOING = {
    TRAIN: "training round {number} of {rounds}",
    VALIDATE: "validating the models of round {number}",
    TEST: "testing the models of round {number}",
    TRAIN_LOCAL: "training each site's local model to its end",
    CHOOSE: "choosing what each site keeps",
}


class RoundLines:
    """A follower of a run that prints each new round and task once, and what goes on where nothing is new.

    Args:
        study: The study that runs.
        console: Where the lines go.
    """

    def __init__(self, study: Study, run: Path, console: Console) -> None:
        self.study = study
        self.run = run
        self.console = console
        # The rounds of earlier starts are not printed again.
        self.shown = read_ledger(run) or []
        self._last_round = last_round(study, self.shown)
        self._stamp = 0
        self._printed = time.monotonic()
        self._task = ""
        self._began = time.time()

    def print_news(self) -> None:
        """Print what is new, or what goes on; to be called again and again."""
        self.print_new_rounds()
        self.print_phase()

    def print_new_rounds(self) -> None:
        """Print the rounds that were written since the last call."""
        path = self.run / FILE
        stamp = path.stat().st_mtime_ns if path.is_file() else 0
        if stamp == self._stamp:
            return
        self._stamp = stamp
        ledger = read_ledger(self.run, self.shown) or []
        for number in range(len(self.shown), len(ledger)):
            self._print(round_line(self.study, ledger[: number + 1]))
        self.shown = max(self.shown, ledger, key=len)
        self._last_round = last_round(self.study, self.shown)

    def print_phase(self) -> None:
        """Print the sites' task where it is new and no round's training, and after `QUIET_S` how long it goes on."""
        task, step, doing, since = read_phase(self.run, self.study, self._began)
        # Training has a line for each round, and what a round exchanges besides it is short. The first task of training
        # local models asks all sites: those whose model has ended train nothing, and answer at once.
        is_said = task in (self._task, TRAIN) or (task, step) == (TRAIN_LOCAL, 1)
        if len(self.shown) >= self._last_round and not is_said:
            self._task = task
            self._print(doing)
        else:
            self.print_if_quiet(
                lambda: (
                    f"{doing}{', ' if ':' in doing else ': '}{format_duration(time.time() - since)} so far"
                    f"{describe_steps(self.run, since)}"
                )
            )

    def print_if_quiet(self, describe: Callable[[], str]) -> None:
        """Print what goes on where nothing has been printed for `QUIET_S`."""
        if time.monotonic() - self._printed > QUIET_S:
            self._print(describe())

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        self.console.print(line, markup=False)


def read_phase(run: Path, study: Study, began: float) -> tuple[str, int, str, float]:
    """Return the task of a run's sites, its step, what they do, in words, and since when, in seconds as of `time.time`.

    Args:
        began: When the run was started, which a task of an earlier start is older than.
    """
    path = run / PHASE
    since = path.stat().st_mtime if path.is_file() else 0.0
    if since < began:
        return STARTING, 0, STARTING, began
    task, number, step = path.read_text(encoding="utf-8").split(" ")
    if task == TRAIN_LOCAL:
        return task, int(step), describe_local_round(study, int(number), int(step)), since
    return task, int(step), describe_task(task, number, study.total_rounds), since


def describe_local_round(study: Study, last: int, step: int) -> str:
    """Return the round that sites' local models learn in, after the last one or anew where the rate falls."""
    before = 0 if study.training.has_falling_rate else last
    return f"training the local model: round {before + step} of at most {before + local_rounds(study, last)}"


def describe_task(task: str, number: object, rounds: int) -> str:
    """Return what sites do that carry out a task of a round, of so many in all."""
    return DOING.get(task, f"task of the sites: {task.replace('_', ' ')}").format(number=number, rounds=rounds)


@contextmanager
def announce(what: str, console: Console, describe: Callable[[], str] = str) -> Iterator[None]:
    """Print that something begins, every 25 s how long it goes on, and how long it took, in lines of 100 columns.

    Args:
        console: Where the line goes.
        describe: Says how far it is; nothing by default.
    """
    started = time.monotonic()
    dots = " ... "
    column = 0

    def print_mark(mark: str, end: str) -> None:
        nonlocal column
        if column > len(INDENT) and column + len(mark) + len(dots) > WIDTH:
            mark = f"\n{INDENT}{mark}"
            column = 0
        console.print(mark, end=end, markup=False)
        column += len(mark + end)

    def print_time(end: str) -> None:
        parts = filter(None, (describe(), format_duration(time.monotonic() - started)))
        print_mark(", ".join(parts), end)

    print_mark(what, dots)
    try:
        with repeat_in_background(lambda: print_time(dots), QUIET_S):
            yield
    finally:
        print_time("\n")


@contextmanager
def repeat_in_background(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Repeat an action every so many seconds while a block runs; its error ends the repeating, and is the block's."""
    ended = threading.Event()
    errors: list[Exception] = []

    def repeat() -> None:
        try:
            while not ended.wait(every_s):
                action()
        except Exception as error:
            # It is raised in the thread of the block.
            errors.append(error)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
