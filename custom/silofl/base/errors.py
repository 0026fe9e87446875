"""The errors that SiloFL raises on purpose, each one sentence that a hospital can act on, and the exit codes."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from traceback import clear_frames, extract_tb
from typing import Literal

# Without dots: Markdown makes a link of www.example.org.
PLAIN = re.compile(r"[\w +/-]*")
# What begins code, emphasis, a tag, a link or an image in Markdown, and what makes a link of a plain address.
MARKS = re.compile(r"[\\`*<\[]|(?<=www)\.|:(?=//)")

# Line breaks, what commands a terminal or turns letters around, and halves of characters: in a name they would
# be lines of their own in tables, logs and results, show it as another, or could not be written.
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Of what is looked for among known names.
LONGEST_NAME = 200


class ExitCode(IntEnum):
    """The exit codes of every command; of a batch the worst: 130, 2, 1, 4, 3, 0.

    An answer that must not be used is worse than none at all.
    """

    COMPLETE = 0
    FAILED = 1
    BAD_INPUT = 2
    INCOMPLETE = 3
    DO_NOT_USE = 4
    INTERRUPTED = 130


class SiloFLError(ValueError):
    """A fault that a person can put right; shown as one sentence, without a traceback."""


class ConfigError(SiloFLError):
    """A study, a site's settings or a command line asks for something that is not possible."""


class DataError(SiloFLError):
    """A site's data does not hold what its dataset.json says.

    Attributes:
        told_cause: What `find_cause` found in another process, which met the fault; None where this one did.
        may_pass: Whether the machine failed, as by a full disk, so that the same data may be read later.
    """

    told_cause: str | None = None
    may_pass = False


# Why a case cannot be read, in words that may leave the site.
Reason = Literal["damaged", "not finite"]


class UnreadableError(DataError):
    """A case's file cannot be read; `reason` says why."""

    def __init__(self, message: str, reason: Reason = "damaged") -> None:
        super().__init__(message)
        self.reason = reason


# So many are enough: what makes each case wrong would be looked for in all of them.
MOST_FAULTS = 100


class Faults:
    """Several faults of a site's data that one error tells: who mends the first need not come back for the second.

    Args:
        most: How many are counted; `MOST_FAULTS` by default.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most or MOST_FAULTS
        self.errors: list[DataError] = []

    @contextmanager
    def collect_fault(self) -> Iterator[None]:
        """Keep the `DataError` of what is done here, and go on.

        Raises:
            DataError: There are as many as are counted.
        """
        try:
            yield
        except DataError as error:
            # Otherwise the images of all wrong cases would stay in memory.
            clear_frames(error.__traceback__)
            self.errors.append(error)
        if len(self.errors) == self.most:
            self.tell()

    def tell(self) -> None:
        """Raise what was gathered, if anything.

        Raises:
            DataError: The only fault as it was, or how many there are and the first of each cause.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise DataError(self.describe()) from self.errors[0]

    def describe(self) -> str:
        """Return the only fault, or how many there are and the first of each cause."""
        if len(self.errors) == 1:
            return str(self.errors[0])
        causes: dict[object, list[DataError]] = {}
        for error in self.errors:
            causes.setdefault(find_cause(error), []).append(error)
        sentences = []
        for number, (first, *others) in enumerate(causes.values(), start=1):
            more = f" (and {len(others)} more of this kind)" if others else ""
            place = f"({number}) " * (len(causes) > 1)
            sentences.append(f"{place}{first}{more}")
        # The search ended at the last fault that is counted.
        count = f"{len(self.errors)} faults{', or more' * (len(self.errors) == self.most)}"
        return f"{count}: {'. '.join(sentences)}"


def find_cause(error: BaseException) -> str:
    """Return the line of code that raised an error, and what it met: faults of one differ in names and numbers."""
    while isinstance(error.__context__, DataError):
        error = error.__context__
    if isinstance(error, DataError) and error.told_cause:
        return error.told_cause
    place = extract_tb(error.__traceback__)[-1]
    return f"{place.filename}:{place.lineno} {type(error.__context__).__name__}"


class AggregationError(SiloFLError):
    """The updates of the sites do not fit together."""


class TrainingError(SiloFLError):
    """A site's training of one round cannot go on."""


class PinError(SiloFLError):
    """A study is not as a site has pinned it."""


class PauseError(SiloFLError):
    """A hospital has paused a study, or its settings do not say whether it has."""


class ExtensionError(SiloFLError):
    """A study names a part of a package that this machine has not allowed, or not installed."""


class StateError(SiloFLError):
    """A run cannot go on from what it keeps on disk."""


class DamagedError(StateError):
    """A file that a run goes on from is missing, or is not as it was written."""


def suggest_nearest(name: object, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the known name nearest to a mistyped one, or nothing."""
    # No name is longer, and a text without end would be compared for as long.
    matches = difflib.get_close_matches(str(name)[:LONGEST_NAME], [str(k) for k in known if k != name], n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def quote_value(value: object) -> str:
    """Return a value for a sentence, at most 60 characters long, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number of too many digits, a list within lists without end
        return f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= 60 else f"{text[:57]}..."


def make_printable(text: str) -> str:
    """Return a text on one line: whatever cannot be printed is a space."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def quote_markdown(name: str) -> str:
    """Return a name from elsewhere as Markdown shows it, letter by letter: as code where it holds more than words.

    Nothing in it is then a link, an image, a tag or the end of a table's cell.
    """
    line = make_printable(name)
    return line if PLAIN.fullmatch(line) else f"`{line.replace('`', chr(39)).replace('|', '/')}`"


def escape_markdown(text: str) -> str:
    """Return a sentence with names from elsewhere as Markdown shows it, letter by letter and on one line."""
    return MARKS.sub(r"\\\g<0>", make_printable(text))


def one_line(text: object, most: int = 200) -> str:
    """Return a text for a sentence, on one line of at most so many characters that can all be printed."""
    line = " ".join(make_printable(str(text)[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def error_text(error: BaseException, most: int = 200) -> str:
    """Return another package's error as `one_line` does, or its kind where it says nothing."""
    return one_line(error, most) or type(error).__name__
