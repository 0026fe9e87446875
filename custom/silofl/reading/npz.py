"""Read one image, label map or window of an npz file, whose arrays are kept from one to the next."""

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.decoded import Decoded, check_bytes

IMAGES = ("images", "windows")
LABELS = ("labels",)
# For the images and the labels of the file that is being read.
MOST_KEPT = 2
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_kept: dict[tuple[Path, tuple[str, ...], int, int], tuple[str, NDArray[Any] | None]] = {}


def read_npz(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    """Read the image or window with an index, or the label map.

    Raises:
        DataError: There is no such array or no such index, or the array has another form.
        Exception: Whatever zipfile and NumPy raise on broken bytes.
    """
    keys = LABELS if is_label else IMAGES
    key, arrays = _read_array(path, keys)
    if arrays is None:
        missing = " or ".join(map(repr, keys))
        raise DataError(f"{name} holds no array {missing}; save it with np.savez({keys[0]}=...)")
    if index is None or index >= len(arrays):
        raise DataError(
            f"{name} holds {len(arrays)} {key}, of which 'index' {index} is none; correct 'index' in dataset.json, or "
            "save the picture to predict as PNG"
        )
    array = arrays[index]
    is_window = key == "windows"
    if array.ndim == 2:
        return Decoded(array[:, None, :] if is_window else array[None], is_window=is_window)
    if not is_window and array.ndim == 3 and array.shape[2] in (1, 3, 4):
        return Decoded(np.moveaxis(array[..., :3], 2, 0))
    form = "(N, C, T)" if is_window else "(N, H, W) or (N, H, W, 3)"
    raise DataError(f"{name} holds {key} of shape {arrays.shape}; reshape them to {form}")


def kept_bytes() -> int:
    """Return the bytes of the arrays that are kept."""
    return sum(array.nbytes for _, array in _kept.values() if array is not None)


def _read_array(path: Path, keys: tuple[str, ...]) -> tuple[str, NDArray[Any] | None]:
    """Return the first of these arrays that an npz file has; kept because many records name the same file."""
    stat = path.stat()
    # A changed file has another time or size.
    file = (path, keys, stat.st_mtime_ns, stat.st_size)
    if file not in _kept:
        for old in [*_kept][: len(_kept) + 1 - MOST_KEPT]:
            del _kept[old]
        _kept[file] = _load_array(path, keys)
    return _kept[file]


def _load_array(path: Path, keys: tuple[str, ...]) -> tuple[str, NDArray[Any] | None]:
    with zipfile.ZipFile(path) as archive:
        key = next((key for key in keys if f"{key}.npy" in archive.namelist()), "")
        if not key:
            return key, None
        check_bytes(path.name, (archive.getinfo(f"{key}.npy").file_size,), 1)
        with archive.open(f"{key}.npy") as stream:
            _check_stated_bytes(stream, archive.getinfo(f"{key}.npy").file_size)
        with archive.open(f"{key}.npy") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            # The checksum is compared at the end, which NumPy need not reach.
            if stream.read(1):
                raise ValueError("bytes after its array")
            return key, array


def _check_stated_bytes(stream: IO[bytes], size: int) -> None:
    """Refuse an array whose header states more than its file holds: NumPy takes memory for what is stated."""
    version = np.lib.format.read_magic(stream)
    shape, _, dtype = HEADERS[version](stream)
    if stream.tell() + math.prod(shape) * dtype.itemsize > size:
        raise ValueError("fewer bytes than its header states")
