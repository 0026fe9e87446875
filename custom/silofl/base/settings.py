"""Settings files in YAML: sections that check themselves, and one sentence for the first thing that is wrong."""

# PyYAML has no types.
# mypy: allow-subclassing-any
import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from silofl.base.documents import read_document
from silofl.base.errors import ConfigError, one_line, quote_value, suggest_nearest

S = TypeVar("S", bound="Section")


def _refuse_odd_number(value: object) -> object:
    # A bool is an int in Python, so pydantic would read `true` as 1; and in a text '1_0' as 10.
    if isinstance(value, bool):
        raise ValueError("a number")
    if isinstance(value, str) and "_" in value:
        raise ValueError("a number in decimal digits")
    return value


# What a study counts is looped over or allocated: more is a slip of the pen.
MOST = 1_000_000
Whole = Annotated[int, BeforeValidator(_refuse_odd_number)]
Count = Annotated[Whole, Field(gt=0, le=MOST)]
Natural = Annotated[Whole, Field(ge=0, le=MOST)]
# Of a layer; wider ones would fill the memory before anything could be said about it.
Width = Annotated[Whole, Field(ge=0, le=4096)]
# Far from where the networks' numbers end, beyond which torch takes none.
LARGEST = 1e15
Positive = Annotated[float, BeforeValidator(_refuse_odd_number), Field(gt=0, le=LARGEST, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(_refuse_odd_number), Field(ge=0, le=1)]
Share = Annotated[float, BeforeValidator(_refuse_odd_number), Field(gt=0, le=1)]
BelowOne = Annotated[float, BeforeValidator(_refuse_odd_number), Field(ge=0, lt=1)]
Finite = Annotated[float, BeforeValidator(_refuse_odd_number), Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
NotNegative = Annotated[float, BeforeValidator(_refuse_odd_number), Field(ge=0, le=LARGEST, allow_inf_nan=False)]
# Names become parts of paths and file names.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=NAME)]
SHA256 = r"^[0-9a-f]{64}$"


WORDS = {
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
    "tuple_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "dataclass_type": "keys and values",
    "string_type": "a text",
    "invalid_key": "a key in letters",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-'",
}
QUOTED = r"'([^']+)'"
# A settings file's characters, keys and values, and depth; a second of PyYAML's time at the most.
LONGEST, MOST_VALUES, DEEPEST = 1 << 17, 5000, 32
# Numbers as people write them. YAML 1.1 takes 010 for 8, 1:30 for 90, 0x10 for 16 and 1_0 for 10, and 1e3 for a text.
WHOLE, BROKEN, POWER = r"(?:0*[0-7]|[1-9][0-9]*)", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)", r"[eE][-+]?[0-9]+"
DECIMAL = re.compile(rf"[-+]?(?:{WHOLE}|{BROKEN}|(?:[0-9]+|{BROKEN}){POWER})")
EXPONENTIAL = re.compile(rf"[-+]?(?:[0-9]+|{BROKEN}){POWER}\Z")
INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
# Half a character pair, or a null character, is in no name that a file or another program could have.
NO_TEXT = re.compile(r"[\0\ud800-\udfff]")


class Section(BaseModel):
    """A part of a settings file: unknown keys are refused, values never change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def parse(section: type[S], values: object, where: str, context: object = None) -> S:
    """Build a settings section from plain values; its validators get the context.

    Raises:
        ConfigError: The first thing that is wrong, as one sentence that starts with ``where``.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be keys and values, not {type(values).__name__}")
    try:
        return section.model_validate(values, context=context)
    except ValidationError as error:
        fault = error.errors()[0]
        # A name such as 007, on or no; what comes over the network has quotes that nobody writes.
        is_unquoted = fault["type"] == "string_type" and isinstance(fault["input"], bool | int | float)
        remedy = ": put it in quotes" if is_unquoted and where.endswith((".yaml", ".yml")) else ""
        raise ConfigError(f"{where}: {describe_validation_error(error, section)}{remedy}") from None


def load_settings(section: type[S], path: Path, context: object = None) -> S:
    """Read and check a settings file; its validators get the context.

    Raises:
        ConfigError: The file cannot be read, or a key is unknown, missing, of the wrong type or out of range.
    """
    return parse(section, read_yaml(path), path.name, context)


class _PlainLoader(yaml.SafeLoader):
    """YAML's safe loader for plain values, all of it bounded.

    No aliases, tags, dates, merged keys or numbers that are not decimal; each key once.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Build the node of the next event, after a look at it."""
        event = self.peek_event()
        self._count += 1
        self._check(event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping."""
        lines: dict[object, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"line {line}: a key is a list or a table; write a text or a number")
            key = self.construct_object(key_node)
            if key in lines:
                raise ConfigError(f"line {line}: {quote_value(key)} is given in line {lines[key]} too; remove one")
            lines[key] = line
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def _check(self, event: yaml.Event) -> None:
        where = f"line {event.start_mark.line + 1}"
        if self._count > MOST_VALUES:
            raise ConfigError(f"{where}: there are more than {MOST_VALUES} keys and values; remove some")
        if self._depth >= DEEPEST:
            raise ConfigError(f"{where}: values are nested more than {DEEPEST} deep; flatten them")
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{where}: '*' refers to another value; write the value itself")
        if event.tag is not None:
            raise ConfigError(f"{where}: the tag {quote_value(event.tag)} is not allowed; remove it")
        if isinstance(event, yaml.ScalarEvent) and NO_TEXT.search(event.value):
            raise ConfigError(
                f"{where}: {quote_value(event.value)} holds half a character or a null character; correct it"
            )
        # In quotes it is a text.
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            tag = self.resolve(yaml.ScalarNode, event.value, event.implicit)
            text = event.value
            if tag in (INT, FLOAT) and not (DECIMAL.fullmatch(text) and (tag == INT or math.isfinite(float(text)))):
                raise ConfigError(
                    f"{where}: {one_line(text, 60)} is not a finite decimal number, as 10 or 1e-3; write it so, or in "
                    "quotes where it is a text"
                )


class _PlainDumper(yaml.SafeDumper):
    """YAML's safe dumper, which puts into quotes what `_PlainLoader` would not read as a text."""


# Without the resolvers of dates, which are texts, and of '<<', whose keys would escape the look for twins.
for _plain in (_PlainLoader, _PlainDumper):
    _plain.yaml_implicit_resolvers = {}
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
        _plain.yaml_implicit_resolvers[letter] = [
            (tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":merge"))
        ]
    _plain.add_implicit_resolver(FLOAT, EXPONENTIAL, list("-+.0123456789"))


def dump_yaml(values: object, **options: Any) -> str:  # noqa: ANN401 - of `yaml.dump`
    """Return plain values as YAML that `read_value` reads back as they are, keys in their order."""
    text: str = yaml.dump(values, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, **options)
    return text


def read_value(text: str) -> object:
    """Return the value that a YAML text stands for.

    Raises:
        ConfigError: The text is no YAML of plain values, is too large or too deep, or repeats a key.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"the text has {len(text)} characters, more than {LONGEST}; shorten it")
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except ConfigError:
        raise
    # PyYAML lets the errors of int, float and chr pass.
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:
        where = ""
        problem: object = error
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            # Without the lines of the text, which PyYAML repeats.
            where = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: "
            problem = error.problem
        raise ConfigError(f"{where}this is not YAML ({one_line(problem)}); correct it") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises:
        ConfigError: It cannot be read, holds something else, or repeats a key.
    """
    text = read_document(path, "YAML", LONGEST)
    if text is None:
        raise ConfigError(f"{path} does not exist")
    try:
        values = read_value(text)
    except ConfigError as error:
        raise ConfigError(f"{path.name}, {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path.name} must be keys and values, not {type(values).__name__}")
    return values


def describe_validation_error(error: ValidationError, section: type[Section]) -> str:
    """Return the first thing that is wrong, as one sentence that begins with its key."""
    fault = error.errors()[0]
    # Checks of our own raise whole sentences already; pydantic wraps them because ConfigError is a ValueError.
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    key = _error_key(fault)
    name = one_line(key)
    # The same fault has another name in a dataclass than in a section.
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{name} is not a known key{_nearest_key(key, section)}"
    if fault["type"] == "missing":
        return f"{name} is missing"
    # A value that may be one thing or another has one error for each.
    conditions = [_describe_condition(detail) for detail in error.errors() if _error_key(detail) == key]
    condition = ", or ".join(conditions)
    suggestion = suggest_nearest(fault["input"], re.findall(QUOTED, condition))
    # A section that is given one value, as `training: 3`, has keys below it.
    inner = next((name for name in _dotted_names(section) if name.startswith(f"{key}.")), None)
    remedy = f": set its keys, as {inner}" if inner else ""
    return f"{name} must be {condition}, not {quote_value(fault['input'])}{suggestion}{remedy}"


def _error_key(error: Mapping[str, Any]) -> str:
    """Return an error's dotted key without pydantic's tags for the members of a union."""
    tags = ("literal[", "constrained-", "dict[", "function-after[")
    return ".".join(str(part) for part in error["loc"] if part != "str" and not str(part).startswith(tags))


def _describe_condition(error: Mapping[str, Any]) -> str:
    """Return what a value must be, in the words of a settings file."""
    if error["type"] in WORDS:
        return WORDS[error["type"]].format(**error.get("ctx", {}))
    text: str = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return text.split(", unable to parse")[0]


def check_key(key: str, section: type[Section]) -> None:
    """Refuse a dotted key, as ``training.batch_size``, that no settings section knows.

    Raises:
        ConfigError: The key is unknown; it names the nearest known one.
    """
    inner: type[BaseModel] | None = section
    for part in key.split("."):
        if inner is None or (part not in inner.model_fields and inner.model_config.get("extra") == "allow"):
            return
        if part not in inner.model_fields:
            raise ConfigError(f"{key} is not a known key{_nearest_key(key, section)}")
        inner = _find_field_section(inner.model_fields[part])


def _nearest_key(key: str, section: type[Section]) -> str:
    """Return `` (did you mean 'training.learning_rate'?)``, or nothing."""
    known_keys = _dotted_names(section)
    name = key.rpartition(".")[2]
    # The same name in another section, or initials (`training.lr`), before a slip of the pen.
    for known_key in known_keys:
        if name in (known_key.rpartition(".")[2], _initials(known_key)):
            return f" (did you mean {known_key!r}?)"
    return suggest_nearest(key, known_keys)


def _initials(key: str) -> str:
    """Return ``lr`` for ``training.learning_rate``; nothing for a name of one word."""
    words = key.rpartition(".")[2].split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""


def _dotted_names(section: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in section.model_fields.items():
        names.append(prefix + name)
        if inner := _find_field_section(field):
            names += _dotted_names(inner, f"{prefix}{name}.")
    return names


def _find_field_section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a field holds, None where it holds a value."""
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def flatten_keys(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections by dotted key; an empty section is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_keys(value, f"{section}{key}.")
        else:
            yield f"{section}{key}", value


def numbers_in(value: object) -> list[int | float]:
    """Return the numbers in a setting, whatever lists and tables they are in."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return list(chain.from_iterable(map(numbers_in, value)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [value]
    return []


def setting_text(value: object) -> str:
    """Return a setting's value as a table shows it, without quotation marks."""
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")
