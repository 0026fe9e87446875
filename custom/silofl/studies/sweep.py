"""Sweeps: the rows of a comparison with every combination of some settings' values, their table and their figure."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silofl.errors import ConfigError, quote_value
from silofl.federation.results import SiteResult
from silofl.options import parse_count, replaces
from silofl.report.canvas import (
    PageImage,
    draw_legend,
    encode_png,
    escape_math,
    is_wide,
    line_style,
    make_panels,
    style_axes,
)
from silofl.report.comparison import Method
from silofl.report.conditions import setting_text
from silofl.report.tables import MISSING, TextTable, mean_and_deviation
from silofl.settings import read_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# In place of a study's key: the folders of the sites' data, as with --data.
DATA = "data"
EPOCHS, ROUNDS = "training.local_epochs", "rounds"
NOTE = (
    "Of the sweep: mean over each run's own sites, ± the deviation over seeds; a run that lacks a site's value does "
    "not count. Choose a value by validation; the test says what the choice came to."
)
# More of them on one axis would overlap.
MOST_LETTERS = 40
# What a site has of a part.
PARTS: dict[str, Callable[[SiteResult], float | None]] = {
    "validation": lambda site: site.validation,
    "test": lambda site: site.value,
}


@dataclass(frozen=True)
class Point:
    """One combination of values.

    Attributes:
        name: Of the rows at this point, as ``alpha=0.05``.
        values: Dotted key of the study, or ``data`` -> its value.
        rounds: Of the studies; their own where None.
    """

    name: str
    values: Mapping[str, object]
    rounds: int | None = None

    @property
    def changes(self) -> dict[str, object]:
        """Its changes to a study, by dotted key."""
        changes = {key: value for key, value in self.values.items() if key != DATA}
        return changes if self.rounds is None else changes | {ROUNDS: self.rounds}

    @property
    def data(self) -> str | None:
        """The folder of the sites' data, where it is swept."""
        return str(self.values[DATA]) if DATA in self.values else None


@dataclass(frozen=True)
class Sweep:
    """A grid of values.

    Attributes:
        values: Dotted key of the study, or ``data`` -> its values, in the order of the table.
        total_epochs: What rounds times local epochs come to at every point; rounds stay the study's where None.
    """

    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    total_epochs: int | None = None

    def points(self) -> list[Point]:
        """Return all combinations, the last key's values one after another.

        Raises:
            ConfigError: The local epochs do not divide their total.
        """
        names = short_names(self.values)
        found = []
        for combination in itertools.product(*self.values.values()):
            values = dict(zip(self.values, combination, strict=True))
            name = " ".join(f"{names[key]}={value_text(key, value)}" for key, value in values.items())
            found.append(Point(name, values, self._divide_epochs(values)))
        return found

    def _divide_epochs(self, values: Mapping[str, object]) -> int | None:
        if self.total_epochs is None:
            return None
        epochs = values[EPOCHS]
        if not isinstance(epochs, int) or epochs < 1 or self.total_epochs % epochs:
            raise ConfigError(
                f"--total-epochs must be a multiple of every {EPOCHS}, not {self.total_epochs} with "
                f"{quote_value(epochs)}; change one of them"
            )
        return self.total_epochs // epochs


@dataclass(frozen=True)
class SweptRow:
    """A row of a comparison at one point of a sweep.

    Attributes:
        row: Name of the job, method or variant.
        values: Name of each swept setting -> its value there, as text.
        method: The runs.
    """

    row: str
    values: Mapping[str, str]
    method: Method

    @property
    def line(self) -> tuple[str, ...]:
        """What it shares with the rows from which only the last setting tells it apart."""
        return (self.row, *list(self.values.values())[:-1])

    @property
    def place(self) -> str:
        """Its value of the last setting."""
        return list(self.values.values())[-1]

    def measured(self, part: str, sites: Collection[str]) -> list[float]:
        """Return the mean over a run's own of the sites, of each seed that lacks none of them.

        Args:
            part: Of the sites' data.
            sites: Those that some run of the sweep has a value of; the others have no data of this part.
        """
        runs = self.method.results.values()
        found = [[PARTS[part](own) for site, own in run.by_site.items() if site in sites] for run in runs]
        return [float(np.mean(values)) for values in found if values and None not in values]


def short_names(keys: Mapping[str, object]) -> dict[str, str]:
    """Return key -> its last part, or the whole key where two keys end alike."""
    lasts = {key: key.rpartition(".")[2] for key in keys}
    numbers = Counter(lasts.values())
    return {key: last if numbers[last] == 1 else key for key, last in lasts.items()}


def value_text(key: str, value: object) -> str:
    """Return a swept value as a table shows it; of a folder its name."""
    if key == DATA:
        return Path(str(value)).name
    return setting_text(value)


def parse_swept_key(text: str) -> tuple[str, tuple[object, ...]]:
    """Read ``KEY=V1,V2,...``: a dotted key of study.yaml, or ``data``, and at least two values, as in that file."""
    key, _, values = text.partition("=")
    sentence = f"must be KEY=V1,V2,..., as training.learning_rate=0.01,0.1, not {quote_value(text)}"
    try:
        # A list in YAML: a comma within brackets belongs to its value.
        found = read_value(f"[{values}]")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{sentence}: {error}") from None
    if not key or not isinstance(found, list) or len(found) < 2 or None in found:
        raise argparse.ArgumentTypeError(f"{sentence}; give at least two values")
    texts = [value_text(key, value) for value in found]
    if len(set(texts)) != len(texts):
        raise argparse.ArgumentTypeError(f"must have values that differ, not {quote_value(text)}")
    return key, tuple(found)


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Add ``--sweep`` and ``--total-epochs``."""
    parser.add_argument(
        "--sweep",
        action="append",
        type=parse_swept_key,
        default=[],
        metavar="KEY=V1,V2,...",
        help="every row with each value, as algorithm.softpull.self_weight=0.5,0.7, or data=DIR1,DIR2; again: a grid",
    )
    parser.add_argument(
        "--total-epochs",
        type=parse_count,
        metavar="N",
        help=f"with --sweep {EPOCHS}: N over the local epochs are the rounds",
    )


def read_sweep(options: argparse.Namespace) -> Sweep:
    """Return the sweep of a command line.

    Raises:
        ConfigError: A key was given twice, or cannot be swept with what else was given.
    """
    values: dict[str, tuple[object, ...]] = {}
    for key, found in options.sweep:
        if key in values:
            raise ConfigError(f"--sweep must name {key} once; put all its values behind one another")
        values[key] = found
    return Sweep(values, options.total_epochs)


def check_sweep(sweep: Sweep, changes: Mapping[str, str], data: str | None) -> None:
    """Refuse a sweep of what another option settles.

    Args:
        sweep: The sweep.
        changes: Dotted key that is set for every row, or for one -> the option that sets it.
        data: Folder that was given.

    Raises:
        ConfigError: Which option, and what to leave out.
    """
    settled = {"seed": "--seeds", **changes}
    if sweep.total_epochs is not None:
        if EPOCHS not in sweep.values:
            raise ConfigError(
                f"--total-epochs must go with --sweep {EPOCHS}=..., which it makes rounds for; leave it out, or add it"
            )
        if ROUNDS in settled:
            raise ConfigError("--total-epochs must be given without --rounds, which it settles; leave one out")
        settled[ROUNDS] = "--total-epochs"
    if DATA in sweep.values and data is not None:
        raise ConfigError(f"--sweep must not name {DATA} beside --data; leave one out")
    keys = [key for key in sweep.values if key != DATA]
    for i, key in enumerate(keys):
        for other, option in (settled | dict.fromkeys(keys[:i], "--sweep")).items():
            if replaces(key, other) or replaces(other, key):
                raise ConfigError(f"--sweep must not name {key} beside {option}, which sets {other}; leave one out")


def sweep_table(rows: Sequence[SweptRow]) -> TextTable:
    """Return one row for each row, the values of all settings but the last, and part; one column a value of the last.

    Args:
        rows: All with the same settings.
    """
    *others, last = rows[0].values
    places = list(dict.fromkeys(row.place for row in rows))
    sites = {part: _measured_sites(rows, part) for part in PARTS}
    cells = {(*row.line, p, row.place): mean_and_deviation(row.measured(p, sites[p])) for row in rows for p in PARTS}
    lines = [(*line, part) for line in _distinct_lines(rows) for part in PARTS]
    columns = ("row", *others, "part", *(f"{last}={place}" for place in places))
    return TextTable(
        columns,
        tuple((*line, *(cells.get((*line, place), MISSING) for place in places)) for line in lines),
        num_text=2 + len(others),
    )


def sweep_image(rows: Sequence[SweptRow], metric: str) -> PageImage:
    """Draw each row over the last setting, one panel for validation and one for the test."""
    *others, last = rows[0].values
    figure, (axes,) = make_panels(1, len(PARTS), (10.4, 4.2), shares_y=True)
    places = list(dict.fromkeys(row.place for row in rows))
    positions = _positions(places)
    handles: list[Line2D] = []
    for panel, part in zip(axes, PARTS, strict=True):
        handles = [_draw_row(panel, rows, line, part, positions, i) for i, line in enumerate(_distinct_lines(rows))]
        style_axes(panel, f"{part}: {metric}", last)
        _mark_places(panel, positions)
    names = (dict(zip(("", *others), line, strict=True)) for line in _distinct_lines(rows))
    draw_legend(figure, handles, [" ".join(f"{k}={v}" if k else v for k, v in name.items()) for name in names])
    caption = f"{NOTE} Bars are that deviation."
    return PageImage(
        encode_png(figure),
        f"{metric} over {last} = {', '.join(places)}, of {len(_distinct_lines(rows))} rows.",
        caption,
    )


def _distinct_lines(rows: Sequence[SweptRow]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(row.line for row in rows))


def _measured_sites(rows: Sequence[SweptRow], part: str) -> set[str]:
    """Return the sites that some run has a value of."""
    sites = (own for row in rows for run in row.method.results.values() for own in run.by_site.items())
    return {site for site, own in sites if PARTS[part](own) is not None}


def _positions(places: Sequence[str]) -> dict[str, float]:
    """Return place -> where it lies: its number, or its rank where one is no number."""
    try:
        return {place: float(place) for place in places}
    except ValueError:
        return {place: float(rank) for rank, place in enumerate(places)}


def _draw_row(
    panel: Axes, rows: Sequence[SweptRow], line: tuple[str, ...], part: str, positions: Mapping[str, float], number: int
) -> Line2D:
    sites = _measured_sites(rows, part)
    found = {positions[row.place]: row.measured(part, sites) for row in rows if row.line == line}
    known = {place: values for place, values in sorted(found.items()) if values}
    means = [float(np.mean(values)) for values in known.values()]
    spreads = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in known.values()]
    # Each row's bars are thinner than those of the row before, and do not cover them.
    width = max(0.8, 3.2 - 0.8 * number)
    drawn = panel.errorbar(
        list(known), means, yerr=spreads, capsize=3, elinewidth=width, markersize=5, **line_style(number)
    )
    return drawn.lines[0]


def _mark_places(panel: Axes, positions: Mapping[str, float]) -> None:
    """Put a tick at each place, on a logarithmic axis where the values are wide apart."""
    if is_wide(min(positions.values()), max(positions.values())):
        panel.set_xscale("log")
    panel.set_xticks(list(positions.values()), [escape_math(place) for place in positions])
    panel.set_xticks([], minor=True)
    panel.tick_params(axis="x", labelrotation=30 if len("".join(positions)) > MOST_LETTERS else 0)
