import json
import shutil

import pytest
import torch
import yaml

from silofl.base.files import hold_lock
from silofl.command_line.cli import main
from silofl_desk.studies.runs.simulation import study_file

from ...conftest import SMALL_UNET
from ..conftest import JOB

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]


def test_resume_of_a_folder_without_a_run_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("a run")
    assert "RUN must be the folder of a run" in refused("resume", tmp_path / "absent")
    for place in (tmp_path, tmp_path / "file"):
        assert "holds no simulation; run.json is missing" in refused("resume", place)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"data": 3, "sites": ["north"]})])
def test_resume_of_a_broken_run_is_refused(refused, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    assert "run.json" in refused("resume", tmp_path)


@pytest.fixture(scope="module")
def begun(tmp_path_factory, north_phantoms):
    """A run in one process that has finished its two rounds, and its folder of decoded images."""
    folder = tmp_path_factory.mktemp("begun")
    shutil.copytree(JOB, folder / "job")
    path = study_file(folder / "job")
    study = yaml.safe_load(path.read_text()) | {"rounds": 2, "federation": {"min_sites": 1}}
    study["data"]["transforms"] = [{"Resize": {"spatial_size": [32, 32]}}]
    study["model"] = SMALL_UNET
    path.write_text(yaml.safe_dump(study))
    command = ["simulate", folder / "job", "--data", north_phantoms, "--out", folder / "run", "--in-process"]
    assert main([*map(str, command), "--cache", str(folder / "cache")]) == 0
    return folder


@pytest.fixture
def run(begun, tmp_path):
    """A copy of that run, as if it had been stopped before its result; `edit` changes its study."""
    shutil.copytree(begun / "run", tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    return tmp_path / "run"


def edit(run, **changes):
    path = study_file(run / "job")
    study = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        study[key] = study[key] | value if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(study))


@pytest.fixture
def data(run, tmp_path):
    """A copy of the run's data."""
    return shutil.copytree(read_settings(run)["data"], tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))


def read_settings(run):
    return json.loads((run / "run.json").read_text())


def change_settings(run, **changes):
    (run / "run.json").write_text(json.dumps(read_settings(run) | changes))


def test_a_run_that_another_command_holds_is_refused(silofl, run):
    with hold_lock(run / "lock.command"):
        code, _, error = silofl("resume", run)
    assert code == 2 and "is in use" in error


def test_a_run_whose_data_were_moved_goes_on_with_them_where_they_are_named(silofl, refused, run, data, tmp_path):
    change_settings(run, data=str(tmp_path / "gone"))
    edit(run, rounds=3)
    error = refused("resume", run)
    assert f"{tmp_path}/gone has no north/dataset.json" in error
    assert "site.yaml" not in error
    assert silofl("resume", run, "--data", data, "--cache", tmp_path / "other")[0] == 0
    assert (read_settings(run)["data"], read_settings(run)["cache"]) == (str(data), str(tmp_path / "other"))
    assert [path.name for path in (tmp_path / "other").glob("*/index.json")] != []


def test_other_data_than_the_run_learnt_from_are_refused_and_data_that_were_changed_in_their_place(silofl, run, data):
    before, sentence = read_settings(run), f"{run} learnt from other data of north than those in"
    path = data / "north" / "dataset.json"
    content = path.read_text()
    path.write_text(content + "\n")
    code, _, error = silofl("resume", run, "--data", data)
    assert code == 2 and sentence in error and read_settings(run) == before
    change_settings(run, data=str(data))
    code, _, error = silofl("resume", run)
    assert code == 2 and sentence in error
    # A label map's content, and neither its name nor its size.
    path.write_text(content)
    mask = path.parent / json.loads(content)["test"][0]["label"]
    mask.write_bytes(mask.read_bytes()[:-1] + b"\1")
    code, _, error = silofl("resume", run)
    assert code == 2 and sentence in error


def test_an_edited_study_is_refused_by_its_keys_and_nothing_is_run(refused, run, begun, tmp_path):
    before = (run / "checkpoint.pt").read_bytes()
    edit(run, training={"learning_rate": 0.5}, seed=9)
    error = refused("resume", run)
    assert "study.yaml has changed since run" in error and "seed was 0 and is 9, training.learning_rate" in error
    assert not (run / "results.json").exists() and (run / "checkpoint.pt").read_bytes() == before
    # Nor is a finished run shown as if it were that of the edited study.
    finished = shutil.copytree(begun / "run", tmp_path / "finished")
    edit(finished, training={"learning_rate": 0.5})
    assert "training.learning_rate" in refused("resume", finished)


def test_a_finished_run_goes_on_to_more_rounds_with_the_weights_of_a_run_that_had_them_from_the_start(
    silofl, begun, north_phantoms, tmp_path
):
    run, whole = shutil.copytree(begun / "run", tmp_path / "run"), tmp_path / "whole"
    code, out, _ = silofl("resume", run, "--rounds", 3)
    assert code == 0 and "round   3/3" in out and "round   2/3" not in out
    assert json.loads((run / "results.json").read_text())["rounds"] == 3
    assert read_settings(run)["changes"] == {"rounds": 3}
    assert silofl("resume", run)[0] == 0
    straight = ("simulate", begun / "job", "--data", north_phantoms, "--out", whole, "--in-process", "--rounds", 3)
    assert silofl(*straight)[0] == 0
    for name in ("best.pt", "last.pt"):
        found, wanted = (torch.load(one / "model" / name, weights_only=True) for one in (run, whole))
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], wanted[key]) for key in found)


def test_rounds_that_would_have_changed_the_finished_ones_are_refused_and_change_nothing(refused, begun, tmp_path):
    run = shutil.copytree(begun / "run", tmp_path / "run")
    before = {path: path.read_bytes() for path in (study_file(run / "job"), run / "run.json", run / "results.json")}
    assert "rounds must be at least 2, as many as run" in refused("resume", run, "--rounds", 1)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("content", [b"[1]", None])
def test_a_run_with_a_broken_ledger_goes_on(silofl, run, content):
    before = (run / "ledger.json").read_bytes()
    (run / "ledger.json").unlink() if content is None else (run / "ledger.json").write_bytes(content)
    assert silofl("resume", run)[0] == 0
    assert (run / "ledger.json").read_bytes() == before


# --- a run's folder that somebody else has made


def test_a_received_run_cannot_say_that_its_own_code_is_trusted(silofl, refused, run):
    change_settings(run, trusts_code=True)
    (run / "job" / "app" / "custom").mkdir()
    (run / "job" / "app" / "custom" / "mine.py").write_text("print('mine')")
    assert "brings code, " in refused("resume", run)
    assert silofl("resume", run, "--trust-code")[0] == 0


def test_a_received_run_brings_no_code_in_the_simulators_workspace(silofl, run):
    for place in ("local/custom/nvflare_decomposers/mine.py", "local/log_config.json", "startup/mine.sh"):
        path = run / "workspace" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("print('mine')")
    assert silofl("resume", run)[0] == 0
    local = run / "workspace" / "local"
    assert sorted(path.name for path in local.iterdir()) == ["resources.json", "server.yaml", "site.yaml"]
    assert not (run / "workspace" / "startup").exists()


@pytest.mark.parametrize("place", ["workspace", "model", "sites/north", "job/app/config/more.pt"])
def test_a_received_run_leads_nowhere_else(refused, run, tmp_path, place):
    elsewhere = tmp_path / "kit" / "local"
    elsewhere.mkdir(parents=True)
    (elsewhere / "resources.json").write_text("{}")
    if (run / place).is_dir():
        shutil.rmtree(run / place)
    (run / place).symlink_to(elsewhere.parent)
    assert f"holds the link {place}, " in refused("resume", run)
    assert (elsewhere / "resources.json").read_text() == "{}"
