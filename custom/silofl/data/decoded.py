"""A decoded image file, and how much one may hold."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from silofl.errors import DataError

# Far above a CT of the whole body in 16 bits; a file of some kilobytes can claim more than any machine has.
MAX_BYTES = 2 << 30
KINDS = ("is_binary", "is_window", "has_contrasts")


class Decoded(NamedTuple):
    """A decoded file: its array (C, H, W) or (C, X, Y, Z) as stored, the affine of a volume, and the array's kind.

    Channels may be a sensor's (a window) or contrasts, neither of which are colours.
    """

    array: NDArray
    affine: NDArray[np.float64] | None = None
    is_binary: bool = False
    is_window: bool = False
    has_contrasts: bool = False


def check_bytes(name: str, shape: Iterable[int], item_bytes: int) -> int:
    """Return the bytes of an array, before memory for it is taken.

    Raises:
        DataError: They are more than `MAX_BYTES`.
        ValueError: A size is negative.
    """
    sizes = [int(size) for size in shape]
    if min(sizes, default=0) < 0:
        raise ValueError(f"its sizes must not be negative, as {min(sizes)}")
    size = math.prod(sizes) * item_bytes
    if size > MAX_BYTES:
        limit = f"{MAX_BYTES >> 30} GiB once decoded"
        raise DataError(f"{name} must hold at most {limit}, not {size / (1 << 30):.3g} GiB; cut it into parts")
    return size
