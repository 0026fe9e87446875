import json
import re

import pytest

from silofl_desk.report.verdict_words import shorten_verdict

from .conftest import silofl

RUNS = {name: f"{name}_phantoms" for name in ("fedavg", "adafed", "fedsm", "harmofl")}


def check_closing_table(printed, out):
    """Check the table against the runs' results: a row per method and hospital, with the verdict and its numbers."""
    lines = printed.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("method "))
    assert lines[start].split() == ["method", "hospital", "kept", "verdict", "local", "federated"]
    # A line below the head.
    rows = iter(lines[start + 2 :])
    for method, name in RUNS.items():
        results = json.loads((out / name / "results.json").read_text())
        for site, one in results["joining"].items():
            cells = re.split(r"\s{2,}", next(rows).strip())
            values = [f"{one['test'][model]:.3f}" for model in ("chosen", "local", "federated_calibrated")]
            assert cells.pop(3).startswith(shorten_verdict(one["verdict"])) and cells == [method, site, *values]


@pytest.mark.slow
def test_the_demonstration_ends_with_one_table_and_one_report_and_reuses_finished_runs(tmp_path):
    out = tmp_path / "demo"
    # Outside the clone.
    printed = silofl("demo", "--rounds", 2, cwd=tmp_path).stdout
    assert len(printed.splitlines()) <= 100 and max(map(len, printed.splitlines())) <= 100
    assert "north, east, south, west" in printed and "silofl import folders" in printed
    page = (out / "report.html").read_text()
    assert "Does joining pay?" in page and page.index("<img") < page.index("<table")
    assert (out / "phantoms" / "coast" / "dataset.json").is_file()
    assert "At coast, which took no part in the training: the others' local models" in printed
    assert "west, the smallest (3 training patients): federated minus local" in printed
    for run in RUNS.values():
        assert set(json.loads((out / run / "results.json").read_text())["sites"]) == {"north", "east", "south", "west"}
    (record,) = json.loads((out / "prediction" / "prediction.json").read_text())
    assert (out / "prediction" / record["label_map"]).is_file()
    check_closing_table(printed, out)
    again = silofl("demo", "--out", out, "--rounds", 2).stdout
    check_closing_table(again, out)
    assert "4 runs, 2 at a time; 4 already finished" in again
    # The details.
    assert "surface Dice" in (out / "logs" / "demo.txt").read_text()
    assert all("round   2/2" in (out / "logs" / f"{name}.txt").read_text() for name in RUNS.values())
