"""FreeSurfer's volumes (.mgh, and .mgz, which is compressed by gzip): a header of 284 bytes, voxels, and a footer.

Source: surfer.nmr.mgh.harvard.edu/fswiki/FsTutorial/MghFormat. All numbers are stored with their highest byte first.
"""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from silofl.data.decoded import Decoded, check_bytes
from silofl.errors import DataError

HEADER_BYTES, VERSION = 284, 1
# Version, sizes of four axes, type, freedom, whether a grid follows, and of it sizes, directions and middle.
FORM = struct.Struct(">7ih3f9f3f")
TYPES = {0: ">u1", 1: ">i4", 3: ">f4", 4: ">i2", 10: ">u2"}
# Times, tags and commands may follow the voxels.
MOST_AFTER = 1 << 20


@dataclass(frozen=True)
class MghHeader:
    """A header's facts.

    Attributes:
        shape: Voxels along x, y and z, and frames.
        dtype: Of a voxel.
        has_grid: Whether the file states its grid; FreeSurfer otherwise takes coronal slices of 1 mm.
        affine: Voxel indices to millimetres (right, front, head), (4, 4).
    """

    shape: tuple[int, int, int, int]
    dtype: np.dtype
    has_grid: bool
    affine: NDArray[np.float64]


def read_mgh_header(path: Path) -> MghHeader:
    """Read the header of a file.

    Raises:
        ValueError: It is no such header.
    """
    with _open(path) as stream:
        return _parse_header(stream.read(HEADER_BYTES))


def read_mgh(path: Path, name: str) -> Decoded:
    """Read a volume, whose frames are its channels.

    Raises:
        DataError: It holds more bytes than are supported.
        ValueError: It is not whole.
    """
    with _open(path) as stream:
        header = _parse_header(stream.read(HEADER_BYTES))
        size = check_bytes(name, header.shape, header.dtype.itemsize)
        content = stream.read(size)
        if len(content) != size:
            raise ValueError(f"{len(content)} bytes of voxels, not {size}")
        # To its end, where gzip compares its checksum.
        if len(stream.read(MOST_AFTER + 1)) > MOST_AFTER:
            raise ValueError("much more than its voxels")
    # x is the fastest axis, frames are the slowest.
    array = np.frombuffer(content, header.dtype).astype(header.dtype.newbyteorder("="))
    array = array.reshape(header.shape[::-1]).transpose(0, 3, 2, 1)
    if not np.isfinite(header.affine).all() or np.linalg.det(header.affine) == 0:
        raise DataError(f"{name} must have axes of a finite size in three directions; export it again")
    return Decoded(array, header.affine, has_contrasts=len(array) > 1)


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.name.lower().endswith(".mgz") else path.open("rb")


def _parse_header(content: bytes) -> MghHeader:
    if len(content) < HEADER_BYTES:
        raise ValueError(f"{len(content)} bytes, fewer than its header")
    version, *sizes, kind, _, has_grid = FORM.unpack(content[: FORM.size])[:8]
    if version != VERSION or kind not in TYPES or min(sizes) < 1:
        raise ValueError("its header must have version 1, a known type and sizes above 0")
    steps, *axes, middle = np.array(FORM.unpack(content[: FORM.size])[8:], np.float64).reshape(5, 3)
    if not has_grid:
        # As FreeSurfer: columns to the left, rows to the feet, slices to the front.
        steps, axes, middle = np.ones(3), [np.array([-1, 0, 0]), np.array([0, 0, -1]), np.array([0, 1, 0])], np.zeros(3)
    affine = np.eye(4)
    affine[:3, :3] = np.stack(axes, axis=1) * steps
    affine[:3, 3] = middle - affine[:3, :3] @ (np.array(sizes[:3]) / 2)
    return MghHeader(tuple(sizes), np.dtype(TYPES[kind]), bool(has_grid), affine)
