from pathlib import Path

from docs.site.study_page import (
    study_keys,
    study_page,
)

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_settings_say():
    page = ROOT / "docs" / "study.md"
    assert page.read_text() == study_page(), "the settings have changed: make docs"


def test_every_key_of_a_study_has_a_meaning_and_stands_on_the_page():
    page, keys = study_page(), study_keys()
    assert {"training.learning_rate", "federation.min_sites", "algorithm.name"} <= {key.name for key in keys}
    for key in keys:
        assert key.meaning and (not key.values or f"- `{key.name}` (" in page), key.name
