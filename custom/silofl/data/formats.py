"""Decode image files to arrays, one function a format: C libraries in a process of their own, the others here.

Pictures (PNG, JPEG, TIFF, npz) come as (C, rows, columns), windows of time series (npz) as (C, 1, T). Volumes come as
(C, X, Y, Z) in the stored order with an affine to millimetres in NIfTI's world (x to the right, y to the front, z to
the head); a volume file that holds one plane is a volume of one slice.
"""

import gzip
import math
import re
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.data.access import is_system_error, open_error
from silofl.data.decoded import Decoded, check_bytes
from silofl.data.decoder import decode_in_subprocess, end_decoder
from silofl.data.metaimage import read_metaimage
from silofl.data.nrrd import read_nrrd
from silofl.errors import DataError

Reader = Callable[[Path, str, int | None, bool], Decoded]
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
GZIP_BLOCK = 1 << 20
# Where in its own source a C++ library found an error, and the address of the object.
_LOCATION = re.compile(r"Exception thrown in \S+ \S+ |\S+\.[ch]xx:\d+(?: \(\))?:\s*(?:ITK ERROR: )?|\(0x[0-9a-f]+\)")


def decode(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    """Decode a file or a DICOM folder by its name's ending.

    Args:
        path: Where it lies.
        name: What messages call it.
        index: Which image of an npz file.
        is_label: Whether it is a label map: a palette's numbers are kept, and an npz file's array is ``labels``.

    Raises:
        DataError: The format is not known, or the file is truncated, corrupt or of a form that is not supported.
    """
    reader = _choose_reader(path, name)
    try:
        return reader(path, name, index, is_label)
    except DataError:
        raise
    except Exception as error:  # decoders raise whatever their libraries raise on broken bytes
        if is_system_error(error):
            raise open_error(name, error) from None
        # A library may name the full path, which must not leave the site with the message.
        reason = " ".join(_LOCATION.sub("", str(error).replace(str(path), name)).split())[-160:] or type(error).__name__
        raise DataError(
            f"{name} must be a whole file, not a truncated or corrupt one ({reason}); copy it again from its source"
        ) from None


def free_decoding_resources() -> None:
    """Free what is kept between the files of one data set: npz arrays, and the decoders' process."""
    _npz_array.cache_clear()
    end_decoder()


def _choose_reader(path: Path, name: str) -> Reader:
    if path.is_dir():
        return _decode_dicom
    for ending, reader in READERS.items():
        if path.name.lower().endswith(ending):
            return reader
    known = ", ".join(READERS)
    raise DataError(
        f"{name} must be a DICOM folder or end in one of {known}, not {path.suffix!r}; convert it, or name DICOM "
        f"{path.name}.dcm"
    )


def _decode_nifti(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    import nibabel

    is_gzip = path.name.lower().endswith(".gz")
    if not is_gzip and _has_gzip(path):
        raise DataError(f"{name} must end in .nii.gz, as its content is compressed by gzip; rename it")
    image = nibabel.load(path)
    voxels = image.dataobj
    check_bytes(name, image.shape, _item_bytes(voxels))
    if is_gzip:
        _check_gzip(path, int(voxels.offset) + math.prod(image.shape) * voxels.dtype.itemsize)
    # Not get_fdata, which turns all into floats: intensities and labels are checked by their stored type.
    array, affine = np.asanyarray(image.dataobj), np.asarray(image.affine, dtype=np.float64)
    # NIfTI's fifth axis is that of a voxel's values; some writers leave the fourth, time, at 1 before it.
    if array.ndim == 5 and array.shape[3] == 1:
        array = array[:, :, :, 0]
    if array.ndim == 4 and array.shape[3] > 1:
        return Decoded(np.moveaxis(array, 3, 0), affine, has_contrasts=True)
    return Decoded(_one_channel(array[..., 0] if array.ndim == 4 else array, name), affine)


def _item_bytes(voxels: Any) -> int:  # noqa: ANN401 (nibabel has no types)
    return voxels.dtype.itemsize if (voxels.slope, voxels.inter) == (1, 0) else np.dtype(np.float64).itemsize


def _has_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _check_gzip(path: Path, end: int) -> None:
    """Read a file to its end, where gzip compares the checksum; nibabel stops with the last voxel."""
    with gzip.open(path) as file:
        while file.read(GZIP_BLOCK):
            if file.tell() > end + GZIP_BLOCK:
                raise ValueError("much more than its voxels")


def _one_channel(array: NDArray, name: str) -> NDArray:
    if array.ndim not in (2, 3) or array.dtype.names:
        form = f"{array.ndim} axes of {array.dtype}"
        raise DataError(
            f"{name} must hold 2 or 3 axes, or 4 with channels last, of numbers, not {form}; save one time point a file"
        )
    return array.reshape(1, *array.shape, *([1] * (3 - array.ndim)))


def _decode_raw_volume(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    read = read_metaimage if path.name.lower().endswith(".mha") else read_nrrd
    array, affine = read(path, name)
    # What has more than eight bits are measurements, as the contrasts of a patient or the directions of a field.
    is_colour = array.dtype == np.uint8 and len(array) in (3, 4)
    return Decoded(array, affine, has_contrasts=len(array) > 1 and not is_colour)


def _decode_dicom(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    return decode_in_subprocess("dicom_series" if path.is_dir() else "dicom_file", path, name, is_label)


def _decode_picture(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    return decode_in_subprocess("picture", path, name, is_label)


def _decode_npz(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    keys = ("labels",) if is_label else ("images", "windows")
    stat = path.stat()
    key, arrays = _npz_array(path, keys, stat.st_mtime_ns, stat.st_size)
    if arrays is None:
        wanted = " or ".join(map(repr, keys))
        raise DataError(f"{name} must hold an array {wanted}; it does not: save it with np.savez({keys[0]}=...)")
    if index is None:
        raise DataError(
            f"{name} must be named by a record of dataset.json with an 'index', as it holds {len(arrays)} {key}; save "
            "the picture to predict as PNG"
        )
    if index >= len(arrays):
        raise DataError(f"{name} must hold the image with 'index' {index}, not {len(arrays)} images; correct the index")
    array = arrays[index]
    if key == "windows":
        if array.ndim != 2:
            raise DataError(f"{name} must hold windows of shape (N, C, T), not {arrays.shape}; reshape them")
        return Decoded(array[:, None, :], is_window=True)
    if array.ndim == 3 and array.shape[2] in (1, 3, 4):
        return Decoded(np.moveaxis(array[..., :3], 2, 0))
    if array.ndim != 2:
        raise DataError(f"{name} must hold {key} of shape (N, H, W) or (N, H, W, 3), not {arrays.shape}; reshape them")
    return Decoded(array[None])


# Two, for the images and the labels of the file that is being read. A changed file has another time or size.
@lru_cache(maxsize=2)
def _npz_array(path: Path, keys: tuple[str, ...], mtime_ns: int, size: int) -> tuple[str, NDArray | None]:
    """Return the first of these arrays that an npz file has; kept because many records name the same file."""
    with zipfile.ZipFile(path) as archive:
        key = next((key for key in keys if f"{key}.npy" in archive.namelist()), "")
        if not key:
            return key, None
        check_bytes(path.name, (archive.getinfo(f"{key}.npy").file_size,), 1)
        with archive.open(f"{key}.npy") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            # The checksum is compared at the end, which NumPy need not reach.
            if stream.read(1):
                raise ValueError("bytes after its array")
            return key, array


READERS: dict[str, Reader] = {
    **dict.fromkeys(PICTURES, _decode_picture),
    ".nii": _decode_nifti,
    ".nii.gz": _decode_nifti,
    ".mha": _decode_raw_volume,
    ".nrrd": _decode_raw_volume,
    ".dcm": _decode_dicom,
    ".npz": _decode_npz,
}
