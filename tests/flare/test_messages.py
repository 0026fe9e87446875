"""Commands at a hospital, by NVFlare's own agent, and messages at the server, as somebody with a kit forges them."""

import io
import threading
import zipfile
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ReservedTopic
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessagePropKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import encode_payload
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.stats_pool import StatsPoolManager
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
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor, DeployProcessor
from nvflare.private.fed.server import job_cmds
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.privacy_manager import PrivacyService
from nvflare.widgets.fed_event import FED_EVENT_TOPIC

from silofl.flare import messages
from silofl.flare.messages import guard_messages, is_for_jobs, restrict_commands

JOB, RUNNING = "b055da9b-09df-4cc3-9a66-94a5722acc6b", "0c9d3e0e-4d5b-4b53-8f4e-9b6c2a1f7d88"


@pytest.fixture
def kit(tmp_path):
    for name in ("startup", "local", JOB):
        (tmp_path / "kit" / name).mkdir(parents=True)
    return tmp_path / "kit"


@pytest.fixture
def ask(kit, monkeypatch):
    """Let a hospital's agent carry out a message that claims no person and asks for no rights."""
    known = [ShellCommandProcessor(), DeleteRunNumberProcessor(), DeployProcessor()]
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", known)
    AuditService.initialize(str(kit / "audit.log"))
    engine = ClientEngine.__new__(ClientEngine)
    engine.args = SimpleNamespace(workspace=str(kit))
    engine.client = SimpleNamespace(client_name="north", components={})
    engine.client_executor = SimpleNamespace(get_run_processes_keys=lambda: [RUNNING])
    # What a job may bring and who may send it is another question.
    monkeypatch.setattr(AppAuthzService, "app_validator", None)
    monkeypatch.setattr(PrivacyService, "is_scope_allowed", lambda scope: True)

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


def test_no_file_is_shown_though_nvflare_would(ask, kit, tmp_path):
    # Once this fails, NVFlare has mended it.
    (tmp_path / "dataset.json").write_text("DOE^JANE")
    assert ask(SysCommandTopic.SHELL, f"cat {tmp_path}/dataset.json") == "DOE^JANE"
    ask(TrainingTopic.DELETE_RUN, **{RequestHeader.JOB_ID: "local"})
    assert not (kit / "local").exists()
    restrict_commands()
    assert ask(SysCommandTopic.SHELL, f"cat {tmp_path}/dataset.json") == "invalid_request"


@pytest.mark.parametrize("name", ["local", "", None, 7, f"{JOB}/../local"])
def test_no_folder_but_a_jobs_is_deleted(ask, kit, name):
    restrict_commands()
    restrict_commands()
    ask(TrainingTopic.DELETE_RUN, **{RequestHeader.JOB_ID: name})
    assert folders(kit) == {"startup", "local", JOB}
    ask(TrainingTopic.DELETE_RUN, **{RequestHeader.JOB_ID: JOB})
    assert folders(kit) == {"startup", "local"}


def folders(kit):
    return {path.name for path in kit.iterdir() if path.is_dir()}


def packed(size=2, count=1):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(count):
            archive.writestr(f"config/{number}.pt", b"\0" * size)
    return content.getvalue()


def deploy(ask, name, app):
    return ask(TrainingTopic.DEPLOY, app, **{RequestHeader.JOB_ID: name, RequestHeader.JOB_META: {"job_id": name}})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "no job is named by its id; nothing was deployed") for name in ("local", "transfer", "", None, 7)),
        (RUNNING, "the job runs already; nothing was deployed"),
    ],
)
def test_only_idle_jobs_folders_are_replaced(ask, kit, name, reason):
    restrict_commands()
    assert deploy(ask, name, packed()) == reason
    assert folders(kit) == {"startup", "local", JOB} and not any((kit / "local").iterdir())
    # A job of the server comes to its folder.
    assert deploy(ask, JOB, packed()) == "deployed None to north"
    assert (kit / JOB / "app_north" / "config" / "0.pt").read_bytes() == b"\0\0"


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        (packed(size=2**23), "a job must have at most 0 GiB unpacked, not 0.0; nothing was unpacked"),
        (packed(size=2**20, count=3), "a job must have at most 0 GiB unpacked, not 0.0; nothing was unpacked"),
        (packed(count=5), "a job must have at most 4 files, not 5; nothing was unpacked"),
        (b"no archive", "failed to stage app None"),
        ("a text", "failed to stage app None"),
    ],
)
def test_a_small_archive_does_not_fill_the_disk(ask, kit, monkeypatch, app, reason):
    restrict_commands()
    monkeypatch.setattr(messages, "MOST_BYTES", 2**21)
    monkeypatch.setattr(messages, "MOST_FILES", 4)
    # Of the first, 8 KiB come.
    assert len(app) < 10_000 and deploy(ask, JOB, app) == reason
    assert not any((kit / JOB).iterdir())


def test_lying_archive_is_unpacked_no_further(ask, kit, monkeypatch):
    restrict_commands()
    size = 2**20
    app = packed(size=size).replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    assert deploy(ask, JOB, app) == "failed to stage app None" and not any((kit / JOB).iterdir())


@pytest.fixture
def guarded(monkeypatch):
    """Let a server guard its messages, for as long as the test takes."""
    monkeypatch.setattr(job_cmds, "JobMetaValidator", job_cmds.JobMetaValidator)
    guard_messages(SimpleNamespace(core_cell=SimpleNamespace(add_incoming_filter=lambda **named: None)))


def test_small_archive_does_not_fill_the_disk(guarded, tmp_path, monkeypatch):
    path, validator = tmp_path / "job.zip", job_cmds.JobMetaValidator()
    path.write_bytes(packed(size=2**23))
    # It has no meta.json, which NVFlare finds before anything is unpacked.
    assert "size" not in validator.validate("job", str(path))[1]
    monkeypatch.setattr(messages, "MOST_BYTES", 2**21)
    reason = "a job must have at most 0 GiB unpacked, not 0.0; nothing was unpacked"
    assert validator.validate("job", str(path)) == (False, reason, {})
    path.write_text("no archive")
    with pytest.raises(zipfile.BadZipFile):
        validator.validate("job", str(path))


def message(destination, channel, topic="x", sender="north", line=None, **headers):
    """Return a message that comes by the line of another cell, the sender's by default."""
    names = {MessageHeaderKey.DESTINATION: destination, MessageHeaderKey.CHANNEL: channel}
    names |= {MessageHeaderKey.TOPIC: topic, MessageHeaderKey.ORIGIN: sender, CellMessageHeaderKeys.CLIENT_NAME: sender}
    made = CellMessage(names | headers)
    made.set_prop(MessagePropKey.ENDPOINT, Endpoint(line or sender))
    return made


def of_job(destination, channel, topic="x", **options):
    return message(destination, channel, topic, sender=AUTH_CLIENT_NAME_FOR_SJ, **options)


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
        message("server", CellChannel.CELLNET, "bye"),
        of_job("server", CellChannel.SERVER_PARENT_LISTENER, "heartbeat", line=f"server.{JOB}"),
        of_job(f"north.{JOB}", CellChannel.AUX_COMMUNICATION, line=f"server.{JOB}"),
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
        message("server", CellChannel.SERVER_PARENT_LISTENER, "update_run_status"),
        streamed("server", CellChannel.SERVER_PARENT_LISTENER, "update_run_status"),
        message("server", "_net_manager", "stop"),
        message("server", CellChannel.CELLNET, "bulk"),
        # Each site of a job gets the words by which the job's process shows who it is.
        of_job("south", CellChannel.CLIENT_MAIN, SysCommandTopic.SHELL, line="north"),
        of_job("server", CellChannel.SERVER_PARENT_LISTENER, "update_run_status", line=f"north.{JOB}"),
        message("south", CellChannel.CLIENT_MAIN, line=f"server.{JOB}"),
    ],
)
def test_a_server_passes_no_commands_on(forged):
    assert not is_for_jobs(forged)


@pytest.fixture
def core(monkeypatch):
    """A server's cell that listens nowhere."""
    # NVFlare keeps numbers of each cell by its name, for as long as the process lives.
    monkeypatch.setattr(StatsPoolManager, "pools", {})
    flare_decomposers.register()
    cell = CoreCell(FQCN.ROOT_SERVER, "tcp://localhost:1", False, {}, bulk_process_interval=0.01)
    yield cell
    cell.asked_to_stop = True
    CoreCell.ALL_CELLS.clear()


@pytest.mark.parametrize("compares_with_baseline", [False, True])
def test_a_message_that_carries_others_ends_no_server(guarded, core, compares_with_baseline):
    """NVFlare asks whose the outer message is, and what it is for, and then carries out those in it."""
    carried_out = threading.Event()
    core.register_request_cb("_net_manager", "stop", lambda request: carried_out.set())
    if compares_with_baseline:
        guard_messages(SimpleNamespace(core_cell=core))
    inner = {"target": "server", "channel": "_net_manager", "topic": "stop", "message": {"headers": {}}}
    outer = message("server", CellChannel.CELLNET, "bulk", **{MessageHeaderKey.MSG_TYPE: MessageType.REQ})
    outer.payload = [inner]
    encode_payload(outer, fobs_ctx={})
    core.process_message(Endpoint("north"), None, CoreCell.APP_ID, outer)
    # The first, NVFlare's own, shows that it would have come within this time.
    assert carried_out.wait(0.5 if compares_with_baseline else 5) is not compares_with_baseline


def test_the_servers_cell_refuses_and_says_so(guarded, caplog):
    filters = []
    core = SimpleNamespace(add_incoming_filter=lambda channel, topic, cb: filters.append((channel, topic, cb)))
    guard_messages(SimpleNamespace(core_cell=core))
    ((channel, topic, check),) = filters
    assert (channel, topic) == ("*", "*") and check(message(FQCN.ROOT_SERVER, CellChannel.SERVER_MAIN)) is None
    assert check(message("east", CellChannel.CLIENT_MAIN)) is not None
    assert "from 'north' to 'east'" in caplog.text
