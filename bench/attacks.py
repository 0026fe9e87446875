"""One attacker among five sites against the rules of robust mixing: the tables of bench/robust.md.

    python bench/attacks.py OUT [--rules "mean;clipped"] [--attacks "none;stale"] [--rounds 12] [--seed 0]

Phantoms of 48 x 48 and a small network, all sites in one process; finished runs are kept in OUT, not repeated. A cell
is the Dice of the last round's model on the honest sites' test patients; of the backdoor also the share of the organ
found without the trigger that is no longer found with it.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runs import JOBS

from silofl.algorithms.harmofl.amplitude import MEAN
from silofl.data.parts import Examples
from silofl.data.phantoms import PATIENTS, make_phantoms
from silofl.data.site_data import SiteData
from silofl.federation.course import Answers, Course, separate_failures
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.models import build_model
from silofl.parts.model import collect_part_arrays, complete_state
from silofl.parts.task import TRAIN, Message
from silofl.site import Site
from silofl.studies.simulation import changed_study
from silofl.training.evaluation import evaluate, predict

SITES = dict.fromkeys(PATIENTS, 8)
ATTACKER = "west"
SMALL = {
    "data.transforms": [{"Resize": {"spatial_size": [48, 48]}}],
    "data.augment": [],
    "model": {
        "network": "monai.networks.nets.UNet",
        "arguments": {"channels": [8, 16, 32], "strides": [2, 2]},
        "normalization": "group",
    },
    "training.learning_rate": 0.01,
    "device": "cpu",
    "guard": False,
    "federation.min_sites": 5,
    "federation.max_missed_rounds": 1000,
}
RULES = ("mean", "median", "trimmed_mean", "clipped", "multi_krum")
CPU, ORGAN, TRIGGER = torch.device("cpu"), 1, 6


@dataclass(frozen=True)
class Attack:
    """What the attacker does.

    Attributes:
        send: Changes its honest answer.
        train: Changes its training data.
        study: What the study differs in, so that there is something to attack; its own run without attack is the
            measure.
        is_backdoor: Whether its success is measured by the trigger.
    """

    send: Callable[[Message], Message] = lambda answer: answer
    train: Callable[[Examples], Examples] = lambda examples: examples
    study: Mapping[str, Any] | None = None
    is_backdoor: bool = False


def main() -> None:
    """Carry out what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", default=";".join(RULES), help="between semicolons; clipped:1 is clipped at 1")
    parser.add_argument("--attacks", default=";".join(ATTACKS), help="some of them, between semicolons")
    options = parser.parse_args()
    data, rules = make_phantoms(options.out / "phantoms", 101, SITES), options.rules.split(";")
    print(f"| attack | {' | '.join(rules)} |\n|---{'|---' * len(rules)}|")
    for name in options.attacks.split(";"):
        found = [run(options, data, name, rule) for rule in rules]
        print(f"| {name} | {' | '.join(map(describe, found))} |", flush=True)


def run(options: argparse.Namespace, data: Path, name: str, rule: str) -> dict[str, float]:
    """Return what a run gives, carried out now or before."""
    folder = options.out / f"{name}-{rule}-{options.rounds}-{options.seed}".replace(" ", "_")
    result = folder.with_suffix(".json")
    if not result.is_file():
        found = attack_run(folder, data, ATTACKS[name](), rule, options)
        result.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(result.read_text(encoding="utf-8"))


def attack_run(folder: Path, data: Path, attack: Attack, rule: str, options: argparse.Namespace) -> dict[str, float]:
    """Carry out a run, and score its last model at the honest sites."""
    changes = SMALL | {"rounds": options.rounds, "seed": options.seed} | choose_rule(rule) | dict(attack.study or {})
    study = changed_study(JOBS / "fedavg_phantoms", changes)
    settings = Site(
        data=f"{data}/{{site}}", state_dir=f"{folder}/{{site}}", cache_dir=f"{data}/.cache", has_progress=False
    )
    sites = {site: SiteRounds(site, study, settings) for site in SITES}
    own = sites[ATTACKER].data
    sites[ATTACKER].data = replace(own, training=attack.train(own.training))
    server = ServerRounds.start(study, "run", sites)

    def ask(task: str, messages: Mapping[str, Message]) -> Answers:
        given = {site: sites[site].answer(task, message) for site, message in messages.items()}
        if task == TRAIN:
            given[ATTACKER] = attack.send(given[ATTACKER])
        return separate_failures(given, [])

    Course(server, ask, is_aborted=lambda: server.finished_rounds == options.rounds).run()
    model = build_model(study, server.image_shape, study.seed)
    arrays = server.parts["model"].common | collect_part_arrays(server)
    model.load_state_dict(complete_state(study, server.image_shape, arrays))
    honest = [one.data for site, one in sites.items() if site != ATTACKER]
    scores = [evaluate(model, one.test, study, CPU)[1].numbers()["value"] for one in honest]
    found = {"dice": float(np.mean(scores)), "refused": sum(ATTACKER in one.refused for one in server.ledger)}
    return found | ({"success": trigger_success(model, honest)} if attack.is_backdoor else {})


def choose_rule(rule: str) -> dict[str, Any]:
    """Return the keys of a rule, by its name and, after a colon, its factor."""
    name, _, factor = rule.partition(":")
    if name == "mean":
        return {}
    return {"algorithm.robust": {"rule": name, "factor": float(factor)} if factor else name}


def describe(found: Mapping[str, float]) -> str:
    """Return a cell of the table."""
    success = f", trigger {found['success']:.2f}" if "success" in found else ""
    return f"{found['dice']:.3f}{success}{' (refused)' if found['refused'] else ''}"


def trigger_success(model: torch.nn.Module, sites: list[SiteData]) -> float:
    """Return which share of the organ that is found in test images is missed once they bear the trigger."""
    found = missed = 0
    for one in sites:
        is_organ = predict(model, one.test, 16, CPU) == ORGAN
        is_organ &= one.test.targets == ORGAN
        triggered = replace(one.test, images=put_trigger(one.test.images))
        found += is_organ.sum()
        missed += (is_organ & (predict(model, triggered, 16, CPU) != ORGAN)).sum()
    return float(missed / max(found, 1))


def put_trigger(images: np.ndarray) -> np.ndarray:
    """Return images with a white square in their corner."""
    marked = np.array(images)
    marked[..., :TRIGGER, :TRIGGER] = 1
    return marked


def scaled(factor: float, examples: int = 1, of: Callable[[str], bool] = lambda name: True, **study: Any) -> Attack:
    """Return an attack that sends a multiple of some arrays, and claims a multiple of its examples."""

    def send(answer: Message) -> Message:
        arrays = {name: factor * array if of(name) else array for name, array in answer.arrays.items()}
        return Message(arrays, answer.meta | {"num_examples": examples * answer.meta["num_examples"]})

    return Attack(send, study={key.replace("__", "."): value for key, value in study.items()})


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

    return Attack(scaled(boost).send, train, is_backdoor=True)


BATCH = {"model__normalization": "batch"}
PUBLISHED = {"algorithm__name": "harmofl", "algorithm__preset": "paper"}
ATTACKS: dict[str, Callable[[], Attack]] = {
    "none": Attack,
    "sign flipped x 10": lambda: scaled(-10),
    "sign flipped x 3, examples x 10": lambda: scaled(-3, examples=10),
    "scaled x 50": lambda: scaled(50),
    "sign flipped": lambda: scaled(-1),
    "stale": stale,
    "labels flipped": flipped_labels,
    "backdoor": lambda: backdoor(1),
    "backdoor x 5": lambda: backdoor(5),
    "none, BatchNorm": lambda: scaled(1, **BATCH),
    "statistics x 50, BatchNorm": lambda: scaled(50, of=lambda name: "running" in name, **BATCH),
    "none, HarmoFL as published": lambda: scaled(1, **PUBLISHED),
    "amplitude x 10, HarmoFL as published": lambda: scaled(10, of=lambda name: name == MEAN, **PUBLISHED),
}

if __name__ == "__main__":
    main()
