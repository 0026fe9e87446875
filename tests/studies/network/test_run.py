"""The study lead's command against a server that is written dlocal: what it submits, downloads and gives up."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml

from silofl.base.errors import ConfigError, TrainingError
from silofl.base.files import write_json, write_text
from silofl.base.schema import dump_record
from silofl.command_line.cli import main
from silofl.federation.outcome import stopped_results, unscored_results
from silofl.federation.results import read_results
from silofl.federation.run_folder import RunFolder
from silofl.study import load_study
from silofl_desk.studies.network import continue_run
from silofl_desk.studies.network import run as module
from silofl_desk.studies.runs import progress
from silofl_desk.studies.runs.simulation import copy_job, study_file
from tests.conftest import Play

pytestmark = pytest.mark.usefixtures("undrawn")
RUN = "small-1"
JOB = Path(__file__).resolve().parents[3] / "jobs" / "fedavg_phantoms"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, site_data, make_study):
    """The folder of a finished run of two rounds, and its study."""
    place = tmp_path_factory.mktemp("lead")
    game = Play(make_study(rounds=2), site_data, place / "state", ("east", "north", "west"))
    folder = RunFolder(place / "finished", game.study)
    tests = game.finish()
    folder.save(game.server)
    folder.finish(game.server, tests)
    return folder.path, game.study


class Connection:
    """A lead's connection, which a test gives what the server answers."""

    def __init__(self, kit, patience_s):
        self.kit = kit

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        pass


@pytest.fixture
def server(monkeypatch, finished):
    """A server whose jobs end as written dlocal: each NVFlare's words for its status, and the folder that it leaves.

    A job that leaves None is one that a server loses which stops and begins anew.
    """
    ends, submitted, waited = [], [], []

    class Lead(Connection):
        def submit(self, job):
            submitted.append(yaml.safe_load((job / "app" / "config" / "study.yaml").read_text()))
            self.words = iter(ends[len(submitted) - 1][0].split())
            return f"job-{len(submitted)}"

        def connected(self):
            waited.append(len(submitted))
            return {"east", "north", "west"}

        def status(self, number):
            return next(self.words), "north: no room"

        def update(self, number, progress):
            task = {"task": "train", "round": 2, "seconds": 20.0, "answered": ["east"], "failed": []}
            task |= {"waiting": ["north", "south"], "now": 1000.0}
            progress.take({"run": RUN, "first": 0, "ledger": ledger, "in_flight": task})

        def last_heard(self):
            return {"east": 999.0, "north": 991.0}

        def download(self, number, target):
            leave = ends[len(submitted) - 1][1]
            (target / number / "workspace" / "silofl").mkdir(parents=True)
            leave(target / number / "workspace" / "silofl")
            return target / number

    folder, study = finished
    ledger = json.loads((folder / "ledger.json").read_text())[:1]

    def complete(target):
        shutil.copytree(folder, target, dirs_exist_ok=True)

    def stopped(rounds):
        def leave(target):
            write_json(target / "ledger.json", ledger[:rounds])
            write_json(target / "results.json", dump_record(stopped_results(study, RUN, rounds, "it was killed")))

        return leave

    def failed(target):
        write_json(target / "results.json", dump_record(unscored_results(study, "FAILED", ["a fault"], RUN)))

    monkeypatch.setattr(module, "Lead", Lead)
    monkeypatch.setattr(module, "read_kit", lambda path, kinds: SimpleNamespace(folder=path))
    monkeypatch.setattr(module, "POLL_S", 0)
    kinds = {"complete": complete, "stopped": stopped(1), "stopped before a round": stopped(0), "failed": failed}
    kinds["nothing"] = lambda target: None

    monkeypatch.setattr(module.WatchedRun, "waited", waited, raising=False)

    def start(*wanted):
        ends.extend((status, kinds.get(kind, kind)) for status, kind in wanted)
        return submitted

    start.kinds = kinds
    return start


@pytest.fixture
def lead(tmp_path, capsys):
    """Run the command; returns the exit code, what it printed, and the result."""

    def run(*options, job=JOB):
        code = main(["run", str(job), "--kit", str(tmp_path), "--out", str(tmp_path / "out"), *options])
        return code, capsys.readouterr().out, read_results(tmp_path / "out")

    return run


def test_a_stopped_run_goes_on_under_its_id_until_it_is_complete(server, lead, tmp_path):
    submitted = server(("FINISHED:ABNORMAL", "stopped"), ("FINISHED:COMPLETED", "complete"))
    code, said, results = lead()
    assert (code, results.status) == (0, "COMPLETE")
    assert "continue_run" not in submitted[0] and submitted[1] == submitted[0] | {"continue_run": RUN}
    assert "stopped: it was killed after round 1 of 2" in said and "going on by itself, 1 of 3 times" in said
    assert said.count("round   1/") == 1 and (tmp_path / "out" / "report.html").is_file()
    assert "federation.sites names no hospitals" in said
    # Hospitals pin it.
    assert said.index(load_study(study_file(JOB)).digest) < said.index("submitted as job")


def test_a_long_round_says_who_has_answered_and_whom_it_waits_for(server, lead, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    server(("SUBMITTED RUNNING RUNNING FINISHED:COMPLETED", "complete"))
    said = " ".join(lead()[1].split())
    assert "job job-1 is SUBMITTED; north: no room" in said
    waiting = "answered: east; waiting for north (last heard 9.0 s ago), south (not connected)"
    assert "round 2 has run for 20.0 s (usually" in said and waiting in said


def test_a_server_cannot_change_the_job_that_its_lead_submits_again(server, lead, tmp_path):
    study = yaml.safe_load(study_file(JOB).read_text())
    others = {"job/app/config/study.yaml": yaml.safe_dump(study | {"rounds": 99}), "job/app/custom/mine.py": ""}

    def changing(target):
        server.kinds["stopped"](target)
        for name, text in others.items():
            write_text(target / name, text)

    submitted = server(("FINISHED:ABNORMAL", changing), ("FINISHED:COMPLETED", "complete"))
    assert lead()[0] == 0
    assert submitted[1] == submitted[0] | {"continue_run": RUN}
    assert not (tmp_path / "out" / "job" / "app" / "custom").exists()


def test_a_server_that_takes_no_job_leaves_no_folder_so_that_it_can_be_tried_again(server, monkeypatch, tmp_path):
    server()
    monkeypatch.setattr(module.Lead, "submit", Mock(side_effect=ConfigError("the server must take the job")))
    assert main(["run", str(JOB), "--kit", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


@pytest.fixture
def named_job(tmp_path):
    """Write a job that names its hospitals, each of which waits shortly for the others."""

    def write(*names, **federation):
        job = tmp_path / "named"
        settings = {"federation.sites": list(names), "federation.join_timeout_s": 0.05}
        copy_job(JOB, job, settings | {f"federation.{key}": value for key, value in federation.items()})
        return job

    return write


def test_nothing_is_submitted_while_a_named_hospital_is_missing_and_it_is_said_who(server, named_job, tmp_path, capsys):
    submitted = server()
    command = ["run", str(named_job("east", "nroth", "west")), "--kit", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 1
    said = " ".join(capsys.readouterr().out.split())
    waits = "waiting for nroth (did you mean 'north'?), at most 0.05 s (federation.join_timeout_s); connected: east, "
    assert said.count(waits) == 1 and submitted == [] and not (tmp_path / "out").exists()
    assert "nroth (did you mean 'north'?) did not connect within 0.05 s, and nothing was submitted" in said


def test_a_job_goes_off_once_its_hospitals_are_there_or_those_that_it_may_miss_are_waited_for(
    server, lead, named_job, monkeypatch
):
    there, everyone = iter([{"east"}, {"east", "west"}, {"east", "west"}]), {"east", "north", "west"}
    monkeypatch.setattr(module.Lead, "connected", lambda self: next(there, everyone))
    submitted = server(("FINISHED:COMPLETED", "complete"))
    code, said, _ = lead(job=named_job("east", "north", "west", join_timeout_s=9.0))
    said = " ".join(said.split())
    assert code == 0 and submitted[0]["federation"]["sites"] == ["east", "north", "west"]
    assert said.count("waiting for north, west") == said.count("waiting for north, at") == 1
    assert "names no hospitals" not in said


def test_a_hospital_that_the_study_may_miss_does_not_hold_it_up(server, lead, named_job):
    submitted = server(("FINISHED:COMPLETED", "complete"))
    code, said, _ = lead(job=named_job("east", "north", "south", may_miss=1))
    assert code == 0 and len(submitted) == 1 and "waiting for south" in said


REPORT = {"faults": [], "round_seconds": 90.0, "run_hours": 0.6, "peak_bytes": 1500000000, "device": "cuda"}
REPORT |= {"bytes_to": 2000000, "bytes_from": 1000000, "left_out": 3}
BARE = dict.fromkeys(REPORT) | {"faults": ["no GPU"]}


@pytest.fixture
def rehearse(server, tmp_path, capsys, monkeypatch):
    """Rehearse a job whose sites show something; returns the exit code, what was printed, and what was submitted."""

    def run(reports, *options, job=JOB, status="RUNNING FINISHED:COMPLETED"):
        jobs = []
        leave = lambda target: write_json(target / "rehearsal.json", reports)  # noqa: E731
        # Of a server that began anew nothing can be downloaded.
        leave = leave if reports else "nothing" if status.endswith("ABNORMAL") else None
        submitted = server((status, leave))
        submit = module.Lead.submit

        def keep(self, folder):
            jobs.append(json.loads((folder / "meta.json").read_text()))
            return submit(self, folder)

        monkeypatch.setattr(module.Lead, "submit", keep)
        before = sorted(tmp_path.rglob("*"))
        code = main(["run", str(job), "--kit", str(tmp_path), "--rehearse", *options])
        assert sorted(tmp_path.rglob("*")) == before
        output = capsys.readouterr()
        return code, " ".join((output.out + output.err).split()), submitted, jobs

    return run


def test_a_rehearsal_is_of_the_studys_digest_and_shows_each_site(rehearse):
    code, said, (study,), (meta,) = rehearse({"east": REPORT, "north": REPORT})
    assert code == 0 and study["rehearsal"] is True and meta["name"] == "fedavg_phantoms-rehearsal"
    assert load_study(study_file(JOB)).digest in said
    assert "east 1.5 min 36.0 min 1.5 GB (GPU) 2.0 MB 1.0 MB" in said
    assert (
        "east: 3 cases cannot be read and are left out" in said and "nothing would have failed at east, north" in said
    )


def test_what_would_have_failed_is_named_by_site_and_who_is_missing_too(rehearse, named_job):
    job = named_job("east", "nroth")
    code, said, *_ = rehearse({"east": REPORT | {"faults": ["no room"]}, "nroth": BARE}, job=job)
    assert code == 3 and "FAILED east: no room" in said and "nothing would have failed" not in said
    assert "FAILED nroth: nroth (did you mean 'north'?) was not connected" in said and "no GPU" not in said


@pytest.mark.parametrize("status", ["FINISHED:ABNORMAL", "RUNNING FINISHED:ABANDONED"])
def test_a_rehearsal_without_an_end_says_what_nvflare_says(rehearse, status):
    code, said, *_ = rehearse(None, status=status)
    assert code == 1 and f"NVFlare ended rehearsal job-1 as {status.split()[-1]}: north: no room" in said


def test_what_cannot_be_rehearsed_and_a_study_that_is_no_run_are_refused(server, tmp_path, capsys, refused):
    submitted, kit = server(), ("--kit", str(tmp_path))
    survey = JOB.parent / "survey_hospitals"
    assert "survey_hospitals has no rounds to rehearse" in refused("run", survey, *kit, "--rehearse")
    assert "Leave out --out" in refused("run", JOB, *kit, "--rehearse", "--out", tmp_path / "out")
    assert "The results have no folder. Name a new one with --out." in refused("run", JOB, *kit)
    copy_job(JOB, tmp_path / "job", {"rehearsal": True})
    assert "study.yaml sets rehearsal" in refused("run", tmp_path / "job", *kit, "--out", "out")
    simulated = refused("simulate", tmp_path / "job", "--data", tmp_path, "--out", tmp_path / "out")
    assert "sets rehearsal" in simulated and submitted == []


def test_a_job_that_a_restarted_server_has_lost_goes_on_although_nothing_can_be_downloaded(server, lead):
    submitted = server(("RUNNING FINISHED:ABANDONED", None), ("FINISHED:COMPLETED", "complete"))
    code, said, _ = lead()
    assert code == 0 and submitted[1] == submitted[0] | {"continue_run": RUN}
    assert "stopped: the server stopped after round 1 of 24; going on by itself, 1 of " in said


@pytest.mark.parametrize(
    ("ends", "options"),
    [
        ([("FINISHED:EXECUTION_EXCEPTION", "failed")], ()),
        ([("FINISHED:ABORTED", "stopped")], ()),
        ([("FINISHED:ABNORMAL", "stopped")], ("--retries", "0")),
        ([("FINISHED:ABNORMAL", "stopped")] * 2, ("--retries", "1")),
    ],
    ids=["its own fault", "aborted by a person", "no retries", "as often as allowed"],
)
def test_a_failed_run_ends_there_and_says_why_and_how_to_go_on(server, lead, ends, options, tmp_path):
    submitted = server(*ends)
    code, said, results = lead(*options)
    assert code == 1 and results.status == "FAILED" and len(submitted) == len(ends)
    assert results.reasons[0] in said and results.run == RUN
    assert said.endswith(f"correct this, then go on: silofl continue {tmp_path}/out --kit {tmp_path}\n")


def test_a_job_that_never_began_says_what_nvflare_says_and_how_to_go_on(server, lead, monkeypatch, tmp_path):
    monkeypatch.setattr(continue_run, "read_kit", module.read_kit)
    submitted = server(("FINISHED:FAILED_TO_RUN", "nothing"), ("FINISHED:COMPLETED", "complete"))
    code, said, results = lead()
    assert code == 1 and results is None
    assert "Job job-1 never began; NVFlare ended it as FINISHED:FAILED_TO_RUN: north: no room; to go on once " in said
    again = said.partition("that is put right: silofl ")[2].split()
    assert again == ["continue", f"{tmp_path}/out", "--kit", f"{tmp_path}"]
    assert main(again) == 0 and submitted[0] == submitted[1]


@pytest.mark.parametrize(
    ("error", "code", "end"),
    [
        (KeyboardInterrupt, 130, "go on later with silofl continue {0}/out --kit {0}\n"),
        (TrainingError("the server must answer"), 1, "the server must answer\n"),
    ],
)
def test_an_interrupted_command_leaves_the_job_running_and_a_server_that_stays_away_is_said(
    server, lead, monkeypatch, tmp_path, error, code, end
):
    server(("FINISHED:ABANDONED", None))
    monkeypatch.setattr(module.WatchedRun, "_follow", Mock(side_effect=error))
    found, said, _ = lead()
    assert found == code and ("job job-1 runs on" in said) == (code == 130) and said.endswith(end.format(tmp_path))
