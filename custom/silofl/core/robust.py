"""Robust mixing: rules by which a few hostile or broken sites move the shared model little.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates, ICML 2018, arXiv:1803.01498, Definitions 1 and 2. Multi-Krum: Blanchard, El Mhamdi,
Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
arXiv:1703.02757, Section 4. Clipping of updates at a norm: Sun, Kairouz, Suresh and McMahan, Can You Really Backdoor
Federated Learning?, arXiv:1911.07963; around a centre: Karimireddy, He and Jaggi, Learning from History for Byzantine
Robust Optimization, ICML 2021, arXiv:2012.10333, whose centre is the round before, here the coordinate-wise median; at
the sites' median norm: Andrew et al., NeurIPS 2021, arXiv:1905.03871.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError
from silofl.base.settings import Count, Positive
from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.array_file import store
from silofl.core.mixing import Arrays
from silofl.core.outliers import BEYOND, cap_claims, compare_to_others
from silofl.core.products import Products, list_names, multiply_updates


class Robust(AlgorithmOption):
    """The rule that limits how far a few sites can move the shared model, as ``robust: clipped``.

    Attributes:
        rule: What replaces the weighted mean: for each number the ``median`` or ``trimmed_mean`` of the sites' updates;
            the mean of the updates nearest to each other (``multi_krum``); or the weighted mean of updates ``clipped``
            at a distance from their median. In all but ``clipped`` every site has the same weight.
        factor: Limit of ``clipped``, in multiples of the sites' median, for an update's distance from the median update
            times its site's examples, and for a site's examples and steps; if sites get models of their own or a
            selector learns, half of it limits the update's length.
        attackers: How many sites may be hostile: ``trimmed_mean`` leaves out so many largest and smallest numbers,
            ``multi_krum`` so many updates.
    """

    section: ClassVar[str] = "robust"
    implementation: ClassVar[str] = "silofl.parts.robust"
    traits: ClassVar[Traits] = Traits(is_of_steps=True)
    only_with: ClassVar = {"factor": ("rule", ("clipped",)), "attackers": ("rule", ("trimmed_mean", "multi_krum"))}
    rule: Literal["median", "trimmed_mean", "clipped", "multi_krum"] = "clipped"
    factor: Positive = 2.0
    attackers: Count = 1

    @property
    def counts_examples(self) -> bool:
        """Whether a site's number of examples counts."""
        return self.rule == "clipped"

    @property
    def fewest_sites(self) -> int:
        """Answers that a round needs for the rule to hold: an honest majority; for Multi-Krum ``2 f + 3``."""
        if self.rule == "clipped":
            return 1
        return {"median": 3, "trimmed_mean": 2 * self.attackers + 1, "multi_krum": 2 * self.attackers + 3}[self.rule]

    def reach(self, *, has_median: bool) -> float:
        """Return the factor for updates that are clipped around their median, or half of it for those around 0.

        An attacker as long as the others pulls further there.
        """
        return self.factor if has_median else self.factor / 2

    def fewest_answers(self, min_sites: int) -> int:
        """Return from how many answers on it bounds them, given from how many on sites are compared."""
        return max(self.fewest_sites, min_sites if self.rule == "clipped" else 1)

    def count(self, examples: Mapping[str, int], min_sites: int) -> Mapping[str, float]:
        """Return how much each site counts: 1, or its examples as far as the others' make them likely."""
        if not self.counts_examples:
            return dict.fromkeys(examples, 1.0)
        # Among fewer sites nobody can say whose number is unlikely.
        if len(examples) < min_sites:
            return examples
        return cap_claims(examples, self.factor)

    def conflict(self, recipe: Any) -> str | None:  # noqa: ANN401
        """Updates of models of the sites' own can be shortened, but have no common median, mean or nearest ones."""
        if recipe.stays == "everything":
            return "robust must be none where no model is mixed in training, not " + self.rule
        if recipe.mixing is not None and self.rule != "clipped":
            return (
                "robust must be clipped where each site listens to the others with weights of its own, not "
                f"{self.rule}; or choose mixing: shared"
            )
        return None

    def check(self, study: Any, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:  # noqa: ANN401
        """Refuse rounds of fewer sites than the rule needs."""
        if study.federation.min_sites < self.fewest_sites:
            raise ConfigError(
                f"federation.min_sites must be at least {self.fewest_sites} with algorithm.robust {self.rule}, so that "
                f"honest sites outvote the others in every round, not {study.federation.min_sites}; raise it, or take "
                "clipped"
            )

    def sentence(self) -> str:
        """Describe the rule for the report."""
        return {
            "median": "Of each number it takes the median of the sites' updates (Yin et al.).",
            "trimmed_mean": "Of each number it takes the mean of the sites' updates without the largest and smallest "
            f"{self.attackers} (Yin et al.).",
            "clipped": "An update that would pull the model further, by its site's examples and its distance from the "
            f"median update, than {self.factor:g} times the sites' median counts as a nearer one (where sites get "
            "models of their own or a selector learns: by its length, and half as many times); examples and steps "
            f"beyond {self.factor:g} times the others' median do not count.",
            "multi_krum": f"It takes the mean of all updates but {self.attackers}, those farthest from their nearest "
            "ones (Multi-Krum, Blanchard et al.).",
        }[self.rule]


def take_median(updates: Mapping[str, Arrays]) -> Arrays:
    """Return the coordinate-wise median; of an even number of sites the mean of both in the middle.

    Args:
        updates: Site -> {name: array}; each array is combined over the sites that have it. Of fewer than three, sites
            without it count as unmoved: one or two senders cannot outvote each other.
    """
    return _combine(updates, lambda stacked: np.median(stacked, axis=0), 3)


def trim_mean(updates: Mapping[str, Arrays], trimmed: int) -> Arrays:
    """Return the coordinate-wise mean without the ``trimmed`` largest and smallest numbers.

    Args:
        updates: Site -> {name: array}; as of `take_median`, with ``2 trimmed + 1`` for three.
        trimmed: The paper's ``beta m``; of fewer than ``2 trimmed + 1`` sites as many are left out as leave one or two.
    """

    def trim(stacked: NDArray[np.float64]) -> NDArray[np.float64]:
        ends = min(trimmed, (len(stacked) - 1) // 2)
        return np.asarray(np.sort(stacked, axis=0)[ends : len(stacked) - ends].mean(axis=0), np.float64)

    return _combine(updates, trim, 2 * trimmed + 1)


def clip_scales(pulls: Mapping[str, float], factor: float) -> dict[str, float]:
    """Return what each update is multiplied with: ``min(1, factor * median / pull)``.

    Args:
        pulls: Site -> length of its update by step, times how much the site counts.
        factor: Times the sites' median that a pull may be.
    """
    bound = factor * float(np.median(list(pulls.values())))
    # An update of length 0 stays as it is.
    return {site: min(1.0, bound / pull) if pull > 0 else 1.0 for site, pull in pulls.items()}


def krum_scores(distances: NDArray[np.float64], attackers: int) -> NDArray[np.float64]:
    """Return Krum's scores, shape (K,): the sum of the squared distances to the ``K - f - 2`` nearest other updates.

    Args:
        distances: Squared distances of all pairs, shape (K, K).
        attackers: The paper's f, at most ``K - 3``.
    """
    # Column 0 is the distance of each update to itself, 0.
    return np.asarray(np.sort(distances, axis=1)[:, 1 : len(distances) - attackers - 1].sum(axis=1), np.float64)


def bound_updates(
    rule: Robust,
    updates: Mapping[str, Arrays],
    shares: Mapping[str, float],
    buffers: Collection[str],
    *,
    has_median: bool = True,
) -> tuple[dict[str, Arrays], dict[str, float]]:
    """Return updates whose mean is what the rule makes of these.

    Lengths and distances are of parameters and of buffers apart: behind long buffers no parameters can hide.

    Args:
        updates: Site -> {name: array}.
        shares: Site -> how much a length of its update counts: its examples by training step.
        buffers: Names of arrays that are no parameters.
        has_median: Whether the updates are of one model that all sites teach the same. They then have a median to be
            clipped around; others are clipped around 0.

    Returns:
        Site -> what counts as its update: equal for all sites but with ``clipped``. Site -> its score, if Multi-Krum
        leaves its parameters out.
    """
    if rule.rule == "median":
        return _give_all(updates, take_median(updates)), {}
    if rule.rule == "trimmed_mean":
        return _give_all(updates, trim_mean(updates, rule.attackers)), {}
    if rule.rule == "clipped":
        centre = take_median(updates) if has_median else {}
        return _clip(updates, centre, shares, rule.reach(has_median=has_median), buffers), {}
    return _select_nearest(updates, multiply_updates(updates, buffers), rule.attackers, buffers)


def find_long(updates: Mapping[str, Arrays], most: float = BEYOND) -> dict[str, float]:
    """Return site -> how many times as long as the others' median its update is, beyond so many times."""
    lengths = {site: _measure_distance(arrays, {}) for site, arrays in updates.items()}
    return {site: ratio for site, ratio in compare_to_others(lengths).items() if ratio > most}


def _clip(
    updates: Mapping[str, Arrays],
    centre: Arrays,
    shares: Mapping[str, float],
    factor: float,
    buffers: Collection[str],
) -> dict[str, Arrays]:
    """Return updates near the centre, which is 0 for arrays that it lacks."""
    scales = {}
    for is_buffer in (False, True):
        pulls = {}
        for site, arrays in updates.items():
            distance = _measure_distance(_select_arrays(arrays, buffers, is_buffer), centre)
            pulls[site] = shares[site] * distance
        scales[is_buffer] = clip_scales(pulls, factor)
    clipped: dict[str, Arrays] = {}
    for site, arrays in updates.items():
        near = {}
        for name, array in arrays.items():
            near[name] = _bring_near(array, centre.get(name), scales[name in buffers][site])
        # Site by site, as one model of each in memory may be too much.
        clipped[site] = store(near)
    return clipped


def _select_arrays(arrays: Arrays, buffers: Collection[str], is_buffer: bool) -> Arrays:
    return {name: array for name, array in arrays.items() if (name in buffers) == is_buffer}


def _measure_distance(arrays: Arrays, centre: Arrays) -> float:
    """Return the Euclidean distance from a centre; one array at a time, since a model may be large."""
    total = 0.0
    for name, array in arrays.items():
        difference = array - centre[name] if name in centre else array
        total += np.square(difference, dtype=np.float64).sum()
    return float(np.sqrt(total))


def _bring_near(array: NDArray[Any], centre: NDArray[Any] | None, scale: float) -> NDArray[Any]:
    """Return an array whose distance from a centre is multiplied; the array itself where it is not."""
    if scale == 1:
        return array
    near = scale * array if centre is None else centre + scale * (array - centre)
    return near.astype(array.dtype)


def _select_nearest(
    updates: Mapping[str, Arrays], products: Products, attackers: int, buffers: Collection[str]
) -> tuple[dict[str, Arrays], dict[str, float]]:
    mean: Arrays = {}
    left_out: dict[str, float] = {}
    # Parameters come last, because the sites that they leave out are the ones that are reported.
    for is_buffer, of_these in ((True, products.buffers), (False, products.parameters)):
        scores = krum_scores(products.distances(of_these), attackers)
        # Of equal scores the first site's, by name.
        order = [products.sites[row] for row in np.argsort(scores, kind="stable")]
        num_kept = len(order) - attackers
        kept = sorted(order[:num_kept])
        nearest = {site: _select_arrays(updates[site], buffers, is_buffer) for site in kept}
        mean |= _combine(nearest, lambda stacked: stacked.mean(axis=0))
        ratios = compare_to_others(dict(zip(products.sites, scores.tolist(), strict=True)))
        left_out = {site: ratios[site] for site in order[num_kept:] if site in ratios}
    return _give_all(updates, mean), left_out


def _combine(
    updates: Mapping[str, Arrays], rule: Callable[[NDArray[np.float64]], NDArray[np.float64]], fewest: int = 1
) -> Arrays:
    """Combine each array over its senders; where these are fewer than the fewest, over unmoved sites too."""
    combined = {}
    for name in list_names(updates.values()):
        sent = [np.asarray(arrays[name]) for arrays in updates.values() if name in arrays]
        sent += [np.zeros_like(sent[0])] * (min(fewest, len(updates)) - len(sent))
        combined[name] = np.asarray(rule(np.stack(sent).astype(np.float64))).astype(sent[0].dtype)
    return combined


def _give_all(updates: Mapping[str, Arrays], combined: Arrays) -> dict[str, Arrays]:
    """Return the same update for every site, of the arrays that it sent: any mean of equal updates is that update."""
    given: dict[str, Arrays] = {}
    for site, arrays in updates.items():
        given[site] = {name: combined[name] for name in arrays if name in combined}
    return given
