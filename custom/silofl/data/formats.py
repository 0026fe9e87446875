"""Decode image files to arrays with Pillow, nibabel and SimpleITK, one function a format.

Pictures (PNG, JPEG, TIFF, npz) come as (C, rows, columns), windows of time series (npz) as (C, 1, T). Volumes come as
(C, X, Y, Z) in the stored order with an affine to millimetres in NIfTI's world (x to the right, y to the front, z to
the head); a volume file that holds one plane is a volume of one slice.
"""

import gzip
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silofl.data.access import files_of
from silofl.data.header import check_frames
from silofl.errors import DataError

DICOM_POSITION = "0020|0032"
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
GZIP_BLOCK = 1 << 20
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


class Decoded(NamedTuple):
    """A decoded file: its array (C, H, W) or (C, X, Y, Z) as stored, the affine of a volume, and the array's kind."""

    array: NDArray
    affine: NDArray[np.float64] | None = None
    is_binary: bool = False
    is_window: bool = False


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
    reader = _reader(path, name)
    try:
        return reader(path, name, index, is_label)
    except DataError:
        raise
    except Exception as error:  # decoders raise whatever their libraries raise on broken bytes
        # A library may name the full path, which must not leave the site with the message.
        reason = " ".join(str(error).replace(str(path), name).split())[-160:] or type(error).__name__
        raise DataError(
            f"{name} must be a whole file, not a truncated or corrupt one ({reason}); copy it again from its source"
        ) from None


def forget_arrays() -> None:
    """Free the npz arrays that are kept in memory between the images of one file."""
    _npz_array.cache_clear()


def _reader(path: Path, name: str) -> Callable[..., Decoded]:
    if path.is_dir():
        return _dicom_series
    for ending, reader in READERS.items():
        if path.name.lower().endswith(ending):
            return reader
    known = ", ".join(READERS)
    raise DataError(f"{name} must be a DICOM folder or end in one of {known}, not {path.suffix!r}; convert it")


def _picture(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    from PIL import Image

    with Image.open(path) as picture:
        if getattr(picture, "n_frames", 1) > 1:
            raise DataError(f"{name} must hold one picture, not {picture.n_frames}; save each as a file of its own")
        if (picture.mode == "P" and not is_label) or picture.mode in ("PA", "CMYK", "YCbCr"):
            picture = picture.convert("RGB")
        if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "F", "I;16", "I;16B", "I;16L"):
            raise DataError(f"{name} must be grey or RGB, not {picture.mode!r}; convert it")
        is_binary = picture.mode == "1"
        pixels = np.asarray(picture)
    if pixels.ndim == 2:
        # A TIFF may store big-endian numbers, which torch does not take.
        return Decoded(pixels[None].astype(pixels.dtype.newbyteorder("=")), is_binary=is_binary)
    has_alpha = pixels.shape[2] in (2, 4)
    return Decoded(np.moveaxis(pixels[..., :-1] if has_alpha else pixels, 2, 0))


def _nifti(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    import nibabel

    if path.name.lower().endswith(".gz"):
        _check_gzip(path)
    image = nibabel.load(path)
    # Not get_fdata, which turns all into floats: intensities and labels are checked by their stored type.
    array = np.asanyarray(image.dataobj)
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[..., 0]
    return Decoded(_one_channel(array, name), np.asarray(image.affine, dtype=np.float64))


def _check_gzip(path: Path) -> None:
    """Read a file to its end, where gzip compares the checksum; nibabel stops before it."""
    with gzip.open(path) as file:
        while file.read(GZIP_BLOCK):
            pass


def _one_channel(array: NDArray, name: str) -> NDArray:
    if array.ndim not in (2, 3) or array.dtype.names:
        form = f"{array.ndim} axes of {array.dtype}"
        raise DataError(f"{name} must hold 2 or 3 axes of numbers, not {form}; save one time point or channel a file")
    return array.reshape(1, *array.shape, *([1] * (3 - array.ndim)))


def _itk_file(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    return _from_itk(_quiet_itk().ReadImage(str(path)), name)


def _dicom_series(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    SimpleITK = _quiet_itk()  # noqa: N806 (a module's own name)
    series = SimpleITK.ImageSeriesReader.GetGDCMSeriesIDs(str(path))
    if len(series) != 1:
        held = f"{len(series)} series in {len(list(files_of(path)))} files"
        raise DataError(f"{name} must be a folder with one DICOM series, not {held}; give each series a folder")
    names = SimpleITK.ImageSeriesReader.GetGDCMSeriesFileNames(str(path), series[0])
    if len(names) == 1:
        return _dicom_file(Path(names[0]), name, index, is_label)
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(names)
    reader.MetaDataDictionaryArrayUpdateOn()
    reader.SetGlobalWarningDisplay(False)
    image = reader.Execute()
    _check_even_slices(reader, image.GetSize()[2], name)
    return _from_itk(image, name)


def _dicom_file(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    check_frames(path, name)
    return _itk_file(path, name, index, is_label)


def _quiet_itk() -> Any:  # noqa: ANN401 (SimpleITK has no types)
    """Return SimpleITK without its warnings, which would print full paths."""
    import SimpleITK

    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
    return SimpleITK


def _check_even_slices(reader: Any, num_slices: int, name: str) -> None:  # noqa: ANN401 (SimpleITK has no types)
    if not all(reader.HasMetaDataKey(i, DICOM_POSITION) for i in range(num_slices)):
        return
    # SimpleITK itself reads a series with missing slices without an error.
    positions = np.array(
        [[float(x) for x in reader.GetMetaData(i, DICOM_POSITION).split("\\")] for i in range(num_slices)]
    )
    steps = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    if num_slices > 2 and steps.max() - steps.min() > 0.1 * np.median(steps):
        distances = f"{steps.min():.2f} to {steps.max():.2f} mm"
        raise DataError(f"{name} must have slices at even distances, not {distances}; put the missing slices back")


def _from_itk(image: Any, name: str) -> Decoded:  # noqa: ANN401 (SimpleITK has no types)
    import SimpleITK

    num_axes = image.GetDimension()
    if num_axes not in (2, 3):
        raise DataError(f"{name} must hold 2 or 3 axes, not {num_axes}; save one time point a file")
    array = SimpleITK.GetArrayFromImage(image)
    channels = image.GetNumberOfComponentsPerPixel()
    array = array if channels > 1 else array[..., None]
    # SimpleITK's axes are z, y, x, channel; the columns of its direction are the unit vectors of x, y, z.
    array = array.reshape(*([1] * (3 - num_axes)), *array.shape).transpose(3, 2, 1, 0)
    matrix = np.eye(4)
    matrix[:num_axes, :num_axes] = np.reshape(image.GetDirection(), (num_axes, num_axes)) * image.GetSpacing()
    matrix[:num_axes, 3] = image.GetOrigin()
    return Decoded(array, LPS_TO_RAS @ matrix)


def _npz(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    keys = ("labels",) if is_label else ("images", "windows")
    stat = path.stat()
    key, arrays = _npz_array(path, keys, stat.st_mtime_ns, stat.st_size)
    if arrays is None:
        wanted = " or ".join(map(repr, keys))
        raise DataError(f"{name} must hold an array {wanted}; it does not: save it with np.savez({keys[0]}=...)")
    if index is None or index >= len(arrays):
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
    with np.load(path, allow_pickle=False) as file:
        key = next((key for key in keys if key in file.files), "")
        return key, file[key] if key else None


READERS: dict[str, Callable[..., Decoded]] = {
    **dict.fromkeys(PICTURES, _picture),
    ".nii": _nifti,
    ".nii.gz": _nifti,
    ".mha": _itk_file,
    ".nrrd": _itk_file,
    ".dcm": _dicom_file,
    ".npz": _npz,
}
