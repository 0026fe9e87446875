"""Decode image files to arrays, one function a format: all in a process of its own but NIfTI without compression.

Pictures (PNG, JPEG, TIFF, BMP, GIF, npz) come as (C, rows, columns), windows of time series (npz) as (C, 1, T). Volumes
come as (C, X, Y, Z) in the stored order with an affine to millimetres in NIfTI's world (x to the right, y to the front,
z to the head); a volume file that holds one plane is a volume of one slice.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError, UnreadableError
from silofl.reading.access import OF_SYSTEM, open_error
from silofl.reading.decoded import Decoded, Unpacked
from silofl.reading.decoder import DECODER_ENDED, build_request, decode_in_subprocess
from silofl.reading.endings import suggest_remedy
from silofl.reading.nifti import read_nifti
from silofl.reading.text_header import METAIMAGE, NRRD

LOSSY = (".jpg", ".jpeg")
PICTURES = (".png", ".tif", ".tiff", ".bmp", ".gif", *LOSSY)
# Where in its own source a C++ library found an error, and the address of the object.
_LOCATION = re.compile(r"Exception thrown in \S+ \S+ |\S+\.[ch]xx:\d+(?: \(\))?:\s*(?:ITK ERROR: )?|\(0x[0-9a-f]+\)")


def decode(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    """Decode a file or a DICOM folder by its name's ending.

    Args:
        index: Which image of an npz file.
        is_label: Whether it is a label map: a palette's numbers are kept, and an npz file's array is ``labels``.

    Raises:
        DataError: The format is not known, or the system failed.
        UnreadableError: The file is truncated, corrupt or of a form that is not supported.
    """
    return _decode(build_file_request(path, name, index, is_label), path, name, is_label)


def decode_segmentation(path: Path, name: str, shape: Sequence[int], affine: NDArray[np.float64]) -> Decoded:
    """Decode a DICOM segmentation on the grid of its image, of a shape (X, Y, Z) and an affine; errors as `decode`."""
    grid = {"shape": list(shape), "affine": affine.tolist()}
    request = build_request("dicom_segments.read_segmentation", path, name, **grid)
    return _decode(request, path, name, is_label=True)


def _decode(request: bytes | None, path: Path, name: str, is_label: bool) -> Decoded:
    """Return what a reader reads; whatever it raises becomes one sentence without the path."""
    try:
        if request is None:
            return read_nifti(path, name)
        answer = decode_in_subprocess(request)
        if isinstance(answer, Decoded):
            return answer
        if path.suffix.lower() in PICTURES:
            return _shape_pixels(answer, name, is_label)
        return read_nifti(path, name, answer.content)
    except DataError as error:
        raise UnreadableError(str(error)) from None
    except Exception as error:  # decoders raise whatever their libraries raise on broken bytes
        # Of a system that failed nothing is known of the file's content.
        if isinstance(error, OSError) and error.errno in OF_SYSTEM:
            raise open_error(name, error) from None
        # A library may name the full path, which must not leave the site with the message.
        reason = " ".join(_LOCATION.sub("", str(error).replace(str(path), name)).split())[-160:] or type(error).__name__
        unreadable = UnreadableError(f"{name} is truncated or corrupt ({reason}); copy it again from its source")
        # Something else may have ended the decoder, as a lack of memory.
        unreadable.may_pass = reason.startswith(DECODER_ENDED)
        raise unreadable from None


def _shape_pixels(unpacked: Unpacked[NDArray[np.uint8]], name: str, is_label: bool) -> Decoded:
    """Return a picture's array (C, rows, columns) of what `silofl.reading.pictures.unpack_picture` returns."""
    facts = unpacked.facts
    pixels: NDArray[Any] = unpacked.content.view(facts["dtype"]).reshape(facts["shape"])
    if pixels.ndim == 2:
        # A TIFF may store big-endian numbers, which torch does not take.
        if not pixels.dtype.isnative:
            pixels = pixels.astype(pixels.dtype.newbyteorder("="))
        if facts["sign"] and pixels.dtype.kind in "iu":
            # Pillow takes signed bytes for unsigned ones, and 32 bits for signed.
            pixels = pixels.view(f"{facts['sign']}{pixels.itemsize}")
        if is_label and facts["spread"] > 1:
            pixels //= facts["spread"]
        return Decoded(pixels[None], is_binary=facts["is_binary"])
    has_alpha = pixels.shape[2] in (2, 4)
    colours = pixels[..., :-1] if has_alpha else pixels
    if is_label and has_alpha and np.ptp(colours) == 0 and np.ptp(pixels[..., -1]) > 0:
        raise DataError(f"{name} holds its labels as transparency alone; save label numbers as grey")
    return Decoded(np.moveaxis(colours, 2, 0))


def build_file_request(path: Path, name: str, index: int | None, is_label: bool) -> bytes | None:
    """Return what asks the decoders' process for a file; None for uncompressed NIfTI, which is read in this process.

    Args:
        index: Which image of an npz file.

    Raises:
        DataError: The format is not known.
    """
    reader = "dicom.read_dicom_series" if os.path.isdir(path) else _find_reader(path, name)
    if reader is None:
        return None
    given = {"index": index, "is_label": is_label}
    return build_request(reader, path, name, **{key: given[key] for key in OPTIONS.get(reader, ())})


def _find_reader(path: Path, name: str) -> str | None:
    lower = path.name.lower()
    for ending, reader in READERS.items():
        if lower.endswith(ending):
            return reader
    raise DataError(f"{name} is no DICOM folder and ends in none of {', '.join(READERS)}; {suggest_remedy(path)}")


# Modules of this room, run in the decoders' process; a NIfTI without compression stays in its file until needed.
READERS: dict[str, str | None] = {
    **dict.fromkeys(PICTURES, "pictures.unpack_picture"),
    ".nii": None,
    ".nii.gz": "packed.unpack_nifti",
    **dict.fromkeys((METAIMAGE, NRRD), "raw_volume.read_raw_volume"),
    ".dcm": "dicom.read_dicom_file",
    ".npz": "npz.read_npz",
}
# What they take besides path and name.
OPTIONS = {"pictures.unpack_picture": ("is_label",), "npz.read_npz": ("index", "is_label")}
