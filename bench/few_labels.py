"""From how many labelled images on a site's mean of federated and local probabilities earns its place as the default.

    python bench/few_labels.py PNEUMONIA.npz MEDNIST.npz OUT [--processes 2]

Both sets are dealt to 20 sites by deals of their own, which no other table uses, and trained with FedAvg, FedBN and
f-AdaFed, each site with the guard. Wherever a site kept the mean, it is compared with the federated model: for each
least number of training examples the mean test accuracy over all sites, when sites with fewer keep the federated model
instead, and when the local model's odds count in full from so many on (`silofl.algorithms.guard.weigh_local`).
Finished runs in OUT are used again.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from runs import BATCH, Alone, carry_out, silofl

from silofl.algorithms.guard import SHARES, choose_share, weigh_local
from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data
from silofl.federation.results import read_results
from silofl.inference import SuperModel
from silofl.inference.directory import read_model_folder
from silofl.training.joined import BLEND, CHOSEN, FEDERATED, LOCAL

DEALS = (101, 102, 103)
METHODS = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "fedbn": {"algorithm": {"name": "fedbn"}, **BATCH},
    "adafed": {"algorithm": {"name": "adafed"}, **BATCH},
}
# More than any site has: the federated model everywhere.
NEVER = 1_000_000
LEAST = (1, 4, 5, 10, 15, 20, 30, 50, 100, NEVER)
# From so many labels on the local model's odds count in full.
FULL = (1, 5, 10, 15, 20, 40, 80)
# Shares of the local model at which the test is evaluated.
FINE = np.linspace(0, 1, 1001)
BANDS = ((1, 4), (5, 9), (10, 14), (15, 19), (20, 29), (30, 49), (50, 99), (100, 999))


@dataclass(frozen=True)
class Found:
    """What one site's models reach on its test data in one run, where it kept the mean.

    Attributes:
        set: Of the data.
        num_training: Its training examples.
        blend: The mean, with the share that the site gave the local model.
        blends: Of each validation case, by share: whether the mean is right.
        by_share: Test accuracy by share; with few units a share lies between those of the guard.
    """

    set: str
    num_training: int
    federated: float
    local: float
    blend: float
    blends: NDArray[np.float64]
    by_share: NDArray[np.float64]

    def with_full(self, least: int) -> float:
        """Return the test accuracy, did the local model's odds count in full from so many labels on."""
        share = choose_share(self.blends, weigh_local(self.num_training, least))
        return float(self.by_share[np.abs(FINE - share).argmin()])


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
        if joined.chosen == BLEND and joined.num_test_units:
            (kept,) = (out / run.folder / "sites" / site).glob(f"*/{CHOSEN}")
            contents = read_model_folder(kept)
            parts = load_site_data(data / run.set / site, contents.study, out / "cache" / run.set, has_progress=False)
            model, num_training = SuperModel(contents, torch.device("cpu")), len(parts.training)
            alone = (joined.test[FEDERATED], joined.test[LOCAL], joined.test[CHOSEN])
            blends, by_share = _are_right(model, parts.validation, SHARES), _are_right(model, parts.test, FINE)
            yield Found(run.set, num_training, *alone, blends, by_share.mean(axis=1))


def _are_right(model: SuperModel, part: Examples, shares: NDArray) -> NDArray[np.float64]:
    """Return whether the mean is right, by share and case."""
    theirs, ours = (model.probabilities(name, np.asarray(part.images)) for name in (FEDERATED, LOCAL))
    means = (theirs * np.float32(1 - share) + ours * np.float32(share) for share in shares)
    return np.stack([mean.argmax(axis=1) == part.targets for mean in means]).astype(np.float64)


def _page(found: list[Found]) -> Iterable[str]:
    yield "| training examples | sites x runs | federated | local | their mean | mean beside federated |"
    yield "|---" * 6 + "|"
    for low, high in BANDS:
        if rows := [one for one in found if low <= one.num_training <= high]:
            values = np.array([(one.federated, one.local, one.blend) for one in rows])
            means = values.mean(axis=0)
            cells = (f"{low} to {high}", f"{len(rows)}", *(f"{mean:.3f}" for mean in means))
            yield "| " + " | ".join((*cells, f"{means[2] - means[0]:+.3f}")) + " |"
    sets = _sets(found)
    yield ""
    yield "| the mean from so many on, else federated | " + " | ".join((*sets, "both")) + " |"
    yield "|---" * (2 + len(sets)) + "|"
    for least in LEAST:
        means = _means(found, [one.blend if one.num_training >= least else one.federated for one in found])
        cells = ("never" if least == NEVER else str(least), *(f"{mean:.3f}" for mean in means))
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "| the local model counts in full from so many on | " + " | ".join((*sets, "both")) + " | better | worse |"
    yield "|---" * (4 + len(sets)) + "|"
    former = np.array([one.with_full(1) for one in found])
    for least in FULL:
        values = np.array([one.with_full(least) for one in found])
        cells = (
            f"{least}",
            *(f"{mean:.4f}" for mean in _means(found, values)),
            (values > former).sum(),
            (values < former).sum(),
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def _means(found: list[Found], values: Sequence[float]) -> list[float]:
    """Return the mean over each set's sites, and over all."""
    of_set = {
        name: [value for one, value in zip(found, values, strict=True) if one.set == name] for name in _sets(found)
    }
    return [float(np.mean(one)) for one in (*of_set.values(), values)]


def _sets(found: list[Found]) -> list[str]:
    return sorted({one.set for one in found})


if __name__ == "__main__":
    main()
