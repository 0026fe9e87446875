import hashlib
import io
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from rich.console import Console

from silofl.base.errors import ConfigError
from silofl.data.counts import digest_data
from silofl.study import load_study
from silofl_desk.phantoms.phantoms import UNSEEN_SITE
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.simulation import Simulation, settle_job, study_file
from silofl_hospital.report.page import Text, make_section

from ..conftest import JOB, RECEIVER, write_result

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def finished(tmp_path, phantoms):
    """The folder of a finished run from which coast was left out."""

    def make(status="COMPLETE"):
        shutil.copytree(JOB, tmp_path / "job")
        settings = {"data": str(phantoms), "sites": ["north", "south"], "threads": 2, "left_out": UNSEEN_SITE}
        (tmp_path / "run.json").write_text(json.dumps(settings))
        write_result(tmp_path, load_study(study_file(JOB)), status=status, sites={"north": 0.5})
        return tmp_path

    return make


def shown(run):
    stream = io.StringIO()
    return simulate.resume(run, Console(file=stream, soft_wrap=True)), stream.getvalue()


def test_the_phantoms_unseen_site_never_trains_and_can_be_left_out(phantoms):
    _, everybody = settle_job(JOB, Simulation(str(phantoms)), {})
    _, without = settle_job(JOB, Simulation(str(phantoms), left_out=UNSEEN_SITE), {})
    assert everybody.sites == without.sites == ("north", "south")
    assert (everybody.left_out, without.left_out) == (None, UNSEEN_SITE)
    # Nor does it count as one that remains.
    with pytest.raises(ConfigError, match="must be at most 1, the number of sites that take part") as refusal:
        settle_job(JOB, Simulation(str(phantoms), left_out="north"), {})
    # compare and plan have no --sites, prepare has no --set.
    remedy = "lower it in study.yaml, for one run with simulate --set federation.min_sites=1, or let more sites take"
    assert str(refusal.value).endswith(f"; {remedy} part")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def own_signals():
    """Give the signals back to pytest."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # As a terminal has it; a test run in the background may ignore it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("busy_with", "is_in_process", "number", "advice"),
    [
        *(("run_in_process", True, number, "python -m silofl resume {run}") for number in SIGNALS),
        ("read_data", False, signal.SIGTERM, "give the same command again"),
        ("_run_prepared_job", False, signal.SIGTERM, "python -m silofl resume {run}"),
    ],
)
def test_a_run_that_a_signal_ends_says_how_to_go_on(
    tmp_path, phantoms, monkeypatch, own_signals, busy_with, is_in_process, number, advice
):
    monkeypatch.setattr(simulate, busy_with, lambda *_, **__: os.kill(os.getpid(), number))
    stream, run, wanted = io.StringIO(), tmp_path / "run", Simulation(str(phantoms), is_in_process=is_in_process)
    code = simulate.start_simulation(JOB, run, wanted, {}, Console(file=stream, soft_wrap=True))
    assert code == simulate.ExitCode.INTERRUPTED
    assert stream.getvalue().endswith(f"\ninterrupted; to go on: {advice.format(run=run)}\n")


def test_too_few_test_patients_for_a_verdict_are_said_before_training(tmp_path, phantoms, training):
    for baseline_comparison in (True, False):
        stream, run = io.StringIO(), tmp_path / str(baseline_comparison)
        console = Console(file=stream, soft_wrap=True)
        assert (
            simulate.start_simulation(
                JOB, run, Simulation(str(phantoms)), {"baseline_comparison": baseline_comparison}, console
            )
            == 0
        )
        sentence = (
            "CAUTION  a verdict on joining takes at least 20 test patients per site, not 3 (north), 3 (south): put"
        )
        assert (sentence in stream.getvalue()) is baseline_comparison


def test_a_received_job_that_brings_code_is_refused_until_it_is_trusted(tmp_path, phantoms, training, silofl, refused):
    job, run = Path(shutil.copytree(JOB, tmp_path / "job")), tmp_path / "run"
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "silofl.py").write_text("print('mine')")
    training.status["run"] = "INTERRUPTED"
    command = ("simulate", job, "--data", phantoms, "--out", run)
    error = refused(*command)
    assert "brings code, app/custom, which" in error and "Read it, then give simulate --trust-code" in error
    assert not run.exists()
    assert silofl(*command, "--trust-code")[0] == simulate.ExitCode.INTERRUPTED
    assert simulate.resume(run, Console(quiet=True), trusts_code=True) == simulate.ExitCode.INTERRUPTED


def test_a_job_that_names_classes_of_others_is_refused_until_it_is_trusted(tmp_path, phantoms, training, receiving_job):
    job, run, wanted = receiving_job, tmp_path / "run", Simulation(str(phantoms))
    training.status["run"] = "INTERRUPTED"
    sentence = rf"names {RECEIVER}, a class that no job of SiloFL's own names. .* --trust-code"
    with pytest.raises(ConfigError, match=sentence):
        simulate.start_simulation(job, run, wanted, {}, Console(quiet=True))
    assert not run.exists()
    simulate.start_simulation(job, run, replace(wanted, trusts_code=True), {}, Console(quiet=True))
    with pytest.raises(ConfigError, match=sentence):
        simulate.resume(run, Console(quiet=True))


def test_a_finished_run_is_tested_on_the_site_that_was_left_out(finished, monkeypatch):
    seen = []
    monkeypatch.setattr(simulate, "run_unseen_test", lambda *given: seen.append((*given[:3], given[3]())))
    monkeypatch.setattr(simulate, "unseen_section", lambda *_: make_section("", "", "", Text("the table")))
    run = finished()
    code, out = shown(run)
    assert code == simulate.ExitCode.COMPLETE and "the table" in out
    ((tested, site, digest, data),) = seen
    assert (tested, site, digest) == (run, UNSEEN_SITE, digest_data(data.manifest))
    assert {case.partition("_")[0] for case in data.test.cases} == {UNSEEN_SITE}


@pytest.mark.parametrize("status", ["COMPLETE", "INCOMPLETE"])
def test_a_test_that_cannot_be_made_is_told_and_makes_the_answer_incomplete(finished, status):
    code, out = shown(finished(status))
    assert code == simulate.ExitCode.INCOMPLETE
    assert f"no test on the left-out site {UNSEEN_SITE}: " in out and "holds neither a super model nor" in out


@pytest.mark.parametrize("text", ["rounds", "=3", "rounds=", "training={a", "training={a: 1, a: 2}"])
def test_a_setting_that_is_no_key_with_a_value_is_refused(refused, text):
    error = refused("simulate", JOB, "--out", "run", "--set", text)
    assert f"--set must be KEY=VALUE, as training.learning_rate=0.01, not {text!r}" in error


def test_what_is_set_and_the_size_of_each_training_sites_data_are_kept_with_the_run(
    silofl, training, phantoms, tmp_path
):
    run = tmp_path / "run"
    settings = ["--set", "training.learning_rate=0.01", "--set", "algorithm={name: fedbn}", "--rounds", 2]
    code, out, _ = silofl("simulate", JOB, "--data", phantoms, "--out", run, "--leave-out", UNSEEN_SITE, *settings)
    assert code != 2 and out.startswith("set for this run: training.learning_rate: 0.01, algorithm: {")
    wanted = {"training.learning_rate": 0.01, "algorithm": {"name": "fedbn"}, "rounds": 2}
    assert json.loads((run / "run.json").read_text())["changes"] == wanted
    study = load_study(run / "job" / "app" / "config" / "study.yaml")
    assert (study.training.learning_rate, study.algorithm.name, study.rounds) == (0.01, "fedbn", 2)
    counts = json.loads((run / "data.json").read_text())["sites"]
    assert counts.keys() == {"north", "south"}
    content = (phantoms / "north" / "dataset.json").read_bytes()
    assert counts["north"]["digest"] == hashlib.sha256(content).hexdigest()
    assert counts["north"]["training"]["cases"] == len(json.loads(content)["training"])


def test_what_should_be_looked_at_in_a_sites_data_is_said_before_training(silofl, training, phantoms, tmp_path):
    data = shutil.copytree(phantoms, tmp_path / "data")
    for path in data.glob("*/dataset.json"):
        content = json.loads(path.read_text())
        path.write_text(
            json.dumps(content | {"training": content["training"] + content["validation"], "validation": []})
        )
    for record in json.loads((data / "north" / "dataset.json").read_text())["training"]:
        image = nibabel.load(data / "north" / record["label"])
        drawn = nibabel.Nifti1Image(np.minimum(image.dataobj, 1).astype(np.uint8), image.affine)
        nibabel.save(drawn, data / "north" / record["label"])
    _, output, _ = silofl("simulate", JOB, "--data", data, "--sites", "north,south", "--out", tmp_path / "run")
    assert "CAUTION  north: no training case has lesion;" in output
    assert "CAUTION  south" not in output
    # The job shares BatchNorm.
    assert "CAUTION  this study averages BatchNorm" in output
