"""Tables as CSV that no spreadsheet takes for commands (OWASP, CSV injection), and how SiloFL reads its own again."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

# What a spreadsheet computes, also of full width; and what looks like such a text that was made harmless.
FORMULA = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")
NUMBER = re.compile(r"[-+]?[0-9]+([.,][0-9]+)?([eE][-+]?[0-9]+)?")
# Whatever parts columns in some country or program: a spreadsheet would begin a new cell, and a formula, after it.
SEPARATORS = re.compile('[,;"\t\r\n|]')


def encode_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV: numbers as they are, None as nothing, an apostrophe before a text that is a formula."""
    return "".join(",".join(map(_encode_cell, row)) + "\n" for row in rows)


def decode_csv(text: str) -> list[list[str]]:
    """Return the rows of `encode_csv`, numbers as texts; empty lines are none."""
    rows = csv.reader(io.StringIO(text, newline=""))
    return [list(map(_decode_cell, row)) for row in rows if row]


def _encode_cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, str) and FORMULA.match(text) and not NUMBER.fullmatch(text):
        text = f"'{text}"
    if SEPARATORS.search(text):
        return '"{}"'.format(text.replace('"', '""'))
    return text


def _decode_cell(text: str) -> str:
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text
