"""Command-line options that several commands share, each with one name, one check and one explanation."""

import argparse
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from silofl.base.bundled_jobs import find_job, suggest_job
from silofl.base.errors import ConfigError, make_printable, quote_value, suggest_nearest
from silofl.base.settings import NAME, flatten_keys, read_value

# Names in a folder that are compared with a mistyped one.
MOST_NAMES = 1000
# At which the threshold of each class is chosen by default.
SPECIFICITY = 0.9


def _suggest_path(path: Path) -> str:
    """Return what to say of the nearest name in the same folder."""
    try:
        with os.scandir(path.parent) as found:
            return suggest_nearest(path.name, [one.name for one in islice(found, MOST_NAMES)])
    except (OSError, ValueError):
        return ""


def expect_path(
    what: str, find: Callable[[str], Path] = Path, suggest: Callable[[Path], str] = _suggest_path
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


def _suggest_job(path: Path) -> str:
    return _suggest_path(path) or suggest_job(path)


JOB = expect_path("a job folder with meta.json and app/config/study.yaml, or a bundled job", find_job, _suggest_job)
RUN = expect_path("the folder of a run")
SITES = expect_path("a folder that holds one folder a site")
KIT = expect_path("the folder of a startup kit")


def parse_count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {quote_value(text)}")
    return int(text)


def parse_natural(text: str) -> int:
    """Read a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not {quote_value(text)}")
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
    found = [name for name in text.split(",") if name]
    if not found:
        raise argparse.ArgumentTypeError(f"must give at least one name, not {quote_value(text)}")
    return found


def parse_setting(text: str) -> tuple[str, object]:
    """Read ``KEY=VALUE``: a dotted key of study.yaml and its value, written as in that file."""
    key, _, value = text.partition("=")
    sentence = f"must be KEY=VALUE, as training.learning_rate=0.01, not {quote_value(text)}"
    if not key or not value.strip():
        raise argparse.ArgumentTypeError(sentence)
    try:
        return key, read_value(value)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{sentence}: {error}") from None


def parse_division(text: str) -> tuple[str, tuple[str, ...] | tuple[float, ...]]:
    """Read ``NAME`` or ``NAME=VALUE,VALUE``: what to divide cases by, and its groups' values, or limits of numbers."""
    name, equals, rest = (one.strip() for one in text.partition("="))
    values = [one.strip() for one in rest.split(",") if one.strip()]
    if not name or bool(equals) != bool(values):
        raise argparse.ArgumentTypeError(f"must be NAME, or NAME=VALUE,VALUE as age=40,65, not {quote_value(text)}")
    try:
        return name, tuple(float(one) for one in values)
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


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``."""
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        type=parse_setting,
        default=[],
        metavar="KEY=VALUE",
        help="change a key of study.yaml for this run, for example training.learning_rate=0.01; may be repeated",
    )


def format_set_options(changes: Mapping[str, object]) -> list[str]:
    """Return changes to a study, by dotted key, as options of a command line."""
    return [word for key, value in changes.items() for word in ("--set", f"{key}={_format_setting(value)}")]


def _format_setting(value: object) -> str:
    """Return a value as ``--set`` reads it; a name without quotes, but not ``true`` or ``null``."""
    is_plain = isinstance(value, str) and re.fullmatch(NAME, value) and read_value(value) == value
    return str(value) if is_plain else json.dumps(value)


def add_job(parser: argparse.ArgumentParser, purpose: str = "", **options: str) -> None:
    """Add the job, by its folder or by the name of a bundled one.

    Args:
        purpose: What it is for, after a comma; for the help.
        options: As for `argparse.ArgumentParser.add_argument`.
    """
    what = f"job folder, or name of a bundled job such as harmofl_phantoms{purpose}"
    parser.add_argument("job", type=JOB, metavar="JOB", help=what, **options)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add ``--data``."""
    parser.add_argument(
        "--data", type=SITES, help="folder with one folder per site (default: phantoms/, for studies of phantoms)"
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add ``--cache``."""
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder for decoded images, which runs share (default: in DATA)"
    )


def add_skip_unreadable(parser: argparse.ArgumentParser) -> None:
    """Add ``--skip-unreadable``."""
    what = "share of a site's cases that may be left out because they cannot be read, for example 0.05 (default: none)"
    parser.add_argument("--skip-unreadable", type=parse_share, default=0.0, metavar="SHARE", help=what)


def add_moved(parser: argparse.ArgumentParser) -> None:
    """Add ``--data`` and ``--cache`` of a command that reads a run's data again."""
    parser.add_argument("--data", type=SITES, help="folder with one folder per site, if it was moved since the run")
    cache = "folder for decoded images (default: the run's)"
    parser.add_argument("--cache", type=Path, metavar="DIR", help=cache)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--json`` for a command that prints ``what`` as JSON."""
    parser.add_argument("--json", action="store_true", help=f"print {what} on standard output, all else on stderr")


def add_site_config(parser: argparse.ArgumentParser, what: str = "the site's site.yaml") -> None:
    """Add ``--site-config``, for a command that is called in a kit's folder, or elsewhere."""
    default, place = Path("local/site.yaml"), expect_path("a site.yaml")
    parser.add_argument(
        "--site-config", type=place, metavar="FILE", default=default, help=f"{what} (default: {default})"
    )


def add_rounds(parser: argparse.ArgumentParser) -> None:
    """Add ``--rounds``."""
    parser.add_argument("--rounds", type=parse_count, help="number of rounds (default: from study.yaml)")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add ``--seed``."""
    parser.add_argument("--seed", type=parse_natural, help="seed of everything random (default: from study.yaml)")


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads`` and ``--alone``, which decide how sites run on this machine."""
    parser.add_argument("--threads", type=parse_count, help="number of sites that train at a time (default: all)")
    parser.add_argument(
        "--alone", action="store_true", help="train all sites in one process, without NVFlare; the weights are the same"
    )


def check_backend(options: argparse.Namespace) -> None:
    """Refuse threads where sites take turns.

    Raises:
        ConfigError: Both options were given.
    """
    if options.alone and options.threads is not None:
        raise ConfigError("--threads must not go with --alone, where sites take turns; leave one out")


def add_pretrained(parser: argparse.ArgumentParser) -> None:
    """Add ``--pretrained``."""
    what = "pretrained model, for a study that needs one"
    parser.add_argument("--pretrained", type=expect_path("a pretrained model"), metavar="FILE", help=what)


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add ``--weights``."""
    what = "initial weights: a .pt or .safetensors file, a finished run, or a MONAI bundle"
    path = expect_path("a file of weights, a bundle or a finished run")
    parser.add_argument("--weights", type=path, metavar="FILE|DIR", help=what)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust-code``."""
    words = "run code that the job brings (app/custom) or names"
    parser.add_argument("--trust-code", action="store_true", help=words)


def path_to_text(path: str | Path | None) -> str | None:
    """Return a path as text, None where it was not given."""
    return None if path is None else str(path)


def read_changes(options: argparse.Namespace) -> dict[str, object]:
    """Return the dotted keys of the study that ``--set``, ``--rounds`` and ``--seed`` change.

    Raises:
        ConfigError: A key was given twice.
    """
    named = [(key, getattr(options, key)) for key in ("rounds", "seed") if getattr(options, key, None) is not None]
    return collect_settings([*getattr(options, "settings", []), *named])


def collect_settings(settings: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return settings by key.

    Raises:
        ConfigError: A key was given twice, or a section after one of its keys, which it would replace.
    """
    changes: dict[str, object] = {}
    for key, value in settings:
        if key in changes:
            raise ConfigError(
                f"{key} must be given once, not {quote_value(changes[key])} and {quote_value(value)}; leave one out"
            )
        for other, _ in flatten_keys(changes):
            if replaces(key, other):
                raise ConfigError(f"{other} must not be set before {key}, which would replace it; leave one out")
        changes[key] = value
    return changes


def replaces(key: str, other: str) -> bool:
    """Return whether a value of a dotted key takes the place of that of another one, itself or one within it."""
    return f"{other}.".startswith(f"{key}.")


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
