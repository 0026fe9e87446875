"""FreeSurfer's volumes (.mgh, and .mgz, which is compressed by gzip): their header by nibabel.

The voxels are read here: nibabel reads a stream neither within bounds nor to its end, where its checksum is.
"""

import gzip
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from silofl.data.decoded import Decoded, check_bytes
from silofl.errors import DataError

HEADER_BYTES, HAS_GRID = 284, slice(28, 30)
# Of a file without a grid, as in FreeSurfer: columns run to the left, rows to the feet, slices to the front.
CORONAL = np.array([[-1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
# Times, tags and commands may follow the voxels.
MOST_AFTER = 1 << 20


def has_mgh_grid(path: Path) -> bool:
    """Return whether a file states its grid; FreeSurfer otherwise takes coronal slices of 1 mm.

    Raises:
        ValueError: It is not whole.
    """
    with _open(path) as stream:
        return any(_read_start(stream)[HAS_GRID])


def read_mgh(path: Path, name: str) -> Decoded:
    """Read a volume, whose frames are its channels.

    Raises:
        DataError: It holds more bytes than are supported.
        ValueError: It is not whole.
    """
    with _open(path) as stream:
        start = _read_start(stream)
        header = _parse_header(start)
        sizes, dtype = header["dims"].tolist(), header.get_data_dtype()
        size = check_bytes(name, sizes, dtype.itemsize)
        content = stream.read(size)
        if len(content) != size:
            raise ValueError(f"{len(content)} bytes of voxels, not {size}")
        # To its end, where gzip compares its checksum.
        if len(stream.read(MOST_AFTER + 1)) > MOST_AFTER:
            raise ValueError("much more than its voxels")
    # x is the fastest axis, frames are the slowest.
    array = np.frombuffer(content, dtype).astype(dtype.newbyteorder("=")).reshape(sizes[::-1]).transpose(0, 3, 2, 1)
    # Not nibabel's affine, which is rounded to 32 bits on the way, and turned where there is no grid.
    directions = header["Mdc"].T.astype(np.float64) if any(start[HAS_GRID]) else CORONAL
    affine, axes = np.eye(4), directions * header["delta"]
    affine[:3, :3], affine[:3, 3] = axes, header["Pxyz_c"] - axes @ header["dims"][:3] / 2
    if not np.isfinite(affine).all() or np.linalg.det(affine) == 0:
        raise DataError(f"{name} must have axes of a finite size in three directions; export it again")
    return Decoded(array, affine, has_contrasts=len(array) > 1)


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.name.lower().endswith(".mgz") else path.open("rb")


def _read_start(stream: BinaryIO) -> bytes:
    content = stream.read(HEADER_BYTES)
    if len(content) < HEADER_BYTES:
        raise ValueError(f"{len(content)} bytes, fewer than its header")
    return content


def _parse_header(content: bytes) -> Any:  # noqa: ANN401 (nibabel has no types)
    from nibabel.freesurfer.mghformat import MGHHeader

    header = MGHHeader(content)
    if header["dims"].min() < 1:
        raise ValueError("its header must have sizes above 0")
    return header
