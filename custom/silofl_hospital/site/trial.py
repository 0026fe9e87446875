"""A trial of the study at the site: the cost of a training step, and everything that an answer would take out."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from silofl.federation.egress import ASK, Gate, Request
from silofl.federation.needs import GIB
from silofl.federation.site import SiteRounds
from silofl.federation.step_cost import measure_cost
from silofl.federation.waiting import FIRST_S
from silofl.flare.egress import effective_scope, filter_answer
from silofl.parts.part import BEFORE, END, INSTEAD
from silofl.parts.task import COLLECT, TRAIN, Exchange, Message
from silofl.parts.work import Work
from silofl.training.device import choose_device
from silofl.training.privacy_budget import count_steps, read_count
from silofl.training.private import compute_study_epsilon, measure_round
from silofl_hospital.site.candidate import Candidate
from silofl_hospital.site.finding import Finding, expect, failed, ok, warning
from silofl_hospital.site.resources import explain_gpu_fault


def check_training(candidate: Candidate) -> Finding:
    """Time a few training steps on the site's data and compare a round of them with the study's time limit.

    Raises:
        TrainingError: The loss is not finite.
        ConfigError: The device is not there, or an augmentation does not fit.
    """
    study = candidate.study
    part = candidate.data.training
    if not study.rounds:
        what = "surveys the data" if study.asks_alone else "tests a finished model"
        return ok(f"nothing is trained: the study {what}")
    device = choose_device(candidate.settings.device or study.device)
    task = candidate.server.task(candidate.kit.name, Exchange(TRAIN, 1))
    work = Work(candidate.kit.name, study, candidate.data, task, device, candidate.settings.processes)
    try:
        cost = measure_cost(work)
    except RuntimeError as error:
        return failed(explain_gpu_fault(error))
    an_epoch = study.steps_an_epoch(len(part))
    epochs = study.training.local_epochs
    steps = an_epoch * epochs
    seconds = cost.of_round(an_epoch, epochs)
    # Without a limit in the study the server waits so long for a first answer.
    limit = study.federation.task_timeout_s or FIRST_S
    facts: dict[str, Any] = {"seconds_per_step": cost.seconds, "steps_per_round": steps, "peak_bytes": cost.peak_bytes}
    facts |= {"seconds_per_round": seconds, "device": device.type}
    return expect(
        seconds <= limit,
        f"a step takes {cost.seconds:.3f} s and a round's {steps} steps {seconds:.0f} s on the {device.type}, with "
        f"{cost.peak_bytes / GIB:.2f} GiB at most",
        f"a round trains for {seconds:.0f} s on this machine, longer than federation.task_timeout_s, {limit:.0f} s; "
        "use a faster one, or ask the study lead for more time",
        **facts,
    )


def check_privacy(candidate: Candidate) -> Finding:
    """Count what the study's differential privacy spends at the site if all rounds come, beside what it has spent.

    Raises:
        SiloFLError: It cannot be counted for the site's data.
    """
    study = candidate.study
    limit = candidate.settings.max_epsilon
    settings = study.privacy.dp_sgd
    if settings is None:
        # A site that asks for privacy refuses such a study where its digest is checked.
        return ok("the study has no differential privacy")
    units, of_round = measure_round(study, candidate.data.training)
    before = read_count(candidate.state_folder, candidate.kit.name, settings.unit)
    epsilon = compute_study_epsilon(study, of_round, before)
    earlier = f", with the {count_steps(before)} steps that were counted before," if before else ""
    spends = (
        f"{study.training_rounds} rounds{earlier} spend epsilon {epsilon:.3g} at delta {settings.delta:g} for each of "
        f"{units} {settings.unit}s"
    )
    # A run that goes on has counted its earlier rounds already, and they count twice here.
    if before and limit is not None and compute_study_epsilon(study, of_round) <= limit < epsilon:
        return warning(
            f"{spends}, more than the {limit:g} of max_epsilon in site.yaml; the site refuses the rounds beyond it, "
            "unless those that were counted are of this run, which goes on",
            epsilon=epsilon,
        )
    return expect(
        limit is None or epsilon <= limit,
        spends,
        f"max_epsilon of site.yaml must be at least what the study spends, not {limit}: {spends}; ask for more noise "
        "or fewer rounds",
        epsilon=epsilon,
    )


def check_leaving(candidate: Candidate) -> Finding:
    """Train on a few examples in a temporary folder, and list everything that leaves of the answers.

    They pass the site's own filters, as NVFlare will have them pass. What only later tasks ask for is listed beside it.

    Raises:
        SiloFLError: The trial round cannot be carried out.
    """
    answers = _try_exchanges(candidate)
    for _, answer in answers:
        if "error" in answer.meta:
            reason = str(answer.meta["error"]).removesuffix(f": {ASK}")
            return failed(
                f"the site's own policy refuses an answer of the study: {reason}; widen may_leave in site.yaml, or "
                "stay out of the study"
            )
    gate = Gate.of(candidate.study, candidate.settings)
    needed, asked = _find_later_kinds(candidate, gate)
    if refused := sorted(needed - gate.allowed):
        return failed(
            f"may_leave of site.yaml lacks {', '.join(refused)}, which only a later round takes out; without it the "
            "site's answer is refused then: add it, or stay out of the study"
        )
    kinds: dict[str, dict[str, Any]] = {}
    for task, answer in answers:
        # These are the very records that a job writes.
        for record in gate.records(Request(task), answer):
            entry = kinds.setdefault(record["kind"], {"bytes": 0, "names": [], "purpose": record["purpose"]})
            entry["bytes"] += record["bytes"]
            entry["names"].append(record["name"])
    withheld = ", ".join(sorted(_find_kinds_of_few(candidate, gate)))
    later = sorted((needed | asked & gate.allowed) - kinds.keys())
    listed = ", ".join(f"{kind} {entry['bytes']} bytes" for kind, entry in kinds.items())
    sentence = f"an answer takes out {listed}"
    if later:
        sentence += f", and one of a later round {', '.join(later)}"
    sentence += "; and no image, label, case or patient"
    if withheld:
        sentence += f"; withheld: {withheld}, of fewer than {gate.min_patients} patients in training"
    for kind in later:
        kinds[kind] = {"purpose": gate.purpose(kind)}
    return ok(sentence, kinds=kinds)


def _try_exchanges(candidate: Candidate) -> list[tuple[str, Message]]:
    """Return task and answer of a first training, or a test, and of all exchanges of the parts before a round."""
    study = candidate.study
    site = candidate.kit.name
    server = candidate.server
    scope = effective_scope(candidate.kit)
    # A part may begin to ask only in a later round: the last one shows what the first does not.
    asked: dict[str, Exchange] = {}
    for number in (1, study.rounds):
        asked |= {exchange.task: exchange for exchange in server.asks(BEFORE, number)}
    if study.asks_alone:
        exchanges = [*server.asks(END, 0)]
    elif study.rounds:
        exchanges = [Exchange(TRAIN, 1), *asked.values()]
    else:
        exchanges = [Exchange(server.test.task, 0), *asked.values()]
    answers = []
    with tempfile.TemporaryDirectory(prefix="silofl-check-") as folder:
        rounds = _make_trial_site(candidate, folder)
        for exchange in exchanges:
            task = exchange.task
            message = server.task(site, exchange)
            answer = rounds.carry_out(task, message)
            # As in a job, the site looks at its answer before NVFlare's filters do.
            reason = rounds.gate.refusal(Request.of(task, message), answer)
            if reason:
                answer = message.failed(reason)
            answers.append((task, filter_answer(scope, site, study, rounds.site, task, message, answer)))
            # What comes after the training begins from the state that it left.
            server = replace(server, trained=frozenset({site}))
    return answers


def _find_later_kinds(candidate: Candidate, gate: Gate) -> tuple[set[str], set[str]]:
    """Return the kinds that later rounds take out beside the first, and those that are asked for after the last."""
    study = candidate.study
    server = candidate.server
    rounds = [Exchange(TRAIN, study.rounds)]
    if study.total_rounds > study.training_rounds:
        rounds += server.asks(INSTEAD, study.total_rounds)
    few = _find_kinds_of_few(candidate, gate)
    needed = gate.list_asked_kinds(*rounds) - gate.list_asked_kinds(Exchange(TRAIN, 1)) - few
    asked = gate.list_asked_kinds(Exchange(COLLECT, study.rounds), Exchange(server.test.task, study.rounds)) - few
    return needed, asked


def _find_kinds_of_few(candidate: Candidate, gate: Gate) -> set[str]:
    """Return the kinds that the site withholds because it has too few training patients."""
    if candidate.study.asks_alone or candidate.data.training.num_patients >= gate.min_patients:
        return set()
    return {kind.name for kind in gate.kinds if kind.is_of_images}


def _make_trial_site(candidate: Candidate, folder: str) -> SiteRounds:
    """Return the site with its state in another folder, to train, or test, once on one batch of its data."""
    study = candidate.study
    settings = candidate.settings
    data = candidate.data
    changes: dict[str, Any] = {"state_dir": folder, "cache_dir": folder}
    if study.asks_alone:
        return SiteRounds(candidate.kit.name, study, settings.model_copy(update=changes))
    name, *_ = study.needed_parts
    part = getattr(data, name)
    batch = range(min(len(part), study.training.batch_size))
    rows: Sequence[int] = batch
    if not study.rounds:
        # A test answers whole cases.
        tested = {part.cases[row] for row in batch}
        rows = [row for row, case in enumerate(part.cases) if case in tested]
    few = part.select_rows(rows)
    # One batch must not be refused for being small where all such data of the site are enough; and a step that sees all
    # of it spends more than a round's.
    is_enough = part.num_patients >= settings.min_patients
    changes |= {"max_epsilon": None, "min_patients": 0 if is_enough else settings.min_patients}
    once = study.training.model_copy(update={"local_epochs": 1})
    rounds = SiteRounds(
        candidate.kit.name, study.model_copy(update={"training": once}), settings.model_copy(update=changes)
    )
    rounds.data = replace(data, **{name: few})
    return rounds
