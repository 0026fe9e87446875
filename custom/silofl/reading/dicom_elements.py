"""Elements of a DICOM file's header, as all that judges or reads its pixels takes them."""

from collections.abc import Iterator
from typing import Any

from pydicom import Dataset, uid
from pydicom.multival import MultiValue

# Whether a condition is broken, and what the file must do, for the sentence "NAME must ...".
Judgement = Iterator[tuple[bool, str]]
UNCOMPRESSED = {
    uid.ImplicitVRLittleEndian,
    uid.ExplicitVRLittleEndian,
    uid.DeflatedExplicitVRLittleEndian,
    uid.ExplicitVRBigEndian,
}
JPEG_2000 = {uid.JPEG2000Lossless, uid.JPEG2000}
# By its eight-bit, twelve-bit and lossless processes, those that were withdrawn too.
JPEG = {
    uid.JPEGBaseline8Bit,
    uid.JPEGExtended12Bit,
    uid.JPEGLossless,
    uid.JPEGLosslessSV1,
    *(uid.UID(f"1.2.840.10008.1.2.4.{process}") for process in (52, 53, 55)),
}
EXPORT = "export it again, or save it as NIfTI"
COPY_OR_EXPORT = "copy it again from its source, or export it again"


def is_coloured(header: Dataset) -> bool:
    """Return whether a file holds colours rather than intensities."""
    return read_number(header, "SamplesPerPixel", 1) > 1 or read_colours(header) == "PALETTE COLOR"


def count_frames(header: Dataset) -> int:
    """Return how many frames a file says that it holds."""
    return int(header.get("NumberOfFrames") or 1)


def read_number(header: Dataset, key: str, default: int) -> int:
    """Return a whole number, the default where the element is missing or empty."""
    value = header.get(key)
    return default if value is None else int(value)


def read_colours(header: Dataset) -> str | None:
    """Return the PhotometricInterpretation in capitals; None without any."""
    colours = header.get("PhotometricInterpretation")
    return str(colours).strip().upper() if colours else None


def read_syntax(header: Dataset) -> uid.UID:
    """Return the transfer syntax; without one, as in old archives, that of the default."""
    return uid.UID(header.file_meta.get("TransferSyntaxUID") or uid.ImplicitVRLittleEndian)


def list_values(value: Any) -> list[Any]:  # noqa: ANN401 (any element)
    """Return the values of an element, which pydicom gives as such where there is one alone."""
    return [] if value is None else list(value) if isinstance(value, MultiValue | list) else [value]
