"""The files of a page: its HTML by the templates, and its figures and numbers beside it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields, replace
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from silofl.errors import ConfigError
from silofl.files import write_atomically
from silofl.report.canvas import PageImage
from silofl.report.page import Block, Page, Text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEMPLATES = Path(__file__).parent / "templates"
FIGURES, NUMBERS = "figures", "results.csv"
# Where a page's blocks end.
FOOTER = "<footer>"
# The page of a run, beside which the names need no word before them.
REPORT = "report.html"


def render(page: Page) -> str:
    """Return a page as HTML."""
    return _open_templates().get_template("page.html.j2").render(page=page)


def add_blocks(path: Path, blocks: Sequence[Block]) -> None:
    """Add blocks at the end of a page that is written, as if they closed it; nothing else is drawn anew.

    Raises:
        OSError: The page cannot be read.
        ConfigError: It cannot be written.
    """
    place = _open_templates().globals["place"]
    before, footer, after = path.read_text(encoding="utf-8").rpartition(FOOTER)
    _write_bytes(path, "".join([before, *(f"{place(block)}\n" for block in blocks), footer, after]).encode())


@cache
def _open_templates() -> Environment:
    # Escaped, because names of sites and cases come from others; strict, because a misspelt name would print nothing.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def place(block: Block) -> str:
        return getattr(environment.get_template("blocks.html.j2").module, block.kind)(block)

    # A block may hold others, of any kind.
    environment.globals["place"] = place
    return environment


def write_page(path: Path, page: Page) -> Path:
    """Write a page, whole or not at all, and return its path.

    Raises:
        ConfigError: It cannot be written.
    """
    if path.is_dir():
        raise ConfigError(
            f"{path} must be a file to write, not a folder; name one in it, as {path / 'comparison.html'}"
        )
    _write_bytes(path, render(page).encode())
    return path


def write_with_files(path: Path, page: Page, numbers: Sequence[DataclassInstance]) -> Path:
    """Write a page, its figures and its numbers, say on the page where they are, and return its path.

    Args:
        path: The page's file; the others go beside it.
        page: The page.
        numbers: Rows of one table; without any it has no file.

    Raises:
        ConfigError: A file cannot be written.
    """
    figures, table = name_beside(path, FIGURES), name_beside(path, NUMBERS)
    text = Markup(
        "Beside this page, <code>{}/</code> has each figure as PNG and SVG, and its values as CSV."
        + " <code>{}</code> has all results, one number per row." * bool(numbers)
    )
    note = Text(text.format(figures.name, table.name), "note")
    # First: its errors are the ones that name the path that was asked for.
    write_page(path, replace(page, closing=[note, *page.closing]))
    write_figures(figures, page.images)
    if numbers:
        _write_bytes(table, _encode_csv([one.name for one in fields(numbers[0])], map(astuple, numbers)))
    return path


def name_beside(page: Path, name: str) -> Path:
    """Return the path of a file or folder beside a page; of another page than a report it begins with its name."""
    return page.with_name(name if page.name == REPORT else f"{page.stem}_{name}")


def write_figures(folder: Path, images: Iterable[PageImage]) -> None:
    """Write each figure as ``NAME.png``, ``NAME.svg`` and ``NAME.csv``, whose rows are the values that it shows.

    A name that is taken, on some disks in other letter case too, gets a number.

    Args:
        folder: Where they go; made where the first is written.
        images: Those without a plot have no files.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    written: set[str] = set()
    for image in images:
        if image.plot:
            data = image.plot.data()
            name = file_stem(data.name)
            stems = chain([name], (f"{name}_{number}" for number in count(2)))
            stem = next(one for one in stems if one.lower() not in written)
            written.add(stem.lower())
            _write_bytes(folder / f"{stem}.png", image.png)
            _write_bytes(folder / f"{stem}.svg", image.svg)
            _write_bytes(folder / f"{stem}.csv", _encode_csv(data.columns, data.rows))


def file_stem(name: str) -> str:
    """Return a name that can be a file's anywhere: sites and their names are others' choice."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _write_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        write_atomically(path, lambda stream: stream.write(content))
    except OSError as error:
        raise ConfigError(f"{path} must be writable; it is not: {error.strerror or error}") from None


def _encode_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()
