import json

import pytest

from tests.conftest import count_cases
from tests.recipes.run_recipes import run_recipe

from .conftest import JOBS, silofl


@pytest.mark.slow
def test_the_nuclei_job_runs_on_the_real_set(tmp_path, real_data):
    printed = run_recipe("nuclei_dsb2018", real_data("nuclei_dsb2018"), tmp_path / "data")
    assert "histo_white: 18 training" in printed
    sites, job = "histo_white,fluo_512x640", JOBS / "harmofl_nuclei"
    silofl("simulate", job, "--data", tmp_path / "data", "--out", tmp_path / "run", "--rounds", 2, "--sites", sites)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["status"] == "COMPLETE" and set(results["sites"]) == set(sites.split(","))
    assert count_cases(results) == {"histo_white": 6, "fluo_512x640": 8}
