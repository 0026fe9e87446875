"""What a paper claims, the runs in which it is looked at, and the rule by which it holds.

A paper's module, as ``claim_harmofl.py``, has one `PAPER`; ``claims.py`` searches, runs and prints all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from runs import Alone, Choices

from silofl.federation.results import Results, read_results
from silofl.report.tables import MISSING, mean_and_deviation

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"
# What a finished run shows: a number by its folder, None where it shows none.
Measure = Callable[[Path], float | None]
# Row and column of a table.
Cell = tuple[str, str]
# Row -> column -> value by seed.
Figures = Mapping[str, Mapping[str, Sequence[float]]]
RATE = "training.learning_rate"


@dataclass(frozen=True)
class Row:
    """A method on a set of data.

    Attributes:
        name: Of the row.
        changes: Dotted key of the study -> value.
        rates: Learning rates to search; one is no search.
        data: Folder of its data below that of a seed, where it is not the set's.
    """

    name: str
    changes: Choices
    rates: tuple[float, ...]
    data: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what is compared for it: first and second cell, and by how much the first may lie.

    Attributes:
        words: The paper's.
        pairs: All must hold: the first cell is above the second by more than the seeds' spread.
        margin: How far below the second the first may lie, for "not below" and "level with".
    """

    words: str
    pairs: tuple[tuple[Cell, Cell], ...]
    margin: float = 0.0

    def judge(self, figures: Figures) -> tuple[str, str]:
        """Return the verdict, and the differences on which it rests."""
        verdicts, texts = [], []
        for first, second in self.pairs:
            values = [figures.get(row, {}).get(column, ()) for row, column in (first, second)]
            differences = [a - b for a, b in zip(*values, strict=False)]
            verdicts.append(decide(differences, self.margin))
            texts.append(f"{_name_cell(first, second)} - {_name_cell(second, first)} {mean_and_deviation(differences)}")
        return join_verdicts(verdicts), "; ".join(texts)


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
        claims: All that the table decides.
        note: Sentence below the table.
        needs: Name of a public set's folder in that of ``--data``, without which the table is left out.
        needs_gpu: Whether the table is left out where there is no GPU.
        seeds: Of data and training.
        searched: Seeds whose validation chooses the rates.
        describe_data: Returns a sentence on the data, by their folders.
        is_extra: Whether it is run only where it is asked for by its name.
    """

    name: str
    job: str
    make: Callable[..., object]
    rows: tuple[Row, ...]
    changes: Choices
    columns: Mapping[str, Measure]
    claims: tuple[Claim, ...]
    note: str = ""
    needs: str = ""
    needs_gpu: bool = False
    seeds: tuple[int, ...] = (1, 2, 3)
    searched: tuple[int, ...] = (0,)
    describe_data: Callable[[Sequence[Path]], str] | None = None
    is_extra: bool = False


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
    """One run: a row of a table with a learning rate and a seed, that of its data too."""

    paper: str
    table: Table
    row: Row
    rate: float
    seed: int

    @property
    def folder(self) -> str:
        """The run's folder, below that of all runs."""
        row = "-".join("".join(letter if letter.isalnum() else " " for letter in self.row.name).split())
        return f"{self.paper}/{self.table.name}/{row}/rate{self.rate:g}-seed{self.seed}"

    @property
    def data(self) -> str:
        """The folder of its data."""
        return f"data/{self.table.name}-{self.seed}"

    def alone(self) -> Alone:
        """Return how it is carried out."""
        changes = {**self.table.changes, **self.row.changes, "seed": self.seed, RATE: self.rate}
        return Alone(self.table.job, self.folder, changes, f"{self.data}/{self.row.data or self.table.job}")


def decide(differences: Sequence[float], margin: float = 0.0) -> str:
    """Say whether a first value lies above a second one, by their differences seed by seed.

    Args:
        differences: First minus second; both of a seed are from the same data.
        margin: How far below the first may lie.

    Returns:
        ``holds`` or ``does not hold`` where the mean of ``difference + margin`` is farther from 0 than its deviation
        over the seeds, ``not decided`` otherwise, with fewer than two seeds, and where a difference is not known.
    """
    values = np.asarray(differences, float) + margin
    if len(values) < 2 or not np.isfinite(values).all() or abs(values.mean()) <= np.std(values, ddof=1):
        return OPEN
    return HOLDS if values.mean() > 0 else FAILS


def join_verdicts(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim of several parts: it holds where all do, and fails where one does."""
    return FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS


def mean_over_sites(run: Path) -> float | None:
    """Return the mean over sites of the test."""
    return _result(run).mean


def lowest_site(run: Path) -> float | None:
    """Return the test of the site that has the lowest."""
    return min(value for value in _result(run).sites.values() if value is not None)


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
    return {
        row: {name: [_number(column(folder)) for folder in folders] for name, column in table.columns.items()}
        for row, folders in runs.items()
    }


def describe(table: Table, figures: Figures, rates: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, then one line a claim with its verdict."""
    yield f"| method | rate | {' | '.join(table.columns)} |"
    yield "|---" * (len(table.columns) + 2) + "|"
    for row, values in figures.items():
        cells = [row, f"{rates[row]:g}", *(_format(values[name]) for name in table.columns)]
        yield f"| {' | '.join(cells)} |"
    yield from ("", table.note) if table.note else ()
    yield ""
    for claim in table.claims:
        verdict, differences = claim.judge(figures)
        yield f'- **{verdict}**: "{claim.words}" ({differences})'


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
