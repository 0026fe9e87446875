"""A run of eight hospitals, each with a trouble of its own and no hand on it: what ``make federation-eight`` does.

    python -m tests.provisioning.eight --out OUT [--seeds N ...] [--port N]

Linux, as root: each hospital is in a network namespace of its own. Who has which trouble is drawn by the seed. The lead
rehearses, upon which hospitals mend their own machines; then one command, ``silofl run``, and no hand on it. A seed
that has ended is not carried out again; ``OUT/eight.md`` says of each how it ended, and ``OUT/N`` keeps its logs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from provisioning.build_wheel import build_wheels
from provisioning.fill_kits import Contents, fill_kit
from provisioning.make_kits import make_kits, make_project
from provisioning.namespaces import Namespaces, are_possible
from provisioning.network import start_command
from provisioning.workspace import PROJECT, find_kits, kits_folder
from silofl.base.errors import ConfigError, ExitCode, TrainingError
from silofl.base.files import read_json, write_json, write_text
from silofl.command_line.cli import Parser, run_command
from silofl.federation.results import read_results
from silofl.federation.steps import FILE as STEPS
from silofl.flare.kit import read_kit
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.runs.processes import ProcessTree
from tests.provisioning.machines import FILLER, Machines, fill, keep_doing, small_disk
from tests.provisioning.week_events import hash_model_files
from tests.provisioning.week_stage import Followed, Stage, read_log, require_that, wait_until

# Two sets of patients; the second four are other people with the first four's scanners.
HOSPITALS = {"north": "hill", "east": "lake", "south": "moor", "west": "vale"}
NAMES = (*HOSPITALS, *HOSPITALS.values())
PATIENTS = 12
# The machine that somebody starts with a copy of another's kit.
COPY = "copy"
TROUBLES = ("slow", "flapping", "thin", "stale", "doubled", "full", "clock", "unreadable")
NAME, RESULT = "eight", "result.json"
# More than one of a hospital's images.
SKIPPED = 0.1
# Of Debian's package libfaketime; past the end of every certificate.
CLOCK, A_YEAR = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"), "+370d"
SMALL = {"baseline_comparison": False, "training.local_epochs": 4, "federation.task_timeout_s": 240}


@dataclass(frozen=True)
class Cast:
    """Who takes part, and what happens.

    Attributes:
        names: The hospitals.
        troubles: What they have, one each as far as it goes.
        rounds: Of the run.
        events: How many rounds have ended -> what happens in the midst of the next: ``server``, ``killed`` or
            ``rebooted`` are killed and started again, a disk is ``filled``.
    """

    names: tuple[str, ...]
    troubles: tuple[str, ...]
    rounds: int
    events: Mapping[int, str]

    def draw(self, seed: int) -> dict[str, str]:
        """Return trouble or event -> the hospital that it meets."""
        rng = random.Random(seed)
        roles = dict(zip(self.troubles, rng.sample(self.names, len(self.troubles)), strict=True))
        # Neither the slowest nor the one without room, so that each is seen by itself.
        others = [name for name in self.names if name not in (roles.get("slow"), roles.get("full"))]
        return roles | dict(zip(("killed", "rebooted"), rng.sample(others, 2), strict=True))


EIGHT = Cast(NAMES, TROUBLES, 10, {1: "server", 3: "killed", 4: "filled", 5: "killed", 6: "rebooted", 10: "server"})
# For every change of the code: a kill, a cut, a stale kit.
DRILL = Cast(("north", "east", "south"), ("stale", "flapping"), 4, {2: "killed"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    parser = Parser(prog="python -m tests.provisioning.eight", description="A run of eight hospitals with troubles.")
    parser.add_argument("--out", type=Path, required=True, help="folder of data, kits, results, logs and eight.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of who has which trouble")
    parser.add_argument("--port", type=int, default=8002, help="of the server, on this machine only")
    return run_command("eight", run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Carry out the seeds; the exit code is 1 where one did not end as it must."""
    if not are_possible() or not CLOCK.is_file():
        raise ConfigError("network namespaces and libfaketime must be there; run it as root on Debian with both")
    out, ended = options.out.resolve(), {}
    for seed in options.seeds:
        folder = out / str(seed)
        if not (folder / RESULT).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            write_json(folder / RESULT, carry_out_seed(EIGHT, folder, seed, options.port))
        ended[seed] = read_json(folder / RESULT)
        heads = ["seed", *ended[seed]]
        rows = [[seed, *found.values()] for seed, found in ended.items()]
        table = "\n".join(f"| {' | '.join(map(str, row))} |" for row in (heads, ["---"] * len(heads), *rows))
        write_text(out / "eight.md", f"# A run of eight hospitals, each with a trouble of its own\n\n{table}\n")
        print(table, flush=True)
    return ExitCode.COMPLETE if all(found["status"] == "COMPLETE" for found in ended.values()) else ExitCode.FAILED


def carry_out_seed(cast: Cast, out: Path, seed: int, port: int) -> dict[str, object]:
    """Carry out one run; returns how it ended, column by column."""
    began, roles = time.monotonic(), cast.draw(seed)
    print(f"seed {seed}: {', '.join(f'{what} {name}' for what, name in roles.items())}", flush=True)
    with ExitStack() as stack:
        spaces = stack.enter_context(Namespaces((*cast.names, COPY)))
        stage = stack.enter_context(EightStage(out, port, spaces, cast, roles))
        make_data(stage.data, cast.names, seed)
        stage.damage_image()
        named = {"rounds": cast.rounds, "federation.sites": sorted(cast.names), "seed": seed}
        job, whole = stage.write_job("fedavg_phantoms", NAME, **SMALL, **named), out / "undisturbed"
        skipped = ("--skip-unreadable", SKIPPED)
        stage.silofl("simulate", job, "--data", stage.data, "--out", whole, "--in-process", *skipped)
        stage.provision(stack)
        stage.open_late()
        stage.rehearse(job)
        run = stage.begin(NAME, job)
        stage.begin_troubles(stack)
        try:
            stage.disturb(run)
        except TrainingError as error:
            print(f"seed {seed}: {error}", flush=True)
        return describe_end(cast, run, whole, stage.wasted) | {"minutes": round((time.monotonic() - began) / 60, 1)}


def make_data(target: Path, names: Collection[str], seed: int) -> None:
    """Make the hospitals' patients."""
    for place, known in enumerate((HOSPITALS.keys(), HOSPITALS.values())):
        folder = target.with_name(f"patients{place}")
        made = make_phantoms(folder, seed=2 * seed + place, patients=dict.fromkeys(HOSPITALS, PATIENTS))
        for site, name in zip(HOSPITALS, known, strict=True):
            if name in names:
                shutil.copytree(made / site, target / name)


def describe_end(cast: Cast, run: Followed, whole: Path, wasted: float) -> dict[str, object]:
    """Return what became of a run."""
    run.end()
    results, ledger = read_results(run.out), run.ledger
    missed = [one.round for one in ledger if sorted(one.answered) != sorted(cast.names)]
    return {
        "status": results.status if results else "it did not end",
        "rounds": len(ledger),
        "rounds without all": ", ".join(map(str, missed)) or "none",
        "weights of the undisturbed run": hash_model_files(run.out) == hash_model_files(whole) != {},
        "training done again": f"{wasted:.1%}",
    }


class EightStage(Stage):
    """The network in namespaces, and what happens to it.

    Args:
        spaces: The hospitals' own networks.
        cast: Who takes part.
        roles: Trouble or event -> the hospital that it meets.

    Attributes:
        wasted: Of all steps of the run, the share that a killed process had done of its training: at most so much is
            done again.
    """

    limit_s = 900.0

    def __init__(self, out: Path, port: int, spaces: Namespaces, cast: Cast, roles: Mapping[str, str]) -> None:
        super().__init__(out, port)
        self.spaces, self.cast, self.roles, self.wasted = spaces, cast, roles, 0.0
        self._full = self.out / "state"
        # Hospital -> the folder of its runs.
        self._states = {name: self.data / ".silofl" / NAME / name for name in cast.names}

    def make_network(self) -> Machines:
        """Return the network, not yet started."""
        return Machines(self.workspace / "silofl", self.out / "logs", self.spaces)

    def damage_image(self) -> None:
        """Cut one image of the hospital that has such."""
        if name := self.roles.get("unreadable"):
            content = read_json(self.data / name / "dataset.json")
            image = self.data / name / content["training"][0]["image"]
            image.write_bytes(image.read_bytes()[:100])

    def provision(self, stack: ExitStack) -> None:
        """Make the kits: those of the network, and those of an earlier one with the same names."""
        project = make_project(PROJECT, self.spaces.server_address, self.port)
        others = [one for one in project["participants"] if one["type"] != "client" and one.get("role") != "org_admin"]
        hospitals = [{"name": name, "type": "client", "org": f"{name}_hospital"} for name in self.cast.names]
        project["participants"] = others + hospitals
        wheel = build_wheels(self.out / "wheel")[0]
        for workspace in (self.workspace, self.out / "earlier"):
            for kit in find_kits(kits_folder(make_kits(project, workspace))):
                fill_kit(kit, Contents(wheel, data_root=self.data))
        for name in self.cast.names:
            # Of twelve patients two validate, whose scores decide which round is the best.
            self.change_site(name, min_patients=2)
        if name := self.roles.get("full"):
            require_that(stack.enter_context(small_disk(self._full)), "this account must be able to mount disks")
            self.change_site(name, state_dir=f"{self._full}/{{study}}")
            self._states[name] = self._full / NAME
        if name := self.roles.get("unreadable"):
            stack.enter_context(small_disk(self.out / "cache", "ro"))
            self.change_site(name, skip_unreadable=SKIPPED, cache_dir=str(self.out / "cache"))

    @property
    def _late(self) -> list[str]:
        return sorted(self.roles[what] for what in ("stale", "clock") if what in self.roles)

    def open_late(self) -> None:
        """Start the network, but for a hospital with the kit of an earlier network, and one whose clock is wrong."""
        connected = self.open_network(without=self._late)
        require_that(connected == {*self.cast.names} - {*self._late}, f"the others must be connected, not {connected}")
        self.network.start(read_kit(kits_folder(self.out / "earlier" / "silofl") / self.roles["stale"]))
        if name := self.roles.get("clock"):
            wrong = {"LD_PRELOAD": str(CLOCK), "FAKETIME": A_YEAR, "DONT_FAKE_MONOTONIC": "1"}
            self.network.start(self.kit(name), **wrong)

    def rehearse(self, job: Path) -> None:
        """Have the lead rehearse, who is told which hospitals are missing and what fails; these mend their machines."""
        rehearsal = self.follow("rehearsal", "run", job, "--rehearse")
        wait_until("the lead to be told", lambda: f"waiting for {', '.join(self._late)}" in read_log(rehearsal.log))
        for name in self._late:
            self.network.kill(name)
            self.start(name)
        faulty = self.roles.get("unreadable")
        code = ExitCode.INCOMPLETE if faulty else ExitCode.COMPLETE
        require_that(rehearsal.wait_for_end() == code, f"the rehearsal must end with {code}; see {rehearsal.log}")
        found = [line for line in read_log(rehearsal.log).splitlines() if "have a fault" in line]
        named = [line.split(":")[0] for line in found]
        require_that(named == [f"FAILED {faulty}"] * bool(faulty), f"it must name {faulty}, not {found}")
        if faulty:
            self.change_site(faulty, cache_dir=None)

    def begin_troubles(self, stack: ExitStack) -> None:
        """Begin what lasts: a thin line, a slow machine, a line that fails, and a second machine with a copied kit."""
        if name := self.roles.get("thin"):
            self.spaces.limit(name, "8mbit")
        if name := self.roles.get("slow"):
            stack.enter_context(keep_doing(partial(self.network.slow_down, name, 9)))
        if name := self.roles.get("flapping"):
            stack.enter_context(keep_doing(partial(self.flap, name)))
        if name := self.roles.get("doubled"):
            copied, log = self.out / "copied" / name, self.out / "logs" / "copy.txt"
            shutil.copytree(self.kit(name).folder, copied)
            tree = ProcessTree(self.spaces.inside(COPY, start_command(read_kit(copied))), log)
            stack.callback(tree.end)
            wait_until("the copy to be refused", lambda: f"{name} runs on another machine too" in read_log(log))

    def disturb(self, run: Followed) -> None:
        """Do to the machines what happens while the run goes on, until it ends."""
        for rounds, what in self.cast.events.items():
            run.wait_for_rounds(rounds)
            # In the midst of the next one.
            time.sleep(3)
            if what == "filled":
                self.fill_disk()
            else:
                self.kill_and_start(self.roles.get(what, what))
        run.wait_for_end()

    def kill_and_start(self, name: str) -> None:
        """Kill all processes of a machine at once, and start it 5 s later by its unit's command."""
        for site, folder in self._states.items():
            if name in ("server", site):
                for path in folder.glob(f"*/{STEPS}"):
                    done, steps = map(int, path.read_text().split())
                    self.wasted += done / steps / len(self.cast.names) / self.cast.rounds
        self.network.kill_part(name, "all")
        self.network.kill(name)
        time.sleep(5)
        self.network.start(self.kit(name))

    def fill_disk(self) -> None:
        """Fill a hospital's disk for a quarter of a minute."""
        fill(self._full)
        time.sleep(15)
        (self._full / FILLER).unlink()

    def flap(self, name: str) -> None:
        """Cut a hospital's line for 6 of 25 s."""
        self.network.cut(name, 6)
        time.sleep(19)


if __name__ == "__main__":
    sys.exit(main())
