"""A rehearsal: a short round at every site under the study's own digest, of which nothing learnt leaves or stays.

A site trains a tenth of a round's steps at most on its data, validates, and sends back the arrays as they came.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silofl.base.errors import TrainingError
from silofl.core.spread import count_digits_apart
from silofl.federation import needs
from silofl.federation.course import Network, prepare_tasks
from silofl.federation.egress import ASK, Gate, Request
from silofl.federation.server import ServerRounds
from silofl.federation.step_cost import measure_cost, measure_validation
from silofl.federation.waiting import FIRST_S
from silofl.models.precision import narrow_arrays
from silofl.parts.answer import explain_refusal, plain_text
from silofl.parts.task import TRAIN, Exchange, Message
from silofl.parts.work import Work
from silofl.training.privacy_budget import read_count
from silofl.training.private import compute_study_epsilon, measure_round

# What the server writes for the lead in place of a result.
FILE = "rehearsal.json"
# Of a round's steps a site takes so large a part at most, and so many.
SHARE, MOST_STEPS = 10, 20


@dataclass(frozen=True)
class SiteReport:
    """What a rehearsal has shown of a site.

    Attributes:
        faults: What would have failed, each as a sentence; all else is None where there was no answer.
        round_seconds: Expected of a round: training, validation, and the messages both ways.
        run_hours: Of all rounds.
        peak_bytes: The most memory in use, of the GPU where there is one.
        device: On which it trained.
        bytes_to: Bytes of the arrays that it was sent.
        bytes_from: Bytes of the arrays that it sent back.
        left_out: Cases that cannot be read, which it leaves out.
    """

    faults: tuple[str, ...]
    round_seconds: float | None = None
    run_hours: float | None = None
    peak_bytes: int | None = None
    device: str | None = None
    bytes_to: int | None = None
    bytes_from: int | None = None
    left_out: int | None = None


def rehearse_site(work: Work, gate: Gate, state: Path, began: float) -> Message:
    """Carry out a training task as a rehearsal, and answer with the arrays as they came.

    Args:
        work: The task, in a folder that is thrown away.
        gate: What may leave the site.
        state: The site's own state of the study, which is only read.
        began: When the site took the task, by `time.perf_counter`.

    Raises:
        SiloFLError: The site could not train; the sentence may name a case.
    """
    study = work.study
    training = work.data.training
    an_epoch = study.steps_an_epoch(len(training))
    cost = measure_cost(work, max(1, min(an_epoch * study.training.local_epochs // SHARE, MOST_STEPS)))
    validation_s, peak_bytes = measure_validation(work)
    numbers: dict[str, Any] = {"round": work.number, "image_shape": list(training.image_shape)}
    numbers |= {"num_examples": len(training), "num_patients": training.num_patients}
    if work.data.unreadable:
        numbers["unreadable"] = dict(work.data.unreadable)
    arrays = gate.select_returned(Request.of(TRAIN, work.message), work.message.arrays, training.image_shape)
    numbers["rehearsal"] = {
        "round_seconds": cost.of_round(an_epoch, study.training.local_epochs) + validation_s,
        "peak_bytes": max(cost.peak_bytes, peak_bytes),
        "device": work.device.type,
        "faults": [plain_text(fault) for fault in _list_faults(work, gate, state)],
        "seconds": time.perf_counter() - began,
    }
    return Message(narrow_arrays(arrays, study), numbers)


def _list_faults(work: Work, gate: Gate, state: Path) -> Iterator[str]:
    """Yield what would fail later in a run, each as a sentence for the server."""
    study = work.study
    if withheld := gate.list_withheld(range(1, study.rounds + 1)):
        yield f"the site does not let {', '.join(withheld)} leave, which the study asks for; {ASK}"
    if study.promise:
        before = read_count(state, work.site, study.promise[1])
        epsilon = compute_study_epsilon(study, measure_round(study, work.data.training)[1], before)
        limit = work.max_epsilon
        if limit is not None and epsilon > limit:
            digits = count_digits_apart(epsilon, limit)
            yield f"all rounds spend epsilon {epsilon:.{digits}g}, more than max_epsilon of the site, {limit:g}"
    wanted = needs.site_disk_bytes(study, work.message.meta.get("sites") or 2)
    # The site's folder of the study need not be there yet.
    disk = next(folder for folder in (state, *state.parents) if folder.is_dir())
    free = shutil.disk_usage(disk).free
    if free < wanted:
        yield f"the site's disk must have {wanted / needs.GIB:.1f} GiB free for its state, not {free / needs.GIB:.1f}"


def rehearse_round(server: ServerRounds, ask: Network) -> dict[str, SiteReport]:
    """Rehearse a round at all sites of a run that never begins; returns what each has shown, by name.

    Args:
        server: The run; it stays as it is.
        ask: The network.
    """
    exchange = Exchange(TRAIN, 1)
    study = server.study
    tasks = prepare_tasks(server, server.sites, exchange)
    answers = ask(TRAIN, tasks)
    limit = study.federation.task_timeout_s or FIRST_S
    reports = {}
    # Who never came is reported as well, since the study names it.
    for site, reason in (answers.failed | server.find_absent_sites()).items():
        reports[site] = SiteReport((reason,))
    for site, message in answers.given.items():
        try:
            numbers = server.read(site, exchange, message).numbers
            server.take_software(site, numbers.software)
            rehearsal = numbers.rehearsal
            if rehearsal is None:
                raise TrainingError(f"site {site!r} trained in place of a rehearsal; have it upgraded")
        except Exception as error:  # whatever a site sends hides no other's report
            reports[site] = SiteReport((explain_refusal(site, error),))
            continue
        # What the answer took beyond the site's own work is the way of the messages.
        seconds = rehearsal.round_seconds + max(0.0, answers.seconds.get(site, 0.0) - rehearsal.seconds)
        faults = rehearsal.faults
        if seconds > limit:
            late = f"a round takes {seconds:.0f} s, and {limit:.0f} s are allowed; raise federation.task_timeout_s"
            faults = (*faults, late)
        reports[site] = SiteReport(
            faults=faults,
            round_seconds=seconds,
            run_hours=seconds * study.total_rounds / 3600,
            peak_bytes=rehearsal.peak_bytes,
            device=rehearsal.device,
            bytes_to=tasks[site].num_bytes,
            bytes_from=message.num_bytes,
            left_out=sum(numbers.unreadable.values()),
        )
    return dict(sorted(reports.items()))
