"""FreeSurfer's volumes (.mgh, and .mgz, which is compressed by gzip): a header of 284 bytes, voxels, and a footer.

Source: surfer.nmr.mgh.harvard.edu/fswiki/FsTutorial/MghFormat. All numbers are stored with their highest byte first.
By nibabel it would be no shorter: it turns the axes where there is no grid, and reads no stream to its checksum.
"""

import gzip
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from silofl.base.errors import DataError
from silofl.reading.decoded import Decoded, check_bytes

HEADER_BYTES, VERSION = 284, 1
# Version, sizes of four axes, type, freedom, whether a grid follows, and of it sizes, directions and middle.
FORM = struct.Struct(">7ih3f9f3f")
# As FreeSurfer without a grid: columns to the left, rows to the feet, slices to the front, of 1 mm.
NO_GRID = (1, 1, 1, -1, 0, 0, 0, 0, -1, 0, 1, 0, 0, 0, 0)
TYPES = {0: ">u1", 1: ">i4", 3: ">f4", 4: ">i2", 10: ">u2"}
# Times, tags and commands may follow the voxels.
MOST_AFTER = 1 << 20


def has_mgh_grid(path: Path) -> bool:
    """Return whether a file states its grid.

    Raises:
        struct.error: It is shorter than its header.
    """
    with _open(path) as stream:
        return bool(FORM.unpack_from(stream.read(HEADER_BYTES))[7])


def read_mgh(path: Path, name: str) -> Decoded:
    """Read a volume, whose frames are its channels.

    Raises:
        DataError: It holds more bytes than are supported, or its grid is none.
        ValueError: It is not whole.
        struct.error: It is shorter than its header.
    """
    with _open(path) as stream:
        facts = FORM.unpack_from(stream.read(HEADER_BYTES))
        (version, *sizes, kind, _, has_grid), grid = facts[:8], facts[8:]
        if version != VERSION or kind not in TYPES or min(sizes) < 1:
            raise ValueError("its header must have version 1, a known type and sizes above 0")
        dtype = np.dtype(TYPES[kind])
        size = check_bytes(name, sizes, dtype.itemsize)
        content = stream.read(size)
        if len(content) != size:
            raise ValueError(f"{len(content)} bytes of voxels, not {size}")
        # To its end, where gzip compares its checksum.
        if len(stream.read(MOST_AFTER + 1)) > MOST_AFTER:
            raise ValueError("much more than its voxels")
    # x is the fastest axis, frames are the slowest.
    array = np.frombuffer(content, dtype).astype(dtype.newbyteorder("=")).reshape(sizes[::-1]).transpose(0, 3, 2, 1)
    steps, *axes, middle = np.reshape(grid if has_grid else NO_GRID, (5, 3)).astype(np.float64)
    affine = np.eye(4)
    affine[:3, :3] = np.stack(axes, axis=1) * steps
    affine[:3, 3] = middle - affine[:3, :3] @ (np.array(sizes[:3]) / 2)
    if not np.isfinite(affine).all() or np.linalg.det(affine) == 0:
        raise DataError(f"{name} must have axes of a finite size in three directions; export it again")
    return Decoded(array, affine, has_contrasts=len(array) > 1)


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.name.lower().endswith(".mgz") else path.open("rb")
