"""The INSTALL.md of a person, followed literally on a network on this machine."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioning.__main__ import main
from provisioning.network import Network
from provisioning.workspace import PROJECT, REPOSITORY
from silofl_desk.phantoms.phantoms import make_phantoms
from tests.provisioning.conftest import set_floor
from tests.provisioning.test_install import WORD, steps
from tests.provisioning.test_network import LIMIT_S, SITES, small_job

pytestmark = [pytest.mark.long, pytest.mark.slow]
PLACE, STATUS, ROLE, CONSOLE, RENEWAL = 1, 3, 4, 5, 6


@pytest.fixture(scope="module")
def network(tmp_path_factory, wheel, free_port):
    """A network as make-kits makes it."""
    root = tmp_path_factory.mktemp("people")
    data = make_phantoms(root / "data", seed=7, patients=dict.fromkeys(SITES, 10))
    given = ("--wheel", str(wheel), "--host", "localhost", "--port", str(free_port()), "--data-root", str(data))
    assert main(["make-kits", str(PROJECT), str(root / "workspace"), *given]) == 0
    with Network(root / "workspace" / "silofl", root / "logs") as started:
        for kit in started.hospitals:
            set_floor(kit, 2)
        yield started


@pytest.fixture
def follow(network, tmp_path):
    """Return what carries out the commands of a step of a person's INSTALL.md, and returns what they print."""

    def carry_out(person, step, given="", index=slice(None), **words):
        folder = network.find_kit(person).folder
        page = steps((folder / "INSTALL.md").read_text())
        words = {"FOLDER": str(folder), "SOFTWARE": sys.prefix, "RESULTS": str(tmp_path / "results"), **words}
        begin = page[STATUS][0].splitlines(keepends=True)[0]
        lines = begin + "".join("".join(page[step]).splitlines(keepends=True)[index])
        script = re.sub(WORD, lambda word: words.get(word[0], word[0]), lines)
        # What this machine has in its own place, a hospital's has in /opt/silofl.
        environment = os.environ | {"PATH": f"{REPOSITORY / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        shell = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            shell, input=given, capture_output=True, text=True, timeout=LIMIT_S, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return carry_out


def wait_until_ended(network, name):
    deadline = time.monotonic() + LIMIT_S
    while network._running[name].poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_lead_runs_and_follows_a_study(network, follow, tmp_path):
    kit = network.find_kit("lead")
    root, sums = follow("lead", PLACE).splitlines()
    page = (kit.folder / "INSTALL.md").read_text()
    assert root.partition("=")[2] in page and sums.split()[0] in page
    assert all(site in follow("lead", STATUS) for site in SITES)
    job = small_job(tmp_path / "small", "fedavg_phantoms", rounds=1)
    assert "nothing would have failed at east, north, south" in follow("lead", ROLE, index=slice(1), JOB=str(job))
    follow("lead", ROLE, index=slice(1, 2), JOB=str(job))
    assert (tmp_path / "results" / "report.html").is_file()
    with network.session() as session:
        number = session.submit_job(str(job))
    assert "east" in follow("lead", ROLE, index=slice(2, 3), ID=number)
    assert "fedavg_phantoms" in follow("lead", CONSOLE, given=f"{kit.name}\nlist_jobs\nbye\n")
    renewed = Path(shutil.copy(kit.certificate_path, tmp_path / "renewed.crt"))
    kit.certificate_path.unlink()
    follow("lead", RENEWAL, NEW_CERTIFICATE=str(renewed))
    assert kit.certificate_path.read_bytes() == renewed.read_bytes()


def test_an_administrator_stops_only_the_own_site(network, follow):
    person = "it@north.example.org"
    assert "north" in follow(person, STATUS)
    follow(person, ROLE, SITE="north")
    wait_until_ended(network, "north")
    assert "south" in follow("project_admin", STATUS)
    follow("project_admin", ROLE)
    for name in ("south", "server"):
        wait_until_ended(network, name)
