"""Padding: one extreme value that scanners and programs put where nothing was measured, as -3024 in CT."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Of a site's voxels, above which a value that they share may be padding.
LEAST_SHARE = 0.01
# No tissue and no air has less in Hounsfield units, in which alone values are so low.
AIR_HU = -1024


@dataclass(frozen=True)
class Padding:
    """The least value of images, and the share of their voxels that have it."""

    value: float
    share: float


def measure_least(array: NDArray) -> Padding:
    """Return an image's least value, and the share of its voxels that have it."""
    least = array.min()
    return Padding(float(least), float(np.mean(array == least)))


def find_padding(found: Sequence[Padding]) -> Padding | None:
    """Return the value that most voxels of a site share as the least of their image; None where they are few.

    Args:
        found: What `measure_least` says of some of its images.
    """
    shares: dict[float, float] = {}
    for one in found:
        shares[one.value] = shares.get(one.value, 0) + one.share / len(found)
    value = max(shares, key=lambda one: shares[one], default=None)
    return None if value is None or shares[value] <= LEAST_SHARE else Padding(value, shares[value])


def describe_padding(own: Padding | None, others: Mapping[str, Padding | None] | None = None) -> list[str]:
    """Return a sentence where a site's images are padded with a value that others' have not.

    Args:
        own: The site's.
        others: Site -> its padding, of the other sites; None where nothing is known of them, so that only what is below
            all air is named.
    """
    if own is None or any(one is not None and one.value == own.value for one in (others or {}).values()):
        return []
    share = f"{own.value:g} fills {own.share:.1%} of the voxels"
    if own.value < AIR_HU:
        return [
            f"{share}, less than air has in CT: it is padding, which intensities are scaled by; set the study's "
            f"data.background to {{below: {AIR_HU}}}, or a window in data.transforms, which silofl plan makes of CT"
        ]
    if not others:
        return []
    return [
        f"{share} as their least value, and no other site's: see whether it is padding, and where it is set the "
        "study's data.background, or a window in data.transforms"
    ]
