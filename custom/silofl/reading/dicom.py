"""Read DICOM with SimpleITK: one file, or the folder of one series."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from filecmp import cmp
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK
from numpy.typing import NDArray

from silofl.base.errors import MOST_FAULTS, DataError
from silofl.reading.access import list_files
from silofl.reading.decoded import Decoded, check_bytes
from silofl.reading.dicom_elements import JPEG, JPEG_2000, count_frames, is_coloured, read_syntax
from silofl.reading.dicom_files import read_elements
from silofl.reading.dicom_lengths import find_stored_colours
from silofl.reading.dicom_pixels import DOSE_SCALE, PIXELS, check_pixels
from silofl.reading.dicom_planes import (
    DISTANCE,
    PICTURES,
    POSITION,
    SAME_PLACE_MM,
    SEVERAL,
    Plane,
    arrange_frames,
    check_measures,
    first_grid,
    is_scaled_alike,
    read_planes,
    step_between,
)
from silofl.reading.endings import DICOM_ENDINGS
from silofl.reading.patient_names import key_patient
from silofl.reading.raw_volume import LPS_TO_RAS

# Named, because ITK otherwise reads whatever the file says it is.
IMAGE_IO = "GDCMImageIO"
# libjpeg's words, on the error output alone, where it makes up what a frame does not hold.
MADE_UP = b"premature end of data segment"
COLOURS = "PhotometricInterpretation"
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
    header = _read_checked_header(path, name)
    _check_decoded_size(path, 1, name, np.dtype(np.float64).itemsize if DOSE_SCALE in header else None)
    order, planes, step = arrange_frames([*read_planes(header)], count_frames(header), name)
    with _correct_colours([path], [header], name) as files:
        image = _read_strictly(lambda: SimpleITK.ReadImage(files[0], imageIO=IMAGE_IO), name)
    decoded = _finish(_from_itk(image, planes, step, name), header)
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
    headers = [_read_checked_header(file, f"{Path(file).name} of {name}") for file in files]
    patients = {key_patient(str(header.PatientID)) for header in headers if "PatientID" in header}
    if len(patients) > 1:
        raise DataError(f"{name} must be of one patient, not of {len(patients)}; export the series again")
    if any(count_frames(header) > 1 for header in headers):
        raise DataError(f"{name} must {SEVERAL.format(len(files))}")
    if len({(is_coloured(header), header.BitsAllocated == 1, header.get(DOSE_SCALE)) for header in headers}) > 1:
        raise DataError(
            f"{name} must hold slices of one kind: of intensities or of colours, of bits or of numbers, and with one "
            f"{DOSE_SCALE}; leave out what is no slice of the volume"
        )
    _check_copies(files, headers, name)
    planes = [plane for header in headers for plane in read_planes(header)]
    if not any(plane[POSITION] for plane in planes):
        raise DataError(f"{name} must {PICTURES.format(len(files))}")
    step = step_between(planes, name, [Path(file).name for file in files])
    is_alike = is_scaled_alike(planes)
    if is_alike:
        check_measures(planes, name)
    else:
        # The type is otherwise the first slice's, into which another slope's values do not fit.
        reader.SetOutputPixelType(SimpleITK.sitkFloat32)
    _check_decoded_size(files[0], len(files), name, None if is_alike else np.dtype(np.float32).itemsize)
    reader.SetGlobalWarningDisplay(False)
    with _correct_colours(files, headers, name) as corrected:
        reader.SetFileNames(corrected)
        image = _read_strictly(reader.Execute, name)
    return _finish(_from_itk(image, planes, step, name), headers[0])


def _check_copies(files: Sequence[str], headers: Sequence[Any], name: str) -> None:
    """Refuse a file that lies in a folder twice, as a second download leaves it; by their bytes."""
    firsts: dict[str, str] = {}
    # The name of a copy is the longer one, as 2 (1).dcm.
    ordered = sorted(zip(files, headers, strict=True), key=lambda pair: (len(pair[0]), pair[0]))
    pairs = [(file, firsts.setdefault(str(header.get("SOPInstanceUID")), file)) for file, header in ordered]
    copies = [Path(file).name for file, first in pairs if file != first and cmp(file, first, shallow=False)]
    if copies:
        shown = ", ".join(copies[:MOST_FAULTS]) + f" and {len(copies) - MOST_FAULTS} more" * (len(copies) > MOST_FAULTS)
        raise DataError(f"{name} must hold each file once, not copies of others; remove {shown}")


def _list_series_files(path: Path, name: str) -> tuple[str, ...]:
    reader = SimpleITK.ImageSeriesReader
    found = [reader.GetGDCMSeriesFileNames(str(path), series) for series in reader.GetGDCMSeriesIDs(str(path))]
    if not found:
        for file in list_files(path):
            if _read_series(file) is not None:
                _read_checked_header(file, file.name)
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
    kind = str(read_elements(Path(read[0]), force=True).get("SOPClassUID", ""))
    names = {Path(file).name for file in read}
    for file in list_files(path):
        # Those that begin with a dot are the notes of a file system.
        if file.name not in names and not file.name.startswith(".") and _is_image(file, kind):
            raise DataError(f"{name} must hold whole DICOM files; {file.name} cannot be read: export the series again")


def _check_not_within(path: Path, read: Sequence[str], name: str) -> None:
    """Refuse a series of which files lie in folders within its own: GDCM passes over them."""
    series = read_elements(Path(read[0]), force=True).get("SeriesInstanceUID")
    for folder in sorted(member for member in path.iterdir() if member.is_dir()):
        if any(file.is_file() and _read_series(file) == series for file in folder.rglob("*")):
            raise DataError(
                f"{name} must hold all files of its DICOM series itself, not some in {folder.name}; put them together, "
                "or move the folder away"
            )


def _read_series(file: Path) -> str | None:
    try:
        return read_elements(file, specific_tags=["SeriesInstanceUID"]).SeriesInstanceUID
    except Exception:  # pydicom raises whatever its parsers raise on what is no DICOM
        return None


def _is_image(file: Path, kind: str) -> bool:
    """Return whether a file is an image, or what is left of one of the series' class."""
    try:
        header = read_elements(file)
    except Exception:  # pydicom raises whatever its parsers raise on broken bytes
        return file.suffix.lower() in DICOM_ENDINGS
    # A file that ends within its header is read as far as it goes, be it within the name of its class.
    return "Rows" in header or kind.startswith(str(header.file_meta.get("MediaStorageSOPClassUID") or ""))


def _check_decoded_size(path: Path | str, count: int, name: str, item_bytes: int | None = None) -> None:
    reader = SimpleITK.ImageFileReader()
    reader.SetImageIO(IMAGE_IO)
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    item_bytes = item_bytes or SimpleITK.Image([1, 1], reader.GetPixelID()).GetSizeOfPixelComponent()
    check_bytes(name, (*reader.GetSize(), reader.GetNumberOfComponents(), count), item_bytes)


def _read_checked_header(file: Path | str, name: str) -> Any:  # noqa: ANN401 (pydicom is imported where it is used)
    """Return a file's header, without the pixels, once these have been checked."""
    import pydicom

    header = pydicom.dcmread(file, force=True)
    check_pixels(header, name)
    for key in PIXELS:
        header.pop(key, None)
    return header


def _finish(decoded: Decoded, header: Any) -> Decoded:  # noqa: ANN401 (pydicom is imported where it is used)
    """Apply what GDCM leaves out: the scale of a dose, and that a bit is 0 or 1, which it reads as 0 or 255."""
    if DOSE_SCALE in header:
        return decoded._replace(array=decoded.array * float(header[DOSE_SCALE].value))
    if header.BitsAllocated == 1:
        return decoded._replace(array=decoded.array // 255, is_binary=True)
    return decoded


@contextmanager
def _correct_colours(files: Sequence[Path | str], headers: Sequence[Any], name: str) -> Iterator[list[str]]:
    """Yield the files as GDCM must see them, which decodes JPEG by the header, whatever the JPEG says of its colours.

    A file whose header says something else is copied to a place without a name, with the colours that it stores.
    """
    with ExitStack() as stack:
        corrected = []
        for file, header in zip(files, headers, strict=True):
            is_jpeg = is_coloured(header) and read_syntax(header) in {*JPEG, *JPEG_2000}
            content = _restate_colours(file, name) if is_jpeg else None
            if content is None:
                corrected.append(str(file))
                continue
            copy = stack.enter_context(tempfile.TemporaryFile())
            copy.write(content)
            copy.seek(0)
            corrected.append(f"/dev/fd/{copy.fileno()}")
        yield corrected


def _restate_colours(file: Path | str, name: str) -> bytes | None:
    """Return a file's bytes with the colours that its JPEG states; None where the header says the same."""
    import pydicom

    header = pydicom.dcmread(file, force=True)
    colours = find_stored_colours(header)
    if colours is None:
        return None
    content, element = Path(file).read_bytes(), header.get_item(COLOURS)
    place = getattr(element, "value_tell", None) or getattr(element, "file_tell", None) or 0
    length = int.from_bytes(content[max(place - 2, 0) : place], "little")
    if content[max(place - 4, 0) : place - 2] != b"CS":
        raise DataError(f"{name} must have the {COLOURS} {colours}, as its compressed pixels say; add it to its header")
    value = colours.encode().ljust(len(colours) + len(colours) % 2)
    return content[: place - 2] + len(value).to_bytes(2, "little") + value + content[place + length :]


def _read_strictly(read: Callable[[], Any], name: str) -> Any:  # noqa: ANN401 (SimpleITK has no types)
    """Return an image as it is read, unless the decoder says on the error output that it made up pixels."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            image = read()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        if MADE_UP in said.read():
            raise DataError(f"{name} must hold all of its compressed pixels, not a part; copy it again from its source")
    return image


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
    elif num_axes == 3 and image.GetSize()[2] > 1:
        matrix[:3, 2] *= abs(planes[0][DISTANCE]) / np.linalg.norm(matrix[:3, 2])
    return Decoded(array, LPS_TO_RAS @ matrix)
