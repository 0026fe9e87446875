import json
import re

import pytest

from .conftest import silofl

RUNS = ("fedavg_phantoms", "fedbn_phantoms", "harmofl_phantoms", "adafed_phantoms", "fedsm_phantoms")


def check_closing_table(printed, out):
    """Check the table against the results of the runs: local first, each site, the unseen hospital, the verdicts."""
    lines = printed[printed.index("In one table:") :].splitlines()[1:]
    start = next(number for number, line in enumerate(lines) if line.startswith("model "))
    columns = lines[start].split()
    assert columns[:2] == ["model", "mean"] and columns[-3:] == ["kept", "unseen", "verdicts"]
    assert set(columns[2:-3]) == {"north", "east", "south", "west"}
    # A line below the head.
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[start + 2 : start + 4 + len(RUNS)]]
    assert [row[0] for row in rows] == ["local (batch)", "local (instance)", *RUNS]
    for row, name in zip(rows[2:], RUNS, strict=True):
        results = json.loads((out / name / "results.json").read_text())
        assert row[2:-3] == [f"{results['sites'][site]:.3f}" for site in columns[2:-3]]
        kept = [one["test"]["chosen"] for one in results["joining"].values()]
        assert row[-3] == f"{sum(kept) / len(kept):.3f}" and 0 <= float(row[-2]) <= 1
        assert row[-1] == verdicts_of(results)
    values = [row[-3:] for row in rows[:2]]
    assert values == [["-"] * 3] * 2


def verdicts_of(results):
    found = [one["verdict"] for one in results["joining"].values()]
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in dict.fromkeys(found))


@pytest.mark.slow
def test_the_demonstration_ends_with_one_table_and_one_report_and_reuses_finished_runs(tmp_path):
    out = tmp_path / "demo"
    # Outside the clone.
    printed = silofl("demo", "--rounds", 2, cwd=tmp_path).stdout
    for text in ("phantom scans", "Training fedavg_phantoms", "Training harmofl_phantoms", "report.html"):
        assert text in printed
    assert (out / "report.html").stat().st_size > 10_000
    assert (out / "phantoms" / "coast" / "dataset.json").is_file()
    for run in RUNS:
        assert set(json.loads((out / run / "results.json").read_text())["sites"]) == {"north", "east", "south", "west"}
    (record,) = json.loads((out / "prediction" / "prediction.json").read_text())
    assert record["model"] in printed and (out / "prediction" / record["label_map"]).is_file()
    check_closing_table(printed, out)
    again = silofl("demo", "--out", out, "--rounds", 2).stdout
    assert again.count("already finished") == 5
