"""Find the answers to a training that are unlike the others'. The ledger names them; nothing is refused for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.core.mixing import Arrays, limit_threads
from silofl.core.others import BEYOND, compare_to_others
from silofl.parts.task import Unlike

# Numbers of two updates that are multiplied at once, which a processor's cache holds. Numbers of up to 1e15 are
# admitted, and the squares of so many of them have a sum that float32 can hold.
PIECE = 1 << 16
# What is unlike -> how the ledger says it once; a part has words of its own.
SENTENCES = {
    "cosine": "sent an update that points away from the mean of the others' (cosine {:.2g}): its images or labels are "
    "unlike theirs, or it undoes what they learn",
    "length": "sent an update {:.3g} times as long by step as the others' median",
    "buffers": "sent a change of BatchNorm's running buffers {:.3g} times as long by step as the others' median",
    "examples": "says that it has {:.3g} times as many training examples as the others' median, and counts by them: "
    "ask it, or choose algorithm: {{weights: uniform}}",
}
# The same without numbers, for a report that counts the rounds.
SHORT = {
    "cosine": "its update points away from their mean",
    "length": "the length of its update by step",
    "buffers": "the change of its BatchNorm buffers by step",
    "examples": "its number of training examples",
}
OF_A_PART = "sent {} that is {:.3g} times the others' median"


@dataclass(frozen=True)
class Products:
    """Products of the sites' updates of one model, from which their lengths and angles follow.

    Attributes:
        sites: The sites, in the order of rows and columns.
        parameters: Sum over all parameters of the product of two updates, shape (K, K).
        buffers: The same over BatchNorm's running buffers.
    """

    sites: tuple[str, ...]
    parameters: NDArray[np.float64]
    buffers: NDArray[np.float64]

    def lengths(self, of_these: NDArray[np.float64] | None = None) -> dict[str, float]:
        """Return site -> the Euclidean length of its update: of the whole, or of parameters or buffers alone."""
        products = self.parameters + self.buffers if of_these is None else of_these
        return dict(zip(self.sites, np.sqrt(products.diagonal()).tolist(), strict=True))

    def select(self, sites: Collection[str]) -> Products:
        """Return the products of some of the sites."""
        rows = [row for row, site in enumerate(self.sites) if site in sites]
        names, places = tuple(self.sites[row] for row in rows), np.ix_(rows, rows)
        return Products(names, self.parameters[places], self.buffers[places])


def multiply_updates(updates: Mapping[str, Arrays], buffers: Collection[str] = ()) -> Products:
    """Multiply all pairs of updates; an array that a site keeps back counts as one of zeros.

    Args:
        updates: Site -> {name: array}.
        buffers: Names of arrays that are no parameters.
    """
    sites = tuple(updates)
    sums = {is_buffer: np.zeros((len(sites), len(sites))) for is_buffer in (False, True)}
    with limit_threads():
        for name in dict.fromkeys(name for arrays in updates.values() for name in arrays):
            flat = {row: updates[site][name].reshape(-1) for row, site in enumerate(sites) if name in updates[site]}
            _add_products(sums[name in buffers], flat)
    whole = {is_buffer: lower + np.tril(lower, -1).T for is_buffer, lower in sums.items()}
    return Products(sites, whole[False], whole[True])


def find_unlike_updates(
    products: Products, steps: Mapping[str, float], weights: Mapping[str, float], min_sites: int
) -> Unlike:
    """Return in what sites' updates of a model are unlike the others'.

    Args:
        products: Of the updates.
        steps: Site -> the steps by which the length of its update is divided.
        weights: Site -> how much its direction counts in the others' mean.
        min_sites: With fewer sites nothing is unlike.
    """
    if len(products.sites) < min_sites:
        return {}
    found = {"cosine": find_opposed(products, weights, min_sites)}
    for what, of_these in (("length", products.parameters), ("buffers", products.buffers)):
        by_step = {site: length / steps[site] for site, length in products.lengths(of_these).items()}
        found[what] = {site: ratio for site, ratio in compare_to_others(by_step).items() if ratio > BEYOND}
    return sort_by_site(found)


def find_outweighing(examples: Mapping[str, int], min_sites: int) -> dict[str, float]:
    """Return site -> how many times the others' median of training examples it says that it has, from 3 times on."""
    ratios = compare_to_others(examples) if len(examples) >= min_sites else {}
    return {site: ratio for site, ratio in ratios.items() if ratio >= BEYOND}


def describe_unlike(site: str, what: str, value: float) -> str:
    """Return what the ledger says of a site the first time that something of it is unlike the others'."""
    sentence = SENTENCES[what].format(value) if what in SENTENCES else OF_A_PART.format(f"its {what}", value)
    return f"site {site!r} {sentence}; `unlike` of the ledger has all rounds in which it is so"


def find_opposed(products: Products, weights: Mapping[str, float], min_sites: int) -> dict[str, float]:
    """Return site -> the cosine of its update to the mean of the others', where that is negative.

    The one that is most opposed is found first, and no longer counts among the others: by an update that is turned
    round the mean may turn too, and then the honest ones would look opposed. For the same reason each other update
    counts by its direction and its weight alone, however long it is.

    Args:
        products: Of the updates.
        weights: Site -> its weight in the others' mean.
        min_sites: With fewer sites left nobody knows who is opposed to whom.
    """
    lengths = np.sqrt(products.parameters.diagonal())
    here = [row for row in range(len(products.sites)) if lengths[row] > 0]
    shares = np.array([weights[site] for site in products.sites])
    opposed = {}
    while len(here) >= max(min_sites, 2):
        cosines = {row: _cosine_to_mean(products.parameters, lengths, shares, row, here) for row in here}
        worst = min(cosines, key=cosines.__getitem__)
        if cosines[worst] >= 0:
            break
        opposed[products.sites[worst]] = cosines[worst]
        here.remove(worst)
    return opposed


def sort_by_site(found: Mapping[str, Mapping[str, float]]) -> Unlike:
    """Return site -> what is unlike -> number, from what is unlike -> site -> number."""
    sites = {site for numbers in found.values() for site in numbers}
    return {site: {what: numbers[site] for what, numbers in found.items() if site in numbers} for site in sites}


def join_unlike(several: Iterable[Unlike]) -> Unlike:
    """Return what is unlike in any of several comparisons, by the sites' names, as numbers of three digits."""
    joined: Unlike = {}
    for unlike in several:
        for site, numbers in unlike.items():
            rounded = {what: float(f"{number:.3g}") for what, number in numbers.items()}
            joined[site] = joined.get(site, {}) | rounded
    return dict(sorted(joined.items()))


def _add_products(sums: NDArray[np.float64], flat: Mapping[int, NDArray]) -> None:
    """Add the products of all pairs of arrays to the lower half of the sums, piece by piece."""
    size = next(iter(flat.values())).size
    for start in range(0, size, PIECE):
        pieces = {row: array[start : start + PIECE] for row, array in flat.items()}
        for i, first in pieces.items():
            for j in (j for j in pieces if j <= i):
                sums[i, j] += np.dot(first, pieces[j])


def _cosine_to_mean(
    products: NDArray[np.float64],
    lengths: NDArray[np.float64],
    shares: NDArray[np.float64],
    row: int,
    here: Iterable[int],
) -> float:
    """Return the cosine of an update to the mean of the directions of the others that are here."""
    others = [one for one in here if one != row]
    directions = shares[others] / lengths[others]
    length = np.sqrt(directions @ products[np.ix_(others, others)] @ directions)
    return float(products[row, others] @ directions / (lengths[row] * length)) if length > 0 else 0.0
