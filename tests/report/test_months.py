import json

import pytest

from silofl.base.errors import ConfigError
from silofl_desk.report.months import months_section

WITHHELD = {"answers": None, "warned": None, "labels": {}}
MARCH = {"answers": 40, "warned": 0.125, "labels": {"organ": 103.0, "lesion": None}}


def write(run, **changes):
    east = {"months": {"2026-03": MARCH, "2026-04": WITHHELD}, "unit": "ml", "least": 5}
    document = {"sites": {"east": east}, "sentences": [], "not_said": {"west": "no answer"}} | changes
    (run / "monthly_answers.json").write_text(json.dumps(document))


def test_a_row_for_each_hospital_and_month_says_what_is_withheld(tmp_path):
    assert months_section(tmp_path) is None
    write(tmp_path)
    (block,) = months_section(tmp_path).blocks
    table = block.content
    assert table.columns == (
        "hospital",
        "month",
        "answers",
        "share with a warning",
        "organ, mean ml",
        "lesion, mean ml",
    )
    assert table.rows == (
        ("east", "2026-03", "40", "0.125", "103", "withheld"),
        ("east", "2026-04", *["withheld"] * 4),
    )


def test_a_file_that_no_server_wrote_is_refused(tmp_path):
    write(tmp_path, sites={"east": {"months": {"spring": MARCH}}})
    with pytest.raises(ConfigError, match=r"^monthly_answers.json: "):
        months_section(tmp_path)
