from pathlib import Path

from silofl_desk.studies.reference import (
    study_keys,
    study_page,
)

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_settings_say():
    page = ROOT / "docs" / "study.md"
    assert page.read_text() == study_page(), "the settings have changed: make docs"


def test_the_page_fits_a_reader_with_contents_and_one_list_for_the_constants_of_all_algorithms():
    lines = study_page().splitlines()
    assert len(lines) <= 260 and "[data](#data), [model](#model)" in study_page()
    assert any(line.startswith("- **pull**: A shared model") for line in lines[lines.index("### Constants") :])


def test_every_key_of_a_study_has_a_meaning_and_stands_on_the_page():
    page, keys = study_page(), study_keys()
    assert {"training.learning_rate", "federation.min_sites", "algorithm.name"} <= {key.name for key in keys}
    for key in keys:
        assert key.meaning and (not key.values or f"- `{key.name}` (" in page), key.name


def test_a_default_is_bold_among_the_values_or_behind_them():
    page = study_page()
    assert "- `device` (**`auto`**, `cpu`, `cuda`): " in page
    assert "- `guard` (**true**, false): " in page
    assert "- `data.channels` (count to 4096; **`1`**): " in page
    assert "- `rounds` (whole number from 0; required): " in page
    assert "- `continue_run` (name): " in page
    assert "- `training.betas` (list of two: number from 0 to below 1; **`[0.9, 0.999]`**): " in page
    assert "- `torch_threads` (count to 1024, or `auto`; **`1`**): " in page
    assert "- `algorithm.step` (**`plain`**, `fedprox`, " in page
