"""Records in JSON files, read strictly into frozen dataclasses.

A dataclass is the schema: its fields are the keys, its type hints the types of the values, and the ``Attributes`` of
its docstring their meanings.
"""

import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from silofl.base.errors import ConfigError, quote_value, suggest_nearest
from silofl.base.files import read_json

R = TypeVar("R")
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "keys and values"}
WORDS |= {type(None): "null"}
TABLES = (Mapping, dict)
# Larger whole numbers are none of NumPy's.
LARGEST = 1 << 62
SECTION = re.compile(r"^\s*(?:Args|Attributes):\s*$", re.MULTILINE)
# The second is what remains of a type with a range, such as `Value | None` of `silofl.training.site_score`.
UNIONS = (types.UnionType, Union)


def declare_optional(default: object = None) -> Any:  # noqa: ANN401 - of the field's own type
    """Declare a key that is absent where its value is the default."""
    return field(default=default, metadata={"is_optional": True})


def read_record(kind: type[R], values: object, where: str) -> R:
    """Return the record that plain values describe.

    Args:
        values: What `dump_record` made.
        where: The file, for errors.

    Raises:
        ConfigError: A key is missing, unknown, or holds a value of another type.
    """
    try:
        record: R = _parse_record(kind, values, "")
        return record
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def read_file(kind: type[R], path: Path) -> R | None:
    """Return the record in a JSON file; None where there is none; the errors of `read_record` and `read_json`."""
    values = read_json(path, absent=None)
    return None if values is None else _read_current_version(kind, values, path)


def read_list(kind: type[R], path: Path, known: Sequence[R] = ()) -> list[R] | None:
    """Return the records in a JSON file that lists them; None where there is none; the errors of `read_file`.

    Args:
        known: The first of them, which are not read again.
    """
    values = read_json(path, list, absent=None)
    if values is None:
        return None
    return [*known[: len(values)], *(_read_current_version(kind, value, path) for value in values[len(known) :])]


def dump_record(record: object) -> Any:  # noqa: ANN401
    """Return a record, or a table or list of some, as plain values for JSON."""
    if is_dataclass(record):
        return dict(_items(record))
    if isinstance(record, Mapping):
        return {key: dump_record(value) for key, value in record.items()}
    return [dump_record(value) for value in record] if isinstance(record, (list, tuple)) else record


def format_key_lists(kind: type) -> str:
    """Return a list of a record's keys, then one of each kind of record within it, under that kind's name."""
    records = [kind]
    text = ""
    # Kinds that are met on the way join the list, so that each has one list.
    for record in records:
        if record is not kind:
            text += f"\n## {record.__name__}\n\n{read_summary(record)}\n\n"
        for key, values, meaning, inner in describe_keys(record):
            text += f"- {key} ({values}): {meaning}\n"
            if inner is not None and inner not in records:
                records.append(inner)
    return text


def describe_keys(kind: type) -> Iterator[tuple[str, str, str, type | None]]:
    """Yield key, with ? if it may be absent, type, meaning and inner record of a record's keys."""
    meanings = read_meanings(kind)
    for part, hint in _typed_fields(kind):
        inner = _find_inner_record(hint)
        link = f"[{inner.__name__}](#{inner.__name__.lower()})" if inner else ""
        values = describe_type(hint).replace(WORDS[dict], link)
        # An error needs the article, "must be a text"; a column does not.
        values = re.sub(r"\ba ", "", values)
        key = f"`{part.name}`"
        if _is_optional(part):
            key += "?"
            # A key whose default is null is never null in a file, but absent.
            values = values.removesuffix(" or null")
        yield key, values, meanings[part.name], inner


def read_summary(kind: type) -> str:
    """Return the description of a class, which its docstring gives before that of its keys."""
    return _in_markdown(SECTION.split(inspect.getdoc(kind) or "")[0])


def read_meanings(kind: type) -> dict[str, str]:
    """Return each key's meaning in the docstrings of its class and its bases, under ``Args:`` or ``Attributes:``."""
    described = []
    for owner in reversed(kind.__mro__):
        _, *sections = SECTION.split(inspect.getdoc(owner) or "", maxsplit=1)
        described += [re.split(r"^\S", text, maxsplit=1, flags=re.MULTILINE)[0] for text in sections]
    # A key is indented by four spaces, the further lines of its meaning by eight.
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n(?: {8}.*|[ ]*$))*)", "\n".join(described), re.MULTILINE)
    return {name: _in_markdown(text) for name, text in entries}


def describe_type(hint: Any) -> str:  # noqa: ANN401
    """Return a type in the words of a reader of JSON."""
    if hint is Any:
        return "anything"
    if is_dataclass(hint):
        return WORDS[dict]
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin in UNIONS:
        return " or ".join(map(describe_type, arguments))
    if origin is Literal:
        return ", ".join(arguments)
    if origin is list or (origin is tuple and ... in arguments):
        return f"list of {describe_type(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(describe_type, arguments))}]"
    if origin in TABLES:
        return f"{{text: {describe_type(arguments[1])}}}"
    return WORDS[hint]


@cache
def _typed_fields(kind: Any) -> tuple[tuple[Field[Any], Any], ...]:  # noqa: ANN401
    hints = get_type_hints(kind)
    return tuple((part, hints[part.name]) for part in fields(kind))


def _is_optional(part: Field[Any]) -> bool:
    return "is_optional" in part.metadata


def _items(record: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    for part, _ in _typed_fields(record.__class__):
        value = getattr(record, part.name)
        # An absent key reads back as its default, so that files do not grow with every optional key.
        if not (_is_optional(part) and value == part.default):
            yield part.name, dump_record(value)


def _read_current_version(kind: type[R], values: object, path: Path) -> R:
    try:
        return read_record(kind, values, str(path))
    except ConfigError as error:
        wrote = values.get("version") if isinstance(values, Mapping) else None
        reader = f"silofl {wrote}, which wrote it" if isinstance(wrote, str) else "the version of silofl that wrote it"
        raise ConfigError(f"{error}; read it with {reader}") from None


def _parse_record(kind: Any, values: object, prefix: str) -> Any:  # noqa: ANN401
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix.rstrip('.') or 'the content'} must be {WORDS[dict]}, not {quote_value(values)}")
    names = [part.name for part, _ in _typed_fields(kind)]
    renamed = getattr(kind, "RENAMED_KEYS", {})
    values = {renamed.get(key, key): value for key, value in values.items()}
    # What release 0.4 wrote and nobody reads any more is passed over.
    former = getattr(kind, "FORMER_KEYS", ())
    for key in values:
        if key not in names and key not in former:
            raise ConfigError(f"{prefix}{key} is not a known key{suggest_nearest(key, names)}")
    given = {}
    for part, hint in _typed_fields(kind):
        if part.name in values:
            given[part.name] = _parse_value(hint, values[part.name], prefix + part.name)
        elif not _is_optional(part):
            raise ConfigError(f"{prefix}{part.name} is missing")
    return kind(**given)


def _parse_value(hint: Any, value: object, key: str) -> object:  # noqa: ANN401
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin in UNIONS:
        # The only unions of records are a type or null.
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else _parse_value(inner, value, key)
    if is_dataclass(hint):
        return _parse_record(hint, value, f"{key}.")
    if origin in TABLES and isinstance(value, Mapping):
        return {name: _parse_value(arguments[1], item, f"{key}.{name}") for name, item in value.items()}
    if origin in (tuple, list) and isinstance(value, (list, tuple)):
        hints = arguments
        if origin is list or ... in arguments:
            hints = arguments[:1] * len(value)
        if len(hints) == len(value):
            items = []
            for number, item in enumerate(value):
                items.append(_parse_value(hints[number], item, f"{key}.{number}"))
            return origin(items)
    if hint is Any or (origin is Literal and value in arguments):
        return value
    # JSON does not tell 1 from 1.0, so an int is a number too; a bool, although an int in Python, is none.
    wanted = (int, float) if hint is float else hint
    if origin is None and isinstance(value, wanted) and (hint is bool or not isinstance(value, bool)):
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise ConfigError(f"{key} must be between -{LARGEST} and {LARGEST}, not {quote_value(value)}")
        return value
    suggestion = suggest_nearest(value, arguments) if origin is Literal else ""
    raise ConfigError(f"{key} must be {describe_type(hint)}, not {quote_value(value)}{suggestion}")


def _find_inner_record(hint: object) -> Any:  # noqa: ANN401
    """Return the record that a type is or holds; None where it holds none."""
    if is_dataclass(hint):
        return hint
    inner = map(_find_inner_record, get_args(hint))
    return next((record for record in inner if record is not None), None)


def _in_markdown(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
