"""A server and two hospitals over mutual TLS: one process is killed or one network cut, and the run goes on."""

import json
import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import yaml

from provisioning.fill_kits import Contents, fill_kit
from provisioning.make_kits import make_kits, make_project
from provisioning.namespaces import Namespaces, are_possible
from provisioning.network import has_ended
from provisioning.workspace import PROJECT, find_kits, kits_folder
from silofl.federation.ledger import FILE
from silofl_desk.phantoms.phantoms import make_phantoms

from ..end_to_end.conftest import write_small_job
from ..provisioning.conftest import set_floor, wheel  # noqa: F401
from ..provisioning.machines import Machines
from ..provisioning.test_network import LeadCommand
from .conftest import check_end, ledger, results, silofl, undisturbed

pytestmark = pytest.mark.faults

SITES = ("east", "north", "south")
LIMIT_S = 300
ROUNDS = 12
# Machine, and what of it is killed: the process of its job, that which starts jobs, or both as in a power cut.
VICTIMS = {
    ("north", "job"): "a site's job",
    ("north", "parent"): "a site's parent",
    ("north", "all"): "a site's machine",
    ("server", "job"): "the server's job",
    ("server", "parent"): "the server's parent",
    ("server", "all"): "the server's machine",
}


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    return make_phantoms(tmp_path_factory.mktemp("network") / "data", seed=7, patients=dict.fromkeys(SITES, 10))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_small_job(
        tmp_path_factory.mktemp("network") / "job", rounds=ROUNDS, federation={"min_sites": 2, "task_timeout_s": 90}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory, phantoms, job):
    """Carry out the run in one process, undisturbed."""
    return undisturbed(tmp_path_factory.mktemp("network") / "whole", job, phantoms)


class Followed(Machines):
    """The network with its only run, which the server keeps in `runs`."""

    def __init__(self, project, logs, spaces, runs):
        super().__init__(project, logs, spaces)
        self._runs = runs

    def run(self):
        """Return the folder of the only run; None before its first round ends."""
        return next((path.parent for path in self._runs.glob(f"*/{FILE}")), None)

    def rounds(self):
        """Return the number of finished rounds."""
        return len(ledger(self.run())) if self.run() else 0

    def submit(self, job):
        """Submit a job; returns its number."""
        with self.session() as session:
            return session.submit_job(str(job.resolve()))

    def wait_for_rounds(self, count):
        """Wait until so many rounds have finished."""
        deadline = time.monotonic() + LIMIT_S
        while self.rounds() < count:
            assert time.monotonic() < deadline, f"{count} rounds must finish, not {self.rounds()}"
            time.sleep(0.05)

    def wait_for_result(self):
        """Wait until the run has its result and the server's job process is gone."""
        deadline = time.monotonic() + LIMIT_S
        while self.processes("server", "job"):
            assert time.monotonic() < deadline, f"the run must end, not stay at round {self.rounds()}"
            time.sleep(0.2)

    def wait_for_end(self, number):
        """Wait until NVFlare says that a job is over; returns its word."""
        deadline = time.monotonic() + LIMIT_S
        with self.session() as session:
            while not has_ended(status := session.get_job_meta(number).get("status", "")):
                assert time.monotonic() < deadline, f"the job must end, not be {status}"
                time.sleep(0.5)
        return status


@pytest.fixture
def network(tmp_path, wheel, phantoms, free_port):  # noqa: F811
    """Provision a network for one test; nothing of it may stay behind."""
    data = Path(shutil.copytree(phantoms, tmp_path / "data"))
    with ExitStack() as stack:
        spaces = stack.enter_context(Namespaces(SITES)) if are_possible() else None
        host = spaces.server_address if spaces else "localhost"
        folder = make_kits(make_project(PROJECT, host, free_port()), tmp_path / "workspace")
        for kit in find_kits(kits_folder(folder)):
            fill_kit(kit, Contents(wheel, data_root=data))
            # Of ten patients two validate, whose scores decide which round is the best.
            set_floor(kit, 2)
        yield Followed(folder, tmp_path / "logs", spaces, data / ".silofl/server/runs/harmofl_phantoms")
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert left == []


def check_whole(run, whole, before=()):
    """Check that a run ended as an undisturbed one, with every site's answers."""
    check_end(run, whole, before)
    assert all(record["answered"] == list(SITES) for record in ledger(run))


def check_continued(network, job, folder, whole):
    """Submit the job that continues the run, and check that it ends as an undisturbed one."""
    before, run = ledger(network.run()), network.run()
    shutil.copytree(job, folder)
    path = folder / "app" / "config" / "study.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"continue_run": run.name}))
    assert network.wait_for_end(network.submit(folder)) == "FINISHED:COMPLETED"
    assert network.run() == run
    check_whole(run, whole, before)


def disturb(network, job, folder, whole, victim, after, delay=0.0):
    """Kill a victim so long after a round, and check what becomes of the run."""
    name, part = victim
    with network:
        number = network.submit(job)
        network.wait_for_rounds(after)
        time.sleep(delay)
        network.kill_part(name, part)
        if part == "job":
            network.wait_for_end(number)
            check_continued(network, job, folder, whole)
        elif name != "server":
            network.wait_for_result()
            check_without(network.run(), name)
    if name == "server" and part != "job":
        with network:
            check_continued(network, job, folder, whole)


def check_without(run, site):
    """Check that a run ended without a site, and that its ledger says since when."""
    records, others = ledger(run), sorted(set(SITES) - {site})
    assert results(run)["status"] == "INCOMPLETE"
    assert any(f"site {site} missed rounds" in reason for reason in results(run)["reasons"])
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    assert all(record["asked"] == list(SITES) for record in records)
    answered = [record["answered"] for record in records]
    assert sorted(answered, key=len, reverse=True) == answered and answered[-1] == others
    assert all(one in (list(SITES), others) for one in answered)


@pytest.mark.parametrize("victim", VICTIMS, ids=VICTIMS.values())
def test_a_run_of_which_one_process_is_killed_goes_on(network, job, tmp_path, whole, victim):
    disturb(network, job, tmp_path / "job", whole, victim, after=2)


def test_the_leads_command_takes_no_run_for_stopped_whose_site_lost_its_power(network, job, tmp_path, monkeypatch):
    # NVFlare calls the job RUNNING until it gives the site up, in minutes.
    monkeypatch.setenv("NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT", "45")
    with network:
        command = LeadCommand(network, job, tmp_path / "out")
        try:
            network.wait_for_rounds(2)
            network.kill_part("north", "all")
            code, said = command.finish()
        finally:
            command.tree.end()
    assert code == 3 and "going on by itself" not in said, said
    check_without(tmp_path / "out", "north")


@pytest.mark.parametrize("part", ["parent", "all"])
def test_a_site_that_is_killed_and_started_again_works_on_in_the_running_job(network, job, whole, part):
    with network:
        number = network.submit(job)
        network.wait_for_rounds(2)
        network.kill_part("north", part)
        network.start(network.kit_of_site("north"))
        assert network.wait_for_end(number) == "FINISHED:COMPLETED"
    check_whole(network.run(), whole)


def test_a_site_that_nvflare_held_for_dead_works_on_in_the_running_job(network, job, monkeypatch):
    # What otherwise takes ten minutes and more.
    path = network.server.folder / "local" / "resources.json"
    resources = json.loads(path.read_text())
    resources["servers"][0]["heart_beat_timeout"] = 25
    path.write_text(json.dumps(resources))
    for name in ("GRACE_PERIOD", "CHECK_LEAD_TIME"):
        monkeypatch.setenv(f"NVFLARE_DEAD_CLIENT_{name}", "1")
    with network:
        number = network.submit(job)
        network.wait_for_rounds(2)
        network.kill_part("north", "all")
        deadline = time.monotonic() + LIMIT_S
        while "client_name='north'; reason='client dead'" not in (network.logs / "server.txt").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.5)
        time.sleep(5)
        network.start(network.kit_of_site("north"))
        assert network.wait_for_end(number) == "FINISHED:COMPLETED"
    assert results(network.run())["status"] == "COMPLETE"
    assert all(record["answered"] == list(SITES) for record in ledger(network.run()))


def test_a_lead_goes_on_by_one_command_after_server_and_command_were_stopped(network, job, tmp_path, whole):
    out = tmp_path / "out"
    with network:
        command = LeadCommand(network, job, out)
        command.wait_for_rounds(2)
        command.tree._root.kill()
        network.kill_part("server", "all")
    before = ledger(network.run())
    with network:
        started = time.monotonic()
        done = silofl("continue", out, "--kit", network.find_kit("lead").folder)
        print(f"the rest took {time.monotonic() - started:.1f} s")
    assert done[0] == 0, done[1]
    assert results(out)["run"] == network.run().name
    check_whole(network.run(), whole, before)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_of_which_any_process_is_killed_at_any_time_goes_on(network, job, tmp_path, whole, seed):
    rng = random.Random(seed)
    victim, after, delay = rng.choice(list(VICTIMS)), rng.randint(1, ROUNDS - 3), rng.uniform(0, 0.5)
    print(f"seed {seed}: {VICTIMS[victim]} killed {delay:.3f} s after round {after}")
    disturb(network, job, tmp_path / "job", whole, victim, after, delay)


def test_a_hospital_whose_network_is_cut_for_a_minute_loses_nothing(network, job, whole):
    if not network.spaces:
        pytest.skip("this account makes no network namespaces")
    with network:
        number = network.submit(job)
        network.wait_for_rounds(2)
        network.cut("north", 60)
        assert network.rounds() < ROUNDS
        assert network.wait_for_end(number) == "FINISHED:COMPLETED"
    check_whole(network.run(), whole)
