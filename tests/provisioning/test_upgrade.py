"""An upgrade with a run in flight: this release goes on, with the same kits, with what 0.3.0 began."""

import io
import os
import subprocess
import sys
import tarfile

import pytest

from provisioning.workspace import REPOSITORY
from silofl_desk.phantoms.phantoms import make_phantoms
from tests.provisioning.week_events import HOSPITALS, check_status
from tests.provisioning.week_stage import Stage

# The last commit of 0.3.0.
OLDER = "ce0bd340"


@pytest.fixture
def older(tmp_path):
    """A clone of 0.3.0."""
    made = subprocess.run(["git", "archive", OLDER], cwd=REPOSITORY, capture_output=True)
    if made.returncode:
        pytest.skip("this clone's history lacks 0.3.0")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(tmp_path / "older", filter="data")
    return tmp_path / "older"


@pytest.mark.slow
def test_a_run_in_flight_goes_on_after_server_and_sites_were_upgraded(tmp_path, older, monkeypatch, free_port):
    with Stage(tmp_path / "network", free_port()) as stage:
        make_phantoms(stage.data, patients=dict.fromkeys(HOSPITALS, 10))
        job = stage.write_job("fedavg_phantoms", "upgraded", rounds=1000, guard=False)
        monkeypatch.setenv("PYTHONPATH", str(older / "custom"))
        where = ["--host", "localhost", "--port", stage.port, "--data-root", stage.data]
        make = [sys.executable, "-m", "provisioning", "make-kits", "provisioning/project.yml", stage.workspace, *where]
        subprocess.run([*map(str, make)], cwd=older, env=os.environ, check=True)
        stage.open_network()
        run = stage.begin("upgraded", job)
        run.wait_for_rounds(2)
        run.stop()
        monkeypatch.delenv("PYTHONPATH")
        stage.network.kill("server")
        before = list(run.ledger)
        stage.network.start(stage.network.server)
        for name in HOSPITALS:
            stage.restart(name)
        run = stage.go_on("upgraded", "--set", f"rounds={len(before) + 3}")
        run.finish()
        check_status(run)
        begun = [one.started_at for one in run.ledger]
        assert begun[: len(before)] == [one.started_at for one in before] and len(begun) == len(before) + 3
