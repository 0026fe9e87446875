"""Figures on pages are those of the bench tables: each is read from its cell."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Cell(NamedTuple):
    """A cell of a table below a heading of a page; of a row with an empty first cell the name above counts."""

    page: str
    heading: str
    row: str
    column: str


NORMALIZATIONS = ("bench/normalizations.md", "HarmoFL's halves with each normalisation")
BOTH = ("bench/claims.md", "stains-1-home and nuclei-home")
AUTHORS = "reference (mean only), home statistics"
TILES, HOME = ("bench/claims.md", "tiles"), ("bench/claims.md", "tiles-home")
GUARD = ("bench/baseline.md", "What sites keep")
NUCLEI, FEDSM, SHIFTED = (("bench/claims.md", heading) for heading in ("nuclei", "FedSM", "labels-shifted"))
# Page, what it says with the figure, and the cell of the figure.
FIGURES = [
    ("README.md", "real tissue: accuracy {}, local", Cell(*NORMALIZATIONS, "tiles, FedAvg", "GroupNorm")),
    ("README.md", "local {} ([table](bench/claims.md#tiles-home)): no gain", Cell(*HOME, "local, GroupNorm", "mean")),
    ("README.md", "simulated stains: HarmoFL {}", Cell(*BOTH, f"HarmoFL {AUTHORS}", "stains-1: mean")),
    ("README.md", "FedBN {}, local", Cell(*BOTH, "FedBN, home statistics", "stains-1: mean")),
    (
        "README.md",
        "local {} ([table](bench/claims.md#stains-1-home",
        Cell(*BOTH, "local, home statistics", "stains-1: mean"),
    ),
    (
        "README.md",
        "real tissue: HarmoFL {}, FedBN",
        Cell(*HOME, "HarmoFL reference (mean only), home statistics", "mean"),
    ),
    ("README.md", "FedBN {} ([table]", Cell(*HOME, "FedBN, home statistics", "mean")),
    ("README.md", "nuclei: every method below local, {}", Cell(*NUCLEI, "local", "mean")),
    ("README.md", "took no part: Dice {}, FedAvg", Cell(*FEDSM, "FedSM", "unseen")),
    ("README.md", "FedAvg {}; at home", Cell(*FEDSM, "FedAvg", "unseen")),
    ("README.md", "at home FedSM {}", Cell(*FEDSM, "FedSM", "mean")),
    ("README.md", "FedAvg {}, local", Cell(*FEDSM, "FedAvg", "mean")),
    ("README.md", "local {} ([table](bench/claims.md#fedsm))", Cell(*FEDSM, "local", "mean")),
    ("README.md", "simulated classes: accuracy {} and", Cell(*SHIFTED, "FedPer", "mean")),
    ("README.md", "and {}, AdaFed", Cell(*SHIFTED, "f-AdaFed", "mean")),
    ("README.md", "AdaFed {}, local", Cell(*SHIFTED, "AdaFed", "mean")),
    ("README.md", "local {} ([table](bench/claims.md#labels-shifted))", Cell(*SHIFTED, "local", "mean")),
    ("README.md", "lowest on real tissue, {}:", Cell(*TILES, "HarmoFL paper", "mean")),
    ("docs/joining.md", "keep a model by the rule score {} Dice", Cell(*GUARD, "the rule", "all")),
    ("docs/joining.md", "their own calibrated model {}.", Cell(*GUARD, "local, calibrated", "all")),
]


def read_cell(cell):
    """Return the text of a cell, without marks of highest and better."""
    page = (ROOT / cell.page).read_text(encoding="utf-8")
    section = re.split(rf"^#+ {re.escape(cell.heading)}\n", page, maxsplit=1, flags=re.M)[1]
    lines = re.split(r"^#+ ", section, maxsplit=1, flags=re.M)[0].splitlines()
    rows = [[text.strip(" *▲▼") for text in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, name = rows[0], ""
    column = head.index(cell.column)
    for row in rows[2:]:
        name = row[0] or name
        if cell.row in (name, f"{name}, {row[1]}"):
            return row[column].strip(" *▲▼")
    raise AssertionError(f"{cell.page} has no row {cell.row!r} below {cell.heading!r}")


@pytest.mark.parametrize(("page", "text", "cell"), FIGURES)
def test_a_figure_of_a_page_is_that_of_its_bench_table(page, text, cell):
    words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert text.format(read_cell(cell)) in words


def test_a_cell_is_read_by_its_heading_row_and_column():
    assert read_cell(Cell(*SHIFTED, "FedPer", "mean")) == "0.847 ± 0.031"
    assert read_cell(Cell(*NORMALIZATIONS, "tiles, FedAvg", "GroupNorm")) == "0.955 ± 0.011"
