"""Comparisons whose runs are made up: nothing trains, every run writes the result that a test gives it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from silofl.base.schema import dump_record, read_record
from silofl.federation.results import Results
from silofl.training.case_pictures import write_scores
from silofl_desk.phantoms.phantoms import UNSEEN_SITE, make_phantoms
from silofl_desk.studies.runs import simulate

# Folders and results of runs that never trained.
from ..report.conftest import *  # noqa: F403
from ..report.conftest import score_sites

JOB = Path(__file__).resolve().parents[2] / "jobs" / "fedavg_phantoms"
RECEIVER = "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver"


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory):
    """Phantoms of two sites that train and of the one that never does."""
    folder = tmp_path_factory.mktemp("phantoms") / "data"
    return make_phantoms(folder, seed=7, patients={"north": 6, "south": 6, UNSEEN_SITE: 6})


def write_result(run, study, **changes):
    """Write a made-up result in which every site has 3 test cases, and return it."""
    sites = changes["sites"]
    values = study.description() | {"version": "0.1.0", "status": "COMPLETE", "reasons": [], "best_round": 1}
    values |= {"model": "last round, 1", "mean": 0.5, "spread": 0.0, "pooled": 0.5, "run": "run-1"}
    values |= {"cases": dict.fromkeys(sites, 3), "validation": {}}
    results = read_record(Results, score_sites(values | changes), "results.json")
    (run / "results.json").write_text(json.dumps(dump_record(results)))
    return results


@pytest.fixture
def training(monkeypatch, no_simulator):
    """Carry out runs without training.

    ``training.status`` says how a run ends, by the name of its folder; ``training.results`` what else its result holds.
    """

    class Training:
        def __init__(self):
            self.status, self.carried_out, self.results = {}, [], {}

        def run(self, run, simulation, study, simulator, console):
            self.carried_out.append(run.name)
            status = self.status.get(run.name, "COMPLETE")
            if isinstance(status, Exception):
                raise status
            if status in ("INTERRUPTED", "KILLED"):
                return simulate.ExitCode.INTERRUPTED if status == "INTERRUPTED" else simulate.ExitCode.FAILED
            values = {site: 0.5 + 0.125 * study.seed for site in simulation.sites}
            reasons = [] if status == "COMPLETE" else ["because"]
            write_result(run, study, status=status, reasons=reasons, sites=values, **self.results)
            cases = {f"{site}/case": 0.75 for site in ("north", "south")}
            write_scores(run / "sites" / "pooled" / "run-1" / "scores.csv", cases)
            return simulate.ExitCode[status]

    fake = Training()
    monkeypatch.setattr(simulate, "_run_prepared_job", fake.run)
    return fake


@pytest.fixture(scope="session")
def north_phantoms(tmp_path_factory, phantoms):
    """The data of one site alone."""
    folder = tmp_path_factory.mktemp("north")
    shutil.copytree(phantoms / "north", folder / "north")
    return folder


@pytest.fixture
def two_sites(tmp_path):
    """Return a data folder whose sites exist by their dataset.json alone, which is all a refusal looks at."""
    for site in ("north", "south"):
        (tmp_path / "data" / site).mkdir(parents=True)
        (tmp_path / "data" / site / "dataset.json").write_text("{}")
    return tmp_path / "data"


@pytest.fixture
def job(tmp_path):
    """Return a function that writes a copy of a job with changes to its study."""

    def write(**changes):
        folder = tmp_path / "job"
        shutil.copytree(JOB, folder, dirs_exist_ok=True)
        path = folder / "app" / "config" / "study.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
        return folder

    return write


@pytest.fixture
def receiving_job(tmp_path):
    """A job whose server names a class of others."""
    job = Path(shutil.copytree(JOB, tmp_path / "job"))
    file = job / "app" / "config" / "config_fed_server.json"
    config = json.loads(file.read_text())
    config["components"].append({"id": "mlflow", "path": RECEIVER, "args": {}})
    file.write_text(json.dumps(config))
    return job
