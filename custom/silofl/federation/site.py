"""A site's half of a run: it carries out the server's tasks on its data, and keeps the state that stays at home."""

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from silofl.base.errors import PauseError, SiloFLError, one_line
from silofl.base.files import remove_unfinished
from silofl.data.cache import describe_source
from silofl.data.learnt import check_not_learnt, record_learnt
from silofl.data.site_data import SiteData, load_site_data
from silofl.federation.egress import Gate, Request, TaskHeader
from silofl.federation.egress_log import EgressLog
from silofl.federation.past_runs import check_past_runs
from silofl.federation.rehearsal import rehearse_site
from silofl.federation.state import SiteState
from silofl.federation.steps import StepFile
from silofl.federation.task_checks import check_task
from silofl.models.precision import narrow_arrays, widen_arrays
from silofl.parts.answer import public_reason
from silofl.parts.half_round import HalfRound, digest_task
from silofl.parts.load import leaves_state
from silofl.parts.task import TRAIN, Message
from silofl.parts.work import Work
from silofl.setup.extensions import allow_extensions, check_extensions
from silofl.setup.site import Site
from silofl.setup.software import read_software
from silofl.study import Study
from silofl.training.device import choose_device, keep_freed_memory, set_threads

logger = logging.getLogger(__name__)


class SiteRounds:
    """One site in one study; every task begins from the state on disk, so that a crash costs one round at most.

    Args:
        site: The site's own settings.
        latest: Reads the settings anew, for what the hospital may change while a study runs: ``paused``.

    Raises:
        ExtensionError: The study names a part of a package that the site has not allowed or not installed.
        PinError: The site asks for differential privacy that the study has not.
    """

    def __init__(self, name: str, study: Study, site: Site, latest: Callable[[], Site] | None = None) -> None:
        self.name, self.study, self.site = name, study, site
        self._latest = latest or (lambda: site)
        self._has_said_software = False
        # The folders of runs that have learnt from the data as this process has read them.
        self._recorded: set[Path] = set()
        site.check_private(study.name, study.promise)
        allow_extensions(site.extensions)
        check_extensions(study.extensions)
        self.device = choose_device(site.device or study.device)
        # Another number of threads sums in another order, and so gives other weights.
        set_threads(study.torch_threads)
        keep_freed_memory()

    @cached_property
    def data(self) -> SiteData:
        """The site's data, decoded once."""
        return load_site_data(
            self.site.data_folder(self.study.name, self.name),
            self.study,
            self.site.cache_folder(self.study.name, self.name),
            self.site.has_progress,
            self.site.skip_unreadable,
        )

    @cached_property
    def gate(self) -> Gate:
        """What may leave the site: the first lock, whatever filters NVFlare has."""
        return Gate.of(self.study, self.site)

    def answer(self, task: str, message: Message) -> Message:
        """Carry out a task of the server.

        Returns:
            The site's answer; where the task could not be done, no arrays and ``meta["error"]`` with a reason that
            names no case. The full reason is in the site's own log. What must not leave is in the run's record too.
        """
        # In the site's log, whatever the server calls them.
        what = one_line(f"{task} of round {message.meta.get('round')}")
        try:
            self.check_paused()
            request = Request.of(task, message)
            self.gate.check_partners(self.name, request)
            check_past_runs(self.site, self.study, self.name, request)
            answer = self.carry_out(task, message)
            # Again, because training takes its time: from the pause on nothing leaves.
            self.check_paused()
            if reason := self.gate.refusal(request, answer):
                logger.error("%s is refused: %s", what, reason)
                # Here, because a job's last filter gets the refusal alone.
                folder = self.site.run_folder(self.study.name, self.name, request.run)
                EgressLog(folder).write(self.gate.records(request, answer, reason))
                return message.failed(reason)
            return answer
        except PauseError as pause:
            logger.warning("%s is not answered: %s", what, pause)
            return message.failed(public_reason(pause))
        except Exception as error:  # anything unreported would let the server wait until its timeout
            logger.error("%s failed: %s", what, error, exc_info=not isinstance(error, (SiloFLError, OSError)))
            return message.failed(public_reason(error))

    def check_paused(self) -> None:
        """Refuse any task where the hospital has paused the study, by its settings as they are now.

        Raises:
            PauseError: It has, or the settings cannot be read: a site takes part only where they say that it may.
        """
        try:
            site = self._latest()
        except (SiloFLError, OSError) as fault:
            logger.error("the study is paused until the settings are right: %s", fault)
            raise PauseError(
                f"study {self.study.name!r} is paused at the site, whose settings cannot be read; its own log names "
                "the fault"
            ) from None
        site.check_paused(self.study.name)

    def carry_out(self, task: str, message: Message) -> Message:
        """Carry out a task and keep what stays at home.

        Returns:
            The site's answer; where its state is older than the task says, the round of that state, so that the server
            can send what it lacks.

        Raises:
            SiloFLError: It cannot be done; the sentence may name a case.
        """
        asked = TaskHeader.of(message)
        study = self.study.ended_after(asked.joint_rounds)
        message = replace(message, arrays=widen_arrays(message.arrays, self.study))
        check_task(self.name, task, asked, self.study)
        if self.study.rehearsal:
            return self._rehearse(message) | self._say_software(asked)
        folder = self.site.run_folder(self.study.name, self.name, asked.run)
        remove_unfinished(folder)
        states = SiteState(folder / "rounds", asked.run, self.name)
        # Not from the newest: what a later round left here has not happened where the server did not take its answer.
        held, kept = states.load(asked.held)
        if held < asked.held:
            reason = (
                f"site {self.name!r} must hold its state of round {asked.held}, not of {held}; its own log says more"
            )
            logger.warning("%s: the files of %s are missing or damaged", reason, states.folder)
            return message.failed(reason) | Message(meta={"held": held})
        self._compare_with_learnt(folder, task)
        half = HalfRound(folder, partial(self._describe_task, task, message, asked))
        answer = half.answer()
        has_state = leaves_state(study, task, asked.round)
        # Without the state that goes with an answer, nothing could go on from it.
        if answer is None or (has_state and states.load(asked.round)[0] < asked.round):
            answer = self._carry_out_anew(task, message, asked, kept, held, half)
        asked_for = Message(meta={"min_partners": self.site.min_partners, "shares_models": self.site.shares_models})
        return answer | asked_for | self._say_software(asked)

    def _carry_out_anew(
        self, task: str, message: Message, asked: TaskHeader, kept: dict[str, Any], held: int, half: HalfRound
    ) -> Message:
        """Carry out a task, from where an earlier process was in it; keep what stays at home, and a training's answer.

        Args:
            kept: The site's state of the round ``held``.
        """
        folder = self.site.run_folder(self.study.name, self.name, asked.run)
        steps = StepFile(folder)
        work = self._prepare(
            message,
            folder,
            half=half,
            settings=self.site,
            kept=kept,
            held=held,
            task=task,
            on_step=steps.write,
            locate_run=partial(self.site.run_folder, site=self.name),
        )
        with closing(work), closing(steps):
            answer = work.answer()
        states = SiteState(folder / "rounds", asked.run, self.name)
        if leaves_state(work.study, task, asked.round):
            states.save(asked.round, work.to_keep or kept, held, asked.best_round)
        elif work.to_keep and held:
            # The state that it began from, with more beside it.
            states.rewrite(held, work.to_keep)
        answer = replace(answer, arrays=narrow_arrays(answer.arrays, self.study))
        half.keep_answer(answer)
        return answer

    def _describe_task(self, task: str, message: Message, asked: TaskHeader) -> dict[str, str | int]:
        """Return what decides a task's answer: the task, the data and the settings, all of them."""
        deciding = [self.site.model_dump(mode="json"), read_software().model_dump(), self.device.type, self._source]
        return {"run": asked.run, "site": self.name, "task": task, "digest": digest_task(message, *deciding)}

    @cached_property
    def _source(self) -> str | None:
        """The data as they are now; None without dataset.json."""
        return describe_source(self.data.manifest).state if self.data.manifest else None

    def _rehearse(self, message: Message) -> Message:
        """Rehearse a training; the site's state, the count of its privacy too, stays as it is."""
        began = time.perf_counter()
        state = self.site.state_folder(self.study.name, self.name)
        with TemporaryDirectory() as folder, closing(self._prepare(message, Path(folder, "run"))) as work:
            return rehearse_site(work, self.gate, state, began)

    def _prepare(self, message: Message, folder: Path, **state: Any) -> Work:  # noqa: ANN401
        """Return a task at this site, with what it has kept at home."""
        study = self.study.ended_after(TaskHeader.of(message).joint_rounds)
        return Work(
            self.name,
            study,
            self.data,
            message,
            self.device,
            self.site.processes,
            folder=folder,
            data_folder=self.site.data_folder(self.study.name, self.name),
            min_patients=self.site.min_patients,
            max_epsilon=self.site.max_epsilon,
            may_send=self.gate.allowed.__contains__,
            cache=self.site.cache_folder(self.study.name, self.name),
            **state,
        )

    def _say_software(self, asked: TaskHeader) -> Message:
        # A server that tells its own software does not know the site's, or knows it of an earlier process.
        if self._has_said_software and asked.software is None:
            return Message()
        self._has_said_software = True
        return Message(meta={"software": read_software().model_dump()})

    def _compare_with_learnt(self, folder: Path, task: str) -> None:
        """Refuse test images that the run learnt from before dataset.json changed; record what it learns from now."""
        if folder in self._recorded:
            return
        check_not_learnt([folder], self.data, self.study)
        if task == TRAIN:
            record_learnt(folder, self.data)
            self._recorded.add(folder)
