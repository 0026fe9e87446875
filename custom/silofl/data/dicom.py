"""Read DICOM with SimpleITK: one file, or the folder of one series."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK
from numpy.typing import NDArray

from silofl.data.access import list_files
from silofl.data.decoded import Decoded, check_bytes
from silofl.data.dicom_planes import (
    SAME_PLACE_MM,
    Plane,
    first_grid,
    is_scaled_alike,
    order_frames,
    read_planes,
    step_between,
)
from silofl.data.raw_volume import LPS_TO_RAS
from silofl.errors import DataError

# Of files that are DICOM by their name, whatever is in them.
ENDINGS = (".dcm", ".ima")
# Named, because ITK otherwise reads whatever the file says it is.
IMAGE_IO = "GDCMImageIO"
# Compressions that GDCM does not know: films, JPEG XL, and JPEG 2000 of high throughput.
UNKNOWN_COMPRESSION = r"1\.2\.840\.10008\.1\.2\.4\.[12]\d\d(\.1)?"
# Of labels by their segments or outlines, in place of a number a pixel.
DRAWN = {"SEG": "segmentation", "RTSTRUCT": "structure set"}
# Whose tables lead back to the beam's intensity; programs show and measure the image without them.
ANGIOGRAPHY = ("XA", "RF")
# Whose numbers mean the same however they are shown, as Hounsfield units.
MEASURED = ("CT", "MR", "NM", "PT")
# Its warnings would print full paths.
SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
# Reading needs no more, and each takes memory.
SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(1)


def read_dicom_file(path: Path, name: str) -> Decoded:
    """Read one file as a volume, its frames in the order of `order_frames`.

    Raises:
        DataError: It holds more axes or bytes than are supported, or frames that are no one volume.
        Exception: Whatever SimpleITK raises on broken bytes.
    """
    header = _read_header(path)
    _check_pixels(header, name)
    _check_decoded_size(path, 1, name)
    stored, count = list(read_planes(header)), int(header.get("NumberOfFrames") or 1)
    if len(stored) not in (1, count):
        raise DataError(f"{name} must describe each of its {count} frames, not {len(stored)}; export it again")
    order = order_frames(stored)
    planes = [stored[frame] for frame in order]
    step = step_between(planes, name)
    if not is_scaled_alike(planes):
        raise DataError(
            f"{name} must have one rescale slope and intercept for all frames, as only those of the first are read; "
            "save a file for each slice"
        )
    decoded = _from_itk(SimpleITK.ReadImage(str(path), imageIO=IMAGE_IO), planes, step, name)
    if (order == np.arange(len(order))).all():
        return decoded
    # Of the slices, so that the memory is laid out as that of a file with its frames in order.
    return decoded._replace(array=decoded.array.T[order].T)


def read_dicom_series(path: Path, name: str) -> Decoded:
    """Read the folder of a series as a volume, its slices in the order of their positions; errors as `read_dicom_file`.

    Raises:
        DataError: It holds several series or none, a file that cannot be read, or slices that are no one volume; or a
            folder in it holds files of the series.
    """
    files = _list_series_files(path, name)
    if len(files) == 1:
        # Many frames in one file, whose third axis the reader of series would lose.
        return read_dicom_file(Path(files[0]), name)
    reader = SimpleITK.ImageSeriesReader()
    reader.SetImageIO(IMAGE_IO)
    headers = [_read_header(file) for file in files]
    patients = {str(header.PatientID).strip() for header in headers if "PatientID" in header}
    if len(patients) > 1:
        raise DataError(f"{name} must be of one patient, not of {len(patients)}; export the series again")
    if any(int(header.get("NumberOfFrames") or 1) > 1 for header in headers):
        raise DataError(
            f"{name} must hold one file with many frames, or a file for each slice, not {len(files)} files of which "
            "some have many; name the volume's own file, or give each file a folder"
        )
    for header in headers:
        _check_pixels(header, name)
    planes = [plane for header in headers for plane in read_planes(header)]
    step = step_between(planes, name)
    is_alike = is_scaled_alike(planes)
    if not is_alike:
        # The type is otherwise the first slice's, into which another slope's values do not fit.
        reader.SetOutputPixelType(SimpleITK.sitkFloat32)
    _check_decoded_size(files[0], len(files), name, None if is_alike else np.dtype(np.float32).itemsize)
    reader.SetFileNames(files)
    reader.SetGlobalWarningDisplay(False)
    return _from_itk(reader.Execute(), planes, step, name)


def _list_series_files(path: Path, name: str) -> tuple[str, ...]:
    reader = SimpleITK.ImageSeriesReader
    found = [reader.GetGDCMSeriesFileNames(str(path), series) for series in reader.GetGDCMSeriesIDs(str(path))]
    if not found:
        has_folders = any(member.is_dir() for member in path.iterdir())
        there = "folder in it that does, or an image's own file"
        remedy = there if has_folders else "image's own file, or another folder"
        raise DataError(
            f"{name} must be a folder that holds the files of one DICOM series itself; it does not: name the {remedy}"
        )
    if len(found) > 1:
        held = ", ".join(f"{len(files)} files as {Path(min(files)).name}" for files in sorted(found, key=min))
        raise DataError(
            f"{name} must be a folder with one DICOM series, not {len(found)}: {held}; give each series a folder"
        )
    _check_series_complete(path, found[0], name)
    _check_not_within(path, found[0], name)
    return found[0]


def _check_series_complete(path: Path, read: Sequence[str], name: str) -> None:
    """Refuse a series of which GDCM passes over a file: at its end nothing else would tell that a slice is missing."""
    kind, names = str(_read_header(read[0]).get("SOPClassUID", "")), {Path(file).name for file in read}
    for file in list_files(path):
        # Those that begin with a dot are the notes of a file system.
        if file.name not in names and not file.name.startswith(".") and _is_image(file, kind):
            raise DataError(f"{name} must hold whole DICOM files; {file.name} cannot be read: export the series again")


def _check_not_within(path: Path, read: Sequence[str], name: str) -> None:
    """Refuse a series of which files lie in folders within its own: GDCM passes over them."""
    series = _read_header(read[0]).get("SeriesInstanceUID")
    for folder in sorted(member for member in path.iterdir() if member.is_dir()):
        if any(file.is_file() and _read_series(file) == series for file in folder.rglob("*")):
            raise DataError(
                f"{name} must hold all files of its DICOM series itself, not some in {folder.name}; put them together, "
                "or move the folder away"
            )


def _read_series(file: Path) -> str | None:
    import pydicom

    try:
        return pydicom.dcmread(file, specific_tags=["SeriesInstanceUID"], stop_before_pixels=True).SeriesInstanceUID
    except Exception:  # pydicom raises whatever its parsers raise on what is no DICOM
        return None


def _is_image(file: Path, kind: str) -> bool:
    """Return whether a file is an image, or what is left of one of the series' class."""
    import pydicom

    try:
        header = pydicom.dcmread(file, stop_before_pixels=True)
    except Exception:  # pydicom raises whatever its parsers raise on broken bytes
        return file.suffix.lower() in ENDINGS
    # A file that ends within its header is read as far as it goes, be it within the name of its class.
    return "Rows" in header or kind.startswith(str(header.file_meta.get("MediaStorageSOPClassUID") or ""))


def _check_pixels(header: Any, name: str) -> None:  # noqa: ANN401 (pydicom is imported where it is used)
    """Refuse a form of pixels that GDCM cannot read, or reads as other numbers than are meant."""
    drawn = DRAWN.get(header.get("Modality"))
    if drawn is not None:
        raise DataError(
            f"{name} must be an image or a label map, not a DICOM {drawn}; save it as NIfTI on its image's grid"
        )
    syntax = header.file_meta.get("TransferSyntaxUID", "")
    if re.fullmatch(UNKNOWN_COMPRESSION, syntax):
        raise DataError(
            f"{name} must be compressed as JPEG, JPEG-LS, JPEG 2000 or RLE, or not at all, not as {syntax.name}; "
            "export it without compression"
        )
    if "BitsStored" not in header and header.get("BitsAllocated") in (32, 64):
        raise DataError(f"{name} must hold whole numbers with a rescale slope, not fractions; save it as NIfTI or MHA")
    if "ModalityLUTSequence" in header and header.get("Modality") not in ANGIOGRAPHY:
        raise DataError(
            f"{name} must have a rescale slope and intercept, not a table of intensities (Modality LUT), which is not "
            "read; export it with the table applied"
        )
    if header.get("RescaleSlope") == 0:
        # GDCM takes it for a slope of 1.
        raise DataError(
            f"{name} must have a rescale slope other than 0, by which all its pixels mean the same; export it anew, or "
            "save it with its true values as NIfTI or MHA"
        )
    if header.get("PhotometricInterpretation") == "MONOCHROME1" and header.get("Modality") in MEASURED:
        # GDCM turns the numbers themselves round, as a radiograph needs.
        raise DataError(f"{name} must be shown with its largest value white (MONOCHROME2), not black; export it so")


def _check_decoded_size(path: Path | str, count: int, name: str, item_bytes: int | None = None) -> None:
    reader = SimpleITK.ImageFileReader()
    reader.SetImageIO(IMAGE_IO)
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    # As "16-bit signed integer" and "vector of 8-bit unsigned integer".
    bits = re.search(r"(\d+)-bit", SimpleITK.GetPixelIDValueAsString(reader.GetPixelID()))
    item_bytes = item_bytes or (int(bits[1]) // 8 if bits else 8)
    check_bytes(name, (*reader.GetSize(), reader.GetNumberOfComponents(), count), item_bytes)


def _read_header(file: Path | str) -> Any:  # noqa: ANN401 (pydicom is imported where it is used)
    import pydicom

    return pydicom.dcmread(file, stop_before_pixels=True, force=True)


def _from_itk(
    image: Any,  # noqa: ANN401 (SimpleITK has no types)
    planes: Sequence[Plane],
    step: NDArray[np.float64] | None,
    name: str,
) -> Decoded:
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
    grid = first_grid(planes)
    # GDCM reads the grid of some classes only, as not that of NM and of secondary capture with many frames.
    if grid is not None and not np.allclose(matrix[:3, [0, 1, 3]], grid[:, [0, 1, 3]], rtol=0, atol=SAME_PLACE_MM):
        matrix[:3] = grid * [1, 1, np.linalg.norm(matrix[:3, 2]), 1]
    if step is not None:
        matrix[:3, 2] = step
    return Decoded(array, LPS_TO_RAS @ matrix)
