"""The rule of names that files and people bring and that other hospitals, programs and spreadsheets read."""

import re
import unicodedata
from typing import Any

from silofl.base.errors import CONTROL, SiloFLError, quote_value

# Names are in every table and on every page.
LONGEST = 100
# By these a spreadsheet begins a formula, MONAI an expression, a reference, a macro or the key of a component.
COMMANDS = "= + - @ $ % _"
# Of a name in Unicode's compatible form, in which signs of full width, as Asian keyboards write them, are plain ones.
# MONAI's references to neighbours count wherever they stand.
COMMAND = re.compile(r"[=+\-@$%_]|.*[@%](#|::)")


def normalise_accents(name: str) -> str:
    """Return a name with each letter and its accents as one sign: file systems, tables and keyboards differ in that."""
    return unicodedata.normalize("NFC", name)


def normalise_texts(value: Any) -> Any:  # noqa: ANN401 - of any settings
    """Return plain values, keys and values of tables and lists, with all texts as `normalise_accents` gives them."""
    if isinstance(value, dict):
        return {normalise_texts(key): normalise_texts(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [normalise_texts(inner) for inner in value]
    return normalise_accents(value) if isinstance(value, str) else value


def is_one_line(text: str) -> bool:
    """Return whether a text can name a file, a case or a patient: it is seen, on one line, and commands no terminal."""
    return bool(text.strip()) and not CONTROL.search(text)


def check_text(name: object, what: str, error: type[SiloFLError], remedy: str = "rename it") -> str:
    """Return a name that is shown to people, without blanks at its ends and in one form of its accents.

    Args:
        what: What it names, for errors.
        error: The class of errors.
        remedy: How it can be renamed.

    Raises:
        SiloFLError: It is no text, is too long, or cannot be printed on one line.
    """
    kept = normalise_accents(name).strip() if isinstance(name, str) else ""
    if not kept or not kept.isprintable() or len(kept) > LONGEST:
        raise error(f"{quote_value(name)} cannot name {what}: names have 1 to {LONGEST} printable characters; {remedy}")
    return kept


def check_name(name: object, what: str, error: type[SiloFLError], remedy: str = "rename it") -> str:
    """Return the name of a label, a region or a site as `check_text` does, if no program takes it for a command.

    Raises:
        SiloFLError: Also where it begins as a command does.
    """
    kept = check_text(name, what, error, remedy)
    if COMMAND.match(unicodedata.normalize("NFKC", kept)):
        raise error(
            f"{quote_value(name)} cannot name {what}: it begins with one of {COMMANDS} or holds @# or %#, which are "
            f"commands for some programs; {remedy}"
        )
    return kept
