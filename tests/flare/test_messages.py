"""Commands at a hospital, by NVFlare's own agent, and messages at the server, as somebody with a kit forges them."""

from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ReservedTopic
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import (
    AUTH_CLIENT_NAME_FOR_SJ,
    CellMessageHeaderKeys,
    RequestHeader,
    SysCommandTopic,
    TrainingTopic,
)
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor
from nvflare.widgets.fed_event import FED_EVENT_TOPIC

from silofl.flare.messages import guard, is_for_jobs, restrict_commands

JOB = "b055da9b-09df-4cc3-9a66-94a5722acc6b"


@pytest.fixture
def kit(tmp_path):
    for name in ("startup", "local", JOB):
        (tmp_path / "kit" / name).mkdir(parents=True)
    return tmp_path / "kit"


@pytest.fixture
def ask(kit, monkeypatch):
    """Let a hospital's agent carry out a message that claims no person and asks for no rights."""
    known = [ShellCommandProcessor(), DeleteRunNumberProcessor()]
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", known)
    AuditService.initialize(str(kit / "audit.log"))
    engine = ClientEngine.__new__(ClientEngine)
    engine.args = SimpleNamespace(workspace=str(kit))

    class Context:
        __enter__, __exit__ = lambda self: self, lambda self, *reason: None

    engine.new_context = Context

    def send(topic, body="", **headers):
        agent = FedAdminAgent("agent", SimpleNamespace(register_request_cb=lambda **named: None), engine)
        for processor in ClientRequestProcessors.request_processors:
            agent.register_processor(processor)
        message = Message(topic, body)
        message.set_headers(headers)
        return agent._dispatch_request(CellMessage({}, message)).payload.body

    return send


def test_nvflare_itself_shows_whoever_asks_any_file_and_deletes_any_folder_of_the_kit(ask, kit, tmp_path):
    # Once this fails, NVFlare has mended it.
    (tmp_path / "dataset.json").write_text("DOE^JANE")
    assert ask(SysCommandTopic.SHELL, f"cat {tmp_path}/dataset.json") == "DOE^JANE"
    ask(TrainingTopic.DELETE_RUN, **{RequestHeader.JOB_ID: "local"})
    assert not (kit / "local").exists()


def test_no_file_is_shown(ask, tmp_path):
    restrict_commands()
    (tmp_path / "dataset.json").write_text("DOE^JANE")
    assert ask(SysCommandTopic.SHELL, f"cat {tmp_path}/dataset.json") == "invalid_request"


@pytest.mark.parametrize("name", ["local", "startup", "", None, 7, f"{JOB}/../local"])
def test_no_folder_but_a_jobs_is_deleted(ask, kit, name):
    restrict_commands()
    ask(TrainingTopic.DELETE_RUN, **{RequestHeader.JOB_ID: name})
    assert sorted(path.name for path in kit.iterdir() if path.is_dir()) == sorted(["startup", "local", JOB])


def test_a_jobs_folder_is_deleted(ask, kit):
    restrict_commands()
    restrict_commands()
    ask(TrainingTopic.DELETE_RUN, **{RequestHeader.JOB_ID: JOB})
    assert not (kit / JOB).exists() and (kit / "local").exists()


def message(destination, channel, topic="x", sender="north", **headers):
    names = {MessageHeaderKey.DESTINATION: destination, MessageHeaderKey.CHANNEL: channel}
    names |= {MessageHeaderKey.TOPIC: topic, MessageHeaderKey.ORIGIN: sender, CellMessageHeaderKeys.CLIENT_NAME: sender}
    return CellMessage(names | headers)


def streamed(destination, channel, topic, **options):
    headers = {StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic}
    return message(destination, STREAM_CHANNEL, STREAM_DATA_TOPIC, **options, **headers)


@pytest.mark.parametrize(
    "known",
    [
        message("server", CellChannel.SERVER_MAIN, "heart_beat"),
        message("server", CellChannel.HCI, sender="lead@study.example.org"),
        message(f"server.{JOB}", CellChannel.SERVER_COMMAND, "get_task"),
        streamed(f"server.{JOB}", CellChannel.SERVER_COMMAND, "submit_update"),
        message(f"server.{JOB}", STREAM_CHANNEL, "SM__ACK"),
        message(f"server.{JOB}", CellChannel.AUX_COMMUNICATION, ReservedTopic.JOB_HEART_BEAT),
        streamed(f"server.{JOB}", CellChannel.AUX_COMMUNICATION, ReservedTopic.TASK_CHECK),
        message("server", CellChannel.SERVER_PARENT_LISTENER, "heartbeat", sender=AUTH_CLIENT_NAME_FOR_SJ),
        message(f"north.{JOB}", CellChannel.AUX_COMMUNICATION, sender=AUTH_CLIENT_NAME_FOR_SJ),
    ],
)
def test_a_server_handles_what_jobs_need(known):
    assert is_for_jobs(known)


@pytest.mark.parametrize(
    "forged",
    [
        message("north", CellChannel.CLIENT_MAIN, SysCommandTopic.SHELL, sender="guest@example.org"),
        message(f"north.{JOB}", CellChannel.CLIENT_COMMAND, "abort", sender="east"),
        message("north", CellChannel.CLIENT_MAIN, **{MessageHeaderKey.ORIGIN: "server"}),
        message("serverless", CellChannel.CLIENT_MAIN),
        streamed("north", CellChannel.AUX_COMMUNICATION, "x", sender="east"),
        message(f"server.{JOB}", CellChannel.SERVER_COMMAND, "app_command"),
        streamed(f"server.{JOB}", CellChannel.SERVER_COMMAND, "app_command"),
        message(f"server.{JOB}", CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC),
        streamed(f"server.{JOB}", CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC),
        message("server", CellChannel.SERVER_PARENT_LISTENER, "get_clients"),
        message("server", CellChannel.SERVER_PARENT_LISTENER, "update_run_status"),
        streamed("server", CellChannel.SERVER_PARENT_LISTENER, "update_run_status"),
        message("server", "_net_manager", "stop"),
        streamed("server", "_net_manager", "stop"),
    ],
)
def test_a_server_passes_no_commands_on(forged):
    assert not is_for_jobs(forged)


def test_the_servers_cell_refuses_and_says_so(caplog):
    filters = []
    core = SimpleNamespace(add_incoming_filter=lambda channel, topic, cb: filters.append((channel, topic, cb)))
    guard(SimpleNamespace(core_cell=core))
    ((channel, topic, check),) = filters
    assert (channel, topic) == ("*", "*") and check(message(FQCN.ROOT_SERVER, CellChannel.SERVER_MAIN)) is None
    assert check(message("east", CellChannel.CLIENT_MAIN)) is not None
    assert "from 'north' to 'east'" in caplog.text
