"""A trial of the study at the site: the cost of a training step, and everything that an answer would take out."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from silofl.core.mixing import Arrays
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData
from silofl.federation.egress import ASK, Gate, Request
from silofl.federation.needs import GIB
from silofl.federation.site import SiteRounds
from silofl.federation.step_cost import measure_cost
from silofl.federation.waiting import FIRST_S
from silofl.flare.egress import effective_scope, filter_answer
from silofl.hospital.candidate import Candidate
from silofl.hospital.finding import Finding, failed, ok, warning
from silofl.hospital.resources import explain_gpu_fault
from silofl.models.precision import narrow_arrays
from silofl.parts.part import BEFORE, END, INSTEAD
from silofl.parts.task import COLLECT, TRAIN, Exchange, Expected, Message
from silofl.parts.work import Work
from silofl.training.device import choose_device
from silofl.training.private import compute_study_epsilon, measure_round
from silofl.training.spent import count_steps, read_count

NUMBERS = "numbers"
WITHOUT_ROUNDS = {False: "tests a finished model", True: "surveys the data"}


def check_training(candidate: Candidate) -> Finding:
    """Time a few training steps on the site's data and compare a round of them with the study's time limit.

    In a study of patches the site's largest volume is looked at too, for the memory that its evaluation takes.

    Raises:
        TrainingError: The loss is not finite.
        ConfigError: The device is not there, or an augmentation does not fit.
    """
    study, part = candidate.study, candidate.data.training
    if not study.rounds:
        return ok(f"nothing is trained: the study {WITHOUT_ROUNDS[study.asks_alone]}")
    device = choose_device(candidate.settings.device or study.device)
    task = candidate.server.task(candidate.kit.name, Exchange(TRAIN, 1))
    work = Work(candidate.kit.name, study, candidate.data, task, device, candidate.settings.processes)
    try:
        cost = measure_cost(work, find_largest_volume(candidate.data) if study.data.patches else None)
    except RuntimeError as error:
        return failed(explain_gpu_fault(error))
    an_epoch, epochs = study.steps_an_epoch(len(part)), study.training.local_epochs
    steps, seconds = an_epoch * epochs, cost.of_round(an_epoch, epochs)
    limit = study.federation.task_timeout_s or FIRST_S
    facts: dict[str, Any] = {"seconds_per_step": cost.seconds, "steps_per_round": steps, "peak_bytes": cost.peak_bytes}
    facts |= {"seconds_per_round": seconds, "device": device.type}
    if seconds > limit:
        return failed(
            f"a round must train in less than federation.task_timeout_s, {limit:.0f} s, not {seconds:.0f} s on this "
            "machine; use a faster one, or ask the study lead for more time",
            **facts,
        )
    return ok(
        f"a step takes {cost.seconds:.3f} s and a round's {steps} steps {seconds:.0f} s on the {device.type}, with "
        f"{cost.peak_bytes / GIB:.2f} GiB at most",
        **facts,
    )


def check_privacy(candidate: Candidate) -> Finding:
    """Count what the study's differential privacy spends at the site if all rounds come, beside what it has spent.

    Raises:
        SiloFLError: It cannot be counted for the site's data.
    """
    study, limit = candidate.study, candidate.settings.max_epsilon
    settings = study.privacy.dp_sgd
    if settings is None:
        keys = (limit, candidate.settings.max_delta, candidate.settings.privacy_unit)
        return ok("the study has no differential privacy" + ", and site.yaml asks for none" * (keys == (None,) * 3))
    units, of_round = measure_round(study, candidate.data.training)
    before = read_count(candidate.state_folder, candidate.kit.name, settings.unit)
    epsilon = compute_study_epsilon(study, of_round, before)
    earlier = f", with the {count_steps(before)} steps that were counted before," if before else ""
    spends = (
        f"{study.training_rounds} rounds{earlier} spend epsilon {epsilon:.3g} at delta {settings.delta:g} for each of "
        f"{units} {settings.unit}s"
    )
    if before and limit is not None and compute_study_epsilon(study, of_round) <= limit < epsilon:
        return warning(
            f"{spends}, more than the {limit:g} of max_epsilon in site.yaml; the site refuses the rounds beyond it, "
            "unless those that were counted are of this run, which goes on",
            epsilon=epsilon,
        )
    if limit is not None and epsilon > limit:
        return failed(
            f"max_epsilon of site.yaml must be at least what the study spends, not {limit:g}: {spends}; ask for more "
            "noise or fewer rounds",
            epsilon=epsilon,
        )
    return ok(spends, epsilon=epsilon)


def check_leaving(candidate: Candidate) -> Finding:
    """Train on a few examples in a temporary folder, and list everything that leaves of the answers.

    They pass the site's own filters, as NVFlare will have them pass. What only later tasks ask for is listed beside it.

    Raises:
        SiloFLError: The trial round cannot be carried out.
    """
    answers = _try_exchanges(candidate)
    for answer in answers:
        if "error" in answer.meta:
            reason = str(answer.meta["error"]).removesuffix(f": {ASK}")
            return failed(
                f"the site's own policy must let the study's answers leave, and refuses one: {reason}; widen may_leave "
                "in site.yaml, or stay out of the study"
            )
    gate = Gate.of(candidate.study, candidate.settings)
    needed, asked = _find_later_arrays(candidate, gate)
    if refused := sorted({*map(gate.kind, needed)} - gate.allowed):
        return failed(
            f"may_leave of site.yaml must name {', '.join(refused)}, which only a later round takes out; without it "
            "the site's answer is refused then: add it, or stay out of the study"
        )
    kinds = group_by_kind([answer.arrays for answer in answers], gate)
    later = group_by_kind(
        [needed, {name: array for name, array in asked.items() if gate.kind(name) in gate.allowed}], gate
    )
    entries = {kind.role for kind in gate.kinds if kind.is_entry}
    numbers = {name: value for answer in answers for name, value in answer.meta.items() if name not in entries}
    kinds[NUMBERS] = {"bytes": len(json.dumps(numbers)), "names": sorted(numbers)}
    withheld = [
        str(said["withheld"])
        for answer in answers
        for said in answer.meta.values()
        if isinstance(said, dict) and "withheld" in said
    ]
    says = f", and one of a later round {_list_kinds(later)}" if later else ""
    says += "; and no image, label, case or patient"
    for answer in answers:
        for kind in gate.list_entries(answer):
            size = len(json.dumps(answer.meta[kind.role]))
            kinds[kind.name] = {"bytes": size, "names": [kind.role], "purpose": kind.purpose}
    num_patients = candidate.data.training.num_patients
    if (
        not candidate.study.asks_alone
        and num_patients < gate.min_patients
        and not withheld
        and any(kind.is_of_images for kind in gate.kinds)
    ):
        withheld = [f"means over the images, of {num_patients} training patients; min_patients is {gate.min_patients}"]
    says += f"; withheld: {withheld[0]}" if withheld else ""
    return ok(f"an answer takes out {_list_kinds(kinds)}{says}", kinds=kinds | later)


def find_largest_volume(data: SiteData) -> Examples:
    """Return the largest volume that the site evaluates, or learns from where it evaluates none."""
    parts = [part for part in (data.validation, data.test) if len(part)] or [data.training]
    sizes = [(image.size, part, row) for part in parts for row, image in enumerate(part.images)]
    _, part, row = max(sizes, key=lambda one: one[0])
    return part.select_rows([row])


def group_by_kind(messages: list[Arrays], gate: Gate) -> dict[str, dict[str, Any]]:
    """Group all arrays by the kinds of the site's gate, with their bytes, names and purpose.

    Args:
        messages: The arrays of each answer.
        gate: What the site lets out in the study.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for arrays in messages:
        for name, array in arrays.items():
            kind = gate.kind(name)
            entry = kinds.setdefault(kind, {"bytes": 0, "names": [], "purpose": gate.purpose(kind)})
            entry["bytes"] += array.nbytes
            entry["names"].append(name)
    return kinds


def _try_exchanges(candidate: Candidate) -> list[Message]:
    """Return what leaves in answer to a first training, or a test, and to all exchanges of the parts before a round."""
    study, site, server = candidate.study, candidate.kit.name, candidate.server
    scope = effective_scope(candidate.kit)
    # A part may begin to ask only in a later round: the last one shows what the first does not.
    asked = {one.task: one for number in (1, study.rounds) for one in server.asks(BEFORE, number)}
    with tempfile.TemporaryDirectory(prefix="silofl-check-") as folder:
        rounds = _make_trial_site(candidate, folder)
        left = []
        first = [Exchange(TRAIN, 1)] if study.rounds else [Exchange(server.test.task, 0)]
        for one in server.asks(END, 0) if study.asks_alone else (*first, *asked.values()):
            message = server.task(site, one)
            answer = rounds.carry_out(one.task, message)
            # As in a job, the site looks at its answer before NVFlare's filters do.
            reason = rounds.gate.refusal(Request.of(one.task, message), answer)
            answer = message.failed(reason) if reason else answer
            left.append(filter_answer(scope, site, study, rounds.site, one.task, message, answer))
            # What comes after the training begins from the state that it left.
            server = replace(server, trained=frozenset({site}))
        return left


def _find_later_arrays(candidate: Candidate, gate: Gate) -> tuple[Arrays, Arrays]:
    """Return as zeros what later tasks take out beside the first training: of rounds, and asked for after the last."""
    study, site, server = candidate.study, candidate.kit.name, candidate.server
    rounds = [Exchange(TRAIN, study.rounds)]
    rounds += server.asks(INSTEAD, study.total_rounds) if study.total_rounds > study.training_rounds else []
    known = server.expected(site, Exchange(TRAIN, 1))
    needed = {name: one for exchange in rounds for name, one in server.expected(site, exchange).items()}
    asked = {
        name: one
        for task in (COLLECT, server.test.task)
        for name, one in server.expected(site, Exchange(task, study.rounds)).items()
    }
    # Of too few patients they are withheld.
    is_enough = candidate.data.training.num_patients >= gate.min_patients
    of_few = {kind.name for kind in gate.kinds if kind.is_of_images and not is_enough}

    def new(expected: Mapping[str, Expected], known: Mapping[str, Expected]) -> Arrays:
        found = {name: one for name, one in expected.items() if name not in known and gate.kind(name) not in of_few}
        return narrow_arrays({name: np.zeros(one.shape or (), one.dtype) for name, one in found.items()}, study)

    return new(needed, known), new(asked, known | needed)


def _list_kinds(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{kind} {entry['bytes']} bytes" for kind, entry in kinds.items())


def _make_trial_site(candidate: Candidate, folder: str) -> SiteRounds:
    """Return the site with its state in another folder, to train, or test, once on one batch of its data."""
    study, settings, data = candidate.study, candidate.settings, candidate.data
    changes: dict[str, Any] = {"state_dir": folder, "cache_dir": folder}
    if study.asks_alone:
        return SiteRounds(candidate.kit.name, study, settings.model_copy(update=changes))
    name, *_ = study.needed_parts
    part = getattr(data, name)
    batch = range(min(len(part), study.training.batch_size))
    # A test answers whole cases.
    tested = {part.cases[row] for row in batch}
    few = part.select_rows(batch if study.rounds else [row for row, case in enumerate(part.cases) if case in tested])
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
