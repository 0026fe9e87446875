import pytest

from silofl.base.errors import ConfigError
from silofl.base.files import write_json
from silofl_hospital.inference.answers import group_months, read_answers

PLAIN = {"input": "a", "time": "2026-03-05T10:00:00+00:00", "super_model": "f" * 64, "model": "north"}
PLAIN |= {"scores": {}, "is_fallback": False}


def read(folder, *records, name="a"):
    write_json(folder / name / "prediction.json", [PLAIN | record for record in records])
    return [*read_answers(folder)]


def test_an_answer_that_is_still_being_written_is_none_yet(tmp_path):
    assert read(tmp_path, {}, name=".a.unfinished") == []


def test_the_month_of_an_answer_is_that_of_universal_time(tmp_path):
    late, naive = read(tmp_path, {"time": "2026-03-31T23:30:00-05:00"}, {"time": "2026-03-15T10:00:00"})
    assert [*group_months([late, naive])] == ["2026-03", "2026-04"]


@pytest.mark.parametrize(
    "change",
    [
        {"time": 5},
        {"time": "0001-01-01"},
        {"warnings": 7},
    ],
)
def test_a_record_that_predict_did_not_write_is_named(tmp_path, change):
    with pytest.raises(ConfigError, match=r"^a/prediction.json has no answers with their time"):
        read(tmp_path, change)
