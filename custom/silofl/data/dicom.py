"""Read DICOM with SimpleITK: one file, or the folder of one series."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK

from silofl.data.access import files_of
from silofl.data.decoded import Decoded, check_bytes
from silofl.data.raw_volume import LPS_TO_RAS
from silofl.errors import DataError

POSITION = "0020|0032"
# Named, because ITK otherwise reads whatever the file says it is.
IMAGE_IO = "GDCMImageIO"
# Its warnings would print full paths.
SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
# Reading needs no more, and each takes memory.
SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(1)


def read_dicom_file(path: Path, name: str) -> Decoded:
    """Read one file as a volume.

    Raises:
        DataError: It holds more axes or bytes than are supported.
        Exception: Whatever SimpleITK raises on broken bytes.
    """
    _check_size(path, 1, name)
    return _from_itk(SimpleITK.ReadImage(str(path), imageIO=IMAGE_IO), name)


def read_dicom_series(path: Path, name: str) -> Decoded:
    """Read the folder of a series as a volume, its slices in the order of their positions; errors as `read_dicom_file`.

    Raises:
        DataError: It holds several series or none, or slices are missing.
    """
    series = SimpleITK.ImageSeriesReader.GetGDCMSeriesIDs(str(path))
    if len(series) != 1:
        held = f"{len(series)} series in {len(list(files_of(path)))} files"
        raise DataError(f"{name} must be a folder with one DICOM series, not {held}; give each series a folder")
    files = SimpleITK.ImageSeriesReader.GetGDCMSeriesFileNames(str(path), series[0])
    if len(files) == 1:
        # Many frames in one file, whose third axis the reader of series would lose.
        return read_dicom_file(Path(files[0]), name)
    reader = SimpleITK.ImageSeriesReader()
    reader.SetImageIO(IMAGE_IO)
    _check_size(files[0], len(files), name)
    reader.SetFileNames(files)
    reader.MetaDataDictionaryArrayUpdateOn()
    reader.SetGlobalWarningDisplay(False)
    image = reader.Execute()
    _check_even_slices(reader, image.GetSize()[2], name)
    return _from_itk(image, name)


def _check_size(path: Path | str, count: int, name: str) -> None:
    reader = SimpleITK.ImageFileReader()
    reader.SetImageIO(IMAGE_IO)
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    # As "16-bit signed integer" and "vector of 8-bit unsigned integer".
    bits = re.search(r"(\d+)-bit", SimpleITK.GetPixelIDValueAsString(reader.GetPixelID()))
    check_bytes(name, (*reader.GetSize(), reader.GetNumberOfComponents(), count), int(bits[1]) // 8 if bits else 8)


def _check_even_slices(reader: Any, num_slices: int, name: str) -> None:  # noqa: ANN401 (SimpleITK has no types)
    if not all(reader.HasMetaDataKey(i, POSITION) for i in range(num_slices)):
        return
    # SimpleITK itself reads a series with missing slices without an error.
    positions = np.array([[float(x) for x in reader.GetMetaData(i, POSITION).split("\\")] for i in range(num_slices)])
    steps = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    if num_slices > 2 and steps.max() - steps.min() > 0.1 * np.median(steps):
        distances = f"{steps.min():.2f} to {steps.max():.2f} mm"
        raise DataError(f"{name} must have slices at even distances, not {distances}; put the missing slices back")


def _from_itk(image: Any, name: str) -> Decoded:  # noqa: ANN401 (SimpleITK has no types)
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
