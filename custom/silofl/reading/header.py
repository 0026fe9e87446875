"""The facts that an image file states beside its pixels: its modality, the size of its voxels, how its axes lie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from silofl.base.errors import DataError
from silofl.core.modality import Modality, PetUnit
from silofl.reading.access import list_files
from silofl.reading.dicom_files import read_elements
from silofl.reading.dicom_planes import DIRECTION, POSITION, SPACING, read_planes
from silofl.reading.nifti import find_two_sizes, has_two_directions, read_nifti_header, unit_mm
from silofl.reading.text_header import BODY, METAIMAGE, NRRD, read_text_header

if TYPE_CHECKING:
    from pydicom import Dataset

# Longer sides of voxels are a header's fault: slices are up to 10 mm apart, and a resized image has larger pixels than
# its scan.
MOST_MM = 50.0
# Computed radiography differs from digital radiography in the detector alone.
SAME_MODALITY = {"CR": "DX"}
# DICOM's Segmentation Storage and Label Map Segmentation Storage.
SEGMENTATIONS = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")


@dataclass(frozen=True)
class Header:
    """The facts that an image file states; nothing of a picture.

    Attributes:
        modality: DICOM's code; None where the file states none, or one that no study names.
        has_spacing: Whether it states the size of its voxels along all axes; readers fill in 1 mm where it does not.
        has_orientation: Whether it states how its axes lie in the body.
        has_place: Whether it states where its first voxel lies; readers put it at 0, or the middle, where it does not.
    """

    modality: Modality | None = None
    has_spacing: bool = False
    has_orientation: bool = False
    has_place: bool = False


def read_header(path: Path) -> Header:
    """Read the header of a file or DICOM folder that `silofl.reading.images.read_image` can read."""
    name = path.name.lower()
    if is_dicom(path):
        return _read_dicom_header(path)
    if name.endswith((".nii", ".nii.gz")):
        return _read_nifti_header(path)
    if name.endswith((NRRD, METAIMAGE)):
        return _read_text_header(path)
    return Header()


def is_dicom(path: Path) -> bool:
    """Return whether an input is a DICOM file or the folder of a series."""
    return path.name.lower().endswith(".dcm") or os.path.isdir(path)


def find_segmentation(path: Path) -> Path | None:
    """Return the DICOM segmentation that a file is, or that is the only file of a folder; None of others."""
    if not is_dicom(path):
        return None
    from pydicom.filereader import read_file_meta_info

    # Those that begin with a dot are the notes of a file system.
    files = [file for file in islice(list_files(path), 4) if not file.name.startswith(".")]
    with suppress(Exception):  # pydicom raises whatever its parsers raise on what is no DICOM
        if len(files) == 1 and read_file_meta_info(files[0]).get("MediaStorageSOPClassUID") in SEGMENTATIONS:
            return files[0]
    return None


def dicom_headers(path: Path, skips_others: bool = False) -> Iterator[Dataset]:
    """Yield the headers of a DICOM file, or of the images in the folder of a series, without their pixels.

    Args:
        skips_others: Whether what pydicom cannot read at all is passed over, as a text beside the slices.
    """
    for file in list_files(path):
        try:
            # Old archives leave out the preamble.
            header = read_elements(file, force=True)
        except Exception as error:  # pydicom raises whatever its parsers raise
            if skips_others and not isinstance(error, DataError):
                continue
            raise
        # A folder may hold a DICOMDIR, or what is no DICOM: neither has rows of pixels.
        if "Rows" in header:
            yield header


def list_uids(headers: Sequence[Dataset]) -> dict[str, str | list[str]]:
    """Return the UIDs by which an archive finds a DICOM file or series again: of study, series and all instances."""
    return {
        "study": str(headers[0].get("StudyInstanceUID", "")),
        "series": str(headers[0].get("SeriesInstanceUID", "")),
        "instances": [str(header.get("SOPInstanceUID", "")) for header in headers],
    }


def read_dicom_element(path: Path, key: str) -> str | None:
    """Return an element of a DICOM file or folder; None of another form, and where it is missing or empty."""
    return read_dicom_elements(path, [key])[key]


def read_dicom_elements(path: Path, keys: Iterable[str]) -> dict[str, str | None]:
    """Return several elements as `read_dicom_element` does."""
    header: Dataset | dict[str, Any] = next(dicom_headers(path), {}) if is_dicom(path) else {}
    return {key: str(header.get(key) or "").strip() or None for key in keys}


def read_pet_unit(path: Path) -> PetUnit | None:
    """Return what the numbers of a PET series count; None of other files, and of codes that are none of `PetUnit`."""
    elements = read_dicom_elements(path, ["Modality", "Units"])
    for unit in get_args(PetUnit):
        if elements == {"Modality": "PT", "Units": unit}:
            return cast("PetUnit", unit)
    return None


def check_pet_units(units: Iterable[PetUnit]) -> None:
    """Refuse PET of several units: 5,000 Bq/ml and an uptake of 5 may be the same.

    Raises:
        DataError: Two differ.
    """
    found = sorted({*units})
    if len(found) > 1:
        raise DataError(
            f"PET of one hospital counts in {' and '.join(found)} (DICOM's Units); convert all to one, as GML (SUV) or "
            "BQML"
        )


def _read_dicom_header(path: Path) -> Header:
    # Two tell whether there are slices to be apart.
    images = list(islice(dicom_headers(path), 2))
    if not images:
        return Header()
    modality = SAME_MODALITY.get(images[0].get("Modality"), images[0].get("Modality"))
    if modality not in get_args(Modality):
        modality = None
    return Header(modality, *_read_dicom_grid(images[0], has_others=len(images) > 1))


def _read_dicom_grid(image: Dataset, has_others: bool) -> tuple[bool, bool, bool]:
    """Return whether a file states its voxels' size, how its axes lie, and where; no text that is no number does."""
    try:
        planes = list(islice(read_planes(image), 2))
        plane = planes[0]
        spacing = plane[SPACING]
        is_sized = bool(spacing) and min(spacing) > 0 and plane[POSITION] is not None
    except (TypeError, ValueError):
        return False, False, False
    # Of frames without places of their own, as in secondary capture, nobody says how far they are apart.
    is_sized = is_sized and (has_others or len(planes) > 1)
    return is_sized, plane[DIRECTION] is not None, plane[POSITION] is not None


def _read_nifti_header(path: Path) -> Header:
    header = read_nifti_header(path)
    sizes = header.get_zooms()[:3]
    has_grid = int(header["sform_code"]) > 0 or int(header["qform_code"]) > 0
    # Without a grid the voxels' size may be given still; 1 mm is what writers put there who know none.
    is_given = has_grid or any(size != 1 for size in sizes)
    # Two that differ without a qform, which has one of them, are none: its reader refuses them.
    is_one = find_two_sizes(header) is None or int(header["qform_code"]) > 0
    is_sized = is_given and is_one and unit_mm(header) is not None
    return Header(None, is_sized, has_grid and not has_two_directions(header), has_grid)


def _read_text_header(path: Path) -> Header:
    fields = read_text_header(path).fields
    is_sized = not fields.keys().isdisjoint(("spacings", "space directions", "ElementSpacing", "ElementSize"))
    is_oriented = fields.get("space", "").lower() in BODY and "space directions" in fields
    return Header(
        has_spacing=is_sized,
        has_orientation=is_oriented or "TransformMatrix" in fields,
        has_place=not fields.keys().isdisjoint(("space origin", "Offset")),
    )
