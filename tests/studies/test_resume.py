import json
import shutil

import pytest

from silofl.files import held
from silofl.studies.simulate import Simulation, read_data, study_file
from silofl.study import load_study


def test_a_run_that_another_command_holds_is_refused(refused, tmp_path, north_phantoms, job, capsys):
    run = tmp_path / "run"
    (run / "job").parent.mkdir()
    shutil.copytree(job(federation={"min_sites": 1}), run / "job")
    (run / "run.json").write_text(json.dumps({"data": str(north_phantoms), "sites": ["north"], "threads": 1}))
    read_data(load_study(study_file(run / "job")), Simulation(str(north_phantoms), ("north",), 1), run)
    capsys.readouterr()
    with held(run / "lock.command"):
        assert "must not be in use" in refused("resume", run)


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
def test_resume_of_a_folder_without_a_run_is_refused(refused, tmp_path, kind):
    run = tmp_path / "run"
    if kind == "empty":
        run.mkdir()
    elif kind == "file":
        run.write_text("a run")
    assert "must hold a run, with a run.json; it holds none" in refused("resume", run)


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({"data": "x", "sites": ["north"]})])
def test_resume_of_a_broken_run_is_refused(refused, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    assert "run.json" in refused("resume", tmp_path)


@pytest.mark.parametrize("code", [0, 3])
def test_json_leaves_standard_output_to_the_result_alone(silofl, monkeypatch, tmp_path, code):
    result = {"status": "COMPLETE", "sites": {"north": 0.5}}

    def resume(run, console):
        console.print("round 1/1")
        (run / "results.json").write_text(json.dumps(result))
        return code

    monkeypatch.setattr("silofl.studies.simulate.resume", resume)
    answered, out, error = silofl("resume", tmp_path, "--json")
    assert (answered, json.loads(out)) == (code, result)
    assert error == "round 1/1\n"


def test_json_holds_the_test_on_the_site_that_was_left_out(silofl, monkeypatch, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"status": "COMPLETE"}))
    (tmp_path / "unseen.json").write_text(json.dumps({"site": "coast", "value": 0.5}))
    monkeypatch.setattr("silofl.studies.simulate.resume", lambda run, console: 0)
    _, out, _ = silofl("resume", tmp_path, "--json")
    assert json.loads(out) == {"status": "COMPLETE", "unseen": {"site": "coast", "value": 0.5}}


def test_json_without_a_result_is_nothing(silofl, monkeypatch, tmp_path):
    monkeypatch.setattr("silofl.studies.simulate.resume", lambda run, console: 1)
    assert silofl("resume", tmp_path, "--json") == (1, "", "")
