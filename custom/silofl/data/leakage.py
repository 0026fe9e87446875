"""Checks that the parts of a data set share no patient or recording, image, slice or case name."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from silofl.data.access import content_digest
from silofl.data.records import Record, slice_numbers
from silofl.errors import DataError

Parts = Mapping[str, tuple[Record, ...]]


def check_parts(parts: Parts, places: Mapping[str, Path], split_unit: str) -> None:
    """Refuse a patient or recording in two parts, a case name or image listed twice, and overlapping slices.

    Patients whose names differ in capitals alone are refused too: nobody can tell whether they are one.

    Args:
        parts: The records by part.
        places: Where each file named by a record lies, links resolved.
        split_unit: What study and dataset.json agree to keep apart, ``patient`` where they do not; with ``slices`` and
            ``examples`` one patient may be in several parts, with ``recordings`` too, but no recording; with
            ``unknown`` nobody knows.

    Raises:
        DataError: The first thing that is listed twice, or a record that lacks its patient or recording.
    """
    _check_cases(parts)
    _check_spelling(parts)
    if split_unit == "patient":
        _check_patients(parts)
    elif split_unit == "recordings":
        _check_recordings(parts)
    _check_images(parts, places)


def check_contents(parts: Parts, places: Mapping[str, Path]) -> None:
    """Refuse the same image file under two names; reads every image file once.

    Raises:
        DataError: Two image files hold the same bytes, or one cannot be read.
    """
    seen: dict[str, tuple[Path, str, Record]] = {}
    known: dict[Path, str] = {}
    for _, record in _iterate_records(parts):
        for file in record.files:
            place = places[file]
            if place in known:
                continue
            known[place] = content_digest(place, file)
            first_place, first_file, first = seen.setdefault(known[place], (place, file, record))
            if first_place == place:
                continue
            # Records are equal where their fields are: only the same one can name a file twice as two contrasts.
            if first is record:
                raise DataError(
                    f"case {record.case!r} must have a file of its own for each contrast; {file} and {first_file} hold "
                    "the same content: correct one of the two, or put null for a contrast that is not there"
                )
            raise DataError(
                f"case {record.case!r} must be another image than case {first.case!r}; {file} and {first_file} "
                "hold the same content: remove one of the two"
            )


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
        first = seen.setdefault(record.patient.casefold(), record)
        if first.patient != record.patient:
            raise DataError(
                f"patient {record.patient!r} (case {record.case!r}) must be written as {first.patient!r} (case "
                f"{first.case!r}), or differ from it in more than capitals; correct dataset.json"
            )


def _check_patients(parts: Parts) -> None:
    seen: dict[str, str] = {}
    for part, record in _iterate_records(parts):
        if record.patient is None:
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
    seen: dict[tuple[Path, int | None], list[tuple[str, Record]]] = {}
    for part, record in _iterate_records(parts):
        for file in record.files:
            others = seen.setdefault((places[file], record.index), [])
            # All earlier ones: a slice may be apart from the first record of its volume and not from the second.
            for other_part, other in others:
                _check_pair(file, part, record, other_part, other)
            others.append((part, record))


def _check_pair(file: str, part: str, record: Record, other_part: str, other: Record) -> None:
    both = f"case {record.case!r} in {part} and case {other.case!r} in {other_part}"
    if None not in (record.patient, other.patient) and record.patient != other.patient:
        raise DataError(
            f"{file} must belong to one patient, not to {other.patient!r} and {record.patient!r} ({both}); "
            "correct dataset.json"
        )
    if record.slices is None or other.slices is None:
        raise DataError(f"{file} must stand once in dataset.json, not twice ({both}); remove one of the two")
    if set(slice_numbers(record.slices)) & set(slice_numbers(other.slices)):
        raise DataError(
            f"{file} must have slices in one record only, not {list(other.slices)} and "
            f"{list(record.slices)}, which overlap ({both}); cut the ranges apart"
        )
