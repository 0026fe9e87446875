"""The inventories of several sites side by side: what all can supply, and whether their images look different."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from silofl.data.inventory import BRIGHTNESS, COLOURS, Inventory, Look

# Two sites look different where their means lie more than so many deviations between patients apart, and chance gives
# as much in fewer than one of a hundred comparisons of all sites.
MOST_APART, LEVEL = 1.0, 0.01
# With fewer nobody can say how patients of one site differ.
LEAST_PATIENTS = 5
# A deviation is at least this share of the larger mean: grey images of one brightness differ in rounding.
LEAST_DEVIATION = 0.01
# Class, or nothing for all -> measure -> its values.
Looks = Mapping[str, Mapping[str, Look]]


@dataclass(frozen=True)
class Distance:
    """How far two sites' images lie apart.

    Attributes:
        sites: Their names.
        measure: The colour, brightness or contrast.
        deviations: Distance of the means, in deviations between patients of one site.
        is_different: Whether it is more than chance and patients explain.
    """

    sites: tuple[str, str]
    measure: str
    deviations: float
    is_different: bool


def describe_inventories(inventories: Mapping[str, Inventory]) -> list[str]:
    """Return what a study's lead must know of the sites' data, in sentences."""
    kinds = {site: f"{one.task} of {one.kind}" for site, one in inventories.items()}
    if len({*kinds.values()}) > 1:
        listed = ", ".join(f"{site} has {kind}" for site, kind in kinds.items())
        return [f"The hospitals have data for different tasks: {listed}. Make one study for each."]
    return [*_describe_targets(inventories), *describe_looks(inventories)]


def _describe_targets(inventories: Mapping[str, Inventory]) -> list[str]:
    names = list(dict.fromkeys(name for one in inventories.values() for name in one.labels))
    common = [name for name in names if all(one.labels.get(name) for one in inventories.values())]
    sentences = [f"All can supply: {', '.join(common)}." if common else "There is no label that all can supply."]
    for site, one in inventories.items():
        withheld = [name for name in names if one.labels.get(name, 0) is None]
        lacking = [name for name in names if not one.labels.get(name) and name not in withheld]
        sentences += [f"{site} withholds {', '.join(withheld)}: {explain_withheld(one.least)}."] if withheld else []
        sentences += [f"{site} has no patient with {', '.join(lacking)}."] if lacking else []
    return sentences


def explain_withheld(least: int) -> str:
    """Return why a site does not say a number."""
    return f"fewer than {least} patients, or such a number could be computed from it"


def describe_looks(inventories: Mapping[str, Inventory]) -> list[str]:
    """Say whether the sites' images look different, in what, and what to begin with."""
    known = {site: one.looks for site, one in inventories.items() if _is_enough(one.looks)}
    few = [site for site in inventories if site not in known]
    units = " or ".join(sorted({one.unit for one in inventories.values()}, reverse=True))
    notes = [f"{', '.join(few)}: too few {units} to compare looks; {LEAST_PATIENTS} are needed."]
    if len(known) < 2:
        return notes if few else []
    distances = find_differences(known)
    word = "signals" if next(iter(inventories.values())).kind == "windows" else "look"
    farthest = max(distances, key=lambda one: one.deviations, default=None)
    if farthest is None:
        return ["The hospitals have no class in common whose images could be compared.", *(notes if few else [])]
    how = f"{' and '.join(farthest.sites)} differ most, in {farthest.measure}: by {farthest.deviations:.1f} deviations"
    how += f" between {units} of one hospital; above {MOST_APART:g} we say different"
    different = list(dict.fromkeys(_name_kind(one.measure) for one in distances if one.is_different))
    if not different:
        sentence = "The hospitals look alike in colour and brightness" if word == "look" else "The signals are alike"
    elif word == "look":
        sentence = f"The hospitals look different in {' and '.join(different)}: begin with GroupNorm, compare FedBN"
    else:
        sentence = f"The hospitals' signals differ in {' and '.join(different)}: compare FedBN"
    return [f"{sentence} ({how}).", *(notes if few else [])]


def find_differences(looks: Mapping[str, Looks]) -> list[Distance]:
    """Return how far all pairs of sites lie apart in each measure that both have.

    The images of one class are compared with those of the same class. Over the classes the differences of the means
    have the weights ``n m / (n + m)`` of n and m patients, and the variances within sites are pooled. Chance is judged
    by a two-sided t test, with Bonferroni's correction for all pairs and measures; one patient a site tells nothing.
    """
    from scipy.stats import t

    found = []
    for first, second in combinations(looks, 2):
        one, other = looks[first], looks[second]
        for measure in dict.fromkeys(name for group in one if group in other for name in one[group]):
            groups = [
                (one[g][measure], other[g][measure]) for g in one if measure in one[g].keys() & other.get(g, {}).keys()
            ]
            if groups:
                found.append((first, second, measure, *_compare_groups(groups)))
    return [
        Distance(
            (first, second), measure, apart, bool(apart > MOST_APART and 2 * t.sf(value, freedom) * len(found) < LEVEL)
        )
        for first, second, measure, apart, value, freedom in found
    ]


def _compare_groups(groups: list[tuple[Look, Look]]) -> tuple[float, float, int]:
    """Return the distance in deviations, Student's t, and its degrees of freedom."""
    weights = np.array([a.patients * b.patients / (a.patients + b.patients) for a, b in groups])
    difference = float(weights @ [a.mean - b.mean for a, b in groups] / weights.sum())
    freedom = sum(a.patients + b.patients - 2 for a, b in groups)
    squares = sum((look.patients - 1) * look.deviation**2 for pair in groups for look in pair)
    least = LEAST_DEVIATION * max(abs(look.mean) for pair in groups for look in pair)
    deviation = max(np.sqrt(squares / max(1, freedom)), least, 1e-12)
    return abs(difference) / deviation, abs(difference) / deviation * float(np.sqrt(weights.sum())), freedom


def _is_enough(looks: Looks) -> bool:
    return any(look.patients >= LEAST_PATIENTS for group in looks.values() for look in group.values())


def _name_kind(measure: str) -> str:
    return "colour" if measure in COLOURS else BRIGHTNESS if measure == BRIGHTNESS else f"brightness of {measure}"
