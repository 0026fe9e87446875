"""Find the answers to a training that are unlike the others'. The ledger names them; nothing is refused for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from silofl.core.outliers import BEYOND, compare_to_others, count_hidden
from silofl.core.products import Products
from silofl.parts.task import Outliers

# What is unlike -> how the ledger says it once; a part has words of its own.
SENTENCES = {
    "cosine": "sent an update that points away from the mean of the others' (cosine {:.2g}), as honest ones of few "
    "cases do",
    "length": "sent an update {:.3g} times as long by step as the others' median",
    "buffers": "sent a change of BatchNorm's running buffers {:.3g} times as long by step as the others' median",
    "distance": "sent an update whose distances to its nearest ones are {:.3g} times the others' median: multi_krum "
    "leaves it out",
    "examples": "says that it has {:.3g} times as many training examples as the others' median, and counts by them: "
    "ask it, or choose algorithm: {{weights: uniform}}",
}
# The same without numbers, for a report that counts the rounds.
SHORT = {
    "cosine": "its update points away from their mean",
    "length": "the length of its update by step",
    "buffers": "the change of its BatchNorm buffers by step",
    "distance": "its update is left out, the farthest from its nearest ones",
    "examples": "its number of training examples",
    # Ledgers of 0.4.0 have it.
    "validation": "its validation score moves against theirs",
}
# Near 0 are the updates of sites that have learnt what there is.
OPPOSED = -0.1


def find_outlying_updates(
    products: Products, steps: Mapping[str, float], weights: Mapping[str, float], min_sites: int
) -> Outliers:
    """Return in what sites' updates of a model are unlike the others'.

    Args:
        steps: Site -> the steps by which the length of its update is divided.
        weights: Site -> how much its direction counts in the others' mean.
        min_sites: With fewer sites nothing is unlike.
    """
    if len(products.sites) < min_sites:
        return {}
    return sort_by_site(
        {
            "cosine": find_opposed(products, weights, min_sites),
            "length": _find_long(products.lengths(products.parameters), steps),
            "buffers": _find_long(products.lengths(products.buffers), steps),
        }
    )


def _find_long(lengths: Mapping[str, float], steps: Mapping[str, float]) -> dict[str, float]:
    """Return site -> how many times the others' median its length by step is, where that is much."""
    ratios = compare_to_others({site: length / steps[site] for site, length in lengths.items()})
    return {site: ratio for site, ratio in ratios.items() if ratio > BEYOND}


def find_outweighing(examples: Mapping[str, int], min_sites: int) -> dict[str, float]:
    """Return site -> how many times the others' median of training examples it says that it has, from 3 times on."""
    if len(examples) < min_sites:
        return {}
    return {site: ratio for site, ratio in compare_to_others(examples).items() if ratio >= BEYOND}


def describe_outlier(site: str, what: str, value: float) -> str:
    """Return what the ledger says of a site the first time that something of it is unlike the others'."""
    if what in SENTENCES:
        sentence = SENTENCES[what].format(value)
    else:
        sentence = f"sent its {what} that is {value:.3g} times the others' median"
    return f"site {site!r} {sentence}; `outliers` of the ledger has all such rounds"


def find_opposed(products: Products, weights: Mapping[str, float], min_sites: int) -> dict[str, float]:
    """Return site -> the cosine of its update to the mean of the others', where that is clearly negative.

    The one that is most opposed is found first, and no longer counts among the others: by an update that is turned
    round the mean may turn too, and then the honest ones would look opposed. For the same reason each other update
    counts by its direction and its weight alone, however long it is. Of eight sites two may be turned round alike: the
    other that is nearest to a site by direction does not count for it (`count_hidden`).

    Args:
        weights: Site -> its weight in the others' mean.
        min_sites: With fewer sites left nobody knows who is opposed to whom.
    """
    opposed = {}
    while len(cosines := measure_cosines(products, weights)) >= max(min_sites, 2):
        worst = min(cosines, key=cosines.__getitem__)
        if cosines[worst] >= OPPOSED:
            break
        opposed[worst] = cosines[worst]
        products = products.select(cosines.keys() - {worst})
    return opposed


def measure_cosines(products: Products, weights: Mapping[str, float]) -> dict[str, float]:
    """Return site -> the cosine of its update to the mean of the others', without sites that have not moved."""
    lengths = np.sqrt(products.parameters.diagonal())
    shares = np.array([weights[site] for site in products.sites])
    moved = [row for row in range(len(products.sites)) if lengths[row] > 0]
    return {products.sites[row]: _cosine_to_mean(products.parameters, lengths, shares, row, moved) for row in moved}


def sort_by_site(measured: Mapping[str, Mapping[str, float]]) -> Outliers:
    """Return site -> what is unlike -> number, from what is unlike -> site -> number."""
    by_site: Outliers = {}
    for what, numbers in measured.items():
        for site, number in numbers.items():
            by_site.setdefault(site, {})[what] = number
    return by_site


def join_outliers(several: Iterable[Outliers]) -> Outliers:
    """Return what is unlike in any of several comparisons, by the sites' names, as numbers of three digits."""
    joined: Outliers = {}
    for outliers in several:
        for site, numbers in outliers.items():
            rounded = {what: float(f"{number:.3g}") for what, number in numbers.items()}
            joined[site] = joined.get(site, {}) | rounded
    return dict(sorted(joined.items()))


def _cosine_to_mean(
    products: NDArray[np.float64],
    lengths: NDArray[np.float64],
    shares: NDArray[np.float64],
    row: int,
    moved: Iterable[int],
) -> float:
    """Return the cosine of an update to the mean of the directions of the others that have moved."""
    peers = [peer for peer in moved if peer != row]
    # Those nearest to it by direction may be odd together with it, and would hide it.
    by_likeness = sorted(peers, key=lambda peer: products[row, peer] / lengths[peer])
    # In the order of the sites again: float sums depend on their order.
    counted = sorted(by_likeness[: len(peers) - count_hidden(len(peers) + 1)])
    directions = shares[counted] / lengths[counted]
    length = np.sqrt(directions @ products[np.ix_(counted, counted)] @ directions)
    return float(products[row, counted] @ directions / (lengths[row] * length)) if length > 0 else 0.0
