"""From how many labelled images on a site's mean of federated and local probabilities earns its place as the default.

    python bench/few_labels.py PNEUMONIA.npz MEDNIST.npz OUT [--processes 2]

Both sets are dealt to 20 sites by deals of their own, which no other table uses, and trained with FedAvg and FedBN,
each site with the guard. Wherever a site kept the mean, it is compared with the federated model: for each least number
of training examples the mean test accuracy over all sites, when sites with fewer keep the federated model instead.
Finished runs in OUT are used again.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from runs import BATCH, Alone, carry_out, silofl

from silofl.federation.results import read_results
from silofl.training.joined import BLEND, CHOSEN, FEDERATED, LOCAL

DEALS = (101, 102, 103)
METHODS = {"fedavg": {"algorithm": {"name": "fedavg"}}, "fedbn": {"algorithm": {"name": "fedbn"}, **BATCH}}
# More than any site has: the federated model everywhere.
NEVER = 1_000_000
LEAST = (1, 4, 5, 10, 15, 20, 30, 50, 100, NEVER)
BANDS = ((1, 4), (5, 9), (10, 14), (15, 19), (20, 29), (30, 49), (50, 99), (100, 999))


@dataclass(frozen=True)
class Found:
    """What one site's models reach on its test data in one run, where it kept the mean."""

    set: str
    num_training: int
    federated: float
    local: float
    blend: float


def main() -> None:
    """Deal, train what is not there yet, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pneumonia", type=Path)
    parser.add_argument("mednist", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    found: list[Found] = []
    for deal in DEALS:
        data = options.out / "deals" / str(deal)
        for name in ("pneumonia", "mednist"):
            if not (data / name).is_dir():
                shares = ("--sites", "20", "--alpha", "0.1", "--test", "0.5", "--validation", "0.25")
                source, target = getattr(options, name), data / name
                silofl("import", "medmnist", str(source), str(target), *shares, "--seed", str(deal), "--json")
        wanted = [
            Alone(name, f"runs/{deal}/{name}-{method}", changes | {"seed": deal})
            for name in ("pneumonia", "mednist")
            for method, changes in METHODS.items()
        ]
        carry_out(wanted, data, options.out, options.processes)
        for run in wanted:
            found += _found(run, data, options.out)
    print("\n".join(_page(found)))


def _found(run: Alone, data: Path, out: Path) -> Iterable[Found]:
    for site, joined in (read_results(out / run.folder).joining or {}).items():
        manifest = json.loads((data / run.set / site / "dataset.json").read_text())
        if joined.chosen == BLEND and joined.num_test_units:
            test = joined.test
            yield Found(run.set, len(manifest["training"]), test[FEDERATED], test[LOCAL], test[CHOSEN])


def _page(found: list[Found]) -> Iterable[str]:
    yield "| training examples | sites x runs | federated | local | their mean | mean beside federated |"
    yield "|---" * 6 + "|"
    for low, high in BANDS:
        if rows := [one for one in found if low <= one.num_training <= high]:
            values = np.array([(one.federated, one.local, one.blend) for one in rows])
            means = values.mean(axis=0)
            cells = (f"{low} to {high}", f"{len(rows)}", *(f"{mean:.3f}" for mean in means))
            yield "| " + " | ".join((*cells, f"{means[2] - means[0]:+.3f}")) + " |"
    sets = sorted({one.set for one in found})
    yield ""
    yield "| the mean from so many on, else federated | " + " | ".join((*sets, "both")) + " |"
    yield "|---" * (2 + len(sets)) + "|"
    for least in LEAST:
        kept = [(one.set, one.blend if one.num_training >= least else one.federated) for one in found]
        means = [np.mean([value for of, value in kept if of in names]) for names in (*([name] for name in sets), sets)]
        cells = ("never" if least == NEVER else str(least), *(f"{mean:.3f}" for mean in means))
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
