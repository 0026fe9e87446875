import csv
import json
import random
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from silofl.models import build_model, build_plain_model
from silofl.study import load_study

from ..conftest import readable_by_others, set_umask
from .conftest import JOBS, LIMIT_S, carried_out, find_super_model, finished_rounds, same, weights, write_small_job

pytestmark = pytest.mark.long


def test_a_run_writes_what_people_and_programs_read(finished, small_job):
    run, printed = finished
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "COMPLETE" and set(results["sites"]) == {"north", "south"}
    assert results["algorithm"] == "harmofl" and results["preset"] == "recommended"
    assert 1 <= results["best_round"] <= results["rounds"] == 3
    assert results["mean"] == pytest.approx(sum(one["value"] for one in results["sites"].values()) / 2)
    ledger = json.loads((run / "ledger.json").read_text())
    assert [record["round"] for record in ledger] == [1, 2, 3]
    for record in ledger:
        assert record["answered"] == ["north", "south"]
        assert all(numbers["drift"] > 0 for numbers in record["metrics"].values())
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    assert {row["part"] for row in rows} == {"training", "validation", "test"}
    assert (run / "report.html").stat().st_size > 10_000
    assert "round   3/3" in printed and "north" in printed
    for site in ("north", "south"):
        events = EventAccumulator(str(run / "tensorboard" / site)).Reload()
        drawn = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
        losses = [(record["round"], pytest.approx(record["metrics"][site]["loss"])) for record in ledger]
        assert drawn["loss"] == losses and [step for step, _ in drawn["validation"]] == [1, 2, 3]

    study = load_study(small_job / "app" / "config" / "study.yaml")
    model = build_model(study, (1, 32, 32), seed=0)
    missing, unexpected = model.load_state_dict(torch.load(run / "model" / "best.pt", weights_only=True), strict=False)
    assert not unexpected and all(".norm." in name or ".adn.N." in name for name in missing)
    state = next((run / "sites" / "north").glob("*/supermodel/weights/north.pt"))
    assert model.load_state_dict(torch.load(state, weights_only=True), strict=True)


def test_all_sites_in_one_process_give_the_same_weights_in_files_for_their_owner(
    finished, tmp_path, phantoms, small_job
):
    with set_umask():
        carried_out("simulate", small_job, "--data", phantoms, "--out", tmp_path / "local", "--in-process")
    assert readable_by_others(tmp_path / "local") == []
    assert same(weights(finished[0]), weights(tmp_path / "local"))
    values = [json.loads((run / "results.json").read_text())["sites"] for run in (finished[0], tmp_path / "local")]
    assert values[0] == values[1]


def test_fedavg_at_sites_whose_filter_excludes_batchnorm_is_fedbn(tmp_path, phantoms):
    job = write_small_job(tmp_path / "job", algorithm={"name": "fedavg"}, rounds=2)
    plain = tmp_path / "fedbn"
    carried_out("simulate", job, "--data", phantoms, "--out", plain, "--in-process", "--set", "algorithm={name: fedbn}")
    path, tasks = job / "app" / "config" / "config_fed_client.json", ["train", "validate", "test"]
    filters = [{"path": f"silofl.flare.{name}"} for name in ("filters.ExcludeBatchNorm", "egress.Egress")]
    config = json.loads(path.read_text()) | {
        "task_data_filters": [{"tasks": tasks, "filters": [{"path": "silofl.flare.egress.RunNote"}]}],
        "task_result_filters": [{"tasks": tasks, "filters": filters}],
    }
    path.write_text(json.dumps(config))
    run = tmp_path / "run"
    carried_out("simulate", job, "--data", phantoms, "--out", run)
    assert same(weights(run), weights(plain))
    found, wanted = (json.loads((folder / "results.json").read_text()) for folder in (run, plain))
    assert (found["status"], found["sites"]) == ("COMPLETE", wanted["sites"])
    said = "BatchNorm excluded at north, south: each site goes on with its own from here on, as in FedBN"
    assert found["recipe"]["stays"] == "batchnorm"
    ledger = json.loads((run / "ledger.json").read_text())
    assert said in ledger[0]["notes"] and ledger[1]["notes"] == []
    kinds = {json.loads(line)["kind"] for path in run.rglob("egress.jsonl") for line in path.read_text().splitlines()}
    # Of two validation patients nobody says what is usual.
    assert kinds == {"weights", "numbers"}
    assert "BatchNorm never left the sites" in (run / "model" / "README.md").read_text()
    model = find_super_model(run)
    assert "What stays at home? BatchNorm parameters and statistics" in (model / "MODEL_CARD.md").read_text()
    assert not (run / "supermodel").exists()
    scan, answers = min((phantoms / "north" / "images").iterdir()), []
    for folder in (run, plain):
        (models,) = (folder / "sites" / "north").glob("*/supermodel")
        carried_out("predict", models, scan, "-o", folder / "answer")
        (file,) = (folder / "answer").glob("*_labels.nii.gz")
        answers.append(np.asarray(nibabel.load(file).dataobj))
    assert answers[0].shape == nibabel.load(scan).shape and answers[0].any()
    np.testing.assert_array_equal(*answers)


def test_a_finished_run_is_shown_and_not_run_again(finished):
    run, _ = finished
    before = (run / "checkpoint.pt").stat().st_mtime_ns
    assert "COMPLETE" in carried_out("resume", run)
    assert json.loads(carried_out("resume", run, "--json"))["status"] == "COMPLETE"
    assert (run / "checkpoint.pt").stat().st_mtime_ns == before


@pytest.fixture
def odd_python(tmp_path):
    """A Python with all packages, below a folder with a blank."""
    place = tmp_path / "My Projects" / ".venv"
    venv.create(place)
    packages = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
    found = [str(JOBS.parent / "custom"), *(path for path in sys.path if path)]
    Path(packages, "silofl.pth").write_text("\n".join(found))
    return place / "bin" / "python"


def test_a_killed_run_resumes_to_the_very_same_weights_with_blanks_quotes_and_hashes_in_the_paths(
    finished, tmp_path, phantoms, small_job, federation, odd_python
):
    # NVFlare joins the paths of run and Python to a command and splits that as a shell does.
    run = tmp_path / "lauf 1" / 'it\'s #2 \\ "x"'
    running = federation("simulate", small_job, "--data", phantoms, "--out", run, python=odd_python)
    running.wait_for_rounds(run, 1)
    time.sleep(random.uniform(0, 0.3))
    running.kill_all()
    assert finished_rounds(run) < 3
    subprocess.run([odd_python, "-m", "silofl", "resume", run], check=True, capture_output=True, timeout=LIMIT_S)
    assert json.loads((run / "results.json").read_text())["status"] == "COMPLETE"
    assert same(weights(finished[0]), weights(run))
    study = load_study(small_job / "app" / "config" / "study.yaml")
    initial = build_plain_model(study, study.seed).state_dict()
    trained = {name: value for name, value in weights(run).items() if name in initial}
    assert trained and not any(torch.equal(value, initial[name]) for name, value in trained.items() if value.ndim > 1)


def test_ctrl_c_ends_every_process_and_leaves_a_run_to_resume(tmp_path, phantoms, federation):
    run = tmp_path / "interrupted"
    running = federation("simulate", write_small_job(tmp_path / "job", rounds=50), "--data", phantoms, "--out", run)
    running.wait_for_rounds(run, 1)
    assert running.descendants()
    running.interrupt()
    assert running.process.wait(timeout=10) == 130
    assert running.alive() == []
    assert not (run / "results.json").exists() and 1 <= finished_rounds(run) < 50


@pytest.fixture
def lose_south(tmp_path, phantoms, federation):
    """Return a function that runs a job whose site south is killed after the first round.

    It returns the exit code, the seconds from then to the command's end, and the contents of result and ledger.
    """

    def lose(rounds, **limits):
        run = tmp_path / "run"
        job = write_small_job(tmp_path / "job", rounds=rounds, federation=limits)
        running = federation("simulate", job, "--data", phantoms, "--out", run)
        running.wait_for_rounds(run, 1)
        running.site_process("south").kill()
        started = time.monotonic()
        code = running.process.wait(timeout=LIMIT_S)
        seconds = time.monotonic() - started
        assert running.alive() == []
        return code, seconds, *(json.loads((run / name).read_text()) for name in ("results.json", "ledger.json"))

    return lose


@pytest.mark.slow
def test_a_site_that_dies_makes_the_run_incomplete_and_holds_nobody_up(lose_south):
    code, _, results, ledger = lose_south(rounds=6, min_sites=1)
    assert code == 3
    assert results["status"] == "INCOMPLETE" and "south" in results["reasons"][0]
    assert "its process has ended" in results["reasons"][0]
    assert results["sites"]["south"] is None and results["sites"]["north"] is not None
    assert [record["answered"] for record in ledger[3:]] == [["north"]] * 3
    # task_timeout_s is an hour
    assert sum(record["seconds"] for record in ledger) < 120
