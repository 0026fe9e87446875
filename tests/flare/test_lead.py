"""What passes between a running controller and its study lead: numbers of rounds, once each."""

from types import SimpleNamespace

import pytest
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import AuthorizationError, JobNotFound, JobNotRunning

from silofl.base.errors import ConfigError, TrainingError
from silofl.base.files import write_json
from silofl.flare.in_flight import InFlight, answer_progress
from silofl.flare.one_machine import IS_BLOCKED
from silofl_desk.flare import lead as module
from silofl_desk.flare.lead import Lead, Progress

STUDY = SimpleNamespace(name="small", total_rounds=4, metric="dice", ends_early=True, quiet_rounds=2)


@pytest.mark.parametrize("sizes", [(0, 1, 3), (2, 2)])
def test_lead_learns_the_whole_ledger_whenever_it_asks(tmp_path, sizes):
    answer, progress = answer_progress(STUDY, "run-1", tmp_path, lambda: None), Progress(None, [])
    for size in sizes:
        # A round's validation comes with the next one.
        ledger = [{"round": i + 1, "validation": i + 1 < size} for i in range(size)]
        write_json(tmp_path / "ledger.json", ledger)
        progress.take(answer("", {"rounds": len(progress.ledger)}, None))
        assert (progress.run, progress.ledger) == ("run-1", ledger)


@pytest.mark.parametrize("data", [None, {"rounds": "2"}, {"rounds": -5}, {"rounds": True}, {"rounds": 10**30}])
def test_no_question_of_a_lead_breaks_the_controller(tmp_path, data):
    write_json(tmp_path / "ledger.json", [{"round": 1}])
    assert answer_progress(STUDY, "run-1", tmp_path, lambda: None)("", data, None)["run"] == "run-1"


def test_lead_learns_what_comes_and_what_sites_do(tmp_path):
    task = InFlight("train", 1, seconds=20.0, answered=["east"], failed=[], waiting=["south"], now=1000.0)
    progress = Progress(None, [])
    progress.take(answer_progress(STUDY, "run-1", tmp_path, lambda: task)("", {"rounds": 0}, None))
    assert (progress.study, progress.total_rounds, progress.metric) == ("small", 4, "dice")
    assert (progress.ends_early, progress.quiet_rounds) == (True, 2)
    assert progress.ledger == [] and progress.in_flight == task


def session(**answers):
    """Return a session that answers each question with what was written down; an exception is raised."""

    def answer(name):
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    return SimpleNamespace(
        get_job_meta=lambda number: answer("meta"),
        get_system_info=lambda: SimpleNamespace(client_info=answer("sites")),
        download_job_result=lambda number, target: answer("download"),
        do_app_command=lambda number, topic, data: answer("progress"),
        api=SimpleNamespace(),
        try_connect=lambda timeout_s: None,
        close=lambda: None,
    )


@pytest.fixture
def lead(monkeypatch):
    """A lead's connection whose session answers as written down."""

    def make(**answers):
        monkeypatch.setattr(module, "Session", lambda *arguments: session(**answers))
        address = SimpleNamespace(host="server", port=8002, scheme="tcp", security="clear")
        kit = SimpleNamespace(name="lead", folder="kit", address=address)
        return Lead(kit, patience_s=0)

    return make


def test_login_waits_for_busy_server_and_closes(monkeypatch):
    """NVFlare waits five seconds for each answer, and asks no second time."""
    limits, closed = [], []
    one = session()
    one.api.close = lambda: closed.append(True)

    def connect(timeout_s):
        limits.append((timeout_s, one.api.authenticate_msg_timeout))
        if len(limits) > 1:
            raise FLCommunicationError("failed to challenge server")

    one.try_connect = connect
    monkeypatch.setattr(module, "Session", lambda *arguments: one)
    kit = SimpleNamespace(name="lead", folder="kit")
    with module.open_session(kit):
        assert limits == [(module.SESSION_S, module.SESSION_S)] and not closed
    with pytest.raises(FLCommunicationError), module.open_session(kit):
        pass
    assert closed == [True]


def test_nvflares_word_on_a_job_is_explained(lead):
    tries = ["try 1: connected sites (0) < min_sites (1)", "try 2: connected sites (0) < min_sites (1)"]
    given_up = {"status": "FINISHED:CAN_NOT_SCHEDULE", "schedule_history": [*tries, "exceeded max schedule count 10"]}
    assert lead(meta=given_up).status("x") == (given_up["status"], f"{tries[1]}; exceeded max schedule count 10")
    deployed = {"status": "RUNNING", "schedule_history": ["scheduled"], "job_deploy_detail": ["north: OK", "west: OK"]}
    assert lead(meta=deployed).status("x") == ("RUNNING", "north: OK; west: OK")
    assert lead(meta={"status": "SUBMITTED"}).status("x") == ("SUBMITTED", "")


def test_lead_without_right_learns_so(lead):
    progress = Progress(None, [])
    lead(progress=JobNotRunning("not yet")).update("x", progress)
    assert progress.may_ask
    lead(progress=AuthorizationError("no")).update("x", progress)
    assert not progress.may_ask and progress.ledger == []


def test_a_server_that_stays_away_is_named_with_its_address(lead):
    with pytest.raises(TrainingError, match=r"the server server:8002 did not answer within 0 s \(gone\)"):
        lead(meta=OSError("gone")).status("x")


def test_blocked_lead_is_told_so(lead, monkeypatch, tmp_path):
    def refuse(kit):
        raise ConfigError(IS_BLOCKED % kit.name)

    def fail(timeout_s):
        raise FLCommunicationError("failed to challenge server: timeout")

    refused = lead()
    one = session()
    one.try_connect, one.api.close = fail, lambda: None
    monkeypatch.setattr(module, "Session", lambda *arguments: one)
    monkeypatch.setattr(module, "ask_machines", refuse)
    (tmp_path / "job").mkdir()
    for ask in (refused.connected, lambda: refused.submit(tmp_path / "job")):
        with pytest.raises(ConfigError, match="^the server has blocked the certificate of this"):
            ask()
    # A server that cannot be asked is away.
    monkeypatch.setattr(module, "ask_machines", fail_to_connect)
    with pytest.raises(TrainingError, match="did not answer within 0 s"):
        refused.connected()


def fail_to_connect(kit):
    raise ConnectionRefusedError("nobody listens")


@pytest.mark.parametrize("error", [JobNotFound("no such job"), AuthorizationError("not yours")])
def test_foreign_job_cannot_be_fetched(lead, error, tmp_path):
    with pytest.raises(ConfigError, match=f"the server knows no such job of lead; NVFlare says: .*{error}"):
        lead(download=error).download("x", tmp_path)
