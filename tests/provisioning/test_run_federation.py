from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import NoConnection

from provisioning import network
from provisioning.__main__ import main
from provisioning.make_kits import make_kits, make_project
from provisioning.workspace import PROJECT
from silofl.base.errors import TrainingError
from silofl.base.files import hold_lock
from tests.provisioning.week import main as week


def test_an_earlier_network_is_not_written_over(tmp_path, capsys):
    (tmp_path / "out" / "kits").mkdir(parents=True)
    assert main(["run-federation", "--out", str(tmp_path / "out")]) == 2
    assert "--out must be a folder without an earlier network" in capsys.readouterr().err


@pytest.mark.parametrize("run", [lambda *options: main(["run-federation", *options]), lambda *options: week(options)])
def test_a_folder_where_no_kit_starts_is_refused(tmp_path, capsys, run):
    assert run("--out", str(tmp_path / "lauf 1")) == 2
    assert "the path of the kit must have no ' ', at which NVFlare's commands break" in capsys.readouterr().err
    assert not (tmp_path / "lauf 1").exists()


def test_data_of_another_network_are_refused_before_any_key(tmp_path, capsys):
    data = tmp_path / "data"
    (data / ".silofl").mkdir(parents=True)
    with hold_lock(data / ".silofl" / "network.lock"):
        assert main(["run-federation", "--out", str(tmp_path / "out"), "--data", str(data)]) == 2
    assert f"{data}/.silofl is in use" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def project(tmp_path, free_port):
    """A network whose server opens its port, and does nothing more."""
    port = free_port()
    folder = make_kits(make_project(PROJECT, "localhost", port), tmp_path / "kits")
    listen = f"python3 -c 'import socket, time; line = socket.create_server((\"localhost\", {port})); time.sleep(60)'"
    for kit in network.find_kits(folder):
        script = kit.folder / "startup" / "sub_start.sh"
        if script.exists():
            script.write_text(listen if kit.kind == "server" else "sleep 60")
    return folder


@pytest.mark.parametrize(
    "error", [NoConnection("cannot connect to server"), FLCommunicationError("failed to challenge")]
)
def test_a_server_that_answers_late_is_waited_for(project, tmp_path, monkeypatch, error):
    said = [error]

    @contextmanager
    def open_session(kit):
        if said:
            raise said.pop()
        sites = [SimpleNamespace(name=name) for name in ("east", "north", "south")]
        yield SimpleNamespace(
            get_system_info=lambda: SimpleNamespace(client_info=sites), shutdown=lambda *_, **__: said.append(error)
        )

    monkeypatch.setattr(network, "open_session", open_session)
    monkeypatch.setattr(network, "STOP_S", 0)
    with network.Network(project, tmp_path / "logs") as started:
        assert (started.connected(), said) == ({"east", "north", "south"}, [])
    assert said == [error]


def test_a_server_that_never_answers_blames_no_file(project, tmp_path, monkeypatch):
    def open_session(kit):
        raise NoConnection("cannot connect to server")

    monkeypatch.setattr(network, "open_session", open_session)
    monkeypatch.setattr(network, "START_S", 2)
    wanted = "it took more than 2 s while waiting for all hospitals to connect: see .*logs"
    with pytest.raises(TrainingError, match=wanted), network.Network(project, tmp_path / "logs"):
        pass
