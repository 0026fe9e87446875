"""Logs that sites stream to the server, by NVFlare's own streamer and job store, as a hospital would forge them."""

from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.shareable import Shareable
from nvflare.apis.streaming import StreamableEngine
from nvflare.app_common.logging.constants import LIVE_LOG_TOPIC, Channels
from nvflare.app_common.logging.site_log_streamer import SiteLogStreamer
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage
from nvflare.app_common.streamers.streamer_base import KEY_DATA, KEY_DATA_SIZE, KEY_EOF, KEY_FILE_NAME
from nvflare.private.aux_runner import AuxRunner
from nvflare.private.stream_runner import TOPIC_STREAM_REQUEST, HeaderKey, ObjectStreamer

from silofl.flare import site_logs
from silofl.flare.site_logs import FinishedLog, SiteLogs

JOB, OTHER = "b055da9b-09df-4cc3-9a66-94a5722acc6b", "0c9d3e0e-4d5b-4b53-8f4e-9b6c2a1f7d88"
PATH = "JobLogReceiver.recv_path"


class Engine(StreamableEngine):
    """A server's engine, as far as a stream of a log needs it; a job's own process has the job's sites alone."""

    stream_objects = shutdown_streamer = None

    def __init__(self, manager):
        self._manager, self.streamer = manager, None

    def get_component(self, name):
        return self._manager

    def get_clients(self):
        return [SimpleNamespace(name=name) for name in ("north", "lab")]

    def get_client_from_name(self, name):
        return SimpleNamespace(get_site_config=lambda: {"allow_log_streaming": name != "north"})

    def register_stream_processing(self, **named):
        self.streamer.register_stream_processing(**{key: one for key, one in named.items() if key != "fl_ctx"})


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The job store of a server with two jobs, and its own key beside it."""
    for job in (JOB, OTHER):
        (tmp_path / "jobs" / job).mkdir(parents=True)
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "server.key").write_text("secret")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    store = FilesystemStorage(root_dir=str(tmp_path), uri_root="/")
    monkeypatch.setattr(SimpleJobDefManager, "_get_job_store", lambda self, fl_ctx: store)
    return tmp_path / "jobs"


@pytest.fixture
def stream(store):
    """Stream pieces of a log to a receiver in a job's process, as the sender calls itself."""
    engine = Engine(SimpleJobDefManager(uri_root="/jobs"))
    aux = AuxRunner(engine)
    engine.streamer = ObjectStreamer(aux)

    def send(receiver, pieces=(b"an error",), client="lab", job=JOB, own=JOB, **said):
        context = FLContext()
        context.set_prop(ReservedKey.ENGINE, engine, private=True, sticky=False)
        context.set_prop(ReservedKey.RUN_NUM, own, private=False, sticky=True)
        context.set_prop(FLContextKey.EVENT_ID, "test", private=True, sticky=False)
        receiver._register(EventType.START_RUN, context)
        codes = []
        for number, piece in enumerate([*pieces, None]):
            request = Shareable()
            headers = {HeaderKey.TX_ID: "1", HeaderKey.TOPIC: LIVE_LOG_TOPIC, HeaderKey.SEQ: number}
            headers |= {HeaderKey.CHANNEL: Channels.LOG_STREAMING_CHANNEL}
            headers |= {HeaderKey.CTX: {KEY_FILE_NAME: "error_log.txt"} | said}
            for key, value in headers.items():
                request.set_header(key, value)
            request |= {KEY_DATA: piece, KEY_DATA_SIZE: len(piece or b""), KEY_EOF: piece is None}
            request.set_peer_props({ReservedKey.IDENTITY_NAME: client, ReservedKey.RUN_NUM: job})
            codes.append(aux.dispatch(TOPIC_STREAM_REQUEST, request, context).get_return_code())
        return codes

    return send


def kept(store):
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("said", [str, lambda path: [str(path)]])
def test_no_file_of_the_server_goes_into_a_job(stream, store, tmp_path, said):
    key = tmp_path / "kit" / "server.key"
    for pieces in ((), (b"an error",)):
        stream(SiteLogs(), pieces=pieces, **{PATH: said(key)})
    assert key.read_text() == "secret" and kept(store) == {f"{JOB}/ERRORLOG_lab": b"an error"}


@pytest.mark.parametrize(
    ("client", "job", "file"),
    [
        ("kit", "..", "server.key"),
        ("..", JOB, "log.txt"),
        ("lab", "..", "log.txt"),
        ("lab", None, "log.txt"),
        ("lab", OTHER, "log.txt"),
        ("east", JOB, "log.txt"),
        (7, JOB, "log.txt"),
        ("lab", JOB, "server.key"),
        ("lab", JOB, ["log.txt"]),
    ],
)
def test_log_of_unknown_site_job_or_name_is_nowhere(stream, store, tmp_path, client, job, file):
    before = sorted(tmp_path.rglob("*"))
    assert "OK" not in stream(SiteLogs(), client=client, job=job, **{KEY_FILE_NAME: file})
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "kit" / "server.key").read_text() == "secret"


def test_laboratorys_log_is_kept_and_hospitals_is_not(stream, store):
    stream(SiteLogs(), client="north")
    assert kept(store) == {}
    # To the job's own process, and to the server's lasting one, which has no job.
    for own, text in ((JOB, b"while it runs"), ("", b"after its end")):
        assert {*stream(SiteLogs(), pieces=(text[:5], text[5:]), own=own)} == {"OK"}
        assert kept(store) == {f"{JOB}/ERRORLOG_lab": text}


def test_a_log_without_end_is_cut_off_and_not_kept(stream, store, tmp_path, monkeypatch):
    monkeypatch.setattr(site_logs, "MOST_BYTES", 10)
    receiver = SiteLogs()
    assert stream(receiver, pieces=(b"12345678",) * 3)[:2] == ["OK", "EXECUTION_EXCEPTION"]
    assert kept(store) == {} and sum(path.stat().st_size for path in (tmp_path / "tmp").rglob("*.txt")) == 8
    assert not receiver._logs


def test_laboratorys_log_changes_no_signed_job():
    """NVFlare's own changes the configuration of the job; with nothing at hand it would fail."""
    FinishedLog("error_log.txt")._on_before_job_launch("", None)
    with pytest.raises(AttributeError):
        SiteLogStreamer("error_log.txt")._on_before_job_launch("", None)
