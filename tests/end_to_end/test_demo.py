import json

import pytest

from .conftest import JOBS, silofl


@pytest.mark.slow
def test_the_demonstration_ends_with_one_table_and_one_report_and_reuses_finished_runs(tmp_path):
    out = tmp_path / "demo"
    printed = silofl("demo", "--out", out, "--jobs", JOBS, "--rounds", 2).stdout
    for text in ("phantom scans", "Training fedavg_phantoms", "Training harmofl_phantoms", "report.html"):
        assert text in printed
    assert (out / "report.html").stat().st_size > 10_000
    assert (out / "phantoms" / "coast" / "dataset.json").is_file()
    for run in ("fedavg_phantoms", "fedbn_phantoms", "harmofl_phantoms", "adafed_phantoms", "fedsm_phantoms"):
        assert set(json.loads((out / run / "results.json").read_text())["sites"]) == {"north", "east", "south", "west"}
    (record,) = json.loads((out / "prediction" / "prediction.json").read_text())
    assert record["model"] in printed and (out / "prediction" / record["label_map"]).is_file()
    again = silofl("demo", "--out", out, "--jobs", JOBS, "--rounds", 2).stdout
    assert again.count("already finished") == 5
