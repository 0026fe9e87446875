import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import declare_optional, dump_record, format_key_lists, read_record


@dataclass(frozen=True)
class Part:
    """A part of a thing.

    Attributes:
        weight: In kilograms, and told in two lines because a long
            sentence has no room in one.
        sizes: In metres.
    """

    weight: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Thing:
    """A thing.

    Attributes:
        name: Its name.
        parts: Name -> part.
        price: In francs.
        facts: Whatever.
        colour: Its colour.
        place: Row and name.
        remark: Free text.
        owner: Whose it is.
    """

    name: str
    parts: Mapping[str, Part]
    price: float | None
    facts: Mapping[str, Any]
    colour: Literal["red", "green"] | None = declare_optional()
    place: tuple[int, str] | None = declare_optional()
    remark: str | None = declare_optional()
    owner: str | None = declare_optional()


VALUES = {"name": "a", "parts": {"left": {"weight": 2, "sizes": [1, 2]}}, "price": None, "facts": {"any": [1]}}
MORE = VALUES | {"colour": "red", "place": [1, "x"], "remark": "r"}


def changed(**changes):
    return VALUES | changes


def test_what_was_read_is_written_as_it_was():
    thing = read_record(Thing, MORE, "t.json")
    assert thing.parts["left"] == Part(2, (1, 2)) and (thing.colour, thing.place) == ("red", (1, "x"))
    assert json.loads(json.dumps(dump_record(thing))) == MORE


def test_an_optional_key_is_absent_where_it_says_nothing():
    thing = read_record(Thing, VALUES, "t.json")
    assert (thing.place, thing.remark) == (None, None) and dump_record(thing) == VALUES


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "a"}, "t.json: parts is missing"),
        (changed(pirce=1.0), r"t.json: pirce is not a known key \(did you mean 'price'\?\)"),
        (changed(name=1), "t.json: name must be a text, not 1"),
        (changed(price="1"), "t.json: price must be a number, not '1'"),
        (changed(price=True), "t.json: price must be a number, not True"),
        (changed(parts=[]), "t.json: parts must be {text: keys and values}, not "),
        (changed(parts={"left": 1}), "t.json: parts.left must be keys and values, not 1"),
        (changed(parts={"left": {"weight": 1}}), "t.json: parts.left.sizes is missing"),
        (changed(parts={"left": {"weight": 1, "sizes": [1.5]}}), "parts.left.sizes.0 must be a whole number, not 1.5"),
        (MORE | {"colour": "gren"}, r"colour must be red, green, not 'gren' \(did you mean 'green'\?\)"),
        (MORE | {"place": [1]}, r"place must be \[a whole number, a text\], not \[1\]"),
        ([], r"t.json: the content must be keys and values, not \[\]"),
    ],
)
def test_what_does_not_fit_is_refused_with_key_and_file(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_record(Thing, values, "t.json")


def test_each_record_has_a_list_of_its_keys():
    lines = format_key_lists(Thing).splitlines()
    assert lines[0] == "- `name` (text): Its name."
    told = "In kilograms, and told in two lines because a long sentence has no room in one."
    assert "- `parts` ({text: [Part](#part)}): Name -> part." in lines
    assert lines[lines.index("## Part") + 4] == f"- `weight` (number): {told}"
    assert "- `colour`? (red, green): Its colour." in lines
    assert "- `facts` ({text: anything}): Whatever." in lines
