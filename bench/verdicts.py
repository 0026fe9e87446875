"""What a paper claims, the runs in which it is looked at, and the test by which it holds.

A paper's module, as ``claim_harmofl.py``, has one `PAPER`; ``claims.py`` searches, runs and prints all of them.

Corrected resampled t test: Nadeau and Bengio, Inference for the Generalization Error, Machine Learning 2003.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
from runs import Alone, Choices
from scipy.stats import t as student

from silofl.core.gain import holm
from silofl.federation.results import Results, read_results
from silofl_desk.report.result_tables import mean_and_deviation
from silofl_hospital.report.tables import MISSING

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"
# What a finished run shows: a number by its folder, None where it shows none.
Measure = Callable[[Path], float | None]
# Row and column of a table.
Cell = tuple[str, str]
# Row -> column -> value by seed.
Figures = Mapping[str, Mapping[str, Sequence[float]]]
RATE = "training.learning_rate"
# Of a claim, after Holm's correction over the claims of its table.
LEVEL = 0.05
# Seeds of the splits: of simulated hospitals, of those whose runs take seconds, and of a public set.
SIMULATED, QUICK, REAL = tuple(range(1, 11)), tuple(range(1, 31)), tuple(range(1, 7))
# Share of the tests that find the difference that is named beside a claim that is not decided.
POWER = 0.8


@dataclass(frozen=True)
class Row:
    """A method on a set of data.

    Attributes:
        name: Of the row.
        changes: Dotted key of the study -> value.
        rates: Learning rates to search; one is no search.
        data: Folder of its data below that of a seed, where it is not the set's.
        constant: Dotted key of what its paper searches too; it is searched with the best rate.
        values: Of the constant, but for the preset's.
    """

    name: str
    changes: Choices
    rates: tuple[float, ...]
    data: str = ""
    constant: str = ""
    values: tuple[float, ...] = ()


class Comparison(NamedTuple):
    """A paired t test: the mean of the differences, its 95 % interval, and twice the one-sided p values (at most 1).

    Last the difference that 80 % of such tests would find at the 5 % level, before Holm's correction.
    """

    mean: float
    low: float
    high: float
    p_above: float
    p_below: float
    detectable: float


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what is compared for it: first and second cell, and by how much the first may lie.

    Attributes:
        words: The paper's own.
        pairs: The claim holds where each first cell is above its second one.
        margin: How far below the second the first may lie, for "not below" and "level with".
        about: What is compared, in words that are not the paper's.
    """

    words: str
    pairs: tuple[tuple[Cell, Cell], ...]
    margin: float = 0.0
    about: str = ""

    def compare(self, figures: Figures, test_to_train: float = 0.0) -> list[Comparison]:
        """Return the test of each part; the second argument is that of the function `compare`."""
        found = []
        for pair in self.pairs:
            first, second = (figures.get(row, {}).get(column, ()) for row, column in pair)
            found.append(compare([a - b for a, b in zip(first, second, strict=False)], self.margin, test_to_train))
        return found


@dataclass(frozen=True)
class Table:
    """Rows on one set of data, their columns, and the claims that they decide.

    Attributes:
        name: Of the set, as in its folder.
        job: In whose study all rows run, or a key of `runs.SETS`.
        make: Makes the data of a seed, a folder for each site, in the folder ``job`` of the folder that it gets; the
            third argument is the folder of the public set, where the table needs one.
        rows: All of the table.
        changes: Of all rows, as the rounds.
        columns: Name -> what a finished run shows.
        hidden: The same of what claims need and the table does not print.
        claims: All that the table decides.
        note: Sentence below the table.
        needs: Name of a public set's folder in that of ``--data``, without which the table is left out. All splits
            are of its pictures, so that claims have the corrected test.
        needs_gpu: Whether the table is left out where there is no GPU.
        seeds: Of data and training.
        searched: Seeds whose validation chooses the rates.
        describe_data: Returns a sentence on the data, by their folders.
        is_main: Whether it is run where no table is named.
    """

    name: str
    job: str
    make: Callable[..., object]
    rows: tuple[Row, ...]
    changes: Choices
    columns: Mapping[str, Measure]
    claims: tuple[Claim, ...] = ()
    note: str = ""
    needs: str = ""
    needs_gpu: bool = False
    seeds: tuple[int, ...] = SIMULATED
    searched: tuple[int, ...] = (0,)
    describe_data: Callable[[Sequence[Path]], str] | None = None
    is_main: bool = False
    hidden: Mapping[str, Measure] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    """A paper, and the tables in which its claims are looked at.

    Attributes:
        title: As the heading of its tables.
        tables: One a set of data.
    """

    title: str
    tables: tuple[Table, ...] = field(default=())


@dataclass(frozen=True)
class Wanted:
    """One run: a row of a table with a learning rate, a seed, that of its data too, and another constant if any."""

    paper: str
    table: Table
    row: Row
    rate: float
    seed: int
    value: float | None = None

    @property
    def folder(self) -> str:
        """The run's folder, below that of all runs."""
        row = "-".join("".join(letter if letter.isalnum() else " " for letter in self.row.name).split())
        constant = "" if self.value is None else f"-{self.row.constant.rpartition('.')[2]}{self.value:g}"
        return f"{self.paper}/{self.table.name}/{row}/rate{self.rate:g}{constant}-seed{self.seed}"

    @property
    def data(self) -> str:
        """The folder of its data."""
        return f"data/{self.table.name}-{self.seed}"

    def alone(self) -> Alone:
        """Return how it is carried out."""
        constant = {} if self.value is None else {self.row.constant: self.value}
        changes = {**self.table.changes, **self.row.changes, **constant, "seed": self.seed, RATE: self.rate}
        return Alone(self.table.job, self.folder, changes, f"{self.data}/{self.row.data or self.table.job}")


def compare(differences: Sequence[float], margin: float = 0.0, test_to_train: float = 0.0) -> Comparison:
    """Say by a paired t test whether a first value lies above a second one.

    The variance of the mean of J differences is ``(1 / J + n_test / n_train)`` times their variance: splits of the same
    pictures are not independent (Nadeau and Bengio). For splits that are drawn anew it is the usual ``1 / J``.

    Args:
        differences: First minus second by deal; both of a deal are from the same data. With fewer than two, or with one
            that is not known, nothing is told.
        margin: How far below the second the first may lie.
        test_to_train: Test pictures by training pictures of a split where splits share pictures; else 0.
    """
    values = np.asarray(differences, float)
    if len(values) < 2 or not np.isfinite(values).all():
        return Comparison(nan, nan, nan, 1.0, 1.0, nan)
    freedom, mean = len(values) - 1, float(values.mean())
    error = float(values.std(ddof=1)) * (1 / len(values) + test_to_train) ** 0.5
    # Differences that are all alike are no division by 0.
    reach, place = student.ppf(0.975, freedom) * error, (mean + margin) / max(error, 1e-12)
    above, below = (min(1.0, 2 * float(student.sf(one, freedom))) for one in (place, -place))
    detectable = reach + float(student.ppf(POWER, freedom)) * error
    return Comparison(mean, mean - reach, mean + reach, above, below, detectable)


def judge(
    claims: Sequence[Claim], figures: Figures, test_to_train: float = 0.0
) -> list[tuple[str, float, list[Comparison]]]:
    """Return verdict, p after Holm's correction over the claims, and the tests of the parts of each claim.

    A claim holds where all of its parts do: its p is their largest. It fails where one part does: its p is then the
    smallest, times their number. So of tables of equal methods at most 5 % tell any two of them apart.
    """
    tests = [claim.compare(figures, test_to_train) for claim in claims]
    holding = [max(one.p_above for one in parts) for parts in tests]
    failing = [min(1.0, len(parts) * min(one.p_below for one in parts)) for parts in tests]
    corrected = holm({str(place): min(both) for place, both in enumerate(zip(holding, failing, strict=True))}).values()
    ways = [HOLDS if a < b else FAILS for a, b in zip(holding, failing, strict=True)]
    return [(way if p <= LEVEL else OPEN, p, parts) for way, p, parts in zip(ways, corrected, tests, strict=True)]


def mean_over_sites(run: Path) -> float | None:
    """Return the mean over sites of the test."""
    return _result(run).mean


def lowest_site(run: Path) -> float | None:
    """Return the test of the site that has the lowest."""
    return min(value for value in _result(run).values.values() if value is not None)


def of_site(place: int, run: Path) -> float | None:
    """Return the test of a site, by its place among all in the order of their names."""
    return sorted(_result(run).values.items())[place][1]


def spread_over_sites(run: Path) -> float | None:
    """Return the standard deviation of the test over sites."""
    return _result(run).spread


COLUMNS: Mapping[str, Measure] = {"mean": mean_over_sites, "lowest site": lowest_site, "spread": spread_over_sites}


def find_data(run: Path) -> Path:
    """Return the folder of the data of a run of `Wanted`, in which ``make`` put those of its seed."""
    paper = run.parents[1].parent
    return paper.parent / "data" / f"{run.parents[1].name}-{run.name.rpartition('seed')[2]}"


def measure(table: Table, runs: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, list[float]]]:
    """Return row -> column -> value by seed, NaN where a run shows none, of rows whose runs are all there."""
    measures = {**table.columns, **table.hidden}
    return {
        row: {name: [_number(column(folder)) for folder in folders] for name, column in measures.items()}
        for row, folders in runs.items()
    }


def describe(table: Table, figures: Figures, chosen: Mapping[str, str], test_to_train: float = 0.0) -> Iterator[str]:
    """Yield the lines of a table in Markdown, then one line a claim with its verdict."""
    yield f"| method | rate | {' | '.join(table.columns)} |"
    yield "|---" * (len(table.columns) + 2) + "|"
    for row, values in figures.items():
        yield f"| {' | '.join([row, chosen[row], *(_format(values[name]) for name in table.columns)])} |"
    yield from ("", table.note) if table.note else ()
    if test_to_train:
        test = "corrected resampled t test (Nadeau and Bengio 2003)"
        yield from ("", f"The splits share pictures: {test}, n_test / n_train = {test_to_train:.2f}.")
    yield ""
    for claim, (verdict, p, parts) in zip(table.claims, judge(table.claims, figures, test_to_train), strict=True):
        texts = (_describe_part(*pair, part) for pair, part in zip(claim.pairs, parts, strict=True))
        about = claim.about and f", {claim.about}"
        # All parts must hold, so that the one which is hardest to tell counts.
        detectable = max(part.detectable for part in parts)
        power = ""
        if verdict == OPEN and not isnan(detectable):
            power = f"; {100 * POWER:.0f} % of such tests find {detectable:.3f}"
        yield f'- **{verdict}** (p = {p:.3f}{power}): "{claim.words}"{about} ({"; ".join(texts)})'


def _describe_part(first: Cell, second: Cell, part: Comparison) -> str:
    """Return the difference of two cells with its interval, and the column where it is alike and not the mean."""
    names, column = f"{_name_cell(first, second)} - {_name_cell(second, first)}", first[1]
    if column == second[1] and column != "mean":
        names += f", {column}"
    return f"{names} {MISSING if isnan(part.mean) else f'{part.mean:.3f} [{part.low:.3f}, {part.high:.3f}]'}"


def _format(values: Sequence[float]) -> str:
    known = [value for value in values if np.isfinite(value)]
    missing = len(values) - len(known)
    return MISSING if not known else mean_and_deviation(known) + (f" ({missing} of {len(values)} -)" if missing else "")


def _name_cell(cell: Cell, other: Cell) -> str:
    """Return a cell's row, and its column where the other cell lies in the same row."""
    row, column = cell
    return f"{row}, {column}" if row == other[0] or column != other[1] else row


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _result(run: Path) -> Results:
    return read_results(run)
