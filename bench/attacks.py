"""One attacker among five sites, with the bound on updates and without it: the table of docs/security.md.

    python bench/attacks.py OUT [--rounds 12] [--attacks "none;stale"]

FedAvg on phantoms (48 x 48, GroupNorm), all sites in one process. The attacker changes its honest update before it
leaves; the Dice is the mean of the four honest sites' tests, of the round that validates best and of the last round.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from silofl.data.phantoms import PATIENTS, make_phantoms
from silofl.federation.course import Answers, Course, separate_failures
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.parts.task import TEST, TRAIN, Exchange, Message
from silofl.site import Site
from silofl.studies.simulation import changed_study

JOB = Path(__file__).parents[1] / "jobs" / "fedavg_phantoms"
SITES = dict.fromkeys(PATIENTS, 8)
ATTACKER = "west"
SMALL = {
    "data.transforms": [{"Resize": {"spatial_size": [48, 48]}}],
    "model.normalization": "group",
    "device": "cpu",
    "federation.max_missed_rounds": 1000,
}
Attack = Callable[[Message], Message]


def main() -> None:
    """Carry out every attack with the bound and without it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--attacks", default=";".join(ATTACKS), help="some of them, between semicolons")
    options = parser.parse_args()
    data = make_phantoms(options.out / "phantoms", 101, SITES)
    print("| attack | bound | best round | last round | refused | attacker named | an honest site named |")
    print("|---|---|---|---|---|---|---|")
    for name in options.attacks.split(";"):
        for ratio in (100, None):
            print(row(name, options.out, data, options.rounds, ATTACKS[name](), ratio), flush=True)


def row(name: str, out: Path, data: Path, rounds: int, attack: Attack, ratio: float | None) -> str:
    """Carry out a run with an attack, and return its row."""
    study = changed_study(JOB, SMALL | {"rounds": rounds, "federation.max_update_ratio": ratio})
    folder = out / f"{name.replace(' ', '-')}-{ratio}"
    settings = Site(data=f"{data}/{{site}}", state_dir=f"{folder}/{{site}}", cache_dir=f"{data}/.cache")
    sites = {site: SiteRounds(site, study, settings) for site in SITES}
    server = ServerRounds.start(study, "run", sites)

    def ask(task: str, messages: Mapping[str, Message]) -> Answers:
        given = {site: sites[site].answer(task, message) for site, message in messages.items()}
        if task == TRAIN:
            given[ATTACKER] = attack(given[ATTACKER])
        return separate_failures(given, [])

    best = Course(server, ask).run()
    exchange = Exchange(TEST, server.finished_rounds, is_needed=False, models_round=server.finished_rounds)
    last = ask(TEST, {site: server.task(site, exchange) for site in sites}).given
    chosen = [score.value for site, score in best.scores.items() if site != ATTACKER]
    final = [one.meta["metrics"]["test"]["value"] for site, one in last.items() if site != ATTACKER]
    refused = sum(ATTACKER in record.refused for record in server.ledger)
    named = [(record.unlike or {}).keys() for record in server.ledger]
    counts = (refused, sum(ATTACKER in sites for sites in named), sum(bool(sites - {ATTACKER}) for sites in named))
    cells = (name, "off" if ratio is None else f"{ratio}", mean(chosen, 4), mean(final, 4))
    cells += tuple(f"{count} of {rounds}" for count in counts)
    return f"| {' | '.join(cells)} |"


def mean(values: list[float], wanted: int) -> str:
    """Return the mean of the honest sites' values, or that some could not test the model."""
    return f"{np.mean(values):.3f}" if len(values) == wanted else f"{wanted - len(values)} sites could not test"


def scaled(factor: float) -> Attack:
    """Return an attack that sends a multiple of the update."""
    return lambda answer: Message({name: factor * array for name, array in answer.arrays.items()}, answer.meta)


def outweighing(factor: float) -> Attack:
    """Return an attack that sends a multiple of the update and says that it has ten times the examples."""

    def attack(answer: Message) -> Message:
        claim = {"num_examples": 10 * answer.meta["num_examples"]}
        return Message({name: factor * array for name, array in answer.arrays.items()}, answer.meta | claim)

    return attack


def stale() -> Attack:
    """Return an attack that sends its first update in every round."""
    first: dict[str, np.ndarray] = {}

    def attack(answer: Message) -> Message:
        first.update({name: array for name, array in answer.arrays.items() if name not in first})
        return Message(dict(first), answer.meta)

    return attack


ATTACKS: dict[str, Callable[[], Attack]] = {
    "none": lambda: scaled(1),
    "scaled by 1000": lambda: scaled(1000),
    "scaled by 50": lambda: scaled(50),
    "sign flipped": lambda: scaled(-1),
    "sign flipped and scaled by 10": lambda: scaled(-10),
    "sign flipped and scaled by 3, ten times the examples": lambda: outweighing(-3),
    "stale": stale,
}

if __name__ == "__main__":
    main()
