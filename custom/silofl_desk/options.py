"""Command-line options that several commands of the desk share, each with one name, one check and one explanation."""

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from silofl.base.bundled_jobs import find_job, suggest_job
from silofl.base.errors import ConfigError, quote_value
from silofl.base.options import expect_path, parse_count, parse_natural, parse_share
from silofl.base.settings import NAME, flatten_keys, read_value

JOB = expect_path("a job folder with meta.json and app/config/study.yaml, or a bundled job", find_job, suggest_job)


RUN = expect_path("the folder of a run")


SITES = expect_path("a folder that holds one folder a site")


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


def add_job(parser: argparse.ArgumentParser, purpose: str = "") -> None:
    """Add the job, by its folder or by the name of a bundled one.

    Args:
        purpose: What it is for, after a comma; for the help.
    """
    what = f"job folder, or name of a bundled job such as harmofl_phantoms{purpose}"
    parser.add_argument("job", type=JOB, metavar="JOB", help=what)


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
