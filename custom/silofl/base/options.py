"""Command-line options that several commands share, each with one name, one check and one explanation."""

import argparse
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from silofl.base.errors import make_printable, quote_value, suggest_nearest

# Names in a folder that are compared with a mistyped one.
MOST_NAMES = 1000


def suggest_path(path: Path) -> str:
    """Return what to say of the nearest name in the same folder."""
    try:
        with os.scandir(path.parent) as entries:
            return suggest_nearest(path.name, [entry.name for entry in islice(entries, MOST_NAMES)])
    except (OSError, ValueError):
        return ""


def expect_path(
    what: str, find: Callable[[str], Path] = Path, suggest: Callable[[Path], str] = suggest_path
) -> Callable[[str], Path]:
    """Return the type of an argument that must be the path of something that is there.

    Args:
        what: What must be there, as "a job folder".
        find: Returns the path that a text means.
        suggest: Returns what to say of a path that is not there.
    """

    def read_path(text: str) -> Path:
        # A shell leaves the ~ of --data=~/set to the program.
        path = find(os.path.expanduser(text))
        # Not Path.exists, which raises where the system takes no such name.
        if not os.path.exists(path):
            raise argparse.ArgumentTypeError(f"must be {what}, not {path}, which is not there{suggest(path)}")
        return path

    return read_path


KIT = expect_path("the folder of a startup kit")


def parse_count(text: str) -> int:
    """Read a whole number of at least 1."""
    return parse_natural(text, least=1)


def parse_natural(text: str, least: int = 0) -> int:
    """Read a whole number of at least 0, or of at least another number."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {quote_value(text)}")
    return int(text)


def parse_share(text: str) -> float:
    """Read a share from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a share from 0 to below 1, not {quote_value(text)}")
    return value


def parse_names(text: str) -> list[str]:
    """Read names with commas between them."""
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError(f"must be one or more names with commas between them, not {quote_value(text)}")
    return names


def parse_division(text: str) -> tuple[str, tuple[str, ...] | tuple[float, ...]]:
    """Read ``NAME`` or ``NAME=VALUE,VALUE``: what to divide cases by, and its groups' values, or limits of numbers."""
    name, equals, rest = map(str.strip, text.partition("="))
    values = list(filter(None, map(str.strip, rest.split(","))))
    if not name or bool(equals) != bool(values):
        raise argparse.ArgumentTypeError(f"must be NAME, or NAME=VALUE,VALUE as age=40,65, not {quote_value(text)}")
    try:
        return name, tuple(map(float, values))
    except ValueError:
        return name, tuple(values)


def add_by(parser: argparse.ArgumentParser) -> None:
    """Add ``--by``."""
    parser.add_argument(
        "--by",
        action="append",
        type=parse_division,
        default=[],
        metavar="NAME[=VALUES]",
        help="also score groups of cases: sex, age, scanner, a name in groups of dataset.json, or an element of DICOM; "
        "with limits or values of the groups, as age=40,65; may be repeated",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--json`` for a command that prints ``what`` as JSON."""
    parser.add_argument("--json", action="store_true", help=f"print {what} on standard output, all else on stderr")


def add_site_config(parser: argparse.ArgumentParser, what: str = "the site's site.yaml") -> None:
    """Add ``--site-config``, for a command that is called in a kit's folder, or elsewhere."""
    default = Path("local/site.yaml")
    parser.add_argument(
        "--site-config",
        type=expect_path("a site.yaml"),
        metavar="FILE",
        default=default,
        help=f"{what} (default: {default})",
    )


class PlainConsole(Console):
    """A console of which no text commands the terminal: much of it comes from other machines."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as `Console` does; in texts whatever cannot be printed is a space."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else "\n".join(map(make_printable, text.split("\n"))), style, control)


def make_console(options: argparse.Namespace | None = None) -> Console:
    """Return the console of a command, or of Python; with ``--json`` on standard error, so that JSON stands alone."""
    # Without markup: a folder may be named [/red].
    return PlainConsole(stderr=getattr(options, "json", False), highlight=False, markup=False, soft_wrap=True)
