"""Messages at a relay, as a site behind it forges them."""

import logging
import sys

import pytest
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CellAgent, CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessagePropKey, MessageType
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager
from nvflare.private.fed.app.relay import relay as nvflares

from silofl.flare import relay
from silofl.flare.relay import GuardedCell, may_pass

JOB = "b055da9b-09df-4cc3-9a66-94a5722acc6b"


def message(line, origin, destination, channel=CellChannel.CLIENT_MAIN, topic="x"):
    """Return a message that comes on the line of a cell."""
    names = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.DESTINATION: destination}
    made = Message(names | {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic})
    made.set_prop(MessagePropKey.ENDPOINT, Endpoint(line))
    return made


@pytest.mark.parametrize(
    "known",
    [
        message("hub.north", "hub.north", "server"),
        message("hub.north", f"hub.north.{JOB}", f"server.{JOB}"),
        message("hub.north", "hub.north", "hub", CellChannel.CELLNET, "bye"),
        message("server", "server", "hub.north"),
        message("server", f"server.{JOB}", f"hub.north.{JOB}"),
        message("server", "server", "hub", "_net_manager", "stop"),
    ],
)
def test_a_relay_passes_what_server_and_sites_say_to_one_another(known):
    assert may_pass(known, "hub")


@pytest.mark.parametrize(
    "forged",
    [
        message("hub.north", "hub.north", "hub.south"),
        message("hub.north", f"hub.north.{JOB}", f"hub.south.{JOB}"),
        message("hub.north", "hub.north", "east"),
        message("hub.north", "hub.north", f"hub.north.{JOB}"),
        # In another's name, to whomever.
        message("hub.north", "server", "hub.south"),
        message("hub.north", "hub.south", "server"),
        message("hub.north", "hub.northern", "server"),
        message("hub.north", "hub", "server"),
        message("serverless", "serverless", "hub.south"),
        # Commands to the relay itself.
        message("hub.north", "hub.north", "hub", "_net_manager", "stop"),
        message("hub.north", "hub.north", "hub", CellChannel.CELLNET, "bulk"),
        message("hub.north", "hub.south", "hub", CellChannel.CELLNET, "bye"),
        message("hub.north", "hub.north", "serverless"),
    ],
)
def test_a_relay_passes_nothing_from_one_site_to_another(forged):
    assert not may_pass(forged, "hub")


@pytest.fixture
def passed_on(monkeypatch):
    """Let a relay's cell take a message that comes on a line, and return to whom it is sent."""

    def deliver(kind, origin, destination="hub.south", line="hub.north"):
        # NVFlare keeps each cell and its numbers by its name, for as long as the process lives.
        CoreCell.ALL_CELLS.clear()
        monkeypatch.setattr(StatsPoolManager, "pools", {})
        sent = []
        cell = kind("hub", "tcp://localhost:1", False, {}).core_cell
        monkeypatch.setattr(cell, "_send_to_endpoint", lambda to_endpoint, message: sent.append(to_endpoint.name))
        for name in ("server", "hub.south"):
            cell.agents[name] = CellAgent(name, Endpoint(name))
        forged = message(line, origin, destination)
        forged.set_header(MessageHeaderKey.MSG_TYPE, MessageType.REQ)
        cell.process_message(Endpoint(line) if line else None, None, CoreCell.APP_ID, forged)
        return sent

    yield deliver
    CoreCell.ALL_CELLS.clear()


@pytest.mark.parametrize("origin", ["hub.north", "server"])
def test_the_guarded_relay_refuses_what_nvflares_passes_on_and_says_so(passed_on, caplog, origin):
    # Once this fails, NVFlare has mended it.
    assert passed_on(Cell, origin) == ["hub.south"]
    assert passed_on(GuardedCell, origin) == []
    said = f"a message of 'hub.north' was refused: channel 'admin', topic 'x', from '{origin}' to 'hub.south'"
    assert (relay.__name__, logging.WARNING, said) in caplog.record_tuples


def test_the_guarded_relay_passes_on_what_has_a_name(passed_on):
    assert passed_on(GuardedCell, "hub.north", "server") == ["server"]
    assert passed_on(GuardedCell, "hub.north", "server", line="") == []


def test_nvflares_relay_is_run_on_a_guarded_cell(monkeypatch, tmp_path):
    monkeypatch.setattr(nvflares, "Cell", nvflares.Cell)
    monkeypatch.setattr(sys, "argv", ["relay", "-m", str(tmp_path), "-s", "fed_relay.json"])
    run = []
    monkeypatch.setattr(relay.MainProcessMonitor, "run", lambda main_func, run_dir, args: run.append(main_func) or 7)
    assert relay.main() == 7
    assert run == [nvflares.main] and nvflares.Cell is GuardedCell
