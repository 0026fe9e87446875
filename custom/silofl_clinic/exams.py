"""Exams as they come in: collected by study, judged once they are complete, and put where they belong.

``arriving`` holds what may still grow, ``exams`` what is whole, and ``incomplete/CAUSE`` the rest, counted by cause.
"""

from __future__ import annotations

import io
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError, quote_value
from silofl.base.files import make_folder, write_atomically
from silofl.reading.dicom_checks import judge_size
from silofl.reading.patient_names import key_patient
from silofl_clinic.pseudonyms import Pseudonyms
from silofl_clinic.settings import Clinic

if TYPE_CHECKING:
    from pydicom import Dataset

ARRIVING, EXAMS, INCOMPLETE = "arriving", "exams", "incomplete"
# Exams that are being judged lie apart, where no file is added any more; so does one that gets its pseudonyms.
JUDGED, RENAMED = ".judged", ".renamed"
# An exam is put apart for one of these causes.
CUT, EMPTY, BROKEN, SEVERAL, OTHER, DRAWN = "cut", "empty", "broken", "several-patients", "other-patient", "drawn-names"
UID = re.compile(r"[0-9.]{1,64}")
UIDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
# This file lies with an exam whose sender has not ended its connection yet, or ended it in the middle.
UNFINISHED = ".unfinished"
# After a step of so many usual ones a slice is missing, where all steps are nearly whole multiples of the usual one.
GAP, UNEVEN = 1.5, 0.1
# The usual step of fewer slices is not known.
FEWEST_SLICES = 4


class Inbox:
    """The exams of a clinic's folder.

    Attributes:
        lock: Held while a file is added or an exam leaves ``arriving``, so that none of its files is left behind.
        sending: Connection -> the folder of the exam that it is sending, which waits until it sends another, or ends.
    """

    def __init__(self, clinic: Clinic) -> None:
        self._root = clinic.root
        self._wait = clinic.wait_seconds
        self._pseudonyms = Pseudonyms(clinic.root) if clinic.has_pseudonyms else None
        self.lock = threading.RLock()
        self.sending: dict[threading.Thread, Path] = {}
        for name in (ARRIVING, EXAMS, INCOMPLETE):
            make_folder(self._root / name)
        # What was being judged when the program ended is judged anew.
        for folder in self._root.glob(f"{JUDGED}/*"):
            _merge(folder, self._root / ARRIVING / folder.name)

    def add(self, content: bytes) -> Path:
        """Keep one file for good before its sender hears that it is; return the folder of its exam.

        Raises:
            DataError: It is no DICOM file, or does not say what it belongs to.
        """
        import pydicom

        try:
            header = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True, specific_tags=[*UIDS])
            study, series, instance = [str(header.get(key, "")) for key in UIDS]
        except Exception as error:  # pydicom raises whatever its parsers raise on broken bytes
            raise DataError(f"a file is no DICOM ({type(error).__name__}); send it again") from None
        for uid in (study, series, instance):
            check_uid(uid)
        folder = self._root / ARRIVING / study
        make_folder(folder / series)
        write_atomically(folder / series / f"{instance}.dcm", lambda stream: stream.write(content))
        return folder

    def settle(self) -> Iterator[tuple[str, str]]:
        """Put away each exam that is complete, and yield its UID and why it is put apart; "" of a whole one."""
        for folder in sorted((self._root / ARRIVING).iterdir()):
            with self.lock:
                self.sending = {connection: one for connection, one in self.sending.items() if connection.is_alive()}
                is_open = folder in self.sending.values()
            if not is_open and is_settled(folder, self._wait):
                yield folder.name, self.put_away(folder)

    def put_away(self, folder: Path) -> str:
        """Move an exam to its place, and return why it is put apart; "" of a whole one."""
        arrived = folder
        folder = self._root / JUDGED / arrived.name
        with self.lock:
            _merge(arrived, folder)
        # What was put apart before is a part of it, and newer files take the place of its own.
        for earlier in (self._root / INCOMPLETE).glob(f"*/{folder.name}"):
            (earlier / UNFINISHED).unlink(missing_ok=True)
            _merge(folder, earlier)
            earlier.rename(folder)
        cause = judge_exam(folder, self._pseudonyms is not None)
        uid = folder.name
        whole = folder
        if not cause and self._pseudonyms:
            uid = self._pseudonyms.name_uid(uid)
            whole = self._root / RENAMED
            shutil.rmtree(whole, ignore_errors=True)
            try:
                self._pseudonyms.replace(folder, whole)
            except Exception:  # pydicom raises whatever its parsers raise on broken bytes, here of any element
                cause = BROKEN
        if cause:
            _merge(folder, self._root / INCOMPLETE / cause / folder.name)
            return cause
        _merge(whole, self._root / EXAMS / uid)
        shutil.rmtree(folder, ignore_errors=True)
        return ""

    def has(self, uid: str) -> bool:
        """Return whether an exam lies whole in the folder."""
        if self._pseudonyms:
            uid = self._pseudonyms.name_uid(uid)
        return (self._root / EXAMS / uid).is_dir()

    def counts(self) -> Counter[str]:
        """Return how many exams lie in the folder, by cause; ``whole`` of those that have none."""
        counts = Counter(folder.parent.name for folder in (self._root / INCOMPLETE).glob("*/*"))
        counts["whole"] = len([*(self._root / EXAMS).iterdir()])
        return +counts


def check_uid(uid: str) -> None:
    """Refuse what is no UID, because UIDs become names of folders.

    Raises:
        DataError: It is none.
    """
    if not UID.fullmatch(uid) or not uid.strip("."):
        raise DataError(f"{quote_value(uid)}, which names a study, series or instance, is no UID; see its sender")


def describe_counts(counts: Counter[str]) -> str:
    """Return a line that counts exams."""
    apart = [f"{count} {cause}" for cause, count in sorted(counts.items()) if cause != "whole"]
    whole = f"{counts['whole']} whole"
    return f"{whole}, apart: {', '.join(apart)}" if apart else whole


def is_settled(folder: Path, wait: float) -> bool:
    """Return whether no file or folder within a folder has changed for some seconds."""
    try:
        return time.time() - max(path.lstat().st_mtime for path in (folder, *folder.rglob("*"))) >= wait
    except FileNotFoundError:  # written and renamed while it is looked at
        return False


def judge_exam(folder: Path, has_pseudonyms: bool) -> str:
    """Return why an exam is not whole, as far as its files tell; "" of a whole one."""
    import pydicom

    if (folder / UNFINISHED).exists():
        return CUT
    headers = []
    for path in sorted(folder.rglob("*.dcm")):
        try:
            header = pydicom.dcmread(path)
            if "Rows" not in header:
                continue
            if any(is_broken for is_broken, _ in judge_size(header)):
                return CUT
        except Exception:  # pydicom raises whatever its parsers raise on broken bytes
            return BROKEN
        # The pixels of hundreds of slices would fill the memory.
        del header[pydicom.tag.Tag("PixelData") :]
        headers.append(header)
    if not headers:
        return EMPTY
    if len({key_patient(str(header.get("PatientID", ""))) for header in headers}) > 1:
        return SEVERAL
    if has_pseudonyms and any(header.get("BurnedInAnnotation") == "YES" for header in headers):
        return DRAWN
    series: dict[str, list[Dataset]] = {}
    for header in headers:
        series.setdefault(str(header.SeriesInstanceUID), []).append(header)
    try:
        return CUT if any(map(_misses_slices, series.values())) else ""
    except Exception:  # elements are parsed when they are asked for: here positions and directions
        return BROKEN


def _misses_slices(headers: Sequence[Dataset]) -> bool:
    """Return whether slices of one direction have a gap as wide as some of them."""
    directions: list[NDArray[np.float64]] = []
    positions: list[NDArray[np.float64]] = []
    for header in headers:
        if header.get("ImageOrientationPatient") and header.get("ImagePositionPatient"):
            directions.append(np.array(header.ImageOrientationPatient, np.float64))
            positions.append(np.array(header.ImagePositionPatient, np.float64))
    if len(directions) < FEWEST_SLICES or np.abs(np.array(directions) - directions[0]).max() > 1e-3:
        return False
    # Slices are ordered along the normal of their plane; several of one place, as of two echoes, count once.
    normal = np.cross(directions[0][:3], directions[0][3:])
    steps = np.diff(np.unique(np.round(np.array(positions) @ normal, 2)))
    if len(steps) == 0:
        return False
    ratios = steps / np.median(steps)
    return bool(ratios.max() > GAP and np.abs(ratios - ratios.round()).max() < UNEVEN)


def _merge(source: Path, target: Path) -> None:
    """Move a folder, at once if its place is free; else its files, and equal names take the place of older ones."""
    make_folder(target.parent)
    if not target.exists():
        source.rename(target)
        return
    for path in sorted(source.rglob("*")):
        if path.is_file():
            newer = target / path.relative_to(source)
            make_folder(newer.parent)
            path.replace(newer)
    shutil.rmtree(source)
