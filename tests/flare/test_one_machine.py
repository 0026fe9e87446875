"""Who may connect under a name, by handshakes with NVFlare's own manager of connections."""

import asyncio
import contextlib
import itertools
import threading
import time
from types import SimpleNamespace

import msgpack
import pytest
from aiohttp import ClientSession, WSMsgType, WSServerHandshakeError
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN

from silofl.flare import blocked
from silofl.flare import one_machine as module
from silofl.flare.one_machine import ANSWER, ASK, BLOCKED, HEARD_S, PLACE, PROCESS, REFUSED, OneMachine

HERE, THERE = "10.0.0.5", "10.0.0.9"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server whose clock is set, and on which machines connect."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "CLOSE_S", 0.0)
    state, numbers = SimpleNamespace(now=1000.0), itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: state.now))
    manager = OneMachine(Endpoint("server", {"fqcn": "server"}))

    def connect(process, place, address=HERE, name="north", owner="north", **more):
        """Return what the server answers beyond NVFlare's own handshake, and the line."""
        said = []
        conn = SimpleNamespace(
            name=f"CN{next(numbers)}",
            connector=SimpleNamespace(mode=Mode.PASSIVE, params={}),
            get_conn_properties=lambda: {"peer_addr": f"{address}:4711", "peer_cn": owner},
            send_frame=lambda frame: said.append(msgpack.unpackb(frame[PREFIX_LEN:])),
            register_frame_receiver=lambda receiver: None,
            close=lambda: said.append("closed"),
        )
        manager.handle_new_connection(conn)
        line = manager.sfm_conns[conn.name]
        line.last_activity = state.now
        manager.update_endpoint(line, {"endpoint_name": name, PROCESS: process, PLACE: place} | more)
        return said, line

    state.connect, state.manager = connect, manager
    state.holder = lambda name="north": manager.sfm_endpoints[name].connections[0]
    yield state
    manager.conn_mgr_executor.shutdown()
    manager.frame_mgr_executor.shutdown()


def test_second_machine_is_refused_with_the_firsts_address(server):
    said, first = server.connect("p1", "clinic")
    assert said == []
    said, _ = server.connect("p2", "desk", THERE)
    assert said[0] == {"endpoint_name": "server", REFUSED: HERE} and server.holder() is first
    deadline = time.monotonic() + 5
    while said[-1] != "closed" and time.monotonic() < deadline:
        pass
    assert said[-1] == "closed"


def test_blocked_certificate_is_told_and_half_list_not(server, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(blocked, "FRESH_S", 0.0)
    monkeypatch.setattr(ConnManager, "process_frame_task", lambda manager, line, frame: taken.append(frame))
    said, line = server.connect("p1", "clinic")
    line.conn.websocket = SimpleNamespace(get_extra_info=lambda key: {"serialNumber": "0AB"})
    path = tmp_path / blocked.FILE
    path.parent.mkdir()
    for number, text in enumerate(("{}", '{"AB', "{}")):
        path.write_text(text)
        server.manager.process_frame_task(line, number)
    assert taken == [0, 2] and said == []
    path.write_text('{"AB": "north"}')
    for number in (3, 4):
        server.manager.process_frame_task(line, number)
    assert taken == [0, 2] and said.count({"endpoint_name": "server", BLOCKED: "north"}) == 1


@pytest.mark.parametrize(
    ("is_closed", "seconds", "who", "is_refused"),
    [
        # Cut off, and back before the server has noticed.
        (False, 1, ("p1", "clinic"), False),
        # Ended and started again.
        (True, 1, ("p2", "clinic"), False),
        # Without power: the server still has the line of before.
        (False, HEARD_S - 1, ("p2", "clinic"), True),
        (False, HEARD_S + 1, ("p2", "clinic"), False),
        # A copy elsewhere, while the true one is cut off.
        (True, HEARD_S - 1, ("p2", "desk"), True),
        (True, HEARD_S + 1, ("p2", "desk"), False),
        # With software that does not say who it is.
        (False, 1, (None, None), True),
    ],
)
def test_crashed_site_waits_no_longer_than_heartbeats(server, is_closed, seconds, who, is_refused):
    _, line = server.connect("p1", "clinic")
    if is_closed:
        server.manager.close_connection(line.conn)
    server.now += seconds
    said, again = server.connect(*who)
    assert bool(said) is is_refused
    if not is_refused:
        assert server.holder() is again


def test_other_names_are_left_to_nvflare(server):
    for name, owner in (("north.job-1", "north"), ("north", None), ("north", "east")):
        server.connect("p1", "clinic", name=name, owner=owner)
        said, line = server.connect("p2", "desk", name=name, owner=owner)
        assert said == [] and server.holder(name) is line


def test_site_learns_own_machines_and_person_all(server):
    server.connect("p1", "clinic")
    server.connect("p3", "ward", name="east", owner="east")
    server.connect("p2", "desk", THERE)
    server.now += 30
    known = {"first": HERE, "is_here": False, "second": THERE, "seconds": 30.0}
    nobody = {"first": HERE, "is_here": False, "second": None}
    for owner, place, found in (
        ("north", "desk", {"north": known}),
        ("north", "clinic", {"north": known | {"is_here": True}}),
        ("lead@study.example.org", "office", {"north": known, "east": nobody}),
        ("west", "x", {}),
    ):
        said, _ = server.connect("q", place, name=f"{owner}.ask", owner=owner, **{ASK: True})
        answer = said[0][ANSWER]
        assert answer.keys() == found.keys() and all(one.items() >= found[site].items() for site, one in answer.items())
    assert {*server.manager.sfm_endpoints} == {"north", "east"}


def test_a_refused_process_says_one_sentence_and_ends(monkeypatch, caplog):
    codes = []
    monkeypatch.setattr(module.os, "_exit", codes.append)
    module.end_refused("north", HERE)
    assert codes == [1]
    assert "north runs on another machine too: the server hears it from 10.0.0.5" in caplog.messages[0]


def test_no_client_ends_the_server_by_a_refusal(server, monkeypatch):
    monkeypatch.setattr(module.os, "_exit", lambda code: pytest.fail("the server ended"))
    assert server.connect("p1", "clinic", **{REFUSED: HERE})[0] == []


@pytest.fixture
def send_message(monkeypatch, tmp_path, free_port):
    """Return a function that sends a message to a listening server, as an answer: bytes that it took, or None."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(communicator, "ConnManager", ConnManager)
    monkeypatch.setattr(aio_http_driver, "AioHttpDriver", aio_http_driver.AioHttpDriver)
    module.refuse_second_machines()
    driver, port, taken = aio_http_driver.AioHttpDriver(), free_port(), []

    def open_line(conn):
        conn.register_frame_receiver(SimpleNamespace(process_frame=lambda frame: taken.append(len(frame))))

    monkeypatch.setattr(driver, "add_connection", open_line)
    monkeypatch.setattr(driver, "close_connection", lambda conn: None)
    connector = ConnectorInfo(
        "one", driver, {"host": "127.0.0.1", "port": port}, Mode.PASSIVE, 0, 0, False, threading.Event()
    )
    listening = threading.Thread(target=driver.listen, args=(connector,), daemon=True)
    listening.start()
    until(lambda: driver.site is not None and driver.site._server is not None)

    async def send(size):
        url = f"http://127.0.0.1:{port}/{aio_http_driver.WS_PATH}"
        async with ClientSession() as session, session.ws_connect(url, compress=15) as line:
            assert line.compress == 0
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(3):
                    await line.send_bytes(bytes(size))
                    assert (await line.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR)

    def send_one(size):
        taken.clear()
        asyncio.run(send(size))
        return sum(taken) or None

    yield send_one
    driver.shutdown()
    listening.join(10)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_server_takes_no_compressed_or_very_long_message(send_message):
    # Zeros of 2.7 GiB are 2.7 MB once they are compressed.
    assert send_message(module.MOST_BYTES - 1) == module.MOST_BYTES - 1
    assert send_message(module.MOST_BYTES + 1) is None


def test_nobody_whose_certificate_is_blocked_has_a_long_message_read(send_message, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "find_serial", lambda line: "AB")
    monkeypatch.setattr(blocked, "FRESH_S", 0.0)
    path = tmp_path / blocked.FILE
    path.parent.mkdir()
    path.write_text('{"CD": "east"}')
    assert send_message(1 << 20) == 1 << 20
    path.write_text('{"AB": "north"}')
    # Its handshake is, so that it hears why.
    assert send_message(1000) == 1000 and send_message(1 << 20) is None
    path.write_text("{")
    with pytest.raises(WSServerHandshakeError, match="503"):
        send_message(1000)
