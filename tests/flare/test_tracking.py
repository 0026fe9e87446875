"""A run's numbers as NVFlare's events: what TensorBoard, MLflow and Weights & Biases are given of them."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from nvflare.apis.analytix import AnalyticsData, AnalyticsDataType, LogWriterName
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import EventScope, FLContextKey, ProcessType, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

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
PATHS = {one["id"]: one["path"] for one in RECEIVERS}


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


@pytest.mark.parametrize("receiver", [LogWriterName.MLFLOW, LogWriterName.WANDB])
def test_other_receivers_take_a_number_as_a_metric_in_the_order_of_rounds(events, receiver):
    data = [AnalyticsData.from_dxo(from_shareable(event), receiver=receiver) for event in events]
    assert {one.data_type for one in data} == {AnalyticsDataType.METRIC}
    # Weights & Biases drops a step that is before the last one.
    assert [one.step for one in data] == sorted(one.step for one in data)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_guides_receivers_are_classes_of_nvflare_with_the_arguments_that_it_names(path):
    module, _, name = path.rpartition(".")
    # Read and not imported: their packages need not be installed.
    tree = ast.parse(Path(find_spec(module).origin).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    assert [base.id for base in found.bases] == ["AnalyticsReceiver"]
    (start,) = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    (given,) = [one["args"] for one in RECEIVERS if one["path"] == path]
    assert given.keys() <= {argument.arg for argument in start.args.args}


def test_weights_and_biases_takes_what_the_guide_gives_it(monkeypatch):
    path, (given,) = PATHS["wandb"], [one["args"] for one in RECEIVERS if one["id"] == "wandb"]
    # The package need not be installed: each site's own process, which alone calls it, does not start here.
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    module = import_module(path.rpartition(".")[0])
    monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setenv("WANDB_MODE", "")
    monkeypatch.setattr(module, "Queue", Queue)
    monkeypatch.setattr(module, "Process", lambda **options: SimpleNamespace(start=lambda: None))
    context = FLContext()
    engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name="east")])
    for key, value in ((ReservedKey.ENGINE, engine), (FLContextKey.PROCESS_TYPE, ProcessType.SERVER_JOB)):
        context.set_prop(key, value, private=True, sticky=False)
    receiver = module.WandBReceiver(**given)
    receiver.initialize(context)
    assert receiver.get_task_queue("east").get_nowait().task_data["project"] == "nuclei"


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_one_line_of_the_servers_allow_list_lets_a_receiver_in(tmp_path, path):
    resources = json.loads((ROOT / "site_configs" / "server" / "resources.json").read_text())
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    workspace, file = Workspace(str(tmp_path), "server"), tmp_path / "local" / "resources.json"

    def build():
        ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=workspace)

    file.write_text(json.dumps(resources))
    with pytest.raises(UnsafeComponentError, match="not in allow_list"):
        build()
    resources["class_allow_list"].append(path)
    file.write_text(json.dumps(resources))
    build()
    assert path in (ROOT / "site_configs" / "README.md").read_text()


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
