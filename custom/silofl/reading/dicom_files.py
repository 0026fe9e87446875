"""Read the elements of a DICOM file before its pixels, in this process.

Deflated files are few. pydicom inflates their whole data set, pixels too, before it reads the first element.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from silofl.base.errors import DataError
from silofl.reading.access import input_name

if TYPE_CHECKING:
    from pydicom import Dataset

MOST_INFLATED, CHUNK = 64 << 20, 1 << 20
# Of tags: those of pixels.
PIXELS = 0x7FE0


def read_elements(path: Path, specific_tags: Sequence[str | int] | None = None, force: bool = False) -> Dataset:
    """Return a file's elements before its pixels.

    Args:
        specific_tags: Names or numbers of those to be read; None for all.
        force: Whether a file without a preamble is read.

    Raises:
        DataError: Its data set is deflated and takes more than 64 MiB before the pixels.
        Exception: pydicom raises whatever its parsers raise on broken bytes.
    """
    import pydicom
    from pydicom.filereader import read_dataset, read_preamble

    with path.open("rb") as stream:
        preamble = read_preamble(stream, force=True)
        # DICOM PS3.10: these elements, of group 2, are never deflated.
        meta = read_dataset(stream, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
        if meta.get("TransferSyntaxUID") != pydicom.uid.DeflatedExplicitVRLittleEndian:
            stream.seek(0)
            return pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=specific_tags, force=force)
        tags = None if specific_tags is None else [pydicom.tag.Tag(name) for name in specific_tags]
        inflated = _Inflated(stream, input_name(path))
        found = read_dataset(
            inflated, False, True, stop_when=lambda tag, vr, length: tag.group >= PIXELS, specific_tags=tags
        )
        return pydicom.FileDataset(stream, found, preamble, pydicom.FileMetaDataset(meta), is_implicit_VR=False)


class _Inflated:
    """What follows in a deflated file, inflated as far as it is read."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self.name = stream, name
        self._inflate, self._content, self._place = zlib.decompressobj(-zlib.MAX_WBITS), bytearray(), 0

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end.

        Raises:
            DataError: They lie beyond what may be inflated.
        """
        end = self._place + size
        while len(self._content) < min(end, MOST_INFLATED + 1) and not self._inflate.eof:
            rest = self._inflate.unconsumed_tail or self._stream.read(CHUNK)
            if not rest:
                break
            self._content += self._inflate.decompress(rest, CHUNK)
        if min(end, len(self._content)) > MOST_INFLATED:
            raise DataError(
                f"{self.name} must inflate to at most {MOST_INFLATED >> 20} MiB before its pixels; it is larger: "
                "export it without compression"
            )
        found = bytes(self._content[self._place : end])
        self._place += len(found)
        return found

    def seek(self, place: int, whence: int = 0) -> None:
        """Go to a place; from this one where `whence` is 1."""
        self._place = place + self._place * whence

    def tell(self) -> int:
        """Return the place."""
        return self._place
