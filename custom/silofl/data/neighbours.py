"""The slices before and after each slice of a volume, as further channels of its 2D image."""

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.data.domain import image_kind
from silofl.reading.image import Image
from silofl.study.data_settings import DataSettings


def stack_neighbours(slices: NDArray[np.float32], neighbours: int) -> NDArray[np.float32]:
    """Return the slices of one case, each with its neighbours as further channels.

    Args:
        slices: All slices of one case in their order, (n, C, H, W).
        neighbours: How many on each side, k; with 0 the slices come back as they are.

    Returns:
        (n, (2 k + 1) C, H, W): for each offset from -k to k all channels of that slice. Before the first slice of the
        case and after its last one there is none, and the nearest is repeated.
    """
    if neighbours == 0:
        # Not copied: a volume may fill half of the memory.
        return slices
    offsets = np.arange(-neighbours, neighbours + 1)
    rows = (np.arange(len(slices))[:, None] + offsets).clip(0, len(slices) - 1)
    return slices[rows].reshape(len(slices), -1, *slices.shape[2:])


def check_has_slices(image: Image, settings: DataSettings, name: str) -> None:
    """Refuse an image that is no volume where a study asks for one; a volume of one slice is one.

    Args:
        image: The image, as it was read.
        settings: The study's data settings.
        name: What messages call it.

    Raises:
        DataError: It is a picture or a window of a time series, and the study asks for neighbours or for 3D.
    """
    if image.array.ndim == 4:
        return
    found = image_kind(image).removesuffix("s")
    if settings.dimensions == 3:
        raise DataError(
            f"{name} must be a volume with data.dimensions 3, not a {found}; give the volume, or set data.dimensions "
            "to 2"
        )
    if settings.neighbours > 0:
        raise DataError(
            f"{name} must be a volume, whose slices have the neighbours of data.neighbours {settings.neighbours}, not "
            f"a {found}; give the volume, or set data.neighbours to 0"
        )
