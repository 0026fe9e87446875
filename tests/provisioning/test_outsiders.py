"""What strangers without a certificate do to a server that runs, over TLS."""

import contextlib
import socket
import time

import pytest

from provisioning.fill_kits import Contents, fill_kit
from provisioning.make_kits import make_kits, make_project
from provisioning.network import start_command
from provisioning.workspace import PROJECT, find_kits, kits_folder
from silofl.flare.job_loop import HEALTH
from silofl_desk.studies.runs.processes import ProcessTree

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]
# Files that the server's process may open: idle, with one hospital, it has some 40.
MOST_FILES = 120


def until(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def server(tmp_path, free_port, wheel):
    """Run a server that may open few files, with one hospital; returns its kit and what it prints."""
    project = make_kits(make_project(PROJECT, "localhost", free_port()), tmp_path / "workspace")
    kits = {kit.name: kit for kit in find_kits(kits_folder(project))}
    with contextlib.ExitStack() as running:
        for name in ("server", "north"):
            fill_kit(kits[name], Contents(wheel, data_root=tmp_path))
            limit = f'ulimit -n {MOST_FILES if name == "server" else 1024}; exec "$@"'
            command = ["bash", "-c", limit, "bash", *start_command(kits[name])]
            tree = ProcessTree(command, tmp_path / f"{name}.txt")
            running.callback(tree.end)
        yield kits["server"], tmp_path / "server.txt"


def test_outsiders_delay_jobs_no_longer_than_they_connect(server):
    kit, printed = server
    health = kit.folder / HEALTH
    until(health.exists)
    began = health.stat().st_mtime
    # Once a hospital is connected, jobs are looked for.
    until(lambda: health.stat().st_mtime > began)
    with contextlib.ExitStack() as strangers:
        # More than it can take; some wait in the queue of the system.
        for _ in range(MOST_FILES + 60):
            strangers.enter_context(socket.create_connection(("localhost", kit.address.port), 10))
        until(health.read_text)
        assert "jobs cannot be started: [Errno 24] Too many open files" in health.read_text()
    until(lambda: not health.read_text())
    # It is the process of before.
    assert printed.read_text().count("deployed FLARE Server") == 1
