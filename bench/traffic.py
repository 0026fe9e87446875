"""Bytes on the wire of a FedSM round, counted by the loopback interface, against the formula 2 w_g + steps x w_s.

    python bench/traffic.py JOB DATA [--short 2] [--long 6]

The job runs twice in the simulator with different numbers of rounds; the difference is that of the rounds alone.
Nothing else may use the loopback interface meanwhile; this gives the run one of its own:

    unshare -n sh -c 'ip link set lo up; python bench/traffic.py ...'
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from silofl.federation.server import ServerRounds
from silofl.parts.task import TRAIN, Exchange, Message
from silofl_desk.studies.simulation import Simulation, settle_job

MIB = 2**20
PUBLISHED_JOB_MIB = 1486  # per site, round and direction, with VGG-11 and its moments


def main() -> None:
    """Run the job twice and print what a round weighs for a site in each direction."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("data")
    parser.add_argument("--short", type=int, default=2)
    parser.add_argument("--long", type=int, default=6)
    options = parser.parse_args()
    study, simulation = settle_job(options.job, Simulation(options.data), {})
    steps, sites = study.recipe.option("selector").steps, simulation.sites
    task = ServerRounds.start(study, "run", sites).task(sites[0], Exchange(TRAIN, 1))
    models, selector = (bytes_of(task, *roles) for roles in (study.recipe.roles, ("selector",)))
    formula = (models + steps * selector) / MIB
    difference = loopback_bytes(options, options.long) - loopback_bytes(options, options.short)
    measured = difference / (options.long - options.short) / len(sites) / 2 / MIB
    print(f"{study.name}, {len(sites)} sites, {steps} selector steps a round, per site and direction:")
    print(
        f"2 w_g + steps x w_s = {formula:.3f} MiB; on the wire {measured:.3f} MiB, {measured / formula:.3f} times that"
    )
    print(f"the published job's {PUBLISHED_JOB_MIB} MiB are {PUBLISHED_JOB_MIB / measured:.0f} times as much")


def bytes_of(task: Message, *roles: str) -> int:
    """Return the bytes of a task's arrays of some roles."""
    return sum(array.nbytes for role in roles for array in task.of(role).values())


def loopback_bytes(options: argparse.Namespace, rounds: int) -> int:
    """Return the bytes that went over the loopback interface while the job ran so many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "silofl", "simulate", str(options.job), "--data", options.data]
        before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        subprocess.run([*command, "--out", f"{folder}/run", "--rounds", str(rounds)], check=True, capture_output=True)
        return psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before


if __name__ == "__main__":
    main()
