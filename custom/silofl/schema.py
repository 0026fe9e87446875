"""Records in JSON files, read strictly into frozen dataclasses.

A dataclass is the schema: its fields are the keys, its type hints the types of the values, and the ``Attributes`` of
its docstring their meanings.
"""

import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from silofl.errors import ConfigError, nearest, shown
from silofl.files import read_json

R = TypeVar("R")
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "keys and values"}
WORDS |= {type(None): "null"}
TABLES = (Mapping, dict)
# Larger whole numbers are none of NumPy's.
LARGEST = 1 << 62
SECTION = re.compile(r"^\s*(?:Args|Attributes):\s*$", re.MULTILINE)
# The second is what remains of a type with a range, such as `Value | None` of `silofl.training.site_score`.
UNIONS = (types.UnionType, Union)


def optional(default: object = None) -> Field:
    """Declare a key that is absent where its value is the default."""
    return field(default=default, metadata={"is_optional": True})


def given() -> Field:
    """Declare a key that may be null in memory, while it is not known yet, but never in a file."""
    return field(metadata={"is_given": True})


def group(default: object = MISSING) -> Field:
    """Declare a record whose keys are written among those of its parent; absent where it is the default."""
    return field(default=default, metadata={"is_group": True, "is_optional": default is not MISSING})


def read(kind: type[R], values: object, where: str) -> R:
    """Return the record that plain values describe.

    Args:
        kind: The record's dataclass.
        values: What `plain` made.
        where: The file, for errors.

    Raises:
        ConfigError: A key is missing, unknown, or holds a value of another type.
    """
    try:
        return _record(kind, values, "")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def read_file(kind: type[R], path: Path) -> R | None:
    """Return the record in a JSON file; None where there is none; the errors of `read` and `read_json`."""
    values = read_json(path, absent=None)
    return None if values is None else _of_this_version(kind, values, path)


def read_list(kind: type[R], path: Path, known: Sequence[R] = ()) -> list[R] | None:
    """Return the records in a JSON file that lists them; None where there is none; the errors of `read_file`.

    Args:
        kind: Of each.
        path: The file.
        known: The first of them, which are not read again.
    """
    values = read_json(path, list, absent=None)
    if values is None:
        return None
    return [*known[: len(values)], *(_of_this_version(kind, value, path) for value in values[len(known) :])]


def plain(record: object) -> object:
    """Return a record, or a table or list of some, as plain values for JSON."""
    if is_dataclass(record):
        return dict(_items(record))
    if isinstance(record, Mapping):
        return {key: plain(value) for key, value in record.items()}
    return [plain(value) for value in record] if isinstance(record, (list, tuple)) else record


def markdown(kind: type) -> str:
    """Return a table of all keys of a record."""
    lines = (("Key", "Type", "Meaning"), ("---",) * 3, *((f"`{key}`", *texts) for key, *texts in rows(kind)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rows(kind: type, prefix: str = "", is_optional: bool = False) -> Iterator[tuple[str, str, str]]:
    """Yield key, type and meaning of all keys of a record, inner ones as ``key.inner`` or ``key.*.inner``.

    Args:
        kind: The record's dataclass.
        prefix: Put before each key.
        is_optional: Whether all keys may be absent.
    """
    meanings = meanings_of(kind)
    for part, hint in _parts(kind):
        inner, path = _inner(hint)
        is_absent = is_optional or _is_optional(part)
        if _is_group(part):
            yield from rows(inner, prefix, is_absent)
            continue
        yield prefix + part.name, words(hint) + "; may be absent" * is_absent, meanings[part.name]
        if inner is not None:
            yield from rows(inner, f"{prefix}{part.name}{path}.")


def summary_of(kind: type) -> str:
    """Return the description of a class, which its docstring gives before that of its keys."""
    return _in_markdown(SECTION.split(inspect.getdoc(kind) or "")[0])


def meanings_of(kind: type) -> dict[str, str]:
    """Return each key's meaning in the docstring of its class, under ``Args:`` or ``Attributes:``."""
    _, *described = SECTION.split(inspect.getdoc(kind) or "", maxsplit=1)
    described = [re.split(r"^\S", text, maxsplit=1, flags=re.MULTILINE)[0] for text in described]
    # A key is indented by four spaces, the further lines of its meaning by eight.
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n(?: {8}.*|[ ]*$))*)", "".join(described), re.MULTILINE)
    return {name: _in_markdown(text) for name, text in entries}


def words(hint: object) -> str:
    """Return a type in the words of a reader of JSON."""
    if hint is Any:
        return "anything"
    if is_dataclass(hint):
        return WORDS[dict]
    arguments, origin = get_args(hint), get_origin(hint)
    if origin in UNIONS:
        return " or ".join(map(words, arguments))
    if origin is Literal:
        return ", ".join(arguments)
    if origin in (tuple, list):
        is_long = origin is list or ... in arguments
        return f"list of {words(arguments[0])}" if is_long else f"[{', '.join(map(words, arguments))}]"
    return f"{{text: {words(arguments[1])}}}" if origin in TABLES else WORDS[hint]


@cache
def _parts(kind: type) -> tuple[tuple[Field, Any], ...]:
    hints = get_type_hints(kind)
    never_null = {part.name: get_args(hints[part.name])[0] for part in fields(kind) if "is_given" in part.metadata}
    return tuple((part, never_null.get(part.name, hints[part.name])) for part in fields(kind))


def _is_optional(part: Field) -> bool:
    return part.metadata.get("is_optional", False)


def _is_group(part: Field) -> bool:
    return "is_group" in part.metadata


def _items(record: object) -> Iterator[tuple[str, Any]]:
    for part, _ in _parts(type(record)):
        value = getattr(record, part.name)
        # An absent key reads back as its default, so that files do not grow with every optional key.
        if _is_optional(part) and value == part.default:
            continue
        if _is_group(part):
            yield from _items(value)
        else:
            yield part.name, plain(value)


def _keys(kind: type) -> Iterator[str]:
    for part, hint in _parts(kind):
        if _is_group(part):
            yield from _keys(_inner(hint)[0])
        else:
            yield part.name


def _of_this_version(kind: type[R], values: object, path: Path) -> R:
    try:
        return read(kind, values, str(path))
    except ConfigError as error:
        raise ConfigError(f"{error}; read it with the version of silofl that wrote it") from None


def _record(kind: type[R], values: object, prefix: str) -> R:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix.rstrip('.') or 'the content'} must be {WORDS[dict]}, not {shown(values)}")
    known = list(_keys(kind))
    for key in values:
        if key not in known:
            raise ConfigError(f"{prefix}{key} must be a known key; it is not{nearest(key, known)}")
    return _known_record(kind, values, prefix)


def _known_record(kind: type[R], values: Mapping[str, Any], prefix: str) -> R:
    """Build a record from those values that are its keys; the others may belong to a group's parent."""
    given = {}
    for part, hint in _parts(kind):
        if _is_group(part):
            inner = _inner(hint)[0]
            if not _is_optional(part) or any(key in values for key in _keys(inner)):
                given[part.name] = _known_record(inner, values, prefix)
        elif part.name in values:
            given[part.name] = _value(hint, values[part.name], prefix + part.name)
        elif not _is_optional(part):
            raise ConfigError(f"{prefix}{part.name} must be given; it is missing")
    return kind(**given)


def _value(hint: object, value: object, key: str) -> object:
    arguments, origin = get_args(hint), get_origin(hint)
    if origin in UNIONS:
        (other,) = (one for one in arguments if one is not type(None))
        return None if value is None else _value(other, value, key)
    if is_dataclass(hint):
        return _record(hint, value, f"{key}.")
    if origin in TABLES and isinstance(value, Mapping):
        return {name: _value(arguments[1], one, f"{key}.{name}") for name, one in value.items()}
    if origin in (tuple, list) and isinstance(value, (list, tuple)):
        kinds = arguments[:1] * len(value) if origin is list or ... in arguments else arguments
        if len(kinds) == len(value):
            return origin(
                _value(one, each, f"{key}.{i}") for i, (one, each) in enumerate(zip(kinds, value, strict=True))
            )
    if hint is Any or (origin is Literal and value in arguments):
        return value
    # JSON does not tell 1 from 1.0, so an int is a number too; a bool, although an int in Python, is none.
    wanted = (int, float) if hint is float else hint
    if origin is None and isinstance(value, wanted) and (hint is bool or not isinstance(value, bool)):
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise ConfigError(f"{key} must be between -{LARGEST} and {LARGEST}, not {shown(value)}")
        return value
    suggestion = nearest(value, arguments) if origin is Literal else ""
    raise ConfigError(f"{key} must be {words(hint)}, not {shown(value)}{suggestion}")


def _inner(hint: object) -> tuple[Any, str]:
    """Return the record that a type holds, if any, and how its keys are written after the key's own name."""
    if is_dataclass(hint):
        return hint, ""
    for argument in get_args(hint):
        record, path = _inner(argument)
        if record is not None:
            return record, path if get_origin(hint) in UNIONS else f".*{path}"
    return None, ""


def _in_markdown(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
