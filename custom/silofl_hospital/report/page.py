"""A page as typed parts: sections of blocks, which the templates place, and the files beside it.

Whoever prepares a page decides what stands on it; the templates hold no sentence and decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console

from silofl.base.csv_text import encode_csv
from silofl.base.errors import ConfigError
from silofl.base.files import write_atomically
from silofl_hospital.report.canvas import PageImage
from silofl_hospital.report.tables import TextTable, print_lines, print_table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEMPLATES = Path(__file__).parent / "templates"
FIGURES = "figures"
NUMBERS = "results.csv"
# The page of a run, beside which the names need no word before them.
REPORT = "report.html"
# Words of at most so many letters stay on one line of a table.
MOST_SHORT = 20


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
        text: Its sentences; escaped, unless it is markup.
        style: ``note`` or ``lead``; empty for a plain one.
        name: Bold words before it; empty without.
    """

    text: str | Markup
    style: str = ""
    name: str = ""


@dataclass(frozen=True)
class Items:
    """A list.

    Attributes:
        items: Its entries; escaped, unless they are markup.
        style: ``note`` or ``folders``; empty for a plain one.
        is_numbered: Whether the entries have numbers.
    """

    items: Sequence[str | Markup]
    style: str = ""
    is_numbered: bool = False


@dataclass(frozen=True)
class Tiles:
    """The main numbers of a page: (name, value)."""

    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Pairs:
    """Names with their values, one pair a line."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        content: Its cells.
        style: ``dense`` for many columns; empty for a plain one.
        shares: (row, column) of a cell -> how dark it is, in [0, 1].
    """

    content: TextTable
    style: str = "dense"
    shares: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def head_style(self, column: int) -> str:
        """Return how a column's head is shown."""
        return "number" if column >= self.content.num_text else ""

    def row_style(self, row: int) -> str:
        """Return how a row is shown: those that sum up the others differ, the first of them by a line above it."""
        first_summary = len(self.content.rows) - self.content.num_summary
        if row < first_summary:
            return ""
        return "summary first" if row == first_summary else "summary"

    def cell_style(self, row: int, column: int) -> str:
        """Return how a cell is shown: numbers to the right, the best ones marked; short words on one line."""
        if column < self.content.num_text:
            return "short" if len(self.content.rows[row][column]) <= MOST_SHORT else ""
        return "number strong" if (row, column) in self.content.best_cells else "number"


@dataclass(frozen=True)
class Picture:
    """A picture with its caption.

    Attributes:
        image: The picture.
        style: ``titled`` where the caption is a title, ``shrink`` where the picture keeps its size; both by a space.
    """

    image: PageImage
    style: str = ""


@dataclass(frozen=True)
class Group:
    """Blocks side by side.

    Attributes:
        blocks: The blocks.
        style: ``grid``, two in a row; empty for blocks that are one among others.
    """

    blocks: Sequence[Block]
    style: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader unfolds; print shows them.

    Attributes:
        summary: What they are.
        blocks: The blocks.
    """

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Banner:
    """What a reader must know first.

    Attributes:
        tone: ``good``, ``warning`` or ``bad``.
        word: The status.
        sentence: What it means.
        reasons: Why, one sentence each.
        remedy: What to do; empty where there is nothing.
        lead: A larger sentence before it; empty without.
    """

    tone: str
    word: str
    sentence: str
    reasons: Sequence[str] = ()
    remedy: str = ""
    lead: str = ""


# The templates have a macro for each, by its name.
Block = Heading | Text | Items | Tiles | Pairs | Table | Picture | Group | Fold | Banner
# A block that does not apply is None.
Blocks = Sequence[Block | None]


@dataclass(frozen=True)
class PageSection:
    """A section of a page.

    Attributes:
        place: Its address on the page.
        name: The link that leads to it; empty without.
        title: Its heading.
        blocks: What it shows.
    """

    place: str
    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: Its heading, and the browser's title.
        kicker: What kind of page it is.
        sections: In the order of the page.
        footer: Its last sentence.
        subtitle: Facts below the title.
        opening: Blocks before the sections.
        closing: Blocks after them.
        is_wide: Whether it has tables with many columns.
    """

    title: str
    kicker: str
    sections: Sequence[PageSection]
    footer: str
    subtitle: Sequence[str] = ()
    opening: Sequence[Block] = ()
    closing: Sequence[Block] = ()
    is_wide: bool = False

    @property
    def navigation(self) -> list[PageSection]:
        """The sections that a link leads to."""
        return [section for section in self.sections if section.name]

    @property
    def images(self) -> list[PageImage]:
        """All its pictures, in their order."""
        blocks = [*self.opening]
        for section in self.sections:
            blocks += section.blocks
        return list(_list_images([*blocks, *self.closing]))


def make_section(place: str, name: str, title: str, *blocks: Block | Blocks | None) -> PageSection:
    """Return a section of the blocks that are there; those that belong together may be a list."""
    present: list[Block] = []
    for block in blocks:
        group = block if isinstance(block, Sequence) else [block]
        present += [member for member in group if member]
    return PageSection(place, name, title, present)


def make_table(content: TextTable | None, style: str = "dense") -> Table | None:
    """Return a table; None without any."""
    return Table(content, style) if content else None


def make_picture(image: PageImage | None, style: str = "") -> Picture | None:
    """Return a picture; None without any."""
    return Picture(image, style) if image else None


def make_note(text: str | Markup, name: str = "") -> Text | None:
    """Return a note; None without a sentence."""
    return Text(text, "note", name) if text else None


def make_items(items: Sequence[str | Markup], style: str = "") -> Items | None:
    """Return a list; None without an entry."""
    return Items(items, style) if items else None


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print what of a page's blocks a terminal can show: all but pictures and tiles."""
    for block in blocks:
        match block:
            case Heading():
                print_lines(["", block.text], console)
            case Text():
                text = block.text.striptags() if isinstance(block.text, Markup) else block.text
                print_lines([f"{block.name}: {text}" if block.name else text], console)
            case Items():
                print_lines(list(map(str, block.items)), console)
            case Table():
                print_table(block.content, console)
            case Banner():
                print_lines([f"{block.word}  {sentence}" for sentence in (block.sentence, *block.reasons)], console)


def render(page: Page) -> str:
    """Return a page as HTML."""
    return _open_templates().get_template("page.html.j2").render(page=page)


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
    # A block may hold others, of any kind.
    environment.globals["place"] = _place
    return environment


def _place(block: Block) -> str:
    placed: str = getattr(_open_templates().get_template("blocks.html.j2").module, type(block).__name__.lower())(block)
    return placed


def write_page(path: Path, page: Page) -> Path:
    """Write a page, whole or not at all, and return its path.

    Raises:
        ConfigError: It cannot be written.
    """
    _write_bytes(path, render(page).encode())
    return path


def write_with_files(path: Path, page: Page, numbers: Sequence[DataclassInstance]) -> Path:
    """Write a page, its figures and its numbers, say on the page where they are, and return its path.

    Args:
        path: The page's file; the others go beside it.
        numbers: Rows of one table; without any it has no file.

    Raises:
        ConfigError: A file cannot be written.
    """
    figures = name_beside(path, FIGURES)
    table = name_beside(path, NUMBERS)
    sentences = []
    if any(image.plot is not None for image in page.images):
        text = "Beside this page, <code>{}/</code> has each figure as PNG and SVG, and its values as CSV."
        sentences.append(Markup(text).format(figures.name))
    if numbers:
        sentences.append(Markup("<code>{}</code> has all results, one number per row.").format(table.name))
    notes = [Text(Markup(" ").join(sentences), "note")] if sentences else []
    # The page is written first, because its errors name the path that was asked for.
    write_page(path, replace(page, closing=[*notes, *page.closing]))
    write_figures(figures, page.images)
    if numbers:
        head = [column.name for column in fields(numbers[0])]
        _write_bytes(table, encode_csv([head, *map(astuple, numbers)]).encode())
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
            name = file_stem(image.plot.name)
            stem = name
            number = 1
            # On some disks a.png and A.png are one file.
            while stem.lower() in written:
                number += 1
                stem = f"{name}_{number}"
            written.add(stem.lower())
            _write_bytes(folder / f"{stem}.png", image.png)
            _write_bytes(folder / f"{stem}.svg", image.svg)
            _write_bytes(folder / f"{stem}.csv", encode_csv([image.plot.columns, *image.plot.rows]).encode())


def file_stem(name: str) -> str:
    """Return a name that can be a file's anywhere: sites and their names are others' choice."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _list_images(blocks: Iterable[Block]) -> Iterator[PageImage]:
    for block in blocks:
        if isinstance(block, Picture):
            yield block.image
        elif isinstance(block, Group | Fold):
            yield from _list_images(block.blocks)


def _write_bytes(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, lambda stream: stream.write(content))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}); name another file") from None
