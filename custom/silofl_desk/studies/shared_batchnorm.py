"""Warn of BatchNorm that hospitals share though their images look different."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from silofl.data.domain import LEAST_MARGIN
from silofl.data.inventories import find_differences
from silofl.data.inventory import ALL, Look
from silofl.data.parts import Examples
from silofl.data.site_data import sample_evenly
from silofl.study import Study

# Class, or nothing for all; patient; (C, *spatial) as the study prepares it.
Seen = tuple[str, str, NDArray[np.float32]]
# Images of each site that are looked at.
LOOKED_AT = 64
SENTENCE = (
    "the hospitals' images look different, and they share BatchNorm: on nuclei of seven hospitals FedAvg had a Dice of "
    "0.293 with it, and 0.820 with GroupNorm; choose model.normalization: group"
)


def list_batchnorm_cautions(study: Study, find_images: Callable[[], Mapping[str, Iterable[Seen]]]) -> list[str]:
    """Return the caution where sites share BatchNorm and their prepared images look different.

    Args:
        find_images: Returns some images of each site, where they are needed.
    """
    if study.model.normalization != "batch" or study.recipe.stays_home not in ("nothing", "head"):
        return []
    looks = {site: _measure_looks(images) for site, images in find_images().items()}
    return [SENTENCE] if any(one.is_different for one in find_differences(looks)) else []


def sample_images(part: Examples, study: Study) -> Iterator[Seen]:
    """Yield some of a site's images, spread evenly."""
    for i in sample_evenly(len(part), LOOKED_AT):
        group = str(part.targets[i]) if study.task == "classification" else ALL
        yield group, part.patients[i] or part.cases[i], part.images[i]


def _measure_looks(images: Iterable[Seen]) -> dict[str, dict[str, Look]]:
    """Return group -> what BatchNorm shares of a channel, its mean and deviation -> their values over patients."""
    found: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    for group, patient, image in images:
        channels = np.reshape(image, (len(image), -1)).astype(np.float64)
        measures = np.concatenate([channels.mean(axis=1), channels.std(axis=1)])
        found.setdefault(group, {}).setdefault(patient, []).append(measures)
    looks = {}
    for group, of_patients in found.items():
        values = np.array([np.mean(own, axis=0) for own in of_patients.values()])
        spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        # Rounding is no difference where a preparation brings all images to one mean.
        looks[group] = {
            f"measure {number}": Look(patients=len(values), mean=mean, deviation=max(LEAST_MARGIN, deviation))
            for number, (mean, deviation) in enumerate(zip(values.mean(axis=0).tolist(), spread.tolist(), strict=True))
        }
    return looks
