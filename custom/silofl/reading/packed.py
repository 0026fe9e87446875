"""Unpack .nii.gz files; `silofl.reading.nifti` makes an array of what is unpacked.

Sources: RFC 1952, GZIP file format specification; nifti.nimh.nih.gov/pub/dist/src/niftilib/nifti1.h, and NIfTI-2.
"""

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

from silofl.base.errors import DataError
from silofl.reading.decoded import Unpacked, check_bytes

# The length of a header of NIfTI-1 and NIfTI-2, with which a file begins in either order of bytes.
LENGTHS = {
    **{(348).to_bytes(4, "little"): 348, (348).to_bytes(4, "big"): 348},
    **{(540).to_bytes(4, "little"): 540, (540).to_bytes(4, "big"): 540},
}
# By that length, where the header has the number of axes and their sizes, the type of numbers, and where voxels begin.
PLACES = {348: ((40, "8h"), (70, "h"), (108, "f")), 540: ((16, "8q"), (12, "h"), (168, "q"))}
# Bytes of a voxel by the type; of one that nibabel alone may know, the most.
VOXEL_BYTES = {2: 1, 4: 2, 8: 4, 16: 4, 64: 8, 128: 3, 256: 1, 512: 2, 768: 4, 1024: 8, 1280: 8, 1536: 16, 2304: 4}
MOST_VOXEL_BYTES = 32
# Unpacked bytes that are read at once.
BLOCK = 1 << 18
# What may follow the voxels, and what other programs may have put between them and the header.
MOST_AFTER = 1 << 20
MOST_BETWEEN = 1 << 24


def unpack_nifti(path: Path, name: str) -> Unpacked[Iterator[bytes]]:
    """Unpack a .nii.gz file up to the last voxel that its header states, and read it to its end for its checksum.

    Raises:
        DataError: Its header states more than may be unpacked.
        Exception: Whatever gzip raises of broken bytes.
    """
    blocks = _unpack_gzip(path)
    start = b""
    while len(start) < max(PLACES) and (block := next(blocks, b"")):
        start += block
    if start[:4] not in LENGTHS:
        # Whoever reads the header refuses it.
        return Unpacked(iter([start]), {})
    return Unpacked(_cut(start, blocks, _find_end(start, name)), {})


def _cut(start: bytes, blocks: Iterator[bytes], end: int) -> Iterator[bytes]:
    """Yield what is unpacked up to an end, and read what follows."""
    block = start
    unpacked = 0
    while block:
        if unpacked < end:
            yield block[: end - unpacked]
        unpacked += len(block)
        if unpacked > end + MOST_AFTER:
            raise ValueError("much more than its voxels")
        block = next(blocks, b"")


def _find_end(start: bytes, name: str) -> int:
    """Return where a header says that the voxels end; of one that is refused later, where it ends itself."""
    length = LENGTHS[start[:4]]
    if len(start) < length:
        return length
    order = "<" if start[:4] == length.to_bytes(4, "little") else ">"
    (count, *sizes), (type_code,), (offset,) = (
        struct.unpack_from(order + form, start, position) for position, form in PLACES[length]
    )
    # Not "<": an offset that is NaN is refused later too.
    if not offset >= 0:
        return length
    if offset > length + MOST_BETWEEN:
        raise DataError(
            f"{name} has more than {MOST_BETWEEN >> 20} MiB between its header and its voxels (vox_offset {offset:g}); "
            "save it anew, without what other programs have added to its header"
        )
    voxels = check_bytes(name, sizes[: max(count, 0)], VOXEL_BYTES.get(type_code, MOST_VOXEL_BYTES))
    return max(int(offset), length) + voxels


def _unpack_gzip(path: Path) -> Iterator[bytes]:
    """Yield the content of a file that is compressed by gzip, whose parts may follow one another."""
    with gzip.open(path) as file:
        while block := file.read(BLOCK):
            yield block
