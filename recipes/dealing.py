"""Deal the examples of a public set to sites, and each site's recordings to its parts.

The Dirichlet split over sites is the one of Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution
for Federated Visual Classification, arXiv:1909.06335: in its per-class form, q_c ~ Dir(alpha) over the sites for class
c; and for sites of equal size in its per-site form, q_k ~ Dir(alpha) over the classes for site k. The shards are those
of McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
arXiv:1602.05629.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl_hospital.importing.partition import check_fractions, deal_parts


def split_by_class(
    units: Sequence[str], labels: Sequence[int] | NDArray, test: float, validation: float, seed: int
) -> dict[str, str]:
    """Put each recording into training, validation or test, at random within each class.

    Of n recordings of a class, floor(n * test) are for the test, then floor(rest * validation) for the validation: the
    only recording of a class is for training.

    Args:
        units: The recording of each example, shape (N,).
        labels: The class of each example, shape (N,); a recording with several counts for the smallest.
        test: Fraction of a class's recordings for the test, in [0, 1).
        validation: Fraction of the others for the validation, in [0, 1).
        seed: The same seed, recordings and classes give the same split, whatever their order.

    Returns:
        ``training``, ``validation`` or ``test`` by recording.

    Raises:
        DataError: A fraction is out of range.
    """
    check_fractions(test, validation)
    # Sorted, so that their order does not matter; the smallest class of a recording comes first and stays.
    label_of: dict[str, int] = {}
    for unit, label in sorted(zip(units, labels, strict=True)):
        label_of.setdefault(unit, int(label))
    part_of, rng = {}, np.random.default_rng(seed)
    for label in sorted(set(label_of.values())):
        names = [unit for unit, found in label_of.items() if found == label]
        num_test = _floor_share(len(names), test)
        part_of |= deal_parts(names, num_test, _floor_share(len(names) - num_test, validation), rng)
    return part_of


def shard_sites(labels: Sequence[int] | NDArray, num_sites: int, shards_per_site: int, seed: int) -> NDArray[np.int64]:
    """Sort examples by class, cut them into equal shards, and deal each site the same number of shards.

    Args:
        labels: Class of each example, shape (N,).
        num_sites: Sites, at least 1.
        shards_per_site: Shards a site, at least 1; with 2, as published, most sites have examples of two classes.
        seed: The same seed gives the same sites.

    Returns:
        Site of each example, from 0, shape (N,); sizes differ by at most `shards_per_site`.

    Raises:
        DataError: A number is out of range, or there are fewer examples than shards.
    """
    labels, rng = np.asarray(labels), np.random.default_rng(seed)
    if shards_per_site < 1:
        raise DataError(f"shards must be at least 1 a site, not {shards_per_site}")
    num_shards = num_sites * shards_per_site
    _check_sites(num_sites, len(labels) // shards_per_site, f"examples by {shards_per_site} shards a site")
    shuffled = rng.permutation(len(labels))
    shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], num_shards)
    sites = np.empty(len(labels), dtype=np.int64)
    for place, shard in enumerate(rng.permutation(num_shards)):
        sites[shards[shard]] = place // shards_per_site
    return sites


def draw_shares(
    num_classes: int, num_sites: int, alpha: float, seed: int, is_by_site: bool = False
) -> NDArray[np.float64]:
    """Draw each class's shares over the sites: q_c ~ Dir(alpha), shape (num_classes, num_sites), rows sum to 1.

    By site they are each site's shares of the classes: q_k ~ Dir(alpha), shape (num_sites, num_classes).

    Raises:
        DataError: alpha or num_sites is out of range.
    """
    _check_sites(num_sites)
    if not 0 < alpha < np.inf:
        raise DataError(f"alpha must be above 0 and finite, not {alpha}")
    rows, columns = (num_sites, num_classes) if is_by_site else (num_classes, num_sites)
    shares = np.random.default_rng(seed).dirichlet([alpha] * columns, size=rows)
    # A tiny alpha can underflow to no share at all.
    is_lost = ~np.isfinite(shares).all(axis=1) | (shares.sum(axis=1) == 0)
    shares[is_lost] = np.eye(columns)[np.arange(is_lost.sum()) % columns]
    return shares


def deal_equally(labels: NDArray, shares: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Deal every site the same number of examples, by its own shares of the classes.

    The sites take turns. At each a site draws a class by its shares of those that are not used up, then an example of
    it; where it has a share of none of them, every example that is left is as likely.

    Args:
        labels: Class of each example, from 0, shape (N,).
        shares: Shares of the classes at each site, shape (num_sites, num_classes).

    Returns:
        Site of each example, from 0, shape (N,); -1 for the N mod num_sites that are left over.

    Raises:
        DataError: There are fewer examples than sites.
    """
    num_sites, num_classes = shares.shape
    _check_sites(num_sites, len(labels), "examples")
    rng, sites = np.random.default_rng(seed), np.full(len(labels), -1, dtype=np.int64)
    members = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
    left = np.array([len(found) for found in members])
    for _ in range(len(labels) // num_sites):
        # In another order each time, so that no site always finds what the others leave.
        for site in rng.permutation(num_sites):
            wanted = np.where(left > 0, shares[site], 0)
            ends = np.cumsum(wanted if wanted.any() else left)
            label = int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))
            left[label] -= 1
            sites[members[label][left[label]]] = site
    return sites


def deal_shares(labels: NDArray, shares: NDArray[np.float64], seed: int, at_least: int = 1) -> NDArray[np.int64]:
    """Deal examples to sites by the shares of their class, so that several parts can follow the same shares.

    Args:
        labels: Class of each example, from 0, shape (N,).
        shares: Share of each class at each site, shape (num_classes, num_sites).
        at_least: Examples of every site; one that its shares give fewer takes them, at random, from the largest site.

    Returns:
        Site of each example, from 0, shape (N,).

    Raises:
        DataError: There are fewer examples than the sites need.
    """
    num_sites = shares.shape[1]
    what = "examples" if at_least == 1 else f"examples by {at_least} a site"
    _check_sites(num_sites, len(labels) // at_least, what)
    rng = np.random.default_rng(seed)
    sites = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(shares[label])[:-1] * len(members)).astype(int)
        for site, chosen in enumerate(np.split(members, ends)):
            sites[chosen] = site
    return _fill_up_sites(sites, num_sites, at_least, rng)


def _check_sites(num_sites: int, largest: int | None = None, what: str = "") -> None:
    if num_sites < 1:
        raise DataError(f"num_sites must be at least 1, not {num_sites}")
    if largest is not None and num_sites > largest:
        raise DataError(f"num_sites must be at most the number of {what}, {largest}, not {num_sites}")


def _floor_share(count: int, fraction: float) -> int:
    return math.floor(count * fraction + 1e-9)  # 10 * 0.7 is 7, whatever binary fractions make of it


def _fill_up_sites(
    sites: NDArray[np.int64], num_sites: int, at_least: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    for site in range(num_sites):
        while (counts := np.bincount(sites, minlength=num_sites))[site] < at_least:
            sites[rng.choice(np.flatnonzero(sites == counts.argmax()))] = site
    return sites
