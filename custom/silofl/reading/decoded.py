"""A decoded image file, and how much one may hold; imported without NumPy, as the decoders' process begins with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from silofl.base.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Far above a CT of the whole body in 16 bits; a file of some kilobytes can claim more than any machine has.
MAX_BYTES = 2 << 30
KINDS = ("is_binary", "is_window", "has_contrasts")
Content = TypeVar("Content")


class Decoded(NamedTuple):
    """A decoded file: its array (C, H, W) or (C, X, Y, Z) as stored, the affine of a volume, and the array's kind.

    Channels may be a sensor's (a window) or contrasts, neither of which are colours.
    """

    array: NDArray[Any]
    affine: NDArray[np.float64] | None = None
    is_binary: bool = False
    is_window: bool = False
    has_contrasts: bool = False


class Unpacked(NamedTuple, Generic[Content]):
    """The bytes of a file, unpacked, of which the process that asked for them makes an array.

    Attributes:
        content: The bytes, in pieces; uint8 (n,) once they have come to the other process.
        facts: What is known of them, as JSON has it.
    """

    content: Content
    facts: Mapping[str, Any]


def check_bytes(name: str, shape: Iterable[int], item_bytes: int) -> int:
    """Return the bytes of an array, before memory for it is taken.

    Raises:
        DataError: They are more than `MAX_BYTES`.
        ValueError: A size is negative.
    """
    sizes = [int(size) for size in shape]
    if min(sizes, default=0) < 0:
        raise ValueError(f"it states a size of {min(sizes)}")
    size = math.prod(sizes) * item_bytes
    if size > MAX_BYTES:
        raise DataError(
            f"{name} takes {size / (1 << 30):.3g} GiB once decoded, and at most {MAX_BYTES >> 30} GiB are allowed; cut "
            "it into parts"
        )
    return size
