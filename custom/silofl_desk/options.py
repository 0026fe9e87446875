"""Command-line options that several commands of the desk share, each with one name, one check and one explanation."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from silofl.base.bundled_jobs import find_job, suggest_job
from silofl.base.errors import ConfigError, quote_value
from silofl.base.options import expect_path, parse_count, parse_natural, parse_share
from silofl.base.settings import NAME, flatten_keys, read_value

JOB = expect_path("a job folder with meta.json and app/config/study.yaml, or a bundled job", find_job, suggest_job)
RUN = expect_path("the folder of a run")
SITES = expect_path("a folder that holds one folder a site")


Add = Callable[[argparse.ArgumentParser], None]


def declare_option(*names: str, **settings: Any) -> Add:  # noqa: ANN401 - those of ArgumentParser.add_argument
    """Return what adds an option to a command's parser."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(*names, **settings)

    return add


def declare_command(*options: Add) -> Add:
    """Return what adds the options of a command, in the order of its help."""

    def add(parser: argparse.ArgumentParser) -> None:
        for add_one in options:
            add_one(parser)

    return add


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


def format_set_options(changes: Mapping[str, object]) -> list[str]:
    """Return changes to a study, by dotted key, as options of a command line."""
    return [word for key, value in changes.items() for word in ("--set", f"{key}={_format_setting(value)}")]


def _format_setting(value: object) -> str:
    """Return a value as ``--set`` reads it; a name without quotes, but not ``true`` or ``null``."""
    is_plain = isinstance(value, str) and re.fullmatch(NAME, value) and read_value(value) == value
    return str(value) if is_plain else json.dumps(value)


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
                f"{key} is given twice, as {quote_value(changes[key])} and {quote_value(value)}; leave one out"
            )
        for other, _ in flatten_keys(changes):
            if replaces(key, other):
                raise ConfigError(f"{other} is set before {key}, which replaces it; leave one out")
        changes[key] = value
    return changes


def replaces(key: str, other: str) -> bool:
    """Return whether a value of a dotted key takes the place of that of another one, itself or one within it."""
    return f"{other}.".startswith(f"{key}.")


# --- options

add_set = declare_option(
    "--set",
    dest="settings",
    action="append",
    type=parse_setting,
    default=[],
    metavar="KEY=VALUE",
    help="change a key of study.yaml for this run, for example training.learning_rate=0.01; may be repeated",
)
add_job = declare_option(
    "job", type=JOB, metavar="JOB", help="job folder, or name of a bundled job such as harmofl_phantoms"
)
add_data = declare_option(
    "--data", type=SITES, help="folder with one folder per site (default: phantoms/, for studies of phantoms)"
)
add_cache = declare_option(
    "--cache", type=Path, metavar="DIR", help="folder for decoded images, which runs share (default: in DATA)"
)
add_skip_unreadable = declare_option(
    "--skip-unreadable",
    type=parse_share,
    default=0.0,
    metavar="SHARE",
    help="share of a site's cases that may be left out because they cannot be read, for example 0.05 (default: none)",
)
# Of a command that reads a run's data again.
add_moved = declare_command(
    declare_option("--data", type=SITES, help="folder with one folder per site, if it was moved since the run"),
    declare_option("--cache", type=Path, metavar="DIR", help="folder for decoded images (default: the run's)"),
)
add_rounds = declare_option("--rounds", type=parse_count, help="number of rounds (default: from study.yaml)")
add_seed = declare_option("--seed", type=parse_natural, help="seed of everything random (default: from study.yaml)")
add_in_process = declare_option(
    "--in-process",
    "--alone",
    action="store_true",
    help="train all sites in one process, without NVFlare; the weights are the same; --alone is its former name",
)
add_pretrained = declare_option(
    "--pretrained",
    type=expect_path("a pretrained model"),
    metavar="FILE",
    help="pretrained model, for a study that needs one",
)
add_weights = declare_option(
    "--weights",
    type=expect_path("a file of weights, a bundle or a finished run"),
    metavar="FILE|DIR",
    help="initial weights: a .pt or .safetensors file, a finished run, or a MONAI bundle",
)
add_trust = declare_option(
    "--trust-code", action="store_true", help="run code that the job brings (app/custom) or names"
)
