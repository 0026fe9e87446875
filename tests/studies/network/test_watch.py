"""The watching command against a server that is written dlocal: what it shows, and when it ends."""

import json
from types import SimpleNamespace

import pytest

from silofl.base.errors import TrainingError
from silofl.base.schema import dump_record
from silofl.federation.ledger import Round
from silofl.federation.outcome import unscored_results
from silofl.training.site_score import SiteScore
from silofl_desk.studies.network import watch as module

from .test_run import Connection

JOB = "0f7c9a52-6b1c-4a35-8f5f-1f9b5f8a7c11"
ENDED = "FINISHED:COMPLETED"


def ledger_of(count):
    score = SiteScore(value=0.5, num_cases=1, num_excluded=0)
    sites = {"asked": ["east", "west"], "answered": ["east"], "failed": {"west": "no room"}}
    rounds = range(1, count + 1)
    numbers = {"metrics": {"east": {"loss": 0.25}}, "validation": {"east": score}, "seconds": 2.0}
    return [dump_record(Round(number, **sites, **numbers)) for number in rounds]


@pytest.fixture
def watch(silofl, tmp_path):
    """Watch the job; returns exit code, output and error output."""
    return lambda *options: silofl("watch", JOB, "--kit", tmp_path, *options)


@pytest.fixture
def server(monkeypatch):
    """A server that answers each question with the next of NVFlare's words and of the numbers of finished rounds."""
    state = SimpleNamespace(words=[], rounds=[], seconds={}, may_ask=True, asked=0, in_flight=None, result=None)

    class Lead(Connection):
        def status(self, number):
            assert number == JOB
            word = state.words.pop(0)
            if isinstance(word, BaseException):
                raise word
            return word, "too few sites"

        def last_heard(self):
            return {"east": 990.0, "west": 820.0}

        def second_machines(self):
            return state.seconds

        def download(self, number, target):
            (target / number).mkdir()
            (target / number / "meta.json").write_text("{}")
            if state.result is not None:
                silofl = target / number / "workspace" / "silofl"
                silofl.mkdir(parents=True)
                (silofl / "results.json").write_text(json.dumps(state.result))
            return target / number

        def update(self, number, progress):
            state.asked += 1
            progress.may_ask = state.may_ask
            if not state.may_ask or state.rounds[0] is None:
                return
            answer = {"run": "small-1", "study": "small", "total_rounds": 3, "metric": "dice", "first": 0}
            progress.take(answer | {"ledger": ledger_of(state.rounds.pop(0)), "in_flight": state.in_flight})

    kit = SimpleNamespace(name="lead@study.example.org", folder=None)
    monkeypatch.setattr(module, "Lead", Lead)
    monkeypatch.setattr(module, "POLL_S", 0)

    def read_kit(path, kinds):
        assert kinds == ("admin",)
        kit.folder = path
        return kit

    monkeypatch.setattr(module, "read_kit", read_kit)
    return state


def test_each_round_is_one_line_and_the_end_says_what_comes_next(server, watch, tmp_path):
    server.words, server.rounds = ["SUBMITTED", "RUNNING", "RUNNING", "RUNNING", ENDED], [1, 1, 3]
    code, said, error = watch()
    assert (code, error) == (0, "")
    lines = [line.split("  ")[0:2] for line in said.splitlines() if line.startswith("round ")]
    assert lines == [["round", " 1/3"], ["round", " 2/3"], ["round", " 3/3"]]
    assert said.startswith("job ") and "failed: west (no room)" in said
    fetch = f"python -m silofl watch {JOB} --kit {tmp_path} --download DIR"
    end = f"job {JOB} has ended, {ENDED}; fetch its result: {fetch}"
    assert said.endswith(f"\n{end}\n")
    # One that did not complete is code 1.
    server.words, server.rounds = ["RUNNING", "FINISHED:ABORTED"], [1]
    code, said, _ = watch()
    assert code == 1 and "has ended, FINISHED:ABORTED" in said


def test_a_program_gets_one_object_and_nothing_else_and_learns_that_a_job_has_ended(server, watch):
    server.words, server.rounds = ["RUNNING"], [2]
    code, said, _ = watch("--json")
    values = json.loads(said)
    assert (code, values["status"], values["run"]) == (0, "RUNNING", "small-1")
    assert values["rounds"] == {"finished": 2, "total": 3} and [r["loss"] for r in values["ledger"]] == [0.25, 0.25]
    server.words, server.asked = [ENDED], 0
    values = json.loads(watch("--json")[1])
    assert (values["status"], values["run"], values["ledger"], server.asked) == (ENDED, None, None, 0)
    assert values["rounds"] is values["metric"] is values["queue"] is None
    server.words = ["SUBMITTED"]
    assert json.loads(watch("--json")[1])["queue"] == "too few sites"


@pytest.mark.parametrize(("status", "reasons"), [("COMPLETE", []), ("FAILED", ["round 1 must have answers"])])
def test_an_ended_job_says_how_its_run_ended_and_what_comes_next(server, watch, tmp_path, make_study, status, reasons):
    folder, done = tmp_path / "my results", "FINISHED:ABORTED" if status == "FAILED" else ENDED
    server.words, server.result = [done], dump_record(unscored_results(make_study(), status, reasons, "small-1"))
    _, said, error = watch("--download", folder)
    assert error == ""
    assert "no round has finished" not in said and f"job {JOB} is {done}; it has ended\n" in said
    why = " (round 1 must have answers)" if reasons else ""
    where = f"its result is in {folder / JOB}; its report: python -m silofl report '{folder / JOB}'"
    on = f"; to go on: python -m silofl continue small-1 --job STUDY --kit {tmp_path} --out NEW" if reasons else ""
    assert said.endswith(f"job {JOB} has ended, {done}; study small is {status}{why}; {where}{on}\n")


def test_a_look_at_a_job_downloads_nothing(server, refused, tmp_path):
    error = refused("watch", JOB, "--kit", tmp_path, "--json", "--download", tmp_path / "results")
    assert "Leave out --json or --download" in error and not (tmp_path / "results").exists()


def test_a_kit_without_the_right_is_refused_with_the_one_that_has_it(server, watch):
    server.words, server.may_ask = ["RUNNING"], False
    code, _, error = watch()
    assert code == 2 and error.count("\n") == 1
    assert "lead@study.example.org has no right app_command" in error and "Take the kit of that lead" in error


def test_a_server_that_stays_away_is_said_in_one_sentence(server, watch):
    server.words = ["SUBMITTED", TrainingError("the server localhost:8002 must answer within 60 s; it did not")]
    code, said, error = watch()
    assert (code, error) == (1, "") and said.endswith("the server localhost:8002 must answer within 60 s; it did not\n")


def test_a_job_whose_server_was_stopped_is_lost_and_it_is_said_how_to_go_on(server, watch, tmp_path):
    server.words, server.rounds = ["RUNNING", "FINISHED:ABANDONED"], [1]
    code, said, _ = watch("--download", tmp_path / "got")
    assert code == 1 and said.endswith("or the run's id and --job\n") and not (tmp_path / "got").exists()
    assert f"job {JOB} has ended, FINISHED:ABANDONED; the server was stopped while it ran" in said


def test_a_second_machine_under_a_sites_name_is_said_with_its_address(server, watch, monkeypatch):
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    server.words, server.rounds, server.seconds = ["RUNNING", "RUNNING", ENDED], [1, 1], {"west": "10.0.0.9"}
    sentence = "west runs on another machine too; the server refused the one at 10.0.0.9: call west"
    assert sentence in " ".join(watch()[1].split())


def test_whoever_stops_watching_does_not_stop_the_job(server, watch):
    server.words = ["SUBMITTED", KeyboardInterrupt()]
    code, said, _ = watch()
    assert code == 130 and f"job {JOB} goes on" in said
