"""Read the elements of a DICOM file before its pixels, in this process.

A deflated file is refused: pydicom inflates its whole data set, pixels too, before it reads the first element.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from silofl.base.errors import DataError
from silofl.reading.access import input_name

if TYPE_CHECKING:
    from pydicom import Dataset


def read_elements(path: Path, specific_tags: Sequence[str] = (), force: bool = False) -> Dataset:
    """Return a file's elements before its pixels.

    Args:
        specific_tags: Names of those to be read; all where none is given.
        force: Whether a file without a preamble is read.

    Raises:
        DataError: Its data set is deflated.
        Exception: pydicom raises whatever its parsers raise on broken bytes.
    """
    import pydicom

    with path.open("rb") as stream:
        refuse_deflated(stream, input_name(path))
        return pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=[*specific_tags] or None, force=force)


def refuse_deflated(stream: BinaryIO, name: str) -> None:
    """Refuse a deflated file by what stands before the data set, which is never deflated (DICOM PS3.10).

    Raises:
        DataError: It is deflated.
        Exception: As `read_elements`.
    """
    import pydicom
    from pydicom.filereader import read_dataset, read_preamble

    read_preamble(stream, force=True)
    meta = read_dataset(stream, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
    if meta.get("TransferSyntaxUID") == pydicom.uid.DeflatedExplicitVRLittleEndian:
        raise DataError(f"{name} is deflated, of which some KiB may fill the memory; export it otherwise")
    stream.seek(0)
