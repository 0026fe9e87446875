"""A provisioned network on one machine: start server and hospitals, run jobs as the study lead, shut all down."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session

from provisioning.namespaces import Namespaces
from provisioning.workspace import find_kits, kits_folder
from silofl.base.errors import ConfigError, TrainingError
from silofl.base.files import make_folder
from silofl.flare.kit import Kit
from silofl_desk.flare.lead import has_ended, open_session
from silofl_desk.studies.runs.processes import ProcessTree

POLL_S = 0.5
# A busy machine takes minutes; a participant that ends is not waited for.
START_S = 300.0
STOP_S = 60.0


class Network:
    """The server and the hospitals of a project, each started from its own kit.

    Use as a context: leaving it shuts the network down and ends what does not end by itself.

    Args:
        project: The project's folder in the workspace of ``make-kits``.
        logs: Where the participants' output goes.
        namespaces: Where each hospital runs; all on this machine's own network where None.
    """

    def __init__(self, project: Path, logs: Path, namespaces: Namespaces | None = None) -> None:
        kits = find_kits(kits_folder(project))
        (self.server,) = (kit for kit in kits if kit.kind == "server")
        self.hospitals = [kit for kit in kits if kit.kind == "hospital"]
        people = [kit for kit in kits if kit.kind == "admin"]
        # Of several people with one role the first one counts, so that the others come before it.
        self._people = {kit.role: kit for kit in reversed(people)} | {kit.name: kit for kit in people}
        self.project = project
        self.logs = logs
        self._namespaces = namespaces
        self._running: dict[str, ProcessTree] = {}

    def __enter__(self) -> Network:
        """Start the server, then the hospitals, and wait until all are connected.

        Raises:
            ConfigError: Another program has the server's port.
            TrainingError: A participant ends, or takes too long.
        """
        if self._is_open():
            port = self.server.address.port
            raise ConfigError(
                f"port {port} of this machine must be free, not in use; end what uses it, or name another"
            )
        make_folder(self.logs)
        try:
            self.start(self.server)
            self._wait("the server's port to open", self._is_open)
            for kit in self.hospitals:
                self.start(kit)
            self._wait("all hospitals to connect", self._is_complete)
        except BaseException:
            # Python does not call __exit__ where __enter__ fails, be it by Ctrl-C: no participant must stay behind.
            self.__exit__()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        """Shut the network down as the project's admin, and end every process that is left."""
        try:
            if self._is_open():
                with self.session("project_admin") as session:
                    session.shutdown("all", wait=False)
                deadline = time.monotonic() + STOP_S
                while any(tree.poll() is None for tree in self._running.values()) and time.monotonic() < deadline:
                    time.sleep(POLL_S)
        except Exception as error:  # whatever NVFlare says of it, nothing stays behind
            print(f"shutdown: {error}", file=sys.stderr)
        finally:
            for tree in self._running.values():
                tree.end()
            self._running = {}

    def find_kit(self, person: str) -> Kit:
        """Return the kit of a person, by name or by role: then of the first one."""
        return self._people[person]

    @contextmanager
    def session(self, person: str = "lead") -> Iterator[Session]:
        """Talk to the server through NVFlare's API with the kit of a person, as for `find_kit`.

        Raises:
            TrainingError: The server does not answer.
        """
        with ExitStack() as stack:
            try:
                session = stack.enter_context(open_session(self.find_kit(person)))
            except (FLCommunicationError, NoConnection) as error:
                raise TrainingError(f"the server must answer; NVFlare says {str(error)!r}: see {self.logs}") from None
            yield session

    def connected(self) -> set[str]:
        """Return the names of the hospitals that are connected to the server."""
        with self.session() as session:
            return {client.name for client in session.get_system_info().client_info}

    def run_job(
        self, job: Path, timeout_s: float, on_poll: Callable[[], None] = lambda: None, person: str = "lead"
    ) -> tuple[str, str]:
        """Submit a job as a study lead and wait until it ends.

        Args:
            job: The job folder; NVFlare signs it with the lead's key.
            timeout_s: Seconds after which waiting is given up.
            on_poll: Called about twice a second.
            person: The lead, as for `find_kit`.

        Returns:
            The job's id and NVFlare's last word on its status.
        """
        deadline = time.monotonic() + timeout_s
        with self.session(person) as session:
            number = session.submit_job(str(job.resolve()))
            while True:
                status = session.get_job_meta(number).get("status", "")
                on_poll()
                if has_ended(status):
                    return number, status
                if time.monotonic() > deadline:
                    session.abort_job(number)
                    raise TrainingError(f"job {number} must end within {timeout_s:.0f} s; it was aborted")
                time.sleep(POLL_S)

    def download(self, number: str, target: Path, person: str = "lead") -> Path:
        """Download a job's result as the lead who submitted it; returns its folder."""
        with self.session(person) as session:
            return Path(session.download_job_result(number, str(target)))

    def start(self, kit: Kit, **environment: str) -> None:
        """Start a participant from its kit, with changes to its environment."""
        changes = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", *changes, *start_command(kit)]
        if self._namespaces:
            command = self._namespaces.inside(kit.name, command)
        self._running[kit.name] = ProcessTree(command, self.logs / f"{kit.name}.txt")

    def kill(self, name: str) -> None:
        """End a participant with all its processes as a power cut does."""
        self._running.pop(name).kill()

    def _is_open(self) -> bool:
        # A person's kit names the server as others reach it.
        address = next(iter(self._people.values())).address
        with socket.socket() as probe:
            probe.settimeout(POLL_S)
            return probe.connect_ex((address.host, address.port)) == 0

    def _is_complete(self) -> bool:
        # A server answers later than it opens its port.
        with suppress(TrainingError):
            return self.connected() >= {kit.name for kit in self.hospitals}
        return False

    def _wait(self, what: str, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not is_done():
            ended = [name for name, tree in self._running.items() if tree.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{', '.join(ended)} ended" if ended else f"it took more than {START_S:.0f} s"
                raise TrainingError(f"the network must start; {why} while waiting for {what}: see {self.logs}")
            time.sleep(POLL_S)


def start_command(kit: Kit) -> list[str]:
    """Return the command that runs a machine's kit until it ends, without starting it again."""
    # The kit's script calls python3.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return ["env", f"PATH={path}", "bash", str(kit.folder / "startup" / "sub_start.sh"), "--once"]
