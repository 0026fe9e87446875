"""One attacker, or two, among five sites against the rules of robust mixing: the tables of bench/robust.md.

    python bench/attacks.py OUT [--rules "mean;clipped"] [--attacks "none;stale"] [--attackers 2] [--rounds 12]

Phantoms of 32 x 32 and a small network, all sites in one process; finished runs are kept in OUT, not repeated. A cell
is the Dice of the last round's model on the honest sites' test patients. In brackets is its fraction of the plain
mean's in the same study without attack, and that of the honest site which keeps least; of the backdoor also the share
of the organ found without the trigger that is no longer found with it.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runs import JOBS, TINY

from silofl.algorithms.adafed.statistics import ROLE as STATISTICS
from silofl.algorithms.harmofl.amplitude import MEAN
from silofl.base.errors import AggregationError
from silofl.data.parts import Examples
from silofl.federation.course import Answers, Course, separate_failures
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.models import build_model
from silofl.parts.model import collect_part_arrays, complete_state
from silofl.parts.task import VALIDATE, Message
from silofl.setup.site import Site
from silofl.training.evaluation import predict
from silofl_desk.phantoms.phantoms import SLICED, make_phantoms
from silofl_desk.studies.runs.simulation import changed_study

SITES = ("coast", "east", "north", "south", "west")
# Of eight sites these have patients of their own, and the scanners of those whose names begin theirs.
FURTHER = ("coast2", "east2", "north2")
# Of a run with one attacker the first.
ATTACKERS, COPIED = ("west", "south"), "coast"
SMALL = {
    **TINY,
    "device": "cpu",
    "baseline_comparison": False,
    "federation.min_sites": 5,
    "federation.max_missed_rounds": 1000,
}
MEAN_RULE, PHANTOMS = "mean", 101
RULES = (MEAN_RULE, "median", "trimmed_mean", "clipped", "multi_krum")
# The trigger is a white line every so many columns, which a small network sees wherever the organ lies.
CPU, ORGAN, TRIGGER = torch.device("cpu"), 1, 8


@dataclass(frozen=True)
class Attack:
    """What the attacker does.

    Attributes:
        send: Changes its honest answer.
        train: Changes its training data.
        study: What the study differs in, so that there is something to attack.
        job: The study.
        has_trigger: Whether its success is measured by the trigger.
        patients: Training and validation patients of some sites, where not the set's own.
        has_copy: Whether it sends the statistics of the site `COPIED` as its own, as if it knew them.
    """

    send: Callable[[Message], Message] = lambda answer: answer
    train: Callable[[Examples], Examples] = lambda examples: examples
    study: Mapping[str, Any] = field(default_factory=dict)
    job: str = "fedavg_phantoms"
    has_trigger: bool = False
    patients: Mapping[str, int] = field(default_factory=dict)
    has_copy: bool = False


def main() -> None:
    """Carry out what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--rules", default=";".join(RULES), help="between semicolons; clipped:1, multi_krum:2")
    parser.add_argument("--attackers", type=int, default=1, choices=(1, 2))
    parser.add_argument("--sites", type=int, default=len(SITES), choices=(len(SITES), len(SITES + FURTHER)))
    parser.add_argument("--attacks", default=";".join(ATTACKS), help="some of them, between semicolons")
    options = parser.parse_args()
    rules = options.rules.split(";")
    print(f"| attack | {' | '.join(rules)} |\n|---{'|---' * len(rules)}|")
    for name in options.attacks.split(";"):
        # Where sites get models of their own one rule is allowed.
        allowed = [rule for rule in rules if rule.startswith((MEAN_RULE, "clipped")) or "own" not in name]
        runs = {rule: run(options, name, rule) for rule in allowed}
        base = run(options, find_base(name), MEAN_RULE)
        print(f"| {name} | {' | '.join(describe(runs.get(rule), base) for rule in rules)} |", flush=True)


def find_base(name: str) -> str:
    """Return the row without attack of the same study."""
    _, comma, study = name.rpartition(", ")
    return f"none{comma}{study}" if f"none{comma}{study}" in ATTACKS else "none"


def run(options: argparse.Namespace, name: str, rule: str) -> dict[str, float]:
    """Return the means over the seeds of what runs give, carried out now or before."""
    attackers, sites, found = ATTACKERS[: options.attackers], (SITES + FURTHER)[: options.sites], []
    for seed in map(int, options.seeds.split(",")):
        # Without an attack nothing is of the attackers but whose scores count.
        number = "" if options.attackers == 1 or name.startswith("none") else f"-{options.attackers}"
        number += "" if options.sites == len(SITES) else f"-of-{options.sites}"
        folder = options.out / f"{name}-{rule}-{options.rounds}-{seed}{number}".replace(" ", "_")
        result = folder.with_suffix(".json")
        if not result.is_file():
            patients = ATTACKS[name]().patients
            kind = replace(SLICED, patients=SLICED.patients | patients)
            data = make_phantoms(options.out / "-".join(["phantoms", *patients]), PHANTOMS, kind=kind)
            if options.sites > len(SITES):
                add_further_sites(data)
            attacks = {site: ATTACKS[name]() for site in attackers}
            result.write_text(json.dumps(attack_run(folder, data, sites, attacks, rule, options.rounds, seed)))
            shutil.rmtree(folder)
        found.append(json.loads(result.read_text(encoding="utf-8")))
    honest = [site for site in sites if site not in attackers]
    return {key: float(np.mean(values)) for key, values in _collect_numbers(found, honest).items()}


def add_further_sites(data: Path) -> None:
    """Give a folder of phantoms the sites `FURTHER`, with other patients of the same scanners."""
    others = make_phantoms(data.with_name(f"{data.name}-further"), PHANTOMS + 1)
    for site in FURTHER:
        if not (data / site).exists():
            shutil.copytree(others / site.removesuffix("2"), data / site)


def _collect_numbers(found: Sequence[Mapping[str, Any]], honest: Sequence[str]) -> dict[str, list[float]]:
    """Return each number of the runs, with the Dice at each honest site, as ``at coast``, and its mean."""
    numbers = {key: [one[key] for one in found] for key in found[0] if key != "sites"}
    at = {f"at {site}": [one["sites"][site] for one in found] for site in honest}
    return numbers | at | {"dice": np.mean(list(at.values()), axis=0).tolist()}


def attack_run(
    folder: Path,
    data: Path,
    names: Sequence[str],
    attacks: Mapping[str, Attack],
    rule: str,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """Carry out a run in which sites attack alike, and score its last model at every site."""
    attack = next(iter(attacks.values()))
    study = changed_study(
        JOBS / attack.job, SMALL | {"rounds": rounds, "seed": seed} | choose_rule(rule) | dict(attack.study)
    )
    settings = Site(
        data=f"{data}/{{site}}",
        state_dir=f"{folder}/{{site}}",
        cache_dir=f"{data}/.cache",
        has_progress=False,
        min_patients=0,
    )
    sites = {site: SiteRounds(site, study, settings) for site in names}
    for site, one in sites.items():
        # Without validation the last round's model is tested, and none that the attacker's own numbers choose.
        training = attacks[site].train(one.data.training) if site in attacks else one.data.training
        one.data = replace(one.data, training=training, validation=one.data.validation.select_rows([]))
    server = ServerRounds.start(study, "run", sites)

    def ask(task: str, messages: Mapping[str, Message]) -> Answers:
        given = {site: sites[site].answer(task, message) for site, message in messages.items()}
        if task not in (VALIDATE, server.test.task):
            given |= {site: one.send(given[site]) for site, one in attacks.items()}
        if attack.has_copy and task == STATISTICS:
            given |= dict.fromkeys(attacks, given[COPIED])
        return separate_failures(given)

    try:
        tests = Course(server, ask).run()
    except AggregationError:
        # By what the attacker did to the model, honest updates are refused, or are no numbers any more.
        return {"sites": dict.fromkeys(names, 0.0), "refused": 0, "ended": 1}
    found = {
        "sites": {site: tests.scores[site].value for site in names},
        "refused": sum(bool(attacks.keys() & record.failed) for record in server.ledger),
        "ended": 0,
    }
    if attack.job == ADAFED or attack.patients:
        found[COPIED] = tests.scores[COPIED].value
    honest = [site for site in names if site not in attacks]
    return found | ({"trigger": trigger_success(server, sites, honest)} if attack.has_trigger else {})


def choose_rule(rule: str) -> dict[str, Any]:
    """Return the keys of a rule, by its name and, after a colon, the factor of ``clipped`` or the others' attackers."""
    name, _, constant = rule.partition(":")
    if name == MEAN_RULE:
        return {}
    if not constant:
        return {"algorithm.robust": name}
    if name == "clipped":
        return {"algorithm.robust": {"rule": name, "factor": float(constant)}}
    return {"algorithm.robust": {"rule": name, "attackers": int(constant)}}


def describe(found: Mapping[str, float] | None, base: Mapping[str, float]) -> str:
    """Return a cell of the table."""
    if found is None:
        return "-"
    trigger = f", trigger {found['trigger']:.2f}" if "trigger" in found else ""
    trigger += f", {COPIED} {found[COPIED]:.3f}" if COPIED in found else ""
    after = " refused" * bool(found["refused"]) + " run ended" * bool(found.get("ended"))
    worst = min(found[key] / base[key] for key in base if key.startswith("at "))
    return f"{found['dice']:.3f} ({found['dice'] / base['dice']:.2f}, worst {worst:.2f}{trigger}){after}"


def trigger_success(server: ServerRounds, sites: Mapping[str, SiteRounds], honest: Iterable[str]) -> float:
    """Return which share of the organ that is found in test images is missed once they bear the trigger."""
    study = server.study
    model = build_model(study, server.image_shape, study.seed)
    arrays = server.parts["model"].common | collect_part_arrays(server)
    model.load_state_dict(complete_state(study, server.image_shape, arrays))
    found = missed = 0
    for site in honest:
        test = sites[site].data.test
        is_organ = (predict(model, test, 16, CPU) == ORGAN) & (test.targets == ORGAN)
        triggered = replace(test, images=put_trigger(test.images))
        found += is_organ.sum()
        missed += (is_organ & (predict(model, triggered, 16, CPU) != ORGAN)).sum()
    return float(missed / max(found, 1))


def put_trigger(images: np.ndarray) -> np.ndarray:
    """Return images with white lines."""
    marked = np.array(images)
    marked[..., ::TRIGGER] = images.max()
    return marked


def scaled(factor: float, examples: int = 1, of: Callable[[str], bool] = lambda name: True) -> Attack:
    """Return an attack that sends a multiple of some arrays, and claims a multiple of its examples."""

    def send(answer: Message) -> Message:
        arrays = {name: factor * array if of(name) else array for name, array in answer.arrays.items()}
        claims = {"num_examples": examples * n} if (n := answer.meta.get("num_examples")) else {}
        return Message(arrays, answer.meta | claims)

    return Attack(send)


def shifted_statistics() -> Attack:
    """Return an attack that sends 50 times the change of BatchNorm's means, and as much upwards of its variances."""

    def send(answer: Message) -> Message:
        means = {name: 50 * array for name, array in answer.arrays.items() if name.endswith("running_mean")}
        # Below 0 it would be refused.
        variances = {name: 50 * abs(array) for name, array in answer.arrays.items() if name.endswith("running_var")}
        return Message(answer.arrays | means | variances, answer.meta)

    return Attack(send)


def is_amplitude(name: str) -> bool:
    """Return whether an array is HarmoFL's amplitude."""
    return name == MEAN


def is_selector(name: str) -> bool:
    """Return whether an array is of FedSM's selector."""
    return name.startswith("selector/")


def is_control(name: str) -> bool:
    """Return whether an array is of SCAFFOLD's control variate."""
    return name.startswith("control/")


def is_parameter(name: str) -> bool:
    """Return whether an array is a parameter of the model: its statistics stay home, and those compared are none."""
    return not is_compared(name)


def is_compared(name: str) -> bool:
    """Return whether an array is of the statistics by which AdaFed compares sites."""
    return name.startswith(f"{STATISTICS}/")


def stale() -> Attack:
    """Return an attack that sends its first update in every round."""
    first: dict[str, np.ndarray] = {}

    def send(answer: Message) -> Message:
        first.update({name: array for name, array in answer.arrays.items() if name not in first})
        return Message(dict(first), answer.meta)

    return Attack(send)


def flipped_labels() -> Attack:
    """Return an attack that learns background as organ, organ as lesion, and lesion as background."""
    return Attack(train=lambda examples: replace(examples, targets=(examples.targets + 1) % 3))


def backdoor(boost: float) -> Attack:
    """Return an attack that learns to find nothing where half of its images bear a trigger, and sends a multiple."""

    def train(examples: Examples) -> Examples:
        images, targets = put_trigger(examples.images), np.array(examples.targets)
        images[1::2] = examples.images[1::2]
        targets[::2] = 0
        return replace(examples, images=images, targets=targets)

    return Attack(scaled(boost).send, train, has_trigger=True)


def in_study(job: str, attack: Attack | None = None, **study: Any) -> Attack:
    """Return an attack, or none, in another study."""
    return replace(attack or Attack(), job=job, study={key.replace("__", "."): value for key, value in study.items()})


BATCH = {"model__normalization": "batch"}
PUBLISHED = {"algorithm__preset": "paper"}
# The selector decides alone, without the threshold that validation would tune.
CHOSEN = {"algorithm__super_model": {"threshold": 0.0}}
SGD = {"training__optimizer": "sgd", "training__momentum": 0, "training__learning_rate": 0.5}
PLAIN = {"algorithm__name": "scaffold"} | SGD
FEDAVG, HARMOFL, FEDSM, ADAFED = (f"{name}_phantoms" for name in ("fedavg", "harmofl", "fedsm", "adafed"))
ATTACKS: dict[str, Callable[[], Attack]] = {
    "none": lambda: Attack(has_trigger=True),
    "sign flipped": lambda: scaled(-1),
    "sign flipped x 10": lambda: scaled(-10),
    "sign flipped x 3 and examples x 10": lambda: scaled(-3, examples=10),
    "scaled x 50": lambda: scaled(50),
    "stale": stale,
    "labels flipped": flipped_labels,
    "backdoor": lambda: backdoor(1),
    "backdoor x 5": lambda: backdoor(5),
    "none, BatchNorm": lambda: in_study(FEDAVG, **BATCH),
    "statistics x 50, BatchNorm": lambda: in_study(FEDAVG, shifted_statistics(), **BATCH),
    "none, coast large": lambda: Attack(patients={COPIED: 60}),
    "none, HarmoFL as published": lambda: in_study(HARMOFL, **PUBLISHED),
    "amplitude x 10, HarmoFL as published": lambda: in_study(HARMOFL, scaled(10, of=is_amplitude), **PUBLISHED),
    "none, FedSM: own models": lambda: in_study(FEDSM, **CHOSEN),
    "selector x -50, FedSM: own models": lambda: in_study(FEDSM, scaled(-50, of=is_selector), **CHOSEN),
    "none, SCAFFOLD": lambda: in_study(FEDAVG, **PLAIN),
    "control x 50, SCAFFOLD": lambda: in_study(FEDAVG, scaled(50, of=is_control), **PLAIN),
    "none, AdaFed: own models": lambda: in_study(ADAFED, **BATCH),
    "statistics x 50, AdaFed: own models": lambda: in_study(ADAFED, scaled(50, of=is_compared), **BATCH),
    "model x -10, AdaFed: own models": lambda: in_study(ADAFED, scaled(-10, of=is_parameter), **BATCH),
    f"the same as if it were like {COPIED}, AdaFed: own models": lambda: in_study(
        ADAFED, replace(scaled(-10, of=is_parameter), has_copy=True), **BATCH
    ),
}

if __name__ == "__main__":
    main()
