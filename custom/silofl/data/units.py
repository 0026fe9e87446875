"""The independent units of a site's cases: patients where they are known, else recordings, else cases."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from silofl.data.records import Record
from silofl.data.site_data import SiteData


@dataclass(frozen=True)
class Units:
    """What counts once in a comparison on a site's cases.

    Attributes:
        name: ``patient``, ``recording`` or ``case``.
        unit_of: Case -> its unit.
        is_one_person: All are of one known patient, so that they say nothing of another.
    """

    name: Literal["patient", "recording", "case"]
    unit_of: Mapping[str, str]
    is_one_person: bool = False

    @property
    def count(self) -> int:
        """How many there are."""
        return len({*self.unit_of.values()})


def find_units(
    patient_of: Mapping[str, str | None], recording_of: Mapping[str, str | None] = MappingProxyType({})
) -> Units:
    """Return the largest independent units that are known of some cases.

    Patients, where all are known and there are several; else recordings, where all are known; else cases, of which
    those of one known patient count once beside others whose patient nobody knows.

    Args:
        patient_of: Case -> its patient, or None.
        recording_of: Case -> its recording, or None; the same for one that is missing.
    """
    known = {case: patient for case, patient in patient_of.items() if patient is not None}
    has_patients = bool(known) and len(known) == len(patient_of)
    if has_patients and len({*known.values()}) > 1:
        return Units("patient", known)
    # Patients that are all known, and not several, are one.
    if patient_of and all(recording_of.get(case) for case in patient_of):
        # Two patients' recordings may have one name.
        of_both = {case: repr((patient, recording_of[case])) for case, patient in patient_of.items()}
        return Units("recording", of_both, is_one_person=has_patients)
    if has_patients:
        return Units("case", {case: case for case in patient_of}, is_one_person=True)
    unit_of = {}
    for case, patient in patient_of.items():
        # A case may be called as a patient is: the words keep them apart.
        unit_of[case] = f"case {case}" if patient is None else f"patient {patient}"
    return Units("case", unit_of)


def find_recordings(records: Iterable[Record]) -> dict[str, str | None]:
    """Return case -> its recording, or None."""
    return {record.case: record.recording for record in records}


def find_units_of(data: SiteData, part: str) -> Units:
    """Return the units of a part of a site's data, with the recordings that its dataset.json knows."""
    return find_units(getattr(data, part).patient_of, find_recordings(getattr(data.manifest, part, ())))


def count_test_units(data: SiteData) -> int:
    """Return how many units a site's test data have."""
    return find_units_of(data, "test").count
