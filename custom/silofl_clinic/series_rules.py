"""Which series of an exam a model is for: no localizer, and by the rules of clinic.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from silofl.reading.dicom_planes import DIRECTION, count_frames, list_values, read_planes
from silofl_clinic.settings import SeriesRule

if TYPE_CHECKING:
    from pydicom import Dataset

LOCALIZER = "LOCALIZER"
# By the patient's axis that a plane's normal runs along: left, back, head.
PLANES = ("sagittal", "coronal", "axial")


def is_wanted(headers: Sequence[Dataset], rules: Sequence[SeriesRule]) -> bool:
    """Return whether a series is for the model: no localizer, and one that meets a rule where there are any.

    Args:
        headers: Of its images, at least one.
    """
    kinds = [str(word) for word in list_values(headers[0].get("ImageType"))]
    if LOCALIZER in kinds:
        return False
    description = str(headers[0].get("SeriesDescription", "")).lower()
    num_slices = sum(map(count_frames, headers))
    for rule in rules:
        if (
            fnmatchcase(description, rule.description.lower())
            and rule.image_type in (None, *kinds)
            and rule.plane in (None, find_plane(headers[0]))
            and num_slices >= rule.least_slices
        ):
            return True
    return not rules


def find_plane(header: Dataset) -> str | None:
    """Return the plane that the first slice of an image lies nearest to; None where it states no direction."""
    directions = next(read_planes(header))[DIRECTION]
    if directions is None:
        return None
    axes = np.array(directions, np.float64)
    return PLANES[int(np.abs(np.cross(axes[:3], axes[3:])).argmax())]
