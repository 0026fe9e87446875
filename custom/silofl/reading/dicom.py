"""Read DICOM images: one file, or the folder of one series; in the decoders' process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.access import list_files
from silofl.reading.decoded import Decoded
from silofl.reading.dicom_checks import DRAWN, check_form, check_judgements, judge_size
from silofl.reading.dicom_files import read_elements, refuse_deflated
from silofl.reading.dicom_frames import COLOURS, decode_frames, is_coloured, scale_frames
from silofl.reading.dicom_planes import (
    DIRECTION,
    POSITION,
    Plane,
    arrange_frames,
    build_affine,
    check_measures,
    count_frames,
    is_projection,
    is_scaled_alike,
    order_slices,
    placeless_error,
    read_planes,
    step_between,
)
from silofl.reading.endings import DICOM_ENDINGS
from silofl.reading.patient_names import key_patient
from silofl.reading.raw_volume import LPS_TO_RAS

if TYPE_CHECKING:
    from pydicom import Dataset

# A file without a preamble begins with the group of its first element, in either order of bytes.
BARE_STARTS = (b"\x02\0", b"\x08\0", b"\0\x08")


def read_dicom_file(path: Path, name: str) -> Decoded:
    """Read one file as a volume, its frames in the order of `order_frames`; or as a picture where it is a projection.

    Raises:
        DataError: Pixels are missing, or it holds what is no one volume, more than is supported, or of no known form.
        Exception: Whatever pydicom raises on broken bytes.
    """
    header = _read_checked(path, name)
    order, planes, step = arrange_frames([*read_planes(header)], count_frames(header), name)
    is_alike = is_scaled_alike(planes)
    stored = decode_frames(header, name, 1, is_alike)
    # One description may stand for all frames, which then stay as they are stored.
    if len(order) == len(stored):
        stored = stored[order]
    scaled = scale_frames(stored, header, planes, is_alike)
    if is_projection(header, planes):
        picture = np.ascontiguousarray(scaled[0].transpose(2, 0, 1), scaled.dtype.newbyteorder("="))
        return Decoded(picture, is_binary=header.BitsAllocated == 1)
    return _finish(scaled, header, planes, step)


def read_dicom_series(path: Path, name: str) -> Decoded:
    """Read the folder of a series as a volume, its slices in the order of their places; errors as `read_dicom_file`.

    Raises:
        DataError: It holds several series or none, a file that cannot be read, or slices that are no one volume; or a
            folder in it holds files of the series.
    """
    files = _list_series(path, name)
    if len(files) == 1:
        return read_dicom_file(files[0], name)
    headers = [_read_checked(file, f"{file.name} of {name}") for file in files]
    _check_slices(headers, name)
    planes: list[Plane] = []
    for header in headers:
        planes += read_planes(header)
    if not any(plane[POSITION] for plane in planes):
        raise placeless_error(name, len(files))
    if all(plane[POSITION] and plane[DIRECTION] for plane in planes):
        order = order_slices(planes)
        files = [files[slice_index] for slice_index in order]
        headers = [headers[slice_index] for slice_index in order]
        planes = [planes[slice_index] for slice_index in order]
    step = step_between(planes, name, [file.name for file in files])
    check_measures(planes, name)
    is_alike = is_scaled_alike(planes)
    slices = []
    for header, plane in zip(headers, planes, strict=True):
        stored = decode_frames(header, name, len(files), is_alike)
        # All headers are kept, and memory would not hold their pixels twice.
        del header.PixelData
        slices.append(scale_frames(stored, header, [plane], is_alike))
    return _finish(np.concatenate(slices), headers[0], planes, step)


def _list_series(path: Path, name: str) -> list[Path]:
    """Return the images of the only series in a folder."""
    series: dict[str, list[Path]] = {}
    rest = []
    for file in list_files(path):
        # A name that begins with a dot is that of a file system's own note.
        if file.name.startswith("."):
            continue
        header = _read_header(file)
        if header is None or "Rows" not in header:
            rest.append(file)
        else:
            series.setdefault(str(header.get("SeriesInstanceUID")), []).append(file)
    if not series:
        # A DICOM file that is no image gets a sentence of its own, which says what it is.
        for file in rest:
            if _read_header(file) is not None:
                _read_checked(file, file.name)
    if len(series) != 1:
        shown = "".join(f" ({len(files)} files as {files[0].name})" for files in series.values())
        raise DataError(
            f"{name} holds {len(series)} DICOM series{shown}; name a folder that holds the files of one series itself"
        )
    [(uid, files)] = series.items()
    _check_rest(rest, files[0], name)
    for folder in sorted(member for member in path.iterdir() if member.is_dir()):
        _check_inner_folder(folder, uid, name)
    return files


def _check_rest(rest: Sequence[Path], image: Path, name: str) -> None:
    """Refuse what is left of a cut slice: of the last slice nothing else would tell that it is missing."""
    storage_class = str(read_elements(image, force=True).get("SOPClassUID", ""))
    for file in rest:
        header = _read_header(file)
        if header is None:
            is_cut = file.suffix.lower() in DICOM_ENDINGS
        else:
            # The file may end within the name of its class.
            is_cut = storage_class.startswith(str(header.file_meta.get("MediaStorageSOPClassUID") or ""))
        if is_cut:
            raise DataError(f"{file.name} of {name} cannot be read as DICOM; export the series again")


def _check_inner_folder(folder: Path, uid: str, name: str) -> None:
    """Refuse a folder that holds files of the series around it, which would be missed."""
    for file in folder.rglob("*"):
        header = _read_header(file) if file.is_file() else None
        if header is not None and str(header.get("SeriesInstanceUID")) == uid:
            raise DataError(
                f"{name} has files of its DICOM series in its folder {folder.name} too; put them together, or move the "
                "folder away"
            )


def _read_header(file: Path) -> Dataset | None:
    """Return what a file states before its pixels; None of what is no DICOM."""
    try:
        with file.open("rb") as stream:
            is_bare = stream.read(2) in BARE_STARTS
        return read_elements(file, force=is_bare)
    except DataError:
        raise
    except Exception:  # pydicom raises whatever its parsers raise on what is no DICOM
        return None


def _check_slices(headers: Sequence[Dataset], name: str) -> None:
    """Refuse files that are no slices of one volume."""
    patients = {key_patient(str(header.PatientID)) for header in headers if "PatientID" in header}
    forms = {(is_coloured(header), header.BitsAllocated == 1) for header in headers}
    has_many_frames = any(count_frames(header) > 1 for header in headers)
    if len(patients) > 1 or len(forms) > 1 or has_many_frames:
        raise DataError(
            f"{name} holds slices of several patients or kinds (intensities and colours, bits and numbers), or several "
            "in one file; export the series again, or name a file of many frames itself"
        )


def _read_checked(path: Path, name: str) -> Dataset:
    """Return a whole file whose pixels are all there, and of a form that is read as it is meant."""
    import pydicom
    from pydicom.uid import UID

    with path.open("rb") as stream:
        refuse_deflated(stream, name)
        header = pydicom.dcmread(stream, force=True)
    if header.get("Modality") not in DRAWN and "PixelData" not in header:
        storage_class = UID(header.get("SOPClassUID") or header.file_meta.get("MediaStorageSOPClassUID") or "").name
        if not storage_class or "Image" in storage_class:
            raise ValueError("it holds no whole numbers in PixelData")
        raise DataError(
            f"{name} is no image, but a DICOM file of the kind '{storage_class}'; name the file or folder that holds "
            "the pixels"
        )
    # Where it says nothing, a pixel is one number.
    header.setdefault("SamplesPerPixel", 1)
    if header.SamplesPerPixel == 1 and not header.get(COLOURS):
        header.PhotometricInterpretation = "MONOCHROME2"
    check_form(header, name)
    check_judgements(judge_size(header), name)
    return header


def _finish(array: NDArray[Any], header: Dataset, planes: Sequence[Plane], step: NDArray[np.float64] | None) -> Decoded:
    affine = LPS_TO_RAS @ build_affine(header, planes, step)
    # The memory holds z, y, x, channel, as of any other format: sums depend on this order.
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return Decoded(array.transpose(3, 2, 1, 0), affine, is_binary=header.BitsAllocated == 1)
