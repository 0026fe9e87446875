"""Checks that the parts of a data set share no patient or recording, image, slice or case name."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.data.records import Record
from silofl.reading.patient_names import key_patient

Parts = Mapping[str, tuple[Record, ...]]
PartRecord = tuple[str, Record]
# A file, or one of many images in it.
Image = tuple[Path, int | None]


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
    if split_unit in ("patient", "unknown"):
        _check_patients(parts, split_unit == "patient")
    elif split_unit == "recordings":
        _check_recordings(parts)
    _check_images(parts, places)


class SeenImages:
    """The contents of a data set's images, gathered while they are read, of which no two may be the same."""

    def __init__(self, places: Mapping[str, Path], split_unit: str) -> None:
        """Begin with none.

        Args:
            places: Where each file named by a record lies, links resolved.
            split_unit: What study and dataset.json agree to keep apart, ``patient`` where they do not.
        """
        self._places, self._split_unit = places, split_unit
        self._seen: dict[str, tuple[str, str, Record]] = {}
        self._known: set[tuple[Path, int | None]] = set()

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
            place = (self._places[file], record.index)
            if digest is None or place in self._known:
                continue
            self._known.add(place)
            first_part, first_file, first = self._seen.setdefault(digest, (part, file, record))
            # Records are equal where their fields are: only the same one can name a file twice as two contrasts.
            is_other = first is not record or first_file != file
            if is_other and self._are_apart(part, record, first_part, first):
                raise DataError(
                    f"case {record.case!r} must be another image than case {first.case!r}; "
                    f"{_name_image(file, record)} and {_name_image(first_file, first)} hold the same content: remove "
                    "one of the two"
                )

    def _are_apart(self, part: str, record: Record, other_part: str, other: Record) -> bool:
        """Return whether two cases must hold two images."""
        if None in (record.index, other.index):
            return True
        is_of_patients = self._split_unit in ("patient", "recordings")
        return is_of_patients and (part != other_part or record.patient != other.patient)


def digest_content(array: NDArray, affine: NDArray[np.float64] | None) -> str | None:
    """Return a hash of an image's pixels, the same in every format, type of numbers and order of axes.

    Args:
        array: (C, *spatial), as decoded.
        affine: Voxel indices to millimetres (4, 4), by which a volume is turned the same way; None without such a grid.

    Returns:
        The hash; None of an image whose channels hold one value each: it shows nobody.
    """
    first = array[(slice(None), *[slice(1)] * (array.ndim - 1))]
    if (array == first).all():
        return None
    if affine is not None and array.ndim == 4:
        from nibabel.orientations import apply_orientation, io_orientation

        array = np.moveaxis(apply_orientation(np.moveaxis(array, 0, -1), io_orientation(affine)), -1, 0)
    # In the order in which pictures, and most volumes, lie in memory.
    numbers = np.ascontiguousarray(_narrow(np.moveaxis(array, 0, -1) if array.ndim == 3 else array.T))
    digest = hashlib.sha256(f"{array.shape} {numbers.dtype}".encode())
    digest.update(numbers)
    return digest.hexdigest()


def _narrow(array: NDArray) -> NDArray:
    """Return numbers as bytes or 16 bits where all are such, to be hashed in less time, and else as float32."""
    if array.dtype == np.uint8:
        return array
    # Adding 0 leaves no zero below zero.
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


def _iterate_records(parts: Parts) -> Iterator[tuple[str, Record]]:
    for part, records in parts.items():
        for record in records:
            yield part, record


def _check_cases(parts: Parts) -> None:
    seen: dict[str, str] = {}
    for part, record in _iterate_records(parts):
        if record.case in seen:
            raise DataError(
                f"case {record.case!r} must stand once in dataset.json, not in {seen[record.case]} and again in "
                f"{part}; give each record a 'case' of its own"
            )
        seen[record.case] = part


def _check_spelling(parts: Parts) -> None:
    seen: dict[str, Record] = {}
    for _, record in _iterate_records(parts):
        if record.patient is None:
            continue
        first = seen.setdefault(key_patient(record.patient), record)
        if first.patient != record.patient:
            raise DataError(
                f"patient {record.patient!r} (case {record.case!r}) must be written as {first.patient!r} (case "
                f"{first.case!r}), or differ from it in more than capitals or a ^ at the end; correct dataset.json"
            )


def _check_patients(parts: Parts, must_be_known: bool) -> None:
    seen: dict[str, str] = {}
    for part, record in _iterate_records(parts):
        if record.patient is None:
            if not must_be_known:
                continue
            raise DataError(
                f"case {record.case!r} must have a 'patient', by whom parts are kept apart; it is missing: add it to "
                "dataset.json, or, where nobody knows, set split_unit to 'unknown' in both dataset.json and the "
                "study's data"
            )
        first = seen.setdefault(record.patient, part)
        if first != part:
            raise DataError(
                f"patient {record.patient!r} must stand in one part, not in {first} and {part} (case "
                f"{record.case!r}); move all cases of the patient to one part, or, if that is meant, set split_unit to "
                "'recordings', 'slices' or 'examples' in both dataset.json and the study's data"
            )


def _check_recordings(parts: Parts) -> None:
    seen: dict[tuple[str, str], str] = {}
    for part, record in _iterate_records(parts):
        if record.recording is None:
            raise DataError(
                f"case {record.case!r} must have a 'recording', which split_unit 'recordings' keeps apart; it is "
                "missing: add it to dataset.json"
            )
        first = seen.setdefault((record.patient, record.recording), part)
        if first != part:
            raise DataError(
                f"recording {record.recording!r} of patient {record.patient!r} must stand in one part, not in {first} "
                f"and {part} (case {record.case!r}); move all its windows to one part"
            )


def _check_images(parts: Parts, places: Mapping[str, Path]) -> None:
    # The first record of each image and mask, and the record of each slice.
    firsts: dict[Image, PartRecord] = {}
    masks: dict[Image, PartRecord] = {}
    of_slice: dict[tuple[Image, int], PartRecord] = {}
    for part, record in _iterate_records(parts):
        mine = (part, record)
        for file in record.files:
            image = (places[file], record.index)
            first = firsts.setdefault(image, mine)
            _check_one_patient(file, mine, first)
            _check_once(file, mine, first)
            for number in record.numbers or ():
                other = of_slice.setdefault((image, number), mine)
                if other is not mine:
                    raise _overlap_error(file, mine, other)
        if isinstance(record.label, str):
            _check_one_patient(record.label, mine, masks.setdefault((places[record.label], record.index), mine))


def _check_one_patient(file: str, mine: PartRecord, first: PartRecord) -> None:
    patient, other = mine[1].patient, first[1].patient
    if None not in (patient, other) and patient != other:
        raise DataError(
            f"{file} must belong to one patient, not to {other!r} and {patient!r} ({_name_both(mine, first)}); correct "
            "dataset.json"
        )


def _check_once(file: str, mine: PartRecord, first: PartRecord) -> None:
    if first is not mine and None in (mine[1].slices, first[1].slices):
        raise DataError(
            f"{file} must stand once in dataset.json, not twice ({_name_both(mine, first)}); remove one of the two"
        )


def _overlap_error(file: str, mine: PartRecord, other: PartRecord) -> DataError:
    return DataError(
        f"{file} must have slices in one record only, not {list(other[1].slices)} and {list(mine[1].slices)}, which "
        f"overlap ({_name_both(mine, other)}); give ranges that do not overlap"
    )


def _name_both(mine: PartRecord, other: PartRecord) -> str:
    return f"case {mine[1].case!r} in {mine[0]} and case {other[1].case!r} in {other[0]}"
