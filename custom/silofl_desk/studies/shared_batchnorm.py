"""Warn of BatchNorm that hospitals share though their images look different."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from silofl.data.domain import LEAST_MARGIN, measure_images
from silofl.data.parts import Examples
from silofl.data.site_data import sample_evenly
from silofl.study import Study
from silofl.training.metrics import group_positions

# Site -> its cases, of each the images (C, *spatial) as the study prepares them.
Cases = Mapping[str, Iterable[Iterable[NDArray[np.float32]]]]
# Cases of each site that are looked at.
LOOKED_AT = 12
# Sites dealt from one hospital lie less than 2 apart; simulated scanners or stains, and real ones, more than 5.
APART = 3
SENTENCE = (
    "the hospitals' images look different, and they share BatchNorm: on nuclei of seven hospitals FedAvg had a Dice of "
    "0.293 with it, and 0.820 with GroupNorm (bench/normalizations.md); choose model.normalization: group"
)


def list_batchnorm_cautions(study: Study, find_cases: Callable[[], Cases]) -> list[str]:
    """Return the caution where sites share BatchNorm and their images look different.

    Args:
        find_cases: Prepares the cases, where they are needed.
    """
    is_shared = study.model.normalization == "batch" and study.recipe.stays_home in ("nothing", "head")
    return [SENTENCE] if is_shared and hospitals_look_different(find_cases()) else []


def sample_cases(part: Examples) -> list[list[NDArray[np.float32]]]:
    """Return the images of some cases of a site, evenly spread."""
    cases = [*group_positions(part.cases).values()]
    return [[part.images[i] for i in cases[number]] for number in sample_evenly(len(cases), LOOKED_AT)]


def hospitals_look_different(cases: Cases) -> bool:
    """Return whether two sites' means of a measure of `measure_images` lie more than `APART` deviations apart.

    The deviation is that of single cases within a site, over all sites; without two cases at one it is not known.
    """
    found = [np.array([_measure_case(case) for case in own]) for own in cases.values()]
    freedom = sum(map(len, found)) - len(found)
    if freedom == 0:
        return False
    within = np.sqrt(sum(np.square(own - own.mean(axis=0)).sum(axis=0) for own in found) / freedom)
    between = np.ptp([own.mean(axis=0) for own in found], axis=0)
    return bool((between > APART * np.maximum(within, LEAST_MARGIN)).any())


def _measure_case(images: Iterable[NDArray[np.float32]]) -> list[float]:
    """Return the measures of a case, means over its images."""
    each = [[values[0] for values in measure_images(image[None]).values()] for image in images]
    return np.mean(each, axis=0).tolist()
