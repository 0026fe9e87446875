"""Warn of BatchNorm that hospitals share though their images look different."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from silofl.data.domain import LEAST_MARGIN
from silofl.data.parts import Examples
from silofl.data.site_data import sample_evenly
from silofl.study import Study

# Class, or nothing for all; patient; (C, *spatial) as the study prepares it.
Seen = tuple[str, str, NDArray[np.float32]]
# The group of all patients of a segmentation, and of findings.
ALL = ""
# Images of each site that are looked at.
LOOKED_AT = 64
# Two sites look different where their means lie more than so many deviations between patients apart, and chance gives
# as much in fewer than one of a hundred comparisons of all sites.
MOST_APART = 1.0
LEVEL = 0.01
# A deviation is at least this share of the larger mean: grey images of one brightness differ in rounding.
LEAST_DEVIATION = 0.01
SENTENCE = (
    "the hospitals' images look different, and they share BatchNorm: on nuclei of seven hospitals FedAvg had a Dice of "
    "0.293 with it, and 0.820 with GroupNorm; choose model.normalization: group"
)


@dataclass(frozen=True)
class Look:
    """What BatchNorm shares of a group's images: mean and deviation of each channel, shape (measures,).

    Attributes:
        patients: How many there are.
        mean: Over the patients.
        deviation: Standard deviation between them.
    """

    patients: int
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def list_batchnorm_cautions(study: Study, find_images: Callable[[], Mapping[str, Iterable[Seen]]]) -> list[str]:
    """Return the caution where sites share BatchNorm and their prepared images look different.

    Args:
        find_images: Returns some images of each site, where they are needed.
    """
    if study.model.normalization != "batch" or study.recipe.stays_home not in ("nothing", "head"):
        return []
    looks = {site: _measure_looks(images) for site, images in find_images().items()}
    return [SENTENCE] if look_different(looks) else []


def sample_images(part: Examples, study: Study) -> Iterator[Seen]:
    """Yield some of a site's images, spread evenly."""
    for i in sample_evenly(len(part), LOOKED_AT):
        group = str(part.targets[i]) if study.task == "classification" else ALL
        yield group, part.patients[i] or part.cases[i], part.images[i]


def look_different(looks: Mapping[str, Mapping[str, Look]]) -> bool:
    """Return whether two sites differ in a measure, by more than chance and patients explain.

    The images of one class are compared with those of the same class. Over the classes the differences of the means
    have the weights ``n m / (n + m)`` of n and m patients, and the variances within sites are pooled. Chance is judged
    by a two-sided t test, with Bonferroni's correction for all pairs and measures; one patient a site tells nothing.

    Args:
        looks: Site -> group -> its look.
    """
    from scipy.stats import t

    apart: list[NDArray[np.float64]] = []
    chances: list[NDArray[np.float64]] = []
    for one, other in combinations(looks.values(), 2):
        groups = [(one[name], other[name]) for name in one if name in other]
        if groups:
            deviations, statistic, freedom = _compare_groups(groups)
            apart.append(deviations)
            chances.append(2 * t.sf(statistic, freedom))
    if not apart:
        return False
    distances = np.concatenate(apart)
    is_beyond_chance = np.concatenate(chances) * len(distances) < LEVEL
    return bool((is_beyond_chance & (distances > MOST_APART)).any())


def _compare_groups(groups: list[tuple[Look, Look]]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return by measure the distance in deviations and Student's t, and the degrees of freedom of all."""
    weights = np.array([one.patients * other.patients / (one.patients + other.patients) for one, other in groups])
    difference = np.abs(weights @ np.array([one.mean - other.mean for one, other in groups])) / weights.sum()
    all_looks = [look for pair in groups for look in pair]
    freedom = sum(look.patients - 1 for look in all_looks)
    squares = sum((look.patients - 1) * look.deviation**2 for look in all_looks)
    least = LEAST_DEVIATION * np.max([np.abs(look.mean) for look in all_looks], axis=0)
    deviation = np.maximum(np.maximum(np.sqrt(squares / max(1, freedom)), least), 1e-12)
    return difference / deviation, difference / deviation * np.sqrt(weights.sum()), freedom


def _measure_looks(images: Iterable[Seen]) -> dict[str, Look]:
    """Return group -> its look."""
    found: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    for group, patient, image in images:
        channels = np.reshape(image, (len(image), -1)).astype(np.float64)
        measures = np.concatenate([channels.mean(axis=1), channels.std(axis=1)])
        found.setdefault(group, {}).setdefault(patient, []).append(measures)
    looks = {}
    for group, of_patients in found.items():
        values = np.array([np.mean(own, axis=0) for own in of_patients.values()])
        deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        # Rounding is no difference where a preparation brings all images to one mean.
        looks[group] = Look(len(values), values.mean(axis=0), np.maximum(LEAST_MARGIN, deviation))
    return looks
