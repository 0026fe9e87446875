"""Convert a case's channels and scale its intensities as the study asks."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError

Method = Literal["dtype", "percentiles", "zscore", "raw"]
LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
PERCENTILES = (0.5, 99.5)
# Images that fill less of the range of their file's type are too dark for ``dtype``; 12 bits in 16 fill a sixteenth.
LEAST_RANGE = 1 / 8


def to_channels(array: np.ndarray, channels: int, is_as_stored: bool = False) -> np.ndarray:
    """Return an image with the study's number of channels; values keep their range.

    Args:
        array: (1, ...) grey, (3, ...) RGB or (4, ...) RGBA, whose alpha is dropped.
        channels: For a picture 1 or 3: grey is repeated, RGB becomes luminance (ITU-R BT.601: 0.299 R + 0.587 G +
            0.114 B). Any other number must be that of the array.
        is_as_stored: Whether the channels are no colours, as of a window of a time series, and are never converted.

    Returns:
        (channels, ...), float32 for luminance, else in the given type.

    Raises:
        DataError: The image has another number of channels.
    """
    count = array.shape[0]
    if is_as_stored or channels not in (1, 3) or count not in (1, 3, 4):
        if count != channels:
            raise DataError(
                f"data.channels is {channels}, and the image has {count}; set data.channels to {count}: only pictures, "
                "saved as grey or RGB, are brought to another number, 1 or 3"
            )
        return array
    array = array[:3]
    if array.shape[0] == channels:
        return array
    if channels == 3:
        return np.repeat(array, 3, axis=0)
    return np.tensordot(LUMINANCE, array.astype(np.float32), axes=1)[None]


def scale_intensity(array: np.ndarray, method: Method, dtype_max: int | None) -> NDArray[np.float32]:
    """Scale one case's intensities, all channels and slices together.

    Args:
        array: The case's intensities, any shape.
        method: ``dtype`` divides by `dtype_max`; ``percentiles`` maps the 0.5 to 99.5 percentile to [0, 1] and clips;
            ``zscore`` gives mean 0 and standard deviation 1; ``raw`` keeps the values.
        dtype_max: Largest value of the stored type; None when it is no integer type.

    Returns:
        float32 of the same shape; a constant image becomes zeros under ``percentiles`` and ``zscore``.

    Raises:
        DataError: ``dtype`` for values that are negative or of no integer type.
    """
    if method == "dtype":
        return _scale_by_dtype(array, dtype_max)
    if method == "percentiles":
        return _scale_by_percentiles(array.astype(np.float32))
    if method == "zscore":
        from monai.transforms.intensity.array import NormalizeIntensity

        return np.asarray(NormalizeIntensity()(array.astype(np.float32)), dtype=np.float32)
    return array.astype(np.float32)


def _scale_by_dtype(array: np.ndarray, dtype_max: int | None) -> NDArray[np.float32]:
    if dtype_max is None or array.min() < 0:
        fault = "fractions or numbers of several types" if dtype_max is None else f"negative values, as {array.min()}"
        raise DataError(
            f"the image has {fault}, which intensity 'dtype' cannot scale; set data.intensity to percentiles, zscore "
            "or raw"
        )
    return array.astype(np.float32) / np.float32(dtype_max)


def _scale_by_percentiles(array: NDArray[np.float32]) -> NDArray[np.float32]:
    from monai.transforms.intensity.array import ScaleIntensityRange

    low, high = np.percentile(array, PERCENTILES)
    # Where nearly every pixel is background, the few others still count.
    if low == high:
        low = float(array.min())
        high = float(array.max())
    if low == high:
        return np.zeros_like(array)
    return np.asarray(ScaleIntensityRange(low, high, 0, 1, clip=True)(array), dtype=np.float32)
