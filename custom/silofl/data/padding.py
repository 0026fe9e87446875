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
    """A value of images, and the share of their voxels that have it.

    Attributes:
        value: The least value; or a higher one that their files state to be padding.
        share: Of their voxels.
        is_stated: Whether it is such a higher one.
    """

    value: float
    share: float
    is_stated: bool = False


def measure_padding(array: NDArray, stated: float | None = None) -> Padding:
    """Return an image's least value, or a higher one that its file states where it fills more than `LEAST_SHARE`."""
    least = array.min()
    if stated is not None and stated > least and (share := float(np.mean(array == stated))) > LEAST_SHARE:
        return Padding(stated, share, is_stated=True)
    return Padding(float(least), float(np.mean(array == least)))


def find_padding(found: Sequence[Padding]) -> Padding | None:
    """Return the value that most voxels of a site share as their padding; None where they are few.

    Args:
        found: What `measure_padding` says of some of its images.
    """
    shares: dict[tuple[float, bool], float] = {}
    for one in found:
        key = (one.value, one.is_stated)
        shares[key] = shares.get(key, 0) + one.share / len(found)
    key = max(shares, key=lambda one: shares[one], default=None)
    return None if key is None or shares[key] <= LEAST_SHARE else Padding(key[0], shares[key], key[1])


def describe_padding(own: Padding | None, others: Mapping[str, Padding | None] | None = None) -> list[str]:
    """Return a sentence where a site's images are padded with a value that others' have not.

    Args:
        others: Site -> its padding, of the other sites; None where nothing is known of them, so that only what is below
            all air is named.
    """
    if own is None or any(one is not None and one.value == own.value for one in (others or {}).values()):
        return []
    share = f"{own.value:g} fills {own.share:.1%} of the voxels"
    if own.is_stated:
        return [
            f"{share}, and the files state that it is padding (PixelPaddingValue), which intensities are scaled by; "
            "set a window that ends below it in the study's data.transforms, or export the images without padding"
        ]
    if own.value < AIR_HU:
        return [
            f"{share}, less than air has in CT: it is padding, which intensities are scaled by; set the study's "
            f"data.background to {{below: {AIR_HU}}}, or a window in data.transforms (silofl new-study --survey)"
        ]
    if not others:
        return []
    return [
        f"{share} as their least value, and no other site's: see whether it is padding, and where it is set the "
        "study's data.background, or a window in data.transforms"
    ]
