"""A model's answers in use, asked by NVFlare's simulator of three hospitals."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from silofl.base.bundled_jobs import find_job
from silofl.base.files import write_json, write_text
from silofl.base.settings import dump_yaml
from silofl.federation.results import read_results
from silofl.inference.answers import FILE
from silofl.setup.site import Server, Site
from silofl_desk.flare.workspace import prepare_workspace
from silofl_desk.report.run_page import write_report
from silofl_desk.studies.simulation import fit_configurations, study_file

from ..algorithms.test_monthly_answers import SITES, make_study, record
from .conftest import LIMIT_S

NVFLARE = Path(sys.executable).with_name("nvflare")


@pytest.mark.slow
def test_three_hospitals_say_in_nvflares_simulator_what_is_of_enough_patients(tmp_path):
    study, job = make_study(), shutil.copytree(find_job("survey_hospitals"), tmp_path / "job")
    fit_configurations(job, study)
    write_text(study_file(job), dump_yaml(study.model_dump(mode="json", exclude_defaults=True)))
    counts = dict(zip(SITES, (12, 4, 9), strict=True))
    for site, count in counts.items():
        write_json(tmp_path / "answers" / site / "a" / "prediction.json", [record(n) for n in range(count)])
    site = Site(data=f"{tmp_path}/answers/{{site}}", state_dir=f"{tmp_path}/state/{{site}}", min_partners=0)
    server = Server(run_dir=str(tmp_path / "runs" / "{run}"))
    prepare_workspace(tmp_path / "ws", site, server)
    command = [NVFLARE, "simulator", job, "-w", tmp_path / "ws", "-c", ",".join(SITES), "-t", "3"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    found = json.loads((run / FILE).read_text())
    assert done.returncode == 0 and found["sites"]["east"]["months"]["2026-03"]["answers"] == 12, done.stdout
    assert found["not_said"]["north"] == "fewer than 5 patients in every month"
    assert read_results(run).status == "COMPLETE"
    page = write_report(run).read_text()
    assert "Answers in use" in page and "organ, mean ml" in page and "federated training" not in page
    assert "nothing was trained or tested" in page and "test cases" not in page
    assert "Doe" not in "".join(path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())
