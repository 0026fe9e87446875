"""Tables of text for the terminal and the pages, and numbers as they are written in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from silofl.base.errors import escape_markdown, make_printable

MISSING = "-"
NOT_SAID = "withheld"
UNITS: dict[str | None, str] = {"mm": "mm", "pixels": "px"}
METRIC_NAMES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auroc": "AUROC", "auprc": "AUPRC"}


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Attributes:
        columns: Names of the columns.
        rows: One tuple of cells a row.
        num_text: Leading columns that hold words; the others hold numbers.
        num_summary: Last rows that sum up the others.
        best_cells: (row, column) of the cells that are marked as the best.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text: int = 1
    num_summary: int = 0
    best_cells: frozenset[tuple[int, int]] = frozenset()


def format_number(value: float | None) -> str:
    """Return a value with three decimals, ``-`` where there is none."""
    return MISSING if value is None else f"{value:.3f}"


def format_distance(value: float | None, unit: str | None) -> str:
    """Return a distance with one decimal and its unit, ``-`` where there is none."""
    return MISSING if value is None else f"{value:.1f} {UNITS[unit]}"


def format_count(value: int | None) -> str:
    """Return a whole number, ``-`` where there is none."""
    return MISSING if value is None else str(value)


def format_duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_bytes(size: float) -> str:
    """Return a number of bytes in the decimal unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def print_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines uncut and without markup, each as one."""
    for line in lines:
        console.print(Text(make_printable(line)), soft_wrap=True)


def print_table(table: TextTable, console: Console) -> None:
    """Print a table without cutting a word or a number, because a cropped number reads as another number."""
    console.print(rich_table(table, console), soft_wrap=True)


def rich_table(table: TextTable, console: Console) -> Table:
    """Return a table at its full width; in a terminal as narrow as headings and words can be broken for it."""
    rich = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for i, name in enumerate(table.columns):
        is_text = i < table.num_text
        cells = [row[i] for row in table.rows]
        # Words may stand on several lines, but no number is broken.
        parts = " ".join([name, *cells]).split() if is_text else [*name.split(), *cells]
        side: Literal["left", "right"] = "left" if is_text else "right"
        rich.add_column(Text(make_printable(name)), justify=side, min_width=max(map(len, parts), default=1))
    for i, row in enumerate(table.rows):
        if table.num_summary and i == len(table.rows) - table.num_summary:
            rich.add_section()
        marked = [_marked_text(cell, table, i, j) for j, cell in enumerate(row)]
        rich.add_row(*marked)
    # Measured on a wide console: on its own, rich cuts a table to the terminal's width.
    least, most = Measurement.get(console, console.options.update(width=10_000), rich)
    if not console.is_terminal or console.width >= most:
        rich.width = most
        return rich
    rich.width = max(least, console.width)
    spare = rich.width - least
    longest = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    widths = [column.min_width or 0 for column in rich.columns]
    # What columns of short words leave over is for those of long ones.
    for number, i in enumerate(sorted(range(table.num_text), key=longest.__getitem__)):
        extra = min(spare // (table.num_text - number), longest[i] - widths[i])
        widths[i] += extra
        spare -= extra
    for column, width in zip(rich.columns, widths, strict=True):
        column.width = width
    return rich


def markdown_table(table: TextTable, notes: Sequence[str], above: Sequence[str] = ()) -> str:
    """Return a table in Markdown, the best cells bold, its notes as a list below.

    Args:
        above: Sentences that a reader must know before the numbers.
    """
    lines = [tuple(map(escape_markdown, table.columns)), ("---",) * len(table.columns)]
    for i, row in enumerate(table.rows):
        cells = []
        for j, cell in enumerate(row):
            escaped = escape_markdown(cell)
            cells.append(f"**{escaped}**" if (i, j) in table.best_cells else escaped)
        lines.append(tuple(cells))
    text = ""
    for line in lines:
        cells = [cell.replace("|", "/") for cell in line]
        text += f"| {' | '.join(cells)} |\n"
    if above:
        text = f"{_markdown_list(above)}\n{text}"
    return f"{text}\n{_markdown_list(notes)}"


def _markdown_list(sentences: Sequence[str]) -> str:
    return "".join(f"- {escape_markdown(sentence)}\n" for sentence in sentences)


def _marked_text(cell: str, table: TextTable, row: int, column: int) -> Text:
    # The best ones have a sign besides the style, for terminals without bold letters.
    shown = make_printable(cell)
    return Text(f"{shown} *", style="bold") if (row, column) in table.best_cells else Text(shown)
