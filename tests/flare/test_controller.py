"""The controller's ends, without a network: each that is not COMPLETE has its reason in results.json."""

import json
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.private.fed.server.client_manager import ClientManager

from silofl.base.errors import AggregationError, ConfigError
from silofl.federation.results import read_results
from silofl.federation.run_folder import RunFolder
from silofl.federation.server import ServerRounds
from silofl.federation.waiting import Waiting
from silofl.flare import controller as module
from silofl.flare.controller import FAILED_ONCE, RoundsController
from silofl.flare.exchange import from_model
from silofl.flare.left_sites import AGAIN, FAILED, FAILED_AGAIN, LEFT
from silofl.flare.returned_sites import RETURNED
from silofl.parts.task import Message


@pytest.fixture
def ended(tmp_path, make_study, monkeypatch):
    """Run a controller whose course ends in a given way; returns its result and the reasons of its panic."""
    study = make_study()
    settings = SimpleNamespace(run_folder=lambda name, run: tmp_path / "run", is_downloadable=True, extensions=())
    monkeypatch.setattr(module, "download_folder", lambda context: tmp_path / "download")
    monkeypatch.setattr(module, "read_job_study", lambda context: study)
    monkeypatch.setattr(module, "read_job_pretrained", lambda context, study: None)
    monkeypatch.setattr(module, "read_server_settings", lambda context: settings)

    def run(course, panic=None, failed=None):
        controller, commands = controller_of("a", "b"), {}
        controller.fl_ctx.set_prop(FLContextKey.RUNNER, SimpleNamespace(), private=True, sticky=True)
        controller.engine.register_app_command = lambda topic, answer, *given: commands.update({topic: (answer, given)})
        controller._begin = lambda study, run, folder: ServerRounds.start(study, "run", ["a", "b"])

        def begin_course(server, folder):
            if failed:
                answer, given = commands[FAILED]
                assert answer(FAILED, {"site": failed, "again": False}, None, *given) == {"goes_on": False}
            return SimpleNamespace(run=course)

        controller._course, controller.exception = begin_course, lambda message: None
        context = FLContext()
        context.set_prop(FLContextKey.EVENT_DATA, panic, private=True, sticky=False)
        for handler, _ in controller.get_event_handlers()[EventType.FATAL_SYSTEM_ERROR] if panic else ():
            handler(EventType.FATAL_SYSTEM_ERROR, context)
        reasons = panics_of(controller)
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        assert json.loads((tmp_path / "download" / "results.json").read_text()) == results
        return results, reasons

    return run


def controller_of(*clients):
    """Return a controller at a server with some sites."""
    controller = RoundsController()
    controller.fl_ctx, controller.abort_signal = FLContext(), SimpleNamespace(triggered=False)
    controller.communicator = SimpleNamespace()
    controller.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=name) for name in clients])
    return controller


def panics_of(controller):
    """Run a controller to its end; returns the reasons of its panic."""
    reasons = []
    controller.system_panic = lambda reason, context: reasons.append(reason)
    controller.run()
    return reasons


def raising(error):
    def course():
        raise error

    return course


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AggregationError("too few sites"), "too few sites"),
        (OSError("no space left"), "no space left"),
        (TypeError("a\nb"), "an unexpected TypeError, which the server's log has in full: a b"),
    ],
)
def test_a_run_that_fails_has_its_reason_whatever_it_was(ended, error, reason):
    results, reasons = ended(raising(error))
    assert results["status"] == "FAILED" and results["reasons"] == [reason] == reasons


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ({}, "the job was aborted"),
        (
            {"panic": "fatal return code UNSAFE_JOB\nfrom client east"},
            "NVFlare ended the job (fatal return code UNSAFE_JOB from client east)",
        ),
        ({"failed": "b"}, "the process of site 'b', whose own log says why, failed"),
    ],
)
def test_ended_job_has_its_reason_and_a_remedy(ended, ending, reason):
    results, reasons = ended(lambda: None, **ending)
    assert (results["status"], results["was_stopped"], reasons) == ("FAILED", True, [])
    how = f"with continue_run: {results['run']} to go on"
    assert results["reasons"] == [f"{reason} after round 0 of 3; submit the job again {how}"]


class KilledError(BaseException):
    """The end of a process, which no handler of exceptions sees."""


def test_killed_job_leaves_result_and_run_id(ended, tmp_path, make_study):
    with pytest.raises(KilledError):
        ended(raising(KilledError()))
    results = read_results(tmp_path / "download")
    assert (results.status, results.was_stopped) == ("FAILED", True)
    assert results.run.startswith("small-") and not (tmp_path / "run" / "results.json").exists()
    assert results.reasons == (
        "the job's process at the server was killed after round 0 of 3; submit the job again with continue_run: "
        f"{results.run} to go on",
    )
    assert RunFolder(tmp_path / "run", make_study()).name_run("another") == results.run


def test_job_of_a_locked_run_leaves_it_alone(ended, tmp_path, make_study):
    with RunFolder(tmp_path / "run", make_study()).locked(), pytest.raises(FileNotFoundError):
        ended(lambda: None)
    assert list((tmp_path / "run").iterdir()) == [tmp_path / "run" / "lock"]
    results = read_results(tmp_path / "download")
    assert results.status == "FAILED" and not results.was_stopped
    # The lead knows the job, and not the server's folders.
    (reason,) = results.reasons
    assert reason.startswith(f"an earlier job of run {results.run} still runs")
    assert str(tmp_path) not in reason


def unreadable(context, study=None):
    raise ConfigError("server.yaml: run_dir must be a text, not 3")


def test_settings_that_the_server_cannot_read_are_the_jobs_reason(tmp_path, make_study, monkeypatch):
    monkeypatch.setattr(module, "download_folder", lambda context: tmp_path / "download")
    monkeypatch.setattr(module, "read_job_study", lambda context: make_study())
    monkeypatch.setattr(module, "read_server_settings", unreadable)
    assert panics_of(controller_of()) == ["server.yaml: run_dir must be a text, not 3"]
    results = read_results(tmp_path / "download")
    assert (results.status, results.reasons) == ("FAILED", ("server.yaml: run_dir must be a text, not 3",))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ReturnCode.EXECUTION_EXCEPTION, "NVFlare at the site answered EXECUTION_EXCEPTION; the site's own log"),
        (ReturnCode.OK, "the answer of site 'north' cannot be read; the server's log says"),
    ],
)
def test_result_held_back_by_nvflare_is_answered_at_once(monkeypatch, code, reason):
    received = []
    monkeypatch.setattr(ModelController, "_process_result", lambda *arguments: None)
    task = SimpleNamespace(get_prop={AppConstants.TASK_PROP_CALLBACK: received.append}.get)
    result = SimpleNamespace(get_return_code=lambda: code)
    client_task = SimpleNamespace(result=result, client=SimpleNamespace(name="north"), task=task)
    RoundsController()._process_result(client_task, None)
    (model,) = received
    assert model.meta["client_name"] == "north" and from_model(model).meta["error"].startswith(reason)


@pytest.fixture
def asked():
    """Ask two sites of which only north answers, with an hour for it; what happens meanwhile is given."""

    def ask(clients=("north", "south"), meanwhile=lambda controller: None):
        controller = controller_of(*clients)
        controller._waiting = Waiting(3600.0)

        def send(task, model, targets, timeout, callback):
            if targets == ["north"]:
                model.meta["client_name"] = "north"
                callback(model)
            else:
                meanwhile(controller)

        controller.send_model, controller.cancel_all_tasks = send, lambda fl_ctx: None
        answers = controller._ask("train", {site: Message(meta={"round": 1}) for site in ("north", "south")})
        assert list(answers.given) == ["north"]
        return answers.failed, controller

    return ask


@pytest.fixture
def rounds_of(monkeypatch):
    """Carry out rounds of 600 s, in which north needs 10 s; returns how long each lasted, and who was late."""

    def carry_out(count, does):
        clock = [0.0]
        monkeypatch.setattr(module, "cleanup_memory", lambda: None)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: tick()))
        monkeypatch.setattr(ModelController, "_prepare_task_data", lambda *arguments: None)
        controller, sent = controller_of("north", "south"), {}
        controller._waiting = Waiting(600.0)
        controller.cancel_all_tasks = lambda fl_ctx: sent.clear()

        def send(task, model, targets, timeout, callback):
            (site,) = targets
            model.meta["client_name"] = site
            sent[site] = (clock[0] + 10, lambda: callback(model))

        def tick():
            clock[0] += 1
            for site, (due, answer) in list(sent.items()):
                what = "answers" if site == "north" else does(number)
                if what in ("answers", "takes"):
                    controller._prepare_task_data(SimpleNamespace(client=SimpleNamespace(name=site)), None)
                if what == "answers" and clock[0] >= due:
                    answer()
                    del sent[site]

        controller.send_model, lasted = send, []
        for number in range(1, count + 1):
            begun = clock[0]
            answers = controller._ask("train", {site: Message(meta={"round": number}) for site in ("north", "south")})
            lasted.append((round(clock[0] - begun), [*answers.failed]))
        return lasted

    return carry_out


def test_a_run_begins_with_the_named_sites_that_are_there(make_study):
    study = make_study(federation={"sites": ["north", "south"], "min_sites": 1})
    controller = controller_of("north", "west")
    assert controller._wait_for_sites(study) == ["north"]
    assert controller._strangers == ["site 'west' is connected and gets no task, as federation.sites does not name it"]


def test_too_few_named_sites_do_not_begin(make_study):
    study = make_study(federation={"sites": ["north", "south", "west"], "min_sites": 2})
    with pytest.raises(AggregationError, match="1 of at least 2 sites joined .*; start north, south or lower"):
        controller_of("west")._wait_for_sites(study)


def test_lead_sees_who_answered_and_who_is_awaited(asked):
    seen = []

    def look(controller):
        seen.append(controller._find_in_flight())
        controller._take_left(LEFT, {"sites": {"south": AGAIN}}, None)

    _, controller = asked(meanwhile=look)
    (task,) = seen
    assert (task.task, task.round, task.answered, task.failed, task.waiting) == ("train", 1, ["north"], [], ["south"])
    assert controller._find_in_flight() is None


# How long a round lasts, with those who are late: north's 10 s, a timeout, or twice what north needs.
QUICK, TIMEOUT, TRIED = (10, []), (601, ["south"]), (21, ["south"])


@pytest.mark.parametrize(
    ("does", "lasted"),
    [
        pytest.param(lambda number: "hangs", [TIMEOUT, *[(10, ["south"])] * 3], id="hangs"),
        pytest.param(
            lambda number: "hangs" if number == 2 else "answers", [QUICK, TIMEOUT, QUICK, QUICK], id="comes back"
        ),
        # It takes every task and answers none, or one after all: then it has the whole time again.
        pytest.param(lambda number: "takes", [TIMEOUT, TIMEOUT, *[TRIED] * 3], id="takes"),
        pytest.param(
            lambda number: "answers" if number == 4 else "takes",
            [TIMEOUT, TIMEOUT, TRIED, QUICK, TIMEOUT],
            id="answers after all",
        ),
    ],
)
def test_silent_site_costs_at_most_two_timeouts(rounds_of, does, lasted):
    assert rounds_of(len(lasted), does) == lasted


def test_a_site_that_nvflare_no_longer_knows_fails_at_once(asked):
    failed, _ = asked(clients=("north",))
    assert failed == {"south": "its process has ended, or it does not take part in this job"}


def test_restarted_site_fails_once_and_is_awaited_later(asked, monkeypatch):
    monkeypatch.setattr(ModelController, "_prepare_task_data", lambda *arguments: None)
    told = {"sites": {"south": AGAIN}}
    failed, controller = asked(meanwhile=lambda controller: controller._take_left(LEFT, told, None))
    assert failed["south"].startswith("it came late or again") and "restart it" in failed["south"]
    assert controller._left == {"south": AGAIN}
    controller._prepare_task_data(SimpleNamespace(client=SimpleNamespace(name="south")), None)
    assert controller._left == {}


def test_named_late_site_joins_before_the_next_round(make_study, tmp_path):
    study, clients = make_study(rounds=2, federation={"sites": ("north", "south")}), ["north"]
    controller, server = controller_of(), ServerRounds.start(study, "run", ["north"])
    controller.engine.get_clients = lambda: [SimpleNamespace(name=name) for name in clients]
    course = controller._course(server, RunFolder(tmp_path / "run", study))
    course.save()
    assert server.sites == ["north"] and [*server.find_absent_sites()] == ["south"]
    clients += ["south", "west"]
    course.save()
    assert server.sites == ["north", "south"] and not server.find_absent_sites()


@pytest.fixture
def returned(make_study):
    """Tell a controller that a site was started again; returns its answer, the tokens that it knows, and who has left.

    Its process of before had reported that it could not begin.
    """

    def tell(data, **federation):
        controller, manager = controller_of(), ClientManager()
        manager.set_clients({one.token: one for one in (Client("north", "n1"), Client("south", "s1"))})
        controller.engine.client_manager, controller._left = manager, {"south": AGAIN}
        study = make_study(federation=federation)
        answer = controller._take_returned(RETURNED, data, None, study)
        return answer, {name: one.token for name, one in manager.name_to_clients.items()}, controller._left

    return tell


SOUTH = {"site": Client("south", "s2")}


def test_restarted_site_is_known_by_its_new_token(returned):
    assert returned(SOUTH) == ({"is_taken": True}, {"north": "n1", "south": "s2"}, {})


@pytest.mark.parametrize(
    ("data", "federation"),
    [
        (SOUTH, {"sites": ("north", "west")}),
        (SOUTH, {"sites_left": ["south"]}),
        (None, {}),
        ({"site": "south"}, {}),
        ({"site": {"name": "south", "token": "s2"}}, {}),
    ],
    ids=["not named", "let go", "no word", "a name", "no record of the server's"],
)
def test_uninvolved_site_is_not_taken_when_restarted(returned, data, federation):
    assert returned(data, **federation) == ({}, {"north": "n1", "south": "s1"}, {"south": AGAIN})


@pytest.fixture
def failure():
    """Tell a controller that a site's process has failed in a round; returns its answer and which sites have left."""

    def tell(data, there=("east", "north", "south"), left=(), quorum=2):
        controller = controller_of(*there)
        controller._left = dict.fromkeys(left, AGAIN)
        return controller._take_failed(FAILED, data, None, quorum), controller._left

    return tell


def test_job_goes_on_without_a_site_failing_again(failure):
    assert failure({"site": "north", "again": True}) == ({"goes_on": True}, {"north": FAILED_AGAIN})
    # A rehearsal outlives every failure.
    once = {"site": "north", "again": False}
    assert failure(once, quorum=0) == ({"goes_on": True}, {"north": FAILED_ONCE})


@pytest.mark.parametrize(
    ("is_again", "job"), [(False, {}), (True, {"there": ("east", "north")}), (True, {"left": ("south",)})]
)
def test_first_failure_or_missing_quorum_ends_the_job(failure, is_again, job):
    answer, left = failure({"site": "north", "again": is_again}, **job)
    assert answer == {"goes_on": False} and "north" not in left


@pytest.mark.parametrize("data", [None, {}, {"site": ["north"], "again": True}])
def test_no_word_of_another_form_is_a_sites_failure(failure, data):
    assert failure(data) == ({}, {})


def test_server_logs_each_round_and_strangers_once(play, tmp_path):
    game, logged, warned, said = play(("east",), rounds=2), [], [], "site 'west' is connected and gets no task"
    controller = controller_of()
    controller._strangers = [said]
    controller._ask, controller.info, controller.warning = game.ask, logged.append, warned.append
    controller._tracking = SimpleNamespace(send=lambda ledger, engine: None)
    controller._course(game.server, RunFolder(tmp_path / "run", game.study)).run()
    assert [line.split()[:2] for line in logged] == [["round", "1/2"], ["round", "2/2"]]
    assert "validation dice" in logged[1]
    assert [record.notes.count(said) for record in game.server.ledger] == [1, 0] and warned.count(said) == 1


def test_unreadable_study_is_the_jobs_reason(monkeypatch):
    monkeypatch.setattr(module, "read_job_study", unreadable)
    assert panics_of(controller_of()) == ["server.yaml: run_dir must be a text, not 3"]
