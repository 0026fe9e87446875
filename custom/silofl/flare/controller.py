"""The server in NVFlare: asks the sites, round by round, and writes down after each round all that was reached."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

from silofl.config import Study
from silofl.errors import AggregationError, SiloFLError
from silofl.flare.exchange import from_model, to_model
from silofl.flare.places import job_study, server_settings
from silofl.rounds.ledger import Round
from silofl.rounds.message import Message
from silofl.rounds.run import RunFolder
from silofl.rounds.server import ServerRounds

POLL_S = 0.05


class RoundsController(ModelController):
    """Runs a study: one message to each site and round, a finite wait, an own quorum, a checkpoint after each round.

    A site that is late once is asked again in every round, but no round waits for it until it takes a task again.
    """

    def __init__(self) -> None:
        super().__init__(persistor_id="", ignore_result_error=True)
        self._late: set[str] = set()

    def run(self) -> None:
        """Carry out all rounds, the choice of the best one and its test; results are in the run's folder."""
        study = job_study(self.fl_ctx)
        run = study.continue_run or f"{study.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = RunFolder(server_settings(self.fl_ctx).run_folder(study.name, run), study)
        with folder.locked():
            try:
                self._run(study, run, folder)
            except SiloFLError as error:
                self.error(str(error))
                folder.write_failure(str(error))

    def _run(self, study: Study, run: str, folder: RunFolder) -> None:
        server = folder.load() or ServerRounds.start(study, run, self._wait_for_sites(study))
        sites = list(server.models)
        while server.finished_rounds < study.rounds and not self.abort_signal.triggered:
            self._train_round(server, sites)
            folder.save(server)
        if self.abort_signal.triggered:
            return
        last = server.finished_rounds
        answers = self._ask("validate", sites, lambda site: server.evaluation_task(site, last), study)
        server.note_validation({site: answer.meta["metrics"]["validation"] for site, answer in answers.items()})
        folder.save(server)
        best = server.reported_round()
        tests = self._ask("test", sites, lambda site: server.evaluation_task(site, best), study)
        folder.finish(server, {site: answer.meta["metrics"]["test"] for site, answer in tests.items()})

    def _wait_for_sites(self, study: Study) -> list[str]:
        """Wait until the job's sites are there, or the quorum once the time to join is over."""
        deadline = time.monotonic() + study.federation.join_timeout_s
        expected = study.federation.sites or len(self.engine.get_clients())
        while len(self.engine.get_clients()) < expected and time.monotonic() < deadline:
            time.sleep(POLL_S)
        sites = [client.name for client in self.engine.get_clients()]
        if len(sites) < study.federation.min_sites:
            raise AggregationError(
                f"at least {study.federation.min_sites} sites must join before the first round, not {len(sites)}; "
                "start the missing sites or lower federation.min_sites"
            )
        return sites

    def _train_round(self, server: ServerRounds, sites: list[str]) -> None:
        study, started = server.study, time.monotonic()
        record = Round(server.finished_rounds + 1, datetime.now(UTC).isoformat(timespec="seconds"), sorted(sites))
        sent: dict[str, Message] = {}

        def task(site: str) -> Message:
            sent[site] = server.train_task(site)
            record.bytes_to[site] = sent[site].num_bytes
            return sent[site]

        answers = self._ask("train", sites, task, study, record)
        for site in sorted(answers):
            try:
                server.accept(site, sent[site], answers[site])
            except AggregationError as error:
                record.refused[site] = str(error)
                self.warning(str(error))
                del answers[site]
        if self.abort_signal.triggered:
            return
        if len(answers) < study.federation.min_sites:
            reasons = {**record.failed, **record.refused, **dict.fromkeys(record.late, "no answer in time")}
            raise AggregationError(
                f"round {record.round} must have answers of at least {study.federation.min_sites} sites, "
                f"not {len(answers)}: {reasons}"
            )
        record.bytes_from = {site: answers[site].num_bytes for site in sorted(answers)}
        server.finish_round(record, sent, answers)
        record.seconds = round(time.monotonic() - started, 3)

    def _ask(
        self,
        task_name: str,
        sites: list[str],
        task: Callable[[str], Message],
        study: Study,
        record: Round | None = None,
    ) -> dict[str, Message]:
        """Send every site its own message and wait for the answers; sites that were late before hold nobody up."""
        record = record or Round(0)
        answers: dict[str, Message] = {}

        def receive(model: FLModel) -> None:
            answer, site = from_model(model), model.meta["client_name"]
            if "error" in answer.meta:
                record.failed[site] = str(answer.meta["error"])
            else:
                answers[site] = answer

        timeout = study.federation.task_timeout_s
        for site in sites:
            model = to_model(task(site), is_difference=False)
            self.send_model(task_name, model, targets=[site], timeout=max(1, round(timeout)), callback=receive)
        deadline = time.monotonic() + timeout
        while self._waits_for(sites, {*answers, *record.failed}) and time.monotonic() < deadline:
            if self.abort_signal.triggered:
                break
            time.sleep(POLL_S)
        self.cancel_all_tasks(fl_ctx=self.fl_ctx)
        record.late = [site for site in sites if site not in answers and site not in record.failed]
        self._late = set(record.late)
        return answers

    def _prepare_task_data(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Note that a site has taken its task: one that was late is waited for again."""
        self._late.discard(client_task.client.name)
        super()._prepare_task_data(client_task, fl_ctx)

    def _waits_for(self, sites: list[str], done: set[str]) -> bool:
        return any(site not in done and site not in self._late for site in sites)
