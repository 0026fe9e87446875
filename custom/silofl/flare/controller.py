"""The server in NVFlare: asks the sites, round by round, and writes down after each round all that was reached."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController

from silofl.config import Study
from silofl.errors import AggregationError, ConfigError, SiloFLError
from silofl.flare.exchange import from_model, to_model
from silofl.flare.places import job_pretrained, job_study, server_settings
from silofl.rounds.ledger import Round
from silofl.rounds.message import Message, check_score, check_super_score
from silofl.rounds.run import RunFolder
from silofl.rounds.server import ServerRounds
from silofl.rounds.super_rounds import SuperRounds

POLL_S = 0.05


def _together(reasons: Mapping[str, str]) -> str:
    """Return the sites' reasons, each said once."""
    sites = {reason: [site for site in reasons if reasons[site] == reason] for reason in reasons.values()}
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sites.items())


def _new_record(server: ServerRounds) -> Round:
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Round(server.finished_rounds + 1, started_at, sorted(server.models))


@dataclass(frozen=True)
class Answers:
    """What came of one message to each site: answers, reasons of those that could not do the task, and who was late."""

    given: dict[str, Message]
    failed: dict[str, str]
    late: list[str]


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
            except (SiloFLError, OSError) as error:
                self.error(str(error))
                folder.write_failure(str(error))

    def _run(self, study: Study, run: str, folder: RunFolder) -> None:
        pretrained = job_pretrained(self.fl_ctx, study)
        server = folder.load(pretrained)
        if server is None and study.continue_run:
            raise ConfigError(
                f"continue_run must name a run that this server keeps, not {run!r}; leave it out for a new one"
            )
        if server is None:
            server = ServerRounds.start(study, run, self._wait_for_sites(study), pretrained)
        else:
            self._take_in_newcomers(server)
        while server.finished_rounds < study.training_rounds and not self.abort_signal.triggered:
            self._train_round(server)
            folder.save(server)
        if not self.abort_signal.triggered and not server.has_validated:
            tasks = {site: server.evaluation_task(site, server.finished_rounds) for site in server.models}
            validation, _ = self._scores("validate", tasks, study, partial(check_score, part="validation"))
            server.note_validation(validation)
            folder.save(server)
        if study.recipe.has_selector:
            self._finish_together(server, folder)
        elif not self.abort_signal.triggered:
            tasks = {site: server.evaluation_task(site, server.reported_round()) for site in server.models}
            folder.finish(server, *self._scores("test", tasks, study, partial(check_score, part="test")))

    def _finish_together(self, server: ServerRounds, folder: RunFolder) -> None:
        """Give every site all models, let the selector learn the best ones if it does, tune the threshold, test."""
        study, together = server.study, SuperRounds(server)
        while server.finished_rounds < study.total_rounds and not self.abort_signal.triggered:
            self._assemble(together, has_selector=False)
            self._selector_round(server)
            folder.save(server)
        if self.abort_signal.triggered:
            return
        if not study.recipe.learns_best_model:
            self._assemble(together)
        tasks = {site: together.task(site) for site in server.models}
        check = partial(check_super_score, num_thresholds=len(together.thresholds))
        folder.finish(server, *self._scores("test_super_model", tasks, study, check), together)

    def _assemble(self, together: SuperRounds, has_selector: bool = True) -> None:
        """Send all models to the sites that do not hold them yet."""
        server = together.server
        tasks = {site: together.task(site, has_selector) for site in server.models if site not in together.holders}
        if tasks:
            together.note_assembled(self._ask("assemble", tasks, server.study.federation.task_timeout_s).given)
            for reason in together.refused.values():
                self.warning(reason)

    def _take_in_newcomers(self, server: ServerRounds) -> None:
        """Let sites that are here for the first time join the run that goes on."""
        for name in sorted({client.name for client in self.engine.get_clients()} - server.models.keys()):
            self.info(f"site {name!r} joins run {server.run}")
            server.join(name)

    def _scores(
        self,
        task: str,
        tasks: Mapping[str, Message],
        study: Study,
        check: Callable[[str, dict[str, Any]], dict[str, Any] | None],
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the sites' scores that pass the check, and why others gave none."""
        answers = self._ask(task, tasks, study.federation.task_timeout_s)
        scores, missing = {}, answers.failed | dict.fromkeys(answers.late, "no answer in time")
        for site, answer in answers.given.items():
            try:
                scores[site] = check(site, meta=answer.meta)
            except AggregationError as error:
                missing[site] = str(error)
        return {site: score for site, score in scores.items() if score is not None}, missing

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

    def _train_round(self, server: ServerRounds) -> None:
        started, record = time.monotonic(), _new_record(server)
        self._share_statistics(server, record)
        sent = {site: server.train_task(site) for site in record.asked}
        accepted = self._exchange("train", server, sent, record, server.accept)
        if accepted is None:
            return
        server.finish_round(record, accepted)
        for step in range(2, server.selector_steps + 1):
            self._selector_step(server, record, step)
        record.seconds = round(time.monotonic() - started, 3)

    def _share_statistics(self, server: ServerRounds, record: Round) -> None:
        """Ask sites for the statistics that are wanted before a round; none that fails keeps the round from running."""
        sent = server.statistics_tasks()
        if not sent:
            return
        answers = self._ask("statistics", sent, server.study.federation.task_timeout_s)
        server.note_statistics(record, answers.given, answers.failed | dict.fromkeys(answers.late, "no answer in time"))
        record.add_traffic(sent, answers.given)
        for note in record.notes:
            self.warning(note)

    def _selector_round(self, server: ServerRounds) -> None:
        """Carry out an extra round, in which the selector alone learns."""
        started, record = time.monotonic(), _new_record(server)
        accepted = None
        for step in range(1, server.study.recipe.selector_steps + 1):
            accepted = self._selector_step(server, record, step)
        if accepted is None:
            return
        server.finish_selector_round(record, accepted)
        record.seconds = round(time.monotonic() - started, 3)

    def _selector_step(self, server: ServerRounds, record: Round, step: int) -> dict[str, Message] | None:
        sent = {site: server.selector_task(site, step) for site in record.asked}
        accepted = self._exchange("selector", server, sent, record, server.accept_selector)
        if accepted is not None:
            server.step_selector(accepted)
        return accepted

    def _exchange(
        self,
        task: str,
        server: ServerRounds,
        sent: Mapping[str, Message],
        record: Round,
        accept: Callable[[str, Message, Message], None],
    ) -> dict[str, Message] | None:
        """Send a task to each site, return the answers that fit what was sent, and note all others in the record.

        Returns:
            None where the run is being aborted.

        Raises:
            AggregationError: Fewer sites answered than the study asks for.
        """
        federation = server.study.federation
        answers = self._ask(task, sent, federation.task_timeout_s)
        if self.abort_signal.triggered:
            return None
        record.late, record.failed = sorted({*record.late, *answers.late}), record.failed | answers.failed
        accepted = {}
        for site in sorted(answers.given):
            try:
                accept(site, sent[site], answers.given[site])
                accepted[site] = answers.given[site]
            except AggregationError as error:
                record.refused[site] = str(error)
                self.warning(str(error))
        if len(accepted) < federation.min_sites:
            reasons = {**record.failed, **record.refused, **dict.fromkeys(record.late, "no answer in time")}
            raise AggregationError(
                f"round {record.round} must have answers of at least {federation.min_sites} sites, "
                f"not {len(accepted)}: {_together(reasons)}"
            )
        record.add_traffic(sent, accepted)
        return accepted

    def _ask(self, task_name: str, messages: Mapping[str, Message], timeout_s: float) -> Answers:
        """Send every site its own message and wait for the answers; sites that were late before hold nobody up."""
        given: dict[str, Message] = {}

        def receive(model: FLModel) -> None:
            given[model.meta["client_name"]] = from_model(model)

        for site, message in messages.items():
            model = to_model(message, is_difference=False)
            self.send_model(task_name, model, targets=[site], timeout=max(1, round(timeout_s)), callback=receive)
        deadline = time.monotonic() + timeout_s
        while any(site not in given and site not in self._late for site in messages):
            if self.abort_signal.triggered or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        self.cancel_all_tasks(fl_ctx=self.fl_ctx)
        # From here on an answer is too late: the callbacks may still come.
        settled = dict(sorted(dict(given).items()))
        self._late = set(messages) - set(settled)
        failed = {site: str(a.meta["error"]) for site, a in settled.items() if "error" in a.meta}
        good = {site: answer for site, answer in settled.items() if site not in failed}
        return Answers(good, failed, sorted(self._late))

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Take NVFlare's own return code, of a filter that failed for one, as the site's reason, and wait no longer."""
        code = client_task.result.get_return_code()
        if code != ReturnCode.OK:
            reason = f"NVFlare at the site answered {code}; the site's own log says why"
            model = to_model(Message(meta={"error": reason}), is_difference=True)
            model.meta["client_name"] = client_task.client.name
            client_task.task.get_prop(AppConstants.TASK_PROP_CALLBACK)(model)
        super()._process_result(client_task, fl_ctx)

    def _prepare_task_data(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Note that a site has taken its task: one that was late is waited for again."""
        self._late.discard(client_task.client.name)
        super()._prepare_task_data(client_task, fl_ctx)
