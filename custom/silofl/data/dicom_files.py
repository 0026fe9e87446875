"""Read the elements of a DICOM file in this process, one with a deflated data set only where it stays small.

Deflated files are few. pydicom inflates their whole data set, pixels too, before it reads the first element.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from silofl.data.access import input_name
from silofl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

MOST_INFLATED, CHUNK = 256 << 20, 1 << 20


def read_elements(path: Path, **options: Any) -> Dataset:  # noqa: ANN401 (those of pydicom)
    """Return a file's elements.

    Args:
        path: The file.
        options: Those of `pydicom.dcmread`.

    Raises:
        DataError: Its data set is deflated and takes more than 256 MiB.
        Exception: pydicom raises whatever its parsers raise on broken bytes.
    """
    import pydicom

    with path.open("rb") as stream:
        if _is_deflated(stream) and _exceeds(stream):
            raise DataError(
                f"{input_name(path)} must inflate to at most {MOST_INFLATED >> 20} MiB; it is larger: export it "
                "without compression"
            )
        stream.seek(0)
        return pydicom.dcmread(stream, **options)


def _is_deflated(stream: IO[bytes]) -> bool:
    """Read what a file says of itself, and return whether the rest is deflated."""
    from pydicom import uid
    from pydicom.filereader import read_dataset, read_preamble

    read_preamble(stream, force=True)
    # DICOM PS3.10: these elements, of group 2, are never deflated.
    meta = read_dataset(stream, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
    return meta.get("TransferSyntaxUID") == uid.DeflatedExplicitVRLittleEndian


def _exceeds(stream: IO[bytes]) -> bool:
    """Return whether the rest of a file inflates to more than is allowed; a piece at a time is held."""
    inflate, size, rest = zlib.decompressobj(-zlib.MAX_WBITS), 0, b""
    while size <= MOST_INFLATED and (rest := rest or stream.read(CHUNK)):
        size += len(inflate.decompress(rest, CHUNK))
        rest = inflate.unconsumed_tail
        if inflate.eof:
            break
    return size > MOST_INFLATED
