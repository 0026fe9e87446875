"""The DICOM series in the folders of a hospital's export, by the headers of their files alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from silofl.data.progress import track_slow_progress
from silofl.reading.dicom_files import read_elements
from silofl.reading.dicom_planes import POSITION
from silofl.reading.endings import DICOM_ENDINGS, has_dicom_mark
from silofl.reading.patient_names import key_patient
from silofl_hospital.importing.tree import visible_files

if TYPE_CHECKING:
    from pydicom import Dataset

# Two files with the same of all three are copies. Careless exporters give all images of a series one number (the
# first), but not one place.
IMAGE = ("SOPInstanceUID", "InstanceNumber", POSITION)
TAGS = (
    *("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "Modality", "SeriesDescription", "SeriesNumber"),
    *("ImageType", "Rows", "Columns", "NumberOfFrames", "ReferencedSeriesSequence", *IMAGE),
)
SEGMENTATION = "SEG"
LOCALIZER = "LOCALIZER"
INDEX = "DICOMDIR"


@dataclass(frozen=True)
class Series:
    """The files of one series, or one file of a segmentation.

    Attributes:
        files: Its files, by their names.
        patient: Its PatientID, "" where there is none.
        study: The exam's UID.
        uid: The series' UID.
        number: The series' number in the exam.
        modality: DICOM's code, as CT.
        description: What the scanner calls it.
        size: Columns, rows and slices; None of what has no pixels.
        is_localizer: Whether it shows where other series lie.
        refers_to: The UIDs of the series that a segmentation was drawn on.
    """

    files: tuple[Path, ...]
    patient: str
    study: str
    uid: str
    number: int
    modality: str
    description: str
    size: tuple[int, int, int] | None
    is_localizer: bool = False
    refers_to: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Modality and description, which a pattern names."""
        return f"{self.modality}/{self.description}"

    @property
    def is_image(self) -> bool:
        """Whether a study could learn from it: pixels of a patient, neither a segmentation nor a localizer."""
        return self.size is not None and not self.is_localizer and self.modality != SEGMENTATION

    def fits(self, pattern: str) -> bool:
        """Return whether a pattern names it, without regard to capitals.

        Args:
            pattern: ``MODALITY/DESCRIPTION`` or ``DESCRIPTION``, with ``*`` for any letters.
        """
        return fnmatchcase((self.name if "/" in pattern else self.description).lower(), pattern.lower())


@dataclass(frozen=True)
class Export:
    """What the folders of a site hold.

    Attributes:
        series: The series, in the order of their files.
        damaged: DICOM files of which not even the header can be read.
    """

    series: tuple[Series, ...]
    damaged: tuple[Path, ...]

    @property
    def images(self) -> tuple[Series, ...]:
        """The series that a study could learn from."""
        return tuple(series for series in self.series if series.is_image)


def read_export(folder: Path) -> Export:
    """Read the headers of all files in a folder and in the folders within it; hidden files are passed over."""
    paths = visible_files(folder)
    headers: dict[Path, Dataset] = {}
    damaged = []
    seen = set()
    # In the order of the files, so that the first of several copies is taken.
    for path in track_slow_progress(paths, len(paths), f"listing {folder.name}", "files"):
        header = _read_header(path)
        if header is None:
            is_dicom = path.suffix.lower() in DICOM_ENDINGS or has_dicom_mark(path)
            if is_dicom and path.name.upper() != INDEX:
                damaged.append(path)
            continue
        image = tuple(str(header.get(key)) for key in IMAGE)
        if image not in seen or "SOPInstanceUID" not in header:
            headers[path] = header
        seen.add(image)
    return Export(_group_files(headers), tuple(damaged))


def count_names(series: Iterable[Series]) -> str:
    """Return modality, description and number of some series, as ``CT/Bone (5), MR/T1 (2)``."""
    counts = Counter(member.name for member in series)
    return ", ".join(f"{name} ({counts[name]})" for name in sorted(counts))


def _read_header(path: Path) -> Dataset | None:
    """Return what a file states of its series; None where it states none."""
    try:
        # Old archives leave out the preamble.
        header = read_elements(path, specific_tags=TAGS, force=True)
        return header if header.get("SeriesInstanceUID") else None
    except Exception:  # pydicom raises whatever its parsers raise on broken bytes and on what is no DICOM
        return None


def _group_files(headers: dict[Path, Dataset]) -> tuple[Series, ...]:
    groups: dict[tuple[object, ...], list[Path]] = {}
    for path, header in headers.items():
        # Each file of a segmentation is one of its own; some scanners put localizers into the series of the volume.
        apart = path if header.get("Modality") == SEGMENTATION else LOCALIZER in _list_image_types(header)
        key = (key_patient(str(header.get("PatientID"))), header.SeriesInstanceUID, apart)
        groups.setdefault(key, []).append(path)
    return tuple(_describe(paths, [headers[path] for path in paths]) for paths in groups.values())


def _list_image_types(header: Dataset) -> list[str]:
    types = header.get("ImageType") or []
    return [types] if isinstance(types, str) else [*types]


def _describe(paths: list[Path], headers: list[Dataset]) -> Series:
    # Of a file that ends within its header the size may be missing; it stays with its series, whose reader says so.
    header = next((header for header in headers if "Rows" in header), headers[0])
    size = None
    if "Rows" in header and "Columns" in header:
        size = (header.Columns, header.Rows, sum(int(member.get("NumberOfFrames") or 1) for member in headers))
    references = header.get("ReferencedSeriesSequence") or []
    return Series(
        files=tuple(paths),
        patient=str(header.get("PatientID") or "").strip(),
        study=str(header.get("StudyInstanceUID") or "").strip(),
        uid=str(header.get("SeriesInstanceUID") or "").strip(),
        number=int(header.get("SeriesNumber") or 0),
        modality=str(header.get("Modality") or ""),
        description=" ".join(str(header.get("SeriesDescription") or "").split()),
        size=size,
        is_localizer=LOCALIZER in _list_image_types(header),
        refers_to=frozenset(str(reference.get("SeriesInstanceUID")) for reference in references),
    )
