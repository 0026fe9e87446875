from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from silofl.base.schema import read_meanings, read_summary
from silofl.base.settings import Count, Section
from silofl.study import Study
from silofl_desk.studies.reference import (
    Key,
    all_ingredients,
    all_keys,
    describe_values,
    list_keys,
    study_keys,
    study_page,
)

ROOT = Path(__file__).resolve().parents[2]


class Amplitude(Section):
    """The spectrum of the images.

    Args:
        band: ``full``, or a radius,
            in pixels.
        momentum: Of the running mean.
    """

    band: Literal["full"] | Annotated[int, Field(ge=0)] = "full"
    momentum: float = 0.1


class Choices(Section):
    """What a study chooses.

    Args:
        rounds: How many.
        amplitude: Not shown, for a section says itself what it is.
    """

    rounds: Count
    amplitude: Amplitude | None = None


@dataclass(frozen=True)
class Plain:
    """A dataclass.

    Attributes:
        size: Of an image.

    Raises:
        ConfigError: Never.
    """

    size: tuple[int, int] = (8, 8)


def test_the_page_is_what_the_settings_say():
    page = ROOT / "docs" / "study.md"
    assert page.read_text() == study_page(), "the settings have changed: make docs"


def test_the_page_fits_a_reader_with_contents_and_one_list_for_the_constants_of_all_algorithms():
    lines = study_page().splitlines()
    assert len(lines) <= 260 and "[data](#data), [model](#model)" in study_page()
    start = lines.index("### Constants")
    items = lines[start + 2 : lines.index("### Presets") - 1]
    assert items[0].startswith("- **amplitude**: Input normalisation") and "" not in items
    assert any(item.startswith("    - `algorithm.pull.strength` (") for item in items)


def test_every_key_of_a_study_has_a_meaning_and_stands_on_the_page():
    page, keys = study_page(), list(study_keys(all_ingredients()))
    assert {"training.learning_rate", "federation.min_sites", "algorithm.name"} <= {key.name for key in keys}
    for key in keys:
        assert key.meaning and (key.inner or f"- `{key.name}` (" in page), key.name


def test_keys_of_sections_within_sections_are_dotted_and_take_their_words_from_their_own_class():
    assert list(all_keys(Choices)) == [
        Key("rounds", "count", None, "How many.", None),
        Key("amplitude", "", None, "The spectrum of the images.", Amplitude),
        Key("amplitude.band", "`full`, or whole number from 0", "full", "`full`, or a radius, in pixels.", None),
        Key("amplitude.momentum", "number", "0.1", "Of the running mean.", None),
    ]


def test_a_default_is_bold_among_the_values_or_behind_them():
    page = study_page()
    assert "- `device` (**`auto`**, `cpu`, `cuda`): " in page
    assert "- `guard` (**true**, false): " in page
    assert "- `data.channels` (count, at most 4096; **`1`**): " in page
    assert "- `rounds` (whole number from 0; required): " in page
    assert "- `continue_run` (name): " in page


def test_a_dataclass_is_read_as_a_section_is():
    assert list_keys(Plain, "data.") == [Key("data.size", "list of two: whole number", "[8, 8]", "Of an image.", None)]
    assert read_summary(Plain) == "A dataclass." and set(read_meanings(Plain)) == {"size"}


def test_a_type_is_told_in_words_with_bounds_of_both_kinds():
    values = {key.name: key.values for key in list_keys(Study)}
    assert (values["seed"], values["name"]) == ("whole number from 0", "name")
    assert values["labels"] == "whole number: text, ..."
    assert values["torch_threads"] == "count, at most 1024, or `auto`"
    assert describe_values(Annotated[float, Field(gt=0, le=1)]) == "above 0, at most 1"
    six = Annotated[tuple[Count, ...], Field(min_length=6, max_length=6)]
    assert describe_values(six).startswith("list of six: count")
    assert describe_values(bool | None) == "true, false"
