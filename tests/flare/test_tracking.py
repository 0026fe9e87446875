"""A run's numbers as NVFlare's events: what TensorBoard, MLflow and Weights & Biases are given of them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import EventScope, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext

from silofl.federation.ledger import Round
from silofl.flare.tracking import EVENT, Tracking
from tests.conftest import score

ROOT = Path(__file__).resolve().parents[2]
(EXAMPLE,) = [
    text
    for text in (ROOT / "docs" / "operations.md").read_text().split("```")[1::2]
    if text.startswith("json") and "id" in text
]
RECEIVERS = json.loads(EXAMPLE.removeprefix("json"))


class Engine:
    """An engine that keeps the events which it is told to fire."""

    def __init__(self):
        self.events = []

    def new_context(self):
        return FLContext()

    def fire_event(self, name, context):
        assert name == EVENT and context.get_prop(FLContextKey.EVENT_SCOPE) == EventScope.FEDERATION
        self.events.append(context.get_prop(FLContextKey.EVENT_DATA))


@pytest.fixture
def events():
    """The events of two rounds, sent after each of them and once more at the end."""
    engine, tracking = Engine(), Tracking()
    first, second = (Round(number, metrics={"east": {"loss": 0.5 / number}}) for number in (1, 2))
    tracking.send([first], engine)
    first.validation = {"east": score(0.25)}
    tracking.send([first, second], engine)
    second.validation = {"east": score(0.75)}
    tracking.send([first, second], engine)
    return engine.events


def test_each_number_is_sent_once_under_its_site_with_its_round(events):
    data = [AnalyticsData.from_dxo(from_shareable(event)) for event in events]
    assert [(one.tag, one.value, one.step) for one in data] == [
        ("loss", 0.5, 1),
        ("validation", 0.25, 1),
        ("loss", 0.25, 2),
        ("validation", 0.75, 2),
    ]
    assert {event.get_peer_prop(ReservedKey.IDENTITY_NAME, None) for event in events} == {"east"}


@pytest.fixture
def tracking_server(tmp_path, free_port):
    """The address of a real MLflow server on this machine."""
    pytest.importorskip("mlflow", reason="MLflow is not installed: make test-mlflow")
    port, store = free_port(), f"sqlite:///{tmp_path}/mlflow.db"
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(port)]
    with (tmp_path / "mlflow.log").open("w") as log:
        server = subprocess.Popen([*command, "--workers", "1"], stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while not is_healthy(address):
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "mlflow.log").read_text()
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def is_healthy(address):
    try:
        return urlopen(f"{address}/health").status == 200
    except URLError:
        return False


@pytest.mark.slow
def test_a_real_mlflow_server_has_the_ledgers_numbers(tmp_path, tracking_server):
    from mlflow.tracking import MlflowClient

    job, run = shutil.copytree(ROOT / "jobs" / "fedavg_phantoms", tmp_path / "job"), tmp_path / "run"
    file = job / "app" / "config" / "config_fed_server.json"
    (receiver,) = [one for one in RECEIVERS if one["id"] == "mlflow"]
    config, arguments = json.loads(file.read_text()), receiver["args"] | {"tracking_uri": tracking_server}
    file.write_text(json.dumps(config | {"components": [*config["components"], receiver | {"args": arguments}]}))
    command = [sys.executable, "-m", "silofl", "simulate", job, "--out", run]
    options = ["--rounds", "2", "--sites", "east,north", "--set", "guard=false", "--trust-code"]
    subprocess.run([*command, *options], check=True, cwd=tmp_path)
    client = MlflowClient(tracking_server)
    experiment = client.get_experiment_by_name(arguments["kw_args"]["experiment_name"])
    found = [one.info for one in client.search_runs([experiment.experiment_id])]
    assert sorted(one.run_name.partition("-")[0] for one in found) == ["east", "north"]
    ledger = json.loads((run / "ledger.json").read_text())
    for one in found:
        site = one.run_name.partition("-")[0]
        losses, validation = (client.get_metric_history(one.run_id, name) for name in ("loss", "validation"))
        assert [(m.step, m.value) for m in losses] == [(r["round"], r["metrics"][site]["loss"]) for r in ledger]
        values = [(r["round"], r["validation"][site]["value"]) for r in ledger]
        assert [(m.step, m.value) for m in validation] == values
