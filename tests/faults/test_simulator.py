"""A run in NVFlare's simulator, whose processes are killed or stopped: it ends by itself, and says what happened."""

import random
import signal
import time

import psutil
import pytest

from ..end_to_end.conftest import Federation
from .conftest import LIMIT_S, ROUNDS, check_end, ledger, results, silofl, wait_for

pytestmark = pytest.mark.faults

SITES = ("east", "north", "west")
# The first round's time counts from before the sites' processes load their libraries.
TIMEOUT_S = 40


class Simulation(Federation):
    """A simulation in the background."""

    def process_of(self, victim):
        """Return the process of a site, of the server, or the command itself."""
        if victim == "command":
            return psutil.Process(self.process.pid)
        # The server has started the process from which those of the sites are forked.
        return self.site_process(SITES[0]).parent().parent() if victim == "server" else self.site_process(victim)

    def wait(self, seconds):
        """Wait for the end; a run that hangs is a failure. Returns the exit code."""
        code = self.process.wait(timeout=seconds)
        deadline = time.monotonic() + 20
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert self.alive() == []
        return code


@pytest.fixture
def simulation(tmp_path, job, site_data):
    """Start a simulation; returns it and its folder."""
    started = []

    def start(*changes):
        run, arguments = tmp_path / "run", [part for change in changes for part in ("--set", change)]
        started.append(Simulation("simulate", job, "--data", site_data, "--out", run, *arguments))
        return started[-1], run

    yield start
    for one in started:
        one.descendants()
        if one.process.poll() is None:
            one.kill_all()


@pytest.mark.parametrize("seed", range(5))
def test_a_simulation_of_which_anything_is_killed_at_any_time_ends_as_it_should(simulation, whole, seed):
    rng = random.Random(seed)
    victim, after, delay = rng.choice(["command", "server", *SITES]), rng.randrange(ROUNDS - 1), rng.uniform(0, 0.5)
    print(f"seed {seed}: {victim} killed {delay:.3f} s after round {after}")
    # A round may last an hour here: nothing waits for its time to be over.
    running, run = simulation("federation.min_sites=2")
    # Before the first round there are no processes to choose from until the sites have begun.
    wait_for(lambda: len(ledger(run)) >= after and any(run.glob("sites/*/*/rounds")), running)
    time.sleep(delay)
    before = ledger(run)
    running.process_of(victim).kill()
    running.wait(LIMIT_S)
    if victim not in SITES:
        code, said = silofl("resume", run)
        assert code == 0, said
        check_end(run, whole, before)
        return
    assert results(run)["status"] == "INCOMPLETE"
    assert all(f"site {victim} " in reason for reason in results(run)["reasons"])
    assert [record["round"] for record in ledger(run)] == list(range(1, ROUNDS + 1))
    for record in ledger(run):
        assert set(record["asked"]) == set(SITES)
        assert sorted([*record["answered"], *record["failed"]]) == sorted(SITES)
        assert set(SITES) - {victim} <= set(record["answered"])


def test_a_site_that_is_stopped_for_a_while_misses_a_round_and_comes_back(simulation):
    running, run = simulation("rounds=12", f"federation.task_timeout_s={TIMEOUT_S}", "federation.min_sites=2")
    wait_for(lambda: len(ledger(run)) >= 1, running)
    east = running.process_of("east")
    east.send_signal(signal.SIGSTOP)
    began = len(ledger(run))
    # One round waits for it until its time is over.
    wait_for(lambda: any("east" in record["failed"] for record in ledger(run)), running)
    east.send_signal(signal.SIGCONT)
    assert running.wait(LIMIT_S) == 3
    records = ledger(run)
    assert [record["round"] for record in records] == list(range(1, 13))
    missed = [record["round"] for record in records if "east" not in record["answered"]]
    assert missed and missed == list(range(missed[0], missed[-1] + 1)) and missed[0] in (began + 1, began + 2)
    assert records[-1]["answered"] == list(SITES)
    assert results(run)["reasons"] == [f"site east missed rounds {missed} (no answer in time); the study allows 0"]
