"""How often the 95 % intervals of an evaluation hold the true value, by kind of score and number of patients.

    python bench/intervals.py

Each row draws so many patients 500 times. Of *percentiles*, the middle 95 % of 200 resamples of the patients, and of
DeLong's area within 1.96 deviations, the same samples show what usual intervals hold; *none* is the share of samples
without an interval. Last come the mean over hospitals and the calibration error of perfectly calibrated models. Takes
some 8 minutes on one core; the seed is fixed.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from silofl.core.calibration import calibrated_error
from silofl.core.heterogeneity import pool_estimates
from silofl.core.intervals import GROUPS, GROUPS_OF_A_THRESHOLD, SHARE, SIZE, Interval, Sample
from silofl.core.roc import NORMAL_95, find_operating_point, measure_areas, measure_auroc

TRIALS, RESAMPLES, POPULATION = 500, 200, 200_000
SPECIFICITY, HOSPITALS = 0.9, 4
Arrays = tuple[NDArray, ...]
Random = np.random.Generator


@dataclass(frozen=True)
class Kind:
    """A kind of score.

    Attributes:
        name: Of the row.
        sizes: Numbers of patients.
        draw: Returns so many patients.
        measure: Returns the score of patients; NaN where it is not defined.
        list_kinds: Returns the kinds of patients that it needs.
        bounds: Of the score.
        num_groups: In which patients are left out.
        is_area: Whether it is the area under the ROC curve.
    """

    name: str
    sizes: Sequence[int]
    draw: Callable[[Random, int], Arrays]
    measure: Callable[..., float]
    list_kinds: Callable[..., Sequence[NDArray[np.bool_]]] = lambda *arrays: [np.ones(len(arrays[0]), bool)]
    bounds: Interval = SHARE
    num_groups: int = GROUPS
    is_area: bool = False


def draw_dice(failures: float) -> Callable[[Random, int], Arrays]:
    """Return how patients of a mean Dice of 0.8 are drawn, of whom some fail wholly."""
    return lambda random, count: (random.beta(8, 2, count) * (random.random(count) >= failures),)


def draw_scores(area: float, share: float) -> Callable[[Random, int], Arrays]:
    """Return how normal scores with an area under the ROC curve are drawn, of whose cases a share is ill."""

    def draw(random: Random, count: int) -> Arrays:
        is_ill = np.arange(count) < round(share * count)
        return random.normal(size=count) + sqrt(2) * norm.ppf(area) * is_ill, is_ill

    return draw


def draw_lesions(random: Random, count: int) -> Arrays:
    """Draw patients with 1 lesion or more, of which 0.8 are found, in some patients more than in others."""
    wholes = 1 + random.poisson(2, count)
    return random.binomial(wholes, random.beta(3.2, 0.8, count)), wholes


def draw_classes(random: Random, count: int) -> Arrays:
    """Draw cases of three classes, an eighth, a quarter and the rest, and whether they are answered rightly, 0.9."""
    return np.digitize(np.arange(count) / count, (0.125, 0.375)), random.random(count) < 0.9


def measure_precision(scores: NDArray, is_ill: NDArray) -> float:
    """Return the average precision of scores without ties: mean over the ill of the precision from their score on."""
    hits = is_ill[np.argsort(-scores)]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean()) if 0 < hits.sum() < len(hits) else np.nan


def measure_area(scores: NDArray, is_ill: NDArray) -> float:
    """Return the area under the ROC curve."""
    found = measure_auroc(scores, is_ill)
    return np.nan if found is None else found.value


def measure_sensitivity(scores: NDArray, is_ill: NDArray) -> float:
    """Return the sensitivity at the specificity."""
    found = find_operating_point(scores, is_ill, SPECIFICITY)
    return np.nan if found is None else found.sensitivity


def measure_recalls(classes: NDArray, is_right: NDArray) -> float:
    """Return the balanced accuracy."""
    return float(np.mean([is_right[classes == one].mean() for one in np.unique(classes)]))


def list_both(scores: NDArray, is_ill: NDArray) -> Sequence[NDArray[np.bool_]]:
    """Return who is ill and who is not."""
    return is_ill, ~is_ill


def list_kinds() -> list[Kind]:
    """Return all kinds of scores."""
    mean = lambda values: float(np.mean(values)) if len(values) else np.nan  # noqa: E731
    kinds = [
        Kind(f"mean Dice 0.8{f', {failures:.0%} fail' * bool(failures)}", (6, 10, 20), draw_dice(failures), mean)
        for failures in (0.0, 0.1)
    ]
    kinds += [
        Kind(f"share {p:g}", (5, 10, 20), lambda random, count, p=p: (random.random(count) < p,), mean)
        for p in (0.7, 0.9, 0.98)
    ]
    lognormal = lambda random, count: (random.lognormal(1, 0.8, count),)  # noqa: E731
    kinds += [
        Kind("mean HD95", (6, 10, 20), lognormal, mean, bounds=SIZE),
        Kind("lesions found 0.8", (6, 10, 20), draw_lesions, lambda found, wholes: float(found.sum() / wholes.sum())),
        Kind(
            "balanced accuracy 0.9",
            (16, 32, 80),
            draw_classes,
            measure_recalls,
            lambda classes, _: [classes == one for one in range(3)],
        ),
    ]
    for area in (0.7, 0.9, 0.98):
        draw = draw_scores(area, 0.5)
        rest = {"sizes": (20, 50, 100), "draw": draw, "list_kinds": list_both}
        kinds.append(Kind(f"AUROC {area:g}", measure=measure_area, is_area=True, **rest))
        kinds.append(Kind(f"PR-AUC, AUROC {area:g}", measure=measure_precision, **rest))
        at_threshold = {"measure": measure_sensitivity, "num_groups": GROUPS_OF_A_THRESHOLD}
        kinds.append(Kind(f"sensitivity, AUROC {area:g}", **at_threshold, **rest))
    return kinds


def find_intervals(kind: Kind, arrays: Arrays, random: Random) -> tuple[Interval | None, Interval | None]:
    """Return the interval of a sample, and the usual one."""
    count = len(arrays[0])
    if kind.is_area:
        _, covariance = measure_areas(arrays[0][None], arrays[1])
        found, margin = measure_auroc(*arrays), NORMAL_95 * sqrt(covariance[0, 0])
        return found.interval, (found.value - margin, found.value + margin) if margin > 0 else None
    options = {"bounds": kind.bounds, "num_groups": kind.num_groups}
    found = Sample(range(count)).estimate(
        lambda rows: kind.measure(*(one[rows] for one in arrays)), *kind.list_kinds(*arrays), **options
    )
    rows = random.integers(count, size=(RESAMPLES, count))
    again = np.array([kind.measure(*(one[row] for one in arrays)) for row in rows])
    low, high = np.nanpercentile(again, (2.5, 97.5)).tolist()
    return found.interval, (low, high) if high > low else None


def measure_row(kind: Kind, count: int, truth: float) -> str:
    """Return a row of the table."""
    random, found = np.random.default_rng(count), []
    for _ in range(TRIALS):
        found.append(find_intervals(kind, kind.draw(random, count), random))
    cells = []
    for intervals in zip(*found, strict=True):
        known = [one for one in intervals if one is not None]
        inside = np.mean([one is not None and one[0] <= truth <= one[1] for one in intervals])
        width = np.mean([high - low for low, high in known])
        cells.append(f"{inside:.2f} | {1 - len(known) / TRIALS:.2f} | {width:.2f}")
    return f"| {kind.name} | {truth:.2f} | {count} | {' | '.join(cells)} |"


def measure_pooling(spread: float, count: int) -> str:
    """Return how often the mean over hospitals holds the true one: shares of 0.9, which differ by a spread."""
    random, found = np.random.default_rng(count), []
    for _ in range(TRIALS):
        shares = np.clip(0.9 + random.choice((-spread, spread), HOSPITALS), 0, 1)
        samples = {str(i): random.random(count) < share for i, share in enumerate(shares)}
        found.append(pool_estimates({i: Sample(range(count)).mean(one.astype(float)) for i, one in samples.items()}))
    inside = np.mean([one is not None and one.interval[0] <= 0.9 <= one.interval[1] for one in found])
    sites = np.mean([0 if one is None else one.num_sites for one in found])
    return (
        f"{HOSPITALS} hospitals, {count} patients each, shares 0.9 -+ {spread:g}: {inside:.2f}, {sites:.1f} hospitals"
    )


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| score | true | patients | covers | none | width | usual | none | width |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in list_kinds():
        truth = kind.measure(*kind.draw(np.random.default_rng(0), POPULATION))
        for count in kind.sizes:
            print(measure_row(kind, count, truth), flush=True)
    for spread in (0.0, 0.08):
        print(measure_pooling(spread, 10))
    for count in (20, 50, 200, 1000):
        chance = calibrated_error(np.random.default_rng(0).uniform(0.5, 1, count))
        print(f"ECE of a perfectly calibrated model, {count} cases: {chance.value:.3f}", chance.interval)


if __name__ == "__main__":
    main()
