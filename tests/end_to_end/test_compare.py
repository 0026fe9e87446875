import csv
import json

import pytest

from .conftest import silofl, write_small_job


@pytest.mark.slow
def test_a_comparison_runs_jobs_methods_and_the_pool_and_ends_with_one_table(tmp_path, phantoms):
    job = write_small_job(tmp_path / "small", "fedsm_phantoms", rounds=1)
    command = ["compare", job, "--data", phantoms, "--out", tmp_path / "out", "--seeds", "4", "--rounds", 1]
    done = silofl(*command, "--methods", "local", "--pooled", "--json")
    table = json.loads(done.stdout)
    assert table == json.loads((tmp_path / "out" / "table.json").read_text())
    names = ["fedsm super", "fedsm global", "fedsm personal", "fedsm ensemble", "local"]
    assert [row["name"] for row in table["rows"]] == [*names, "centralised (data pooled: simulation only)"]
    own, pooled = (
        json.loads((tmp_path / "out" / "runs" / f"{name}-seed4" / "results.json").read_text())
        for name in ("small", "centralised")
    )
    assert own["seed"] == 4 and own["rounds"] == 1
    rows = {row["name"]: row for row in table["rows"]}
    assert rows["fedsm super"]["sites"]["north"]["values"] == [own["sites"]["north"]["value"]]
    assert rows["fedsm personal"]["sites"]["south"]["values"] == [own["sites"]["south"]["models"]["south"]]
    # all cases together are the same cases, whatever the site
    assert table["rows"][-1]["pooled"]["mean"] == pytest.approx(pooled["pooled"], abs=5e-4)
    scores = next((tmp_path / "out" / "runs" / "centralised-seed4" / "sites" / "pooled").glob("*/scores.csv"))
    values = [float(row["value"]) for row in csv.DictReader(scores.open()) if row["case"].startswith("south/")]
    assert table["rows"][-1]["sites"]["south"]["mean"] == pytest.approx(sum(values) / len(values))
    assert "CENTRALISED" in done.stderr and "same person" not in done.stderr
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "centralised (data pooled: simulation only)" in page
    again = silofl(*command, "--methods", "local")
    assert again.stdout.count("already finished") == 2 and "centralised" not in again.stdout
