"""The files beside a page: each of its figures as PNG, SVG and CSV, and its numbers as one tidy table."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from silofl.errors import ConfigError
from silofl.files import write_atomically
from silofl.report.canvas import PageImage
from silofl.report.result_rows import COLUMNS, ResultRow

FIGURES, RESULT_ROWS = "figures", "results.csv"
# The page of a run, beside which the names need no word before them.
REPORT = "report.html"


def name_beside(page: Path, name: str) -> Path:
    """Return the path of a file or folder beside a page; of another page than a report it begins with its name."""
    return page.with_name(name if page.name == REPORT else f"{page.stem}_{name}")


def list_images(values: object) -> list[PageImage]:
    """Return the pictures among the values of a page, however deep."""
    if isinstance(values, PageImage):
        return [values]
    inner = values.values() if isinstance(values, Mapping) else values if isinstance(values, list) else ()
    return [image for value in inner for image in list_images(value)]


def write_figures(folder: Path, images: Iterable[PageImage]) -> None:
    """Write each figure as ``NAME.png``, ``NAME.svg`` and ``NAME.csv``, whose rows are the values that it shows.

    Args:
        folder: Where they go; made where the first is written.
        images: Those without a plot have no files.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    for image in images:
        if image.plot:
            data = image.plot.data()
            stem = file_stem(data.name)
            write_file(folder / f"{stem}.png", image.png)
            write_file(folder / f"{stem}.svg", image.svg)
            write_file(folder / f"{stem}.csv", _encode_csv(data.columns, data.rows))


def write_result_rows(path: Path, rows: Sequence[ResultRow]) -> None:
    """Write the rows as a table; nothing where there is none.

    Raises:
        ConfigError: It cannot be written.
    """
    if rows:
        write_file(path, _encode_csv(COLUMNS, map(astuple, rows)))


def file_stem(name: str) -> str:
    """Return a name that can be a file's anywhere: sites and their names are others' choice."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def write_file(path: Path, content: bytes) -> None:
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
