"""Checks that the parts of a data set share no patient or recording, image, slice or case name."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.data.records import Record
from silofl.reading.patient_names import key_patient

Parts = Mapping[str, tuple[Record, ...]]
# An image is a file, or one of many images in it.
Image = tuple[Path, int | None]


@dataclass(frozen=True, eq=False)
class Listed:
    """A record and the part that lists it; only the same one is equal, since two records may say the same."""

    part: str
    record: Record

    def __str__(self) -> str:
        return f"case {self.record.case!r} in {self.part}"


def check_parts(parts: Parts, places: Mapping[str, Path], split_unit: str) -> None:
    """Refuse a patient or recording in two parts, and a case, image or slice that is listed twice.

    Two spellings of one patient are refused too, as in capitals alone: nobody can tell whether they are one.

    Args:
        places: Where each file named by a record lies, links resolved.
        split_unit: What study and dataset.json agree to keep apart, ``patient`` where they do not; with ``slices`` and
            ``examples`` one patient may be in several parts, with ``recordings`` too, but no recording; with
            ``unknown`` a record may lack its patient.

    Raises:
        DataError: The first thing that is listed twice, or a record that lacks its patient or recording.
    """
    _check_cases(parts)
    _check_spelling(parts)
    if split_unit in ("patient", "unknown", "recordings"):
        _check_apart(parts, split_unit)
    _check_images(parts, places)


class SeenImages:
    """The contents of a data set's images, gathered while they are read, of which no two may be the same."""

    def __init__(self, places: Mapping[str, Path], split_unit: str) -> None:
        """Begin with none.

        Args:
            places: Where each file named by a record lies, links resolved.
            split_unit: What study and dataset.json agree to keep apart, ``patient`` where they do not.
        """
        self._places = places
        self._split_unit = split_unit
        # The part, the file and the record of each content, and the images that are among them.
        self._seen: dict[str, tuple[str, str, Record]] = {}
        self._added: set[Image] = set()

    def add(self, part: str, record: Record, digests: Mapping[str, str | None]) -> None:
        """Keep what a case's files hold.

        Of many images in one npz file, as public sets come, two may be the same within one patient and part, and
        anywhere where no patients are kept apart.

        Args:
            digests: `digest_content` of each file's image, by the path that dataset.json gives.

        Raises:
            DataError: Another file, or another image of the same, holds the same pixels.
        """
        for file, digest in digests.items():
            image = (self._places[file], record.index)
            if digest is None or image in self._added:
                continue
            self._added.add(image)
            seen_part, seen_file, seen = self._seen.setdefault(digest, (part, file, record))
            # Records are equal where their fields are: only the same one can name a file twice as two contrasts.
            is_other = seen is not record or seen_file != file
            if is_other and self._are_apart(part, record, seen_part, seen):
                raise DataError(
                    f"case {record.case!r} shows the image of case {seen.case!r}: {_name_image(file, record)} and "
                    f"{_name_image(seen_file, seen)} hold the same content; remove one of the two"
                )

    def _are_apart(self, part: str, record: Record, other_part: str, other: Record) -> bool:
        """Return whether two cases must hold two images."""
        if None in (record.index, other.index):
            return True
        is_of_patients = self._split_unit in ("patient", "recordings")
        return is_of_patients and (part != other_part or record.patient != other.patient)


def digest_content(array: np.ndarray, affine: NDArray[np.float64] | None) -> str | None:
    """Return a hash of an image's pixels, the same in every format, type of numbers and order of axes.

    Args:
        array: (C, *spatial), as decoded.
        affine: Voxel indices to millimetres (4, 4), by which a volume is turned the same way; None without such a grid.

    Returns:
        The hash; None of an image whose channels hold one value each: it shows nobody.
    """
    corner = array[(slice(None), *[slice(1)] * (array.ndim - 1))]
    # One value in each channel is an empty image, which many cases may have.
    if (array == corner).all():
        return None
    if affine is not None and array.ndim == 4:
        from nibabel.orientations import apply_orientation, io_orientation

        turned = apply_orientation(np.moveaxis(array, 0, -1), io_orientation(affine))  # type: ignore[no-untyped-call]
        array = np.moveaxis(turned, -1, 0)
    # This is the order in which pictures, and most volumes, lie in memory.
    numbers = np.ascontiguousarray(_narrow(np.moveaxis(array, 0, -1) if array.ndim == 3 else array.T))
    digest = hashlib.sha256(f"{array.shape} {numbers.dtype}".encode())
    digest.update(numbers.data)
    return digest.hexdigest()


def _narrow(array: np.ndarray) -> np.ndarray:
    """Return numbers as bytes or 16 bits where all are such, to be hashed in less time, and else as float32."""
    if array.dtype == np.uint8:
        return array
    # Adding 0 turns a negative zero into a plain one, which would be hashed otherwise.
    numbers = array if array.dtype.kind in "iu" else np.add(array, 0, dtype="<f4", casting="unsafe")
    for dtype in ("u1", "<i2"):
        limits = np.iinfo(dtype)
        if limits.min <= numbers.min() and numbers.max() <= limits.max:
            narrow = numbers.astype(dtype, copy=False)
            if numbers.dtype.kind in "iu" or (narrow == numbers).all():
                return narrow
            break
    return numbers.astype("<f4")


def _name_image(file: str, record: Record) -> str:
    return file if record.index is None else f"{file} at index {record.index}"


def _iterate_records(parts: Parts) -> Iterator[Listed]:
    for part, records in parts.items():
        for record in records:
            yield Listed(part, record)


def _check_cases(parts: Parts) -> None:
    part_of_case: dict[str, str] = {}
    for listed in _iterate_records(parts):
        case = listed.record.case
        if case in part_of_case:
            raise DataError(
                f"case {case!r} stands in {part_of_case[case]} and again in {listed.part} of dataset.json; give each "
                "record a 'case' of its own"
            )
        part_of_case[case] = listed.part


def _check_spelling(parts: Parts) -> None:
    seen: dict[str, Record] = {}
    for listed in _iterate_records(parts):
        record = listed.record
        if record.patient is None:
            continue
        earlier = seen.setdefault(key_patient(record.patient), record)
        if earlier.patient != record.patient:
            raise DataError(
                f"patient {record.patient!r} (case {record.case!r}) and {earlier.patient!r} (case {earlier.case!r}) "
                "differ in capitals or a ^ at the end only; write one patient alike in dataset.json, or give two "
                "patients names that differ in more"
            )


def _check_apart(parts: Parts, split_unit: str) -> None:
    is_of_recordings = split_unit == "recordings"
    # Two patients' recordings may have one name.
    part_of_unit: dict[tuple[str | None, str], str] = {}
    for listed in _iterate_records(parts):
        record = listed.record
        unit = record.recording if is_of_recordings else record.patient
        if unit is None:
            if split_unit == "unknown":
                continue
            raise DataError(
                f"case {record.case!r} has no '{'recording' if is_of_recordings else 'patient'}', by which parts are "
                "kept apart; add it to dataset.json, or, where nobody knows the patients, set split_unit to 'unknown' "
                "in both dataset.json and the study's data"
            )
        part = part_of_unit.setdefault((record.patient, unit), listed.part)
        if part != listed.part:
            name = f"recording {unit!r} of patient {record.patient!r}" if is_of_recordings else f"patient {unit!r}"
            raise DataError(
                f"{name} is in two parts, {part} and {listed.part} (case {record.case!r}); move all its cases to one "
                "part, or, if that is meant, set split_unit to 'recordings' (of patients), 'slices' or 'examples' in "
                "both dataset.json and the study's data"
            )


def _check_images(parts: Parts, places: Mapping[str, Path]) -> None:
    # Who lists each image, each mask and each slice first.
    of_image: dict[Image, Listed] = {}
    of_mask: dict[Image, Listed] = {}
    of_slice: dict[tuple[Image, int], Listed] = {}
    for listed in _iterate_records(parts):
        record = listed.record
        for file in record.files:
            image = (places[file], record.index)
            earlier = of_image.setdefault(image, listed)
            _check_one_patient(file, listed, earlier)
            # Two records may share a volume only where both say which slices are theirs.
            if earlier is not listed and None in (record.slices, earlier.record.slices):
                raise DataError(f"{file} stands twice in dataset.json ({listed} and {earlier}); remove one of the two")
            for number in record.numbers or ():
                holder = of_slice.setdefault((image, number), listed)
                if holder is not listed:
                    raise DataError(
                        f"slice {number} of {file} stands twice in dataset.json ({listed} and {holder}); give ranges "
                        "that do not overlap"
                    )
        if isinstance(record.label, str):
            mask = (places[record.label], record.index)
            _check_one_patient(record.label, listed, of_mask.setdefault(mask, listed))


def _check_one_patient(file: str, listed: Listed, earlier: Listed) -> None:
    patient = listed.record.patient
    earlier_patient = earlier.record.patient
    if None not in (patient, earlier_patient) and patient != earlier_patient:
        raise DataError(
            f"{file} is listed for two patients, {earlier_patient!r} and {patient!r} ({listed} and {earlier}); correct "
            "dataset.json"
        )
