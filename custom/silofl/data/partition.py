"""Who is in which part, and which example is at which site.

The label split over sites is the one of Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification, arXiv:1909.06335, in its per-class form: q_c ~ Dir(alpha) over the sites for class c.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from silofl.errors import DataError


def split_by_patient(patients: Sequence[str], test: float, validation: float, seed: int) -> dict[str, str]:
    """Put whole patients into training, validation and test, at random.

    Of n patients, round(n * test) are for the test, then round(rest * validation) for the validation. Each part gets a
    patient where there are enough: one patient is for training, two are for training and test.

    Args:
        patients: One name an example, or one a patient.
        test: Fraction of the patients for the test, in [0, 1).
        validation: Fraction of the other patients for the validation, in [0, 1); 0 for none.
        seed: The same seed and patients give the same split, whatever the order of the names.

    Returns:
        ``training``, ``validation`` or ``test`` by patient.

    Raises:
        DataError: A fraction is out of range.
    """
    for name, fraction in (("test", test), ("validation", validation)):
        if not 0 <= fraction < 1:
            raise DataError(f"{name} must be a fraction from 0 to below 1, not {fraction}")
    names = sorted(set(patients))
    shuffled = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    num_test = _share(len(names), test)
    num_validation = _share(len(names) - num_test, validation)
    parts = ["test"] * num_test + ["validation"] * num_validation
    parts += ["training"] * (len(names) - len(parts))
    return dict(zip(shuffled, parts, strict=True))


def dirichlet_sites(labels: Sequence[int] | NDArray, num_sites: int, alpha: float, seed: int) -> NDArray[np.int64]:
    """Spread labelled examples over sites with different label shares.

    Args:
        labels: Class of each example, from 0, shape (N,).
        num_sites: Sites, at least 1.
        alpha: Concentration, above 0: small values give sites with few classes, large ones give equal shares.
        seed: The same seed gives the same sites.

    Returns:
        Site of each example, from 0, shape (N,); every site has at least one example.

    Raises:
        DataError: alpha or num_sites is out of range, or there are fewer examples than sites.
    """
    labels = np.asarray(labels)
    shares = draw_shares(int(labels.max(initial=0)) + 1, num_sites, alpha, seed)
    return assign_sites(labels, shares, seed)


def draw_shares(num_classes: int, num_sites: int, alpha: float, seed: int) -> NDArray[np.float64]:
    """Draw each class's shares over the sites: q_c ~ Dir(alpha), shape (num_classes, num_sites), rows sum to 1.

    Raises:
        DataError: alpha or num_sites is out of range.
    """
    if num_sites < 1:
        raise DataError(f"num_sites must be at least 1, not {num_sites}")
    if not 0 < alpha < np.inf:
        raise DataError(f"alpha must be above 0 and finite, not {alpha}")
    shares = np.random.default_rng(seed).dirichlet([alpha] * num_sites, size=num_classes)
    # A tiny alpha can underflow to no share at all.
    is_lost = ~np.isfinite(shares).all(axis=1) | (shares.sum(axis=1) == 0)
    shares[is_lost] = np.eye(num_sites)[np.arange(is_lost.sum()) % num_sites]
    return shares


def assign_sites(labels: NDArray, shares: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Deal examples to sites by the shares of their class, so that several parts can follow the same shares.

    Args:
        labels: Class of each example, from 0, shape (N,).
        shares: Share of each class at each site, shape (num_classes, num_sites).
        seed: Which examples go where.

    Returns:
        Site of each example, from 0, shape (N,); every site has at least one example.

    Raises:
        DataError: There are fewer examples than sites.
    """
    num_sites = shares.shape[1]
    if len(labels) < num_sites:
        raise DataError(f"num_sites must be at most the number of examples, {len(labels)}, not {num_sites}")
    rng = np.random.default_rng(seed)
    sites = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(shares[label])[:-1] * len(members)).astype(int)
        for site, chosen in enumerate(np.split(members, ends)):
            sites[chosen] = site
    return _without_empty_sites(sites, num_sites, rng)


def _share(count: int, fraction: float) -> int:
    """Return how many of `count` a fraction is: one or more unless that would be all of them."""
    wanted = max(1, round(count * fraction)) if fraction > 0 else 0
    return max(0, min(wanted, count - 1))


def _without_empty_sites(sites: NDArray[np.int64], num_sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
    for site in range(num_sites):
        counts = np.bincount(sites, minlength=num_sites)
        if counts[site] == 0:
            sites[rng.choice(np.flatnonzero(sites == counts.argmax()))] = site
    return sites
