"""What a study lead does at the server through NVFlare's API: submit a job, follow its rounds, download its result."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from aiohttp import ClientError
from nvflare.fuel.flare_api.api_spec import AuthorizationError, InternalError, JobNotFound, JobNotRunning, NoReply
from nvflare.fuel.flare_api.flare_api import Session

from silofl.base.errors import ConfigError, SiloFLError, TrainingError
from silofl.base.files import copy_folder
from silofl.base.schema import read_record
from silofl.flare.in_flight import PROGRESS, InFlight
from silofl.flare.kit import Kit
from silofl.flare.one_machine import ask_machines
from silofl_desk.flare.download import keep_downloads_inside

logger = logging.getLogger(__name__)

T = TypeVar("T")
# NVFlare's words for the status of a job: of one that waits to begin, and of one whose server was stopped under it.
SUBMITTED, ABANDONED = "SUBMITTED", "FINISHED:ABANDONED"
# NVFlare's own ten seconds, and five for each answer, are too few on a machine that is busy.
SESSION_S = 60.0
RETRY_S = 2.0
# A machine that is refused tries again within it.
LATELY_S = 1200.0


@contextlib.contextmanager
def open_session(kit: Kit) -> Iterator[Session]:
    """Talk to the server through NVFlare's API with the kit of a person."""
    keep_downloads_inside()
    # NVFlare prints that it connects.
    with contextlib.redirect_stdout(io.StringIO()):
        session = Session(kit.name, str(kit.folder))
        session.api.authenticate_msg_timeout = SESSION_S
        try:
            session.try_connect(SESSION_S)
        except Exception:
            session.api.close()
            raise
    try:
        yield session
    finally:
        # A session that stays open when the server goes tries to connect for ever.
        session.close()


def has_ended(status: str) -> bool:
    """Return whether NVFlare's word for a job's status is its last."""
    return status.startswith(("FINISHED", "FAILED"))


@dataclass
class Progress:
    """What a lead knows of a running job.

    Attributes:
        run: The run's id; None while the job has not said it.
        ledger: The records of the finished rounds, as ledger.json holds them.
        study: The study's name; None while the job has not said it, as the next two.
        total_rounds: All rounds of the study.
        metric: Name of the sites' scores.
        ends_early: Whether these rounds are only the most.
        quiet_rounds: Rounds that raise nothing and so end the run; None where that is not known.
        in_flight: What the sites work on; None where that is nothing, or was not said.
        may_ask: Whether the server lets this person ask for the rounds.
    """

    run: str | None
    ledger: list[dict[str, Any]]
    study: str | None = None
    total_rounds: int | None = None
    metric: str | None = None
    ends_early: bool = False
    quiet_rounds: int | None = None
    in_flight: InFlight | None = None
    may_ask: bool = True

    def take(self, answer: dict[str, Any]) -> None:
        """Take a controller's answer."""
        self.run = answer["run"]
        # The server sends the rounds that this side lacks, or those that it has made anew.
        self.ledger = self.ledger[: answer["first"]] + answer["ledger"]
        # A server with an older version does not say these.
        self.study, self.total_rounds, self.metric = map(answer.get, ("study", "total_rounds", "metric"))
        self.ends_early = answer.get("ends_early", False)
        self.quiet_rounds = answer.get("quiet_rounds")
        task = answer.get("in_flight")
        self.in_flight = None if task is None else read_record(InFlight, task, "the server's answer")


class Lead:
    """A study lead's connection to the server, which is made again after the server was away.

    Use as a context: a session that stays open when the server goes tries to connect for ever.

    Args:
        kit: The lead's startup kit.
        patience_s: Seconds after which a server that does not answer is given up.
    """

    def __init__(self, kit: Kit, patience_s: float) -> None:
        self.kit = kit
        self._patience_s = patience_s
        self._open = contextlib.ExitStack()
        self._session: Session | None = None

    def __enter__(self) -> Lead:
        """Connect at the first request."""
        # NVFlare logs each of its tries to connect; of a server that stays away one sentence is enough.
        logging.getLogger().addHandler(logging.NullHandler())
        return self

    def __exit__(self, *reason: object) -> None:
        """Disconnect."""
        self._session = None
        self._open.close()

    def submit(self, job: Path) -> str:
        """Submit a job folder, which NVFlare signs with the lead's key, and return the job's id.

        Raises:
            ConfigError: The server cannot be reached, or does not take it.
        """
        with TemporaryDirectory() as scratch:
            # NVFlare writes its signatures into the folder, which may be the installed package's.
            copied = copy_folder(job, Path(scratch, job.resolve().name))
            try:
                # Once: a job whose id was lost on its way back would run twice.
                return str(self._connect().submit_job(str(copied)))
            except SiloFLError:
                raise
            except Exception as error:  # NVFlare has an exception of its own for each reason
                remedy = "; see that it runs there, and that this machine reaches it" if "connect" in str(error) else ""
                says = f"NVFlare says: {error}{remedy}"
                raise ConfigError(f"the server {self._address} did not take the job: {says}") from None

    def connected(self) -> set[str]:
        """Return the names of the sites that are connected to the server."""
        return set(self.last_heard())

    def last_heard(self) -> dict[str, float]:
        """Return when the server last heard each connected site, by its own clock, in seconds since 1970."""
        return self._ask(
            lambda session: {
                client.name: float(client.last_connect_time) for client in session.get_system_info().client_info
            }
        )

    def second_machines(self) -> dict[str, str]:
        """Return the address of the second machine that connects under a site's name and was refused lately."""
        try:
            machines = ask_machines(self.kit) or {}
        except (OSError, ClientError) as error:
            # Whether the server is there, other questions say.
            logger.debug("the server did not say which machines it refused: %s", error)
            return {}
        return {
            site: machine["second"]
            for site, machine in machines.items()
            if machine["second"] and machine["seconds"] < LATELY_S
        }

    def status(self, number: str) -> tuple[str, str]:
        """Return NVFlare's word for a job's status, and what it says of the job's way to the sites, or of its wait.

        Raises:
            ConfigError: The server knows no such job, or does not let this person ask.
        """
        meta = self._ask(lambda session: session.get_job_meta(number))
        # Of a job that was given up, as nobody was there, only the tries tell why: the last but one, and that it was.
        details = meta.get("job_deploy_detail") or (meta.get("schedule_history") or [])[-2:]
        return str(meta.get("status", "")), "; ".join(details)

    def update(self, number: str, progress: Progress) -> None:
        """Bring what is known of a job up to date, where its process at the server answers."""

        def ask(session: Session) -> None:
            try:
                progress.take(session.do_app_command(number, PROGRESS, {"rounds": len(progress.ledger)}))
            # Only its rounds stay unknown: a kit without the right to ask, or a process that starts or has ended.
            except (AuthorizationError, InternalError, JobNotRunning, NoReply) as error:
                progress.may_ask = not isinstance(error, AuthorizationError)
                progress.in_flight = None
                logger.debug("job %s did not say its rounds: %s", number, error)

        self._ask(ask)

    def download(self, number: str, target: Path) -> Path:
        """Download what a job left; returns its folder below ``target``."""
        return Path(self._ask(lambda session: session.download_job_result(number, str(target))))

    @property
    def _address(self) -> str:
        return f"{self.kit.address.host}:{self.kit.address.port}"

    def _connect(self) -> Session:
        if self._session is None:
            # NVFlare would try for a minute, and not say that the certificate is blocked.
            with contextlib.suppress(OSError, ClientError):
                ask_machines(self.kit)
            self._session = self._open.enter_context(open_session(self.kit))
        return self._session

    def _ask(self, question: Callable[[Session], T]) -> T:
        """Ask the server, again and again while it cannot be reached."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return question(self._connect())
            except (AuthorizationError, JobNotFound) as error:
                raise ConfigError(f"the server knows no such job of {self.kit.name}; NVFlare says: {error}") from None
            except SiloFLError:
                raise
            except Exception as error:  # NVFlare raises what it likes where a server goes away
                self.__exit__()
                if time.monotonic() > deadline:
                    raise TrainingError(
                        f"the server {self._address} did not answer within {self._patience_s:.0f} s ({error}); see "
                        "that it runs there and can be reached"
                    ) from None
            time.sleep(RETRY_S)
