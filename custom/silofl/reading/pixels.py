"""Make an array of the pixels of a picture, which `silofl.reading.pictures` unpacks."""

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.decoded import Decoded, Unpacked


def shape_pixels(unpacked: Unpacked, name: str, is_label: bool) -> Decoded:
    """Return a picture's array (C, rows, columns).

    Args:
        unpacked: What `silofl.reading.pictures.unpack_picture` returns of it.
        name: What messages call it.
        is_label: Whether it is a label map.

    Raises:
        DataError: It is a label map in its transparency alone.
    """
    facts = unpacked.facts
    pixels: NDArray = unpacked.content.view(facts["dtype"]).reshape(facts["shape"])
    if pixels.ndim == 2:
        # A TIFF may store big-endian numbers, which torch does not take.
        if not pixels.dtype.isnative:
            pixels = pixels.astype(pixels.dtype.newbyteorder("="))
        if facts["sign"] and pixels.dtype.kind in "iu":
            # Pillow takes signed bytes for unsigned ones, and 32 bits for signed.
            pixels = pixels.view(f"{facts['sign']}{pixels.itemsize}")
        if is_label and facts["spread"] > 1:
            pixels //= facts["spread"]
        return Decoded(pixels[None], is_binary=facts["is_binary"])
    has_alpha = pixels.shape[2] in (2, 4)
    colours = pixels[..., :-1] if has_alpha else pixels
    if is_label and has_alpha and np.ptp(colours) == 0 and np.ptp(pixels[..., -1]) > 0:
        raise DataError(f"{name} must hold its label numbers as grey, not as transparency alone; save label numbers")
    return Decoded(np.moveaxis(colours, 2, 0))
