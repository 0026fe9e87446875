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
from silofl_hospital.importing.site_files import visible_files

if TYPE_CHECKING:
    from pydicom import Dataset

IDS = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID")
TAGS: tuple[str, ...] = (*IDS, "SOPInstanceUID", "Modality", "SeriesDescription", "SeriesNumber", "ImageType", "Rows")
TAGS += ("Columns", "NumberOfFrames", "ReferencedSeriesSequence")
# Of one image. Careless exporters give all images of a series one number (the first), but not one place.
IMAGE = ("SOPInstanceUID", "InstanceNumber", POSITION)
TAGS += IMAGE[1:]
SEGMENTATION, LOCALIZER = "SEG", "LOCALIZER"
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
        return tuple(one for one in self.series if one.is_image)


def read_export(folder: Path) -> Export:
    """Read the headers of all files in a folder and in the folders within it; hidden files are passed over."""
    paths = visible_files(folder)
    headers = {
        path: _read_header(path) for path in track_slow_progress(paths, len(paths), f"listing {folder.name}", "files")
    }
    known = {path: header for path, header in headers.items() if header is not None}
    first = {
        tuple(str(header.get(key)) for key in IMAGE) if "SOPInstanceUID" in header else path: path
        for path, header in reversed(known.items())
    }
    kept = {path: known[path] for path in sorted(first.values())}
    unknown = [path for path, header in headers.items() if header is None]
    return Export(_group_files(kept), tuple(filter(_is_damaged, unknown)))


def count_names(series: Iterable[Series]) -> str:
    """Return modality, description and number of some series, as ``CT/Bone (5), MR/T1 (2)``."""
    counts = Counter(one.name for one in series)
    return ", ".join(f"{name} ({counts[name]})" for name in sorted(counts))


def _read_header(path: Path) -> Dataset | None:
    """Return what a file states of its series; None where it states none."""
    try:
        # Old archives leave out the preamble.
        header = read_elements(path, specific_tags=TAGS, force=True)
        return header if header.get("SeriesInstanceUID") else None
    except Exception:  # pydicom raises whatever its parsers raise on broken bytes and on what is no DICOM
        return None


def _is_damaged(path: Path) -> bool:
    is_dicom = path.suffix.lower() in DICOM_ENDINGS or has_dicom_mark(path)
    return is_dicom and path.name.upper() != INDEX


def _group_files(headers: dict[Path, Dataset]) -> tuple[Series, ...]:
    groups: dict[tuple, list[Path]] = {}
    for path, header in headers.items():
        # Each file of a segmentation is one of its own; some scanners put localizers into the series of the volume.
        own = path if header.get("Modality") == SEGMENTATION else LOCALIZER in _read_kind(header)
        groups.setdefault((key_patient(str(header.get("PatientID"))), header.SeriesInstanceUID, own), []).append(path)
    return tuple(_describe([(path, headers[path]) for path in paths]) for paths in groups.values())


def _read_kind(header: Dataset) -> list[str]:
    kind = header.get("ImageType") or []
    return [kind] if isinstance(kind, str) else [*kind]


def _describe(members: list[tuple[Path, Dataset]]) -> Series:
    # Of a file that ends within its header the size may be missing; it stays with its series, whose reader says so.
    first = next((header for _, header in members if "Rows" in header), members[0][1])
    frames = sum(int(header.get("NumberOfFrames") or 1) for _, header in members)
    patient, study, uid = (str(first.get(key) or "").strip() for key in IDS)
    return Series(
        tuple(path for path, _ in members),
        patient,
        study,
        uid,
        number=int(first.get("SeriesNumber") or 0),
        modality=str(first.get("Modality") or ""),
        description=" ".join(str(first.get("SeriesDescription") or "").split()),
        size=(first.Columns, first.Rows, frames) if "Rows" in first and "Columns" in first else None,
        is_localizer=LOCALIZER in _read_kind(first),
        refers_to=frozenset(str(one.get("SeriesInstanceUID")) for one in first.get("ReferencedSeriesSequence") or []),
    )
