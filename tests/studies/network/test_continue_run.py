"""The command that goes on with a run on a network: which job it submits, and what it refuses before."""

import json
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml

from silofl.base.errors import ConfigError
from silofl.base.files import hold_lock
from silofl.command_line.cli import main
from silofl.federation.results import read_results
from silofl.study import load_study
from silofl_desk.studies.network import continue_run as module
from silofl_desk.studies.network.run import LOCK, WatchedRun, set_run

from .test_run import JOB, RUN, Connection, finished, lead, server  # noqa: F401

pytestmark = pytest.mark.usefixtures("undrawn")
NUMBER = "3a4ab1f3-5838-4363-b0e7-49dce91e418a"
STUDY = "app/config/study.yaml"


@pytest.fixture
def go_on(server, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Run the command with jobs that end as given; returns its exit code, what it says, and what it submitted."""
    monkeypatch.setattr(module, "read_kit", lambda path, kinds: SimpleNamespace(folder=path, name="lead"))

    def run(*arguments, ends=(("FINISHED:COMPLETED", "complete"),)):
        submitted = server(*ends)
        code = main(["continue", *map(str, arguments), "--kit", str(tmp_path)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err, submitted

    return run


@pytest.fixture
def stopped(server, lead, tmp_path):  # noqa: F811
    """The folder of a run that was stopped after its first round, by the job whose end is the first one written."""
    server(("FINISHED:ABNORMAL", "stopped"))
    assert lead("--retries", "0")[0] == 1
    return tmp_path / "out"


def test_a_folder_of_silofl_run_goes_on_in_place_with_its_own_job(go_on, stopped):
    code, said, submitted = go_on(stopped)
    assert code == 0 and "round   1/" not in said
    first, second = submitted
    # For the sites of the last round, before the second job and not the first.
    assert WatchedRun.waited == [1]
    assert second == first | {"continue_run": RUN}
    assert read_results(stopped).status == "COMPLETE"


def test_another_folder_takes_what_is_there_and_leaves_the_first_as_it_is(go_on, stopped, tmp_path):
    before = (stopped / "results.json").read_text()
    code, said, submitted = go_on(stopped, "--out", tmp_path / "new", "--json")
    assert code == 0 and submitted[1]["continue_run"] == RUN
    # For programs; its own lines follow, on standard error.
    assert json.JSONDecoder().raw_decode(said)[0]["status"] == "COMPLETE"
    assert (stopped / "results.json").read_text() == before
    assert read_results(tmp_path / "new").status == "COMPLETE"


def test_what_may_change_is_written_into_the_job_that_goes_on_and_nothing_that_no_study_has(go_on, stopped):
    before = (stopped / "job" / STUDY).read_text()
    code, said, submitted = go_on(stopped, "--set", "federation.site_left=[north]", ends=())
    assert code == 2 and "federation.sites_left" in said and len(submitted) == 1
    assert (stopped / "job" / STUDY).read_text() == before
    code, _, submitted = go_on(stopped, "--set", "federation.sites_left=[north]", "--set", "rounds=30")
    assert code == 0 and submitted[1]["federation"]["sites_left"] == ["north"] and submitted[1]["rounds"] == 30
    assert load_study(stopped / "job" / STUDY).federation.sites_left == ("north",)


@pytest.mark.parametrize("is_taken", [True, False])
def test_changes_that_the_server_refuses_do_not_stay_in_the_folder(go_on, stopped, monkeypatch, is_taken):
    files = [stopped / name for name in ("results.json", "report.html", "ledger.json", f"job/{STUDY}")]
    before = [path.read_bytes() for path in files]
    with monkeypatch.context() as patch:
        if not is_taken:
            refuse = Mock(side_effect=ConfigError("the server must take the job"))
            patch.setattr(WatchedRun, "carry_out", refuse)
        changed = ("--retries", "0", "--set", "training.learning_rate=0.5")
        code, said, _ = go_on(stopped, *changed, ends=[("FINISHED:ABNORMAL", "stopped")])
    assert code == (1 if is_taken else 2)
    assert (f"no round was added: {stopped} is as it was" in " ".join(said.split())) is is_taken
    assert [path.read_bytes() for path in files] == before
    code, _, submitted = go_on(stopped)
    assert code == 0 and submitted[-1]["training"]["learning_rate"] != 0.5


def test_a_folder_that_another_command_writes_is_refused_before_anything_is_submitted(go_on, stopped):
    with hold_lock(stopped / LOCK):
        code, said, submitted = go_on(stopped)
    assert code == 2 and len(submitted) == 1 and "round" not in said
    assert f"{stopped} is in use" in said


def test_a_run_of_which_only_the_id_is_known_goes_on_by_its_job_folder(go_on, tmp_path):
    job = shutil.copytree(JOB, tmp_path / "job")
    set_run(job, "older-run")
    before = (job / STUDY).read_text()
    code, _, submitted = go_on("lost-run", "--job", job, "--out", tmp_path / "new")
    assert code == 0 and submitted == [yaml.safe_load(before) | {"continue_run": "lost-run"}]
    assert (job / STUDY).read_text() == before


def test_a_complete_run_is_refused_until_its_study_has_more_rounds(go_on, finished, tmp_path):  # noqa: F811
    folder, _ = finished
    done = shutil.copytree(folder, tmp_path / "done")
    shutil.copytree(JOB, done / "job")
    path = done / "job" / STUDY
    study = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(study | {"rounds": 2}))
    code, said, submitted = go_on(done)
    assert (
        code == 2
        and "Run run is COMPLETE. Ask for more than 2 rounds with --rounds N, or begin" in said
        and submitted == []
    )
    code, _, submitted = go_on(done, "--rounds", 3)
    assert code == 0 and submitted[0]["rounds"] == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nosuch", "--out", "new"], "Folder 'nosuch' does not exist"),
        ([NUMBER, "--job", "{tmp_path}"], "The results have no folder"),
        (["{tmp_path}"], "holds no job to go on with"),
        (["run-1", "--job", "{tmp_path}", "--out", "new"], "is no job folder; meta.json is missing"),
        ([NUMBER, "--job", "{tmp_path}", "--out", "{tmp_path}"], "already exists. Name a new or empty folder"),
    ],
    ids=["an id alone", "no folder", "another folder", "no job", "a used folder"],
)
def test_what_names_no_run_is_refused_in_one_sentence(go_on, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    code, said, submitted = go_on(*(one.format(tmp_path=tmp_path) for one in arguments))
    assert code == 2 and sentence in said and said.count("\n") == 1 and submitted == []
