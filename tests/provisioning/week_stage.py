"""The network of the scripted week: its machines, and its people with the commands that they type.

What does not hold, or takes too long, is a TrainingError with its sentence.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

from provisioning.network import Network
from provisioning.workspace import REPOSITORY, kits_folder, write_yaml
from silofl.base.errors import TrainingError
from silofl.base.files import open_own
from silofl.base.settings import read_yaml
from silofl.federation.ledger import Round, read_ledger
from silofl.flare.kit import Kit, read_kit
from silofl_desk.flare.lead import has_ended
from silofl_desk.studies.runs.processes import ProcessTree
from silofl_desk.studies.runs.simulation import apply_changes, study_file

T = TypeVar("T")
POLL_S = 0.2
# For a busy machine; what takes longer hangs.
LIMIT_S = 300.0
REGISTERED = "Successfully registered client"
# A network that learns in seconds; no round waits long for a site that says nothing.
SMALL = {
    "data.transforms": [{"Resize": {"spatial_size": [32, 32]}}],
    "model.features": [8] * 6,
    "federation.sites": 3,
    "federation.task_timeout_s": 120,
}


def require_that(holds: bool, sentence: str) -> None:
    """Refuse to go on where something does not hold."""
    if not holds:
        raise TrainingError(sentence)


class Stage:
    """The network and its people. Use as a context: leaving it ends every process that was started.

    Args:
        out: A new folder for data, kits, jobs, results and logs; ``commands.txt`` in it has all that was typed.
        port: The server's, on this machine only.
    """

    # What takes longer hangs.
    limit_s = LIMIT_S

    def __init__(self, out: Path, port: int) -> None:
        self.out, self.port = out, port
        self.data, self.workspace = out / "phantoms", out / "workspace"
        self._stack = ExitStack()
        self._network: Network | None = None
        # Folder of results -> the lead's newest command that writes it.
        self.followed: dict[str, Followed] = {}

    def __enter__(self) -> Stage:
        """Make the folder; the network is opened once it is provisioned."""
        (self.out / "results").mkdir(parents=True)
        return self

    def __exit__(self, *reason: object) -> None:
        """Shut the network down."""
        self._stack.close()

    @property
    def network(self) -> Network:
        """The network that runs."""
        if self._network is None:
            raise TrainingError("the network must run; open it first")
        return self._network

    def make_network(self) -> Network:
        """Return the network, not yet started."""
        return Network(self.workspace / "silofl", self.out / "logs")

    def keep(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that is left when the network is shut down."""
        return self._stack.enter_context(context)

    def open_network(self, without: Sequence[str] = ()) -> set[str]:
        """Start the server and the hospitals, each from its own kit; returns the hospitals that are connected.

        Args:
            without: Hospitals that are not started.
        """
        network = self.make_network()
        hospitals, network.hospitals = network.hospitals, [one for one in network.hospitals if one.name not in without]
        self._network = self._stack.enter_context(network)
        network.hospitals = hospitals
        return network.connected()

    # What people type.

    def silofl(self, *words: object, code: int = 0) -> str:
        """Carry out a command of silofl."""
        return self._run_and_record(["silofl", *map(str, words)], code)

    def provisioning(self, *words: object) -> str:
        """Carry out a command of provisioning."""
        return self._run_and_record(["provisioning", *map(str, words)], 0)

    def abort(self, number: str) -> None:
        """End a job as its lead."""
        kit = self.network.find_kit("lead").folder / "startup"
        self._run_and_record(["nvflare.cli", "job", "abort", number, "--force", "--startup-kit", str(kit)], 0)

    def _run_and_record(self, words: Sequence[str], code: int) -> str:
        """Carry out a Python module as `carry_out` does."""
        return self.carry_out([sys.executable, "-m", *words], code)

    def carry_out(self, words: Sequence[str], code: int = 0, cwd: Path = REPOSITORY) -> str:
        """Carry out a command, keep it with all that it printed, and return what it printed."""
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
        said = shlex.join(["python" if word == sys.executable else word for word in words])
        with open_own(self.out / "commands.txt", "a") as stream:
            stream.write(f"$ {said}\n{done.stdout}{done.stderr}(exit code {done.returncode})\n\n")
        last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
        require_that(done.returncode == code, f"{said} must end with {code}, not {done.returncode}: {' '.join(last)}")
        return done.stdout

    def begin(self, name: str, job: Path) -> Followed:
        """Have the lead submit a job with ``silofl run``, with a folder of results of this name."""
        return self.follow(name, "run", job, "--out", self.out / "results" / name)

    def go_on(self, name: str, *words: object) -> Followed:
        """Have the lead go on with a run by ``silofl continue``."""
        return self.follow(name, "continue", self.out / "results" / name, *words)

    def follow(self, name: str, *words: object) -> Followed:
        """Have the lead carry out a command in the background, by the name of its log."""
        command = [str(word) for word in (*words, "--kit", self.network.find_kit("lead").folder)]
        followed = self.followed[name] = Followed(self, self.out / "results" / name, command)
        self._stack.callback(followed.end)
        return followed

    def write_job(self, template: str, name: str, **changes: object) -> Path:
        """Write a small variant of a job of the repository, with changes to its study by key; returns its folder."""
        job, source = self.out / "jobs" / name, REPOSITORY / "jobs" / template
        for path in (path for path in source.rglob("*.*") if path.is_file()):
            target = job / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        write_yaml(study_file(job), apply_changes(read_yaml(study_file(job)), SMALL | {"name": name} | changes))
        return job

    # What happens at the machines.

    def kit(self, name: str) -> Kit:
        """Return the kit of the server or a hospital."""
        return read_kit(kits_folder(self.workspace / "silofl") / name)

    def start(self, name: str, **environment: str) -> None:
        """Start a hospital, and wait until the server has registered it."""
        log = self.out / "logs" / f"{name}.txt"
        before = read_log(log).count(REGISTERED)
        self.network.start(self.kit(name), **environment)
        wait_until(f"{name} to register", lambda: read_log(log).count(REGISTERED) > before)

    def restart(self, name: str, **environment: str) -> None:
        """End a hospital with all its processes as a power cut does, and start it again."""
        self.network.kill(name)
        self.start(name, **environment)

    def change_site(self, name: str, **keys: object) -> None:
        """Change keys of a hospital's site.yaml."""
        path = self.kit(name).folder / "local" / "site.yaml"
        write_yaml(path, read_yaml(path) | keys)

    def check_site(self, name: str, study: Path, *words: str, may_join: bool = True) -> dict[str, Any]:
        """Have a hospital check itself with a study.

        Args:
            name: The hospital.
            study: The job's folder.
            words: More of the command.
            may_join: What it is to find.

        Returns:
            Check -> what it said, of those that failed."""
        where = ("--kit", self.kit(name).folder, "--study", study_file(study))
        found = json.loads(self.silofl("site", "check", *where, "--json", *words, code=0 if may_join else 1))
        require_that(
            found["may_join"] is may_join, f"site check of {name} must say may_join {may_join}, not the contrary"
        )
        return {one["check"]: one["sentence"] for one in found["checks"] if one["status"] == "failed"}


class Followed:
    """A run as its lead follows it with ``silofl run`` or ``silofl continue``, in the background.

    Args:
        stage: The network.
        out: Folder of the results.
        command: The command's words.
    """

    def __init__(self, stage: Stage, out: Path, command: list[str]) -> None:
        self.stage, self.out, self.log = stage, out, out.with_suffix(".txt")
        self._said_before = len(read_log(self.log))
        with open_own(stage.out / "commands.txt", "a") as stream:
            stream.write(f"$ {shlex.join(['python', '-m', 'silofl', *command])}\n(prints to {self.log})\n\n")
        self._tree = ProcessTree([sys.executable, "-m", "silofl", *command], self.log)
        self.end, self._known = self._tree.end, len(self.ledger)

    @property
    def ledger(self) -> list[Round]:
        """The finished rounds that the command has shown."""
        return read_ledger(self.out) or []

    @property
    def number(self) -> str:
        """NVFlare's id of the newest job; waits for it."""
        self._wait("the job to be submitted", lambda: bool(self._job_numbers()))
        return self._job_numbers()[-1]

    def _job_numbers(self) -> list[str]:
        return re.findall(r"submitted as job (\S+)", read_log(self.log)[self._said_before :])

    def wait_for_rounds(self, count: int) -> None:
        """Wait until this command has shown so many new rounds."""
        self._wait(f"{count} more rounds", lambda: len(self.ledger) >= self._known + count)

    def wait_for(self, what: str, holds: Callable[[Round], bool]) -> Round:
        """Wait for a round from now on of which something holds, and check that ``silofl watch`` shows it too.

        Args:
            what: Names it, for an error.
            holds: Of the round's record."""
        now = max(self._known, len(self.ledger))
        self._wait(f"a round in which {what}", lambda: any(map(holds, self.ledger[now:])))
        found = next(filter(holds, self.ledger[now:]))
        seen = self.watch()
        same = {key: getattr(found, key) for key in ("round", "answered", "failed")}
        shown = [{key: record[key] for key in same} for record in seen["ledger"]]
        require_that(seen["status"] == "RUNNING", f"silofl watch must say RUNNING, not {seen['status']}")
        require_that(same in shown, f"silofl watch must show round {found.round} as the ledger does, in which {what}")
        return found

    def watch(self) -> dict[str, Any]:
        """Return what ``silofl watch --json`` says of the newest job."""
        lead = self.stage.network.find_kit("lead").folder
        return json.loads(self.stage.silofl("watch", self.number, "--kit", lead, "--json"))

    def stop(self) -> None:
        """End the command at once, as where the lead's computer loses its power; the job runs on."""
        self._tree._root.kill()

    def finish(self, code: int = 0) -> None:
        """Wait until the command ends, and check its exit code."""
        ended = self.wait_for_end()
        require_that(ended == code, f"{self.log.stem} must end with {code}, not {ended}; see {self.log}")

    def wait_for_end(self) -> int | None:
        """Wait until the command ends; returns its exit code."""
        wait_until(f"{self.log.stem} to end", lambda: self._tree.poll() is not None, self.stage.limit_s)
        return self._tree.poll()

    def abort(self) -> None:
        """Abort the job, as its lead, and wait until the command has said so."""
        self.stage.abort(self.number)
        self.finish(code=1)
        status = self.watch()["status"]
        require_that(has_ended(status) and "ABORTED" in status, f"the job must be aborted, not {status}")

    def _wait(self, what: str, is_done: Callable[[], bool]) -> None:
        """Wait for something that the command shows."""
        wait_until(what, lambda: is_done() or self._tree.poll() is not None, self.stage.limit_s)
        require_that(is_done(), f"{self.log.stem} must go on until {what}, not end; see {self.log}")


def wait_until(what: str, is_done: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for something."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        require_that(time.monotonic() < deadline, f"{what} must take at most {limit_s:.0f} s")
        time.sleep(POLL_S)


def read_log(path: Path) -> str:
    """Return what a log holds so far."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
