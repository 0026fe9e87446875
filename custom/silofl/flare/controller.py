"""The server in NVFlare: runs all exchanges of a study and reaches the sites through NVFlare's tasks."""

import gc
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.fuel.utils.memory_utils import cleanup_memory

from silofl.base.errors import AggregationError, ConfigError, SiloFLError
from silofl.base.files import make_folder, write_json
from silofl.base.schema import dump_record
from silofl.core.array_file import keep_in_files
from silofl.federation.course import Answers, Course, separate_failures
from silofl.federation.outcome import describe_failure
from silofl.federation.rehearsal import FILE as REHEARSAL
from silofl.federation.rehearsal import rehearse_round
from silofl.federation.roster import is_expected, list_expected_sites
from silofl.federation.run_folder import RunFolder, check_lead
from silofl.federation.server import ServerRounds
from silofl.federation.waiting import Waiting
from silofl.flare.components import check_algorithm
from silofl.flare.exchange import from_model, to_model
from silofl.flare.in_flight import PROGRESS, InFlight, answer_progress
from silofl.flare.left_sites import FAILED, FAILED_AGAIN, LEFT
from silofl.flare.nvflare_patches import outlive_failures, send_uncopied
from silofl.flare.paths import (
    check_deployed,
    download_folder,
    read_job_lead,
    read_job_pretrained,
    read_job_study,
    read_server_settings,
)
from silofl.flare.pieces import move_in_pieces
from silofl.flare.returned_sites import RETURNED
from silofl.flare.tracking import Tracking
from silofl.parts.answer import plain_text
from silofl.parts.task import TRAIN, Exchange, Message
from silofl.setup.extensions import allow_extensions
from silofl.study import Study
from silofl.training.device import give_freed_memory_back

POLL_S = 0.05
FAILED_ONCE = "its process failed, as for lack of memory: its own log says why"
GONE = "its process has ended, or it does not take part in this job"


@contextmanager
def _lock_folder(folder: RunFolder, run: str) -> Iterator[None]:
    """Hold a run's folder for this job; an error names the run, since its lead knows no folder of the server."""
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.locked())
        except ConfigError:
            raise ConfigError(
                f"an earlier job of run {run} still runs; wait until it has ended, or end it with nvflare job abort"
            ) from None
        yield


class RoundsController(ModelController):
    """Controller of a study: asks every site in each round, waits for a limited time and saves a checkpoint.

    A late site, and one that has left the job, is asked again in every round, but no round waits for it until it takes
    a task again; and where it takes one task after another and answers none in time, only for a short while.

    It runs any algorithm; a subclass names the one whose studies it takes.
    """

    algorithm: ClassVar[str | None] = None

    def __init__(self) -> None:
        # No persistor, because RunFolder keeps the models. Errors are ignored, because NVFlare would end the job at
        # the first site that fails, whereas here the study's quorum decides.
        super().__init__(persistor_id="", ignore_result_error=True)
        self._late: set[str] = set()
        self._left: dict[str, str] = {}
        self._strangers: list[str] = []
        self._taken: dict[str, float] = {}
        self._waiting = Waiting(None)
        self._find_in_flight: Callable[[], InFlight | None] = lambda: None
        self._ending = "the job was aborted"
        self.register_event_handler(EventType.FATAL_SYSTEM_ERROR, self._take_panic)
        self._download: Path | None = None
        self._tracking = Tracking()
        move_in_pieces()
        give_freed_memory_back()

    def run(self) -> None:
        """Carry out all rounds, choose the best one and test it; the results go to the run's folder.

        A run belongs to the person who submitted it: nobody else goes on with it, or gets anything of it.
        """
        try:
            study = read_job_study(self.fl_ctx)
            check_algorithm(self, self.algorithm, study)
            check_deployed(self.fl_ctx, study)
        except SiloFLError as error:  # no result either, which would name its study
            self.system_panic(str(error), self.fl_ctx)
            return
        self._waiting = Waiting(study.federation.task_timeout_s)
        run = study.continue_run or f"{study.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        try:
            settings = read_server_settings(self.fl_ctx)
            lead = read_job_lead(self.fl_ctx)
            allow_extensions(settings.extensions)
            if study.rehearsal:
                self._rehearse(study)
                return
            path = settings.run_folder(study.name, run)
            check_lead(path, lead, study.continue_run)
            folder = RunFolder(path, study)
            self._download = download_folder(self.fl_ctx) if settings.is_downloadable else None
            with _lock_folder(folder, run), keep_in_files(path):
                folder.claim(lead)
                # By it the sites find what they had done of a first round that was stopped.
                run = run if study.continue_run else folder.name_run(run)
                self._carry_out(study, run, folder)
        except ConfigError as error:
            # In the job's own folder: nothing is written into the run's, and nothing of it is copied.
            RunFolder(download_folder(self.fl_ctx), study).write_failure(str(error), run)
            self.system_panic(str(error), self.fl_ctx)

    def _carry_out(self, study: Study, run: str, folder: RunFolder) -> None:
        """Carry out what is left of a run; its folder has a result at its end, the job's own folder at any time."""
        try:
            if study.continue_run and folder.is_complete:
                self.info(f"run {run} is complete: its results are handed out once more")
                folder.copy_results(self._download or folder.path)
                return
            folder.mend()
            # What is found is another thing at each task.
            progress = answer_progress(study, run, folder.path, lambda: self._find_in_flight())
            self.engine.register_app_command(PROGRESS, progress)
            self._outlive_failures(study, study.federation.min_sites)
            self._publish(run, folder)
            server = self._begin(study, run, folder)
            # What is loaded by now stays: no round's `cleanup_memory` need look through it.
            gc.freeze()
            tests = self._course(server, folder).run()
            if tests is None:
                folder.write_stop(server, self._ending)
            folder.finish(server, tests)
        except Exception as error:  # without a result nobody would learn that the run is over, and why
            if not isinstance(error, (SiloFLError, OSError)):
                self.exception("the run failed")
            folder.write_failure(describe_failure(error), run)
            # NVFlare calls a job COMPLETED unless it is told otherwise.
            self.system_panic(describe_failure(error), self.fl_ctx)
        if self._download:
            folder.copy_results(self._download)

    def _rehearse(self, study: Study) -> None:
        """Rehearse a round, and write what each site has shown into the job's own folder; nothing of a run."""
        self._outlive_failures(study, 0)
        run = f"rehearsal-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = download_folder(self.fl_ctx)
        # Without a ledger: who is waited for is all that it says.
        self.engine.register_app_command(PROGRESS, answer_progress(study, run, folder, lambda: self._find_in_flight()))
        try:
            pretrained = read_job_pretrained(self.fl_ctx, study)
            make_folder(folder)
            with keep_in_files(folder):
                reports = rehearse_round(ServerRounds.start(study, run, self._list_sites(study), pretrained), self._ask)
            write_json(folder / REHEARSAL, {site: dump_record(report) for site, report in reports.items()})
        except Exception as error:  # without a report its lead learns why from the server's log
            self.system_panic(describe_failure(error), self.fl_ctx)

    def _outlive_failures(self, study: Study, quorum: int) -> None:
        """Have the job go on where a site's process fails, down to so many sites; 0 where the first failure is one."""
        self.engine.register_app_command(LEFT, self._take_left)
        self.engine.register_app_command(RETURNED, self._take_returned, study)
        self.engine.register_app_command(FAILED, self._take_failed, quorum)
        outlive_failures(self.fl_ctx.get_prop(FLContextKey.RUNNER), self.communicator)

    def _publish(self, run: str, folder: RunFolder) -> None:
        """Bring the finished rounds to where the study lead downloads them from."""
        if self._download:
            folder.copy_progress(self._download, run)

    def _begin(self, study: Study, run: str, folder: RunFolder) -> ServerRounds:
        """Start a run once its sites have joined, or continue one and let new sites join it."""
        pretrained = read_job_pretrained(self.fl_ctx, study)
        server = folder.load(pretrained)
        if server is None and not folder.is_begun:
            raise ConfigError(
                f"continue_run must name a run that this server keeps, not {run!r}; leave it out for a new one"
            )
        if server is None:
            return ServerRounds.start(study, run, self._wait_for_sites(study), pretrained)
        self._let_join(server)
        return server

    def _let_join(self, server: ServerRounds) -> None:
        """Let sites that are there now join a run that goes on."""
        for name in sorted({*self._list_sites(server.study)} - set(server.sites)):
            self.info(f"site {name!r} joins run {server.id}")
            server.join(name)

    def _list_sites(self, study: Study) -> list[str]:
        """Return the job's sites that take part, and keep a sentence on each other."""
        connected = {client.name for client in self.engine.get_clients()}
        sites = list_expected_sites(study, connected)
        self._strangers = [
            f"site {site!r} is connected and gets no task, as federation.sites does not name it"
            for site in sorted(connected - {*sites})
        ]
        return sites

    def _course(self, server: ServerRounds, folder: RunFolder) -> Course:
        def save() -> None:
            folder.save(server)
            self._publish(server.id, folder)
            self._tracking.send(server.ledger, self.engine)
            if not server.is_over():
                self._let_join(server)

        return Course(
            server,
            self._ask,
            save=save,
            warn=self.warning,
            is_aborted=lambda: self.abort_signal.triggered,
            say=self.info,
            remarks=lambda: self._strangers,
            before=lambda: folder.load_before(server),
            begin=folder.write_phase,
        )

    def _wait_for_sites(self, study: Study) -> list[str]:
        """Wait for the job's sites; once the time to join is over, the quorum is enough."""
        deadline = time.monotonic() + study.federation.join_timeout_s
        wanted = study.federation.sites or max(len(self.engine.get_clients()), study.federation.min_sites)
        # NVFlare gives a job to nobody who comes after it began: for sites by name `silofl run` has waited before.
        expected = wanted if isinstance(wanted, int) else 0
        connected = len(self.engine.get_clients())
        if connected < expected:
            limit = f"at most {study.federation.join_timeout_s:g} s"
            self.info(f"{connected} of {expected} sites are there; the first round waits {limit} for the others")
        while len(self.engine.get_clients()) < expected and time.monotonic() < deadline:
            time.sleep(POLL_S)
        sites = self._list_sites(study)
        if len(sites) < study.federation.min_sites:
            missing = ", ".join(sorted({*study.federation.named} - {*sites})) or "the missing sites"
            raise AggregationError(
                f"{len(sites)} of at least {study.federation.min_sites} sites joined before the first round; start "
                f"{missing} or lower federation.min_sites"
            )
        return sites

    def _ask(self, task_name: str, messages: Mapping[str, Message]) -> Answers:
        """Send each site its message and wait for the answers, but not for those of sites that were late before."""
        if task_name == TRAIN:
            # A task of NVFlare's refers to itself in a circle, with the model that was sent and the answer to it: they
            # stay until Python's collector comes, which counts objects and not bytes. Once a round, as it takes 0.1 s.
            cleanup_memory()
        given: dict[str, Message] = {}
        took: dict[str, float] = {}
        self._taken = {}
        started = time.monotonic()
        number = max((message.meta["round"] for message in messages.values()), default=0)
        limit_s = self._waiting.limit_s(task_name, number)

        def receive(model: FLModel) -> None:
            # The first counts: `_process_result` answers after it, in place of a site whose answer never came here.
            site = model.meta["client_name"]
            message = given.setdefault(site, from_model(model))
            took.setdefault(site, time.monotonic() - self._taken.get(site, started))
            self._waiting.heard_from(site)
            if "error" not in message.meta:
                self._waiting.answered(task_name, time.monotonic() - started)

        limits = {site: self._waiting.site_limit_s(site, task_name, limit_s) for site in messages}

        def list_waited_for() -> list[str]:
            passed_s = time.monotonic() - started
            return [s for s in messages if s not in given and s not in self._late and passed_s <= limits[s]]

        self._find_in_flight = lambda: InFlight.of(
            Exchange(task_name, number), time.monotonic() - started, dict(given), list_waited_for()
        )
        # One task a site instead of a broadcast, because messages differ: each holds the site's personalised model.
        for site, message in messages.items():
            model = to_model(message, is_difference=False)
            # NVFlare takes whole seconds, and 0 as no limit at all.
            self.send_model(task_name, model, targets=[site], timeout=max(1, round(limit_s)), callback=receive)
        # Sites answer in threads of NVFlare's, and leave without a word: both are looked for anew each time.
        while waiting := list_waited_for():
            connected = {client.name for client in self.engine.get_clients()}
            for site in waiting:
                if site in self._left or site not in connected:
                    given.setdefault(site, Message(meta={"error": self._left.get(site, GONE)}))
            if self.abort_signal.triggered:
                break
            time.sleep(POLL_S)
        self._find_in_flight = lambda: None
        self.cancel_all_tasks(fl_ctx=self.fl_ctx)
        # From here on an answer is too late: the callbacks may still come.
        settled = dict(given)
        late = set(messages) - set(settled)
        for site in late - self._late:
            self._waiting.waited_in_vain(site)
        # Some tasks go to a few sites: what is known of the others stays.
        self._late = (self._late - set(messages)) | late
        return replace(separate_failures(settled, late), seconds=dict(took))

    def _take_panic(self, event: str, context: FLContext) -> None:
        """Keep why NVFlare itself ends the job, as where a site answers that the job is not safe."""
        reason = context.get_prop(FLContextKey.EVENT_DATA)
        if isinstance(reason, str):
            self._ending = f"NVFlare ended the job ({plain_text(reason)})"

    def _take_left(self, topic: str, data: object, context: FLContext) -> dict[str, Any]:
        """Take from the server's lasting process which sites have left this job, and why; see `LeftSites`."""
        told = data.get("sites") if isinstance(data, dict) else None
        if isinstance(told, dict):
            self._left |= {site: why for site, why in told.items() if isinstance(site, str) and isinstance(why, str)}
        return {}

    def _take_returned(self, topic: str, data: object, context: FLContext, study: Study) -> dict[str, Any]:
        """Know a site that comes during the job by its new token, where the study has it take part."""
        site = data.get("site") if isinstance(data, dict) else None
        # The command may hold anything, since it came over the network.
        if not isinstance(site, Client) or not is_expected(study, site.name):
            return {}
        manager = self.engine.client_manager
        # What still comes by its token of before is refused from here on.
        clients = {token: client for token, client in manager.clients.items() if client.name != site.name}
        manager.set_clients(clients | {site.token: site})
        self._left.pop(site.name, None)
        return {"is_taken": True}

    def _take_failed(self, topic: str, data: object, context: FLContext, quorum: int) -> dict[str, Any]:
        """Say whether the job goes on without a site whose process has failed in a round; NVFlare ends it otherwise.

        What is killed once takes part in the job that goes on, to the same weights; a site whose process fails again,
        or that says so, ends nobody's run as long as the quorum is there.
        """
        if not isinstance(data, dict) or not isinstance(site := data.get("site"), str):
            return {}
        staying = {client.name for client in self.engine.get_clients()} - self._left.keys() - {site}
        if goes_on := (data.get("again") is True or not quorum) and len(staying) >= quorum:
            self._left[site] = FAILED_AGAIN if quorum else FAILED_ONCE
        else:
            self._ending = f"the process of site {site!r}, whose own log says why, failed"
        return {"goes_on": goes_on}

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Answer in place of a site for which NVFlare reports an error, or whose result it cannot read."""
        code = client_task.result.get_return_code()
        name = client_task.client.name
        super()._process_result(client_task, fl_ctx)
        # NVFlare does not call the callback for such a result: the round would wait until its time is over.
        reason = f"NVFlare at the site answered {code}; the site's own log says why"
        if code == ReturnCode.OK:
            reason = f"the answer of site {name!r} cannot be read; the server's log says what NVFlare missed"
        model = to_model(Message(meta={"error": reason}), is_difference=True)
        model.meta["client_name"] = name
        client_task.task.get_prop(AppConstants.TASK_PROP_CALLBACK)(model)

    def _prepare_task(self, *options: Any, **named: Any) -> Task:  # noqa: ANN401 - of NVFlare's own
        task = super()._prepare_task(*options, **named)
        send_uncopied(task)
        return task

    def _prepare_task_data(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Wait again for a site that was late or seemed to have left, now that it takes a task."""
        # A process that begins takes none for a while: what a task itself takes counts from here.
        self._taken[client_task.client.name] = time.monotonic()
        self._late.discard(client_task.client.name)
        self._left.pop(client_task.client.name, None)
        super()._prepare_task_data(client_task, fl_ctx)
