"""The independent units of a site's cases: patients where they are known, else recordings, else cases."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.data.records import Record
from silofl.data.site_data import SiteData
from silofl.training.metrics import group_positions


@dataclass(frozen=True)
class Units:
    """What counts once in a comparison on a site's cases.

    Attributes:
        name: ``patient``, ``recording`` or ``case``.
        unit_of: Case -> its unit.
        is_one_person: All are of one known patient, so that they say nothing of another.
    """

    name: str
    unit_of: Mapping[str, str]
    is_one_person: bool = False


def find_units(patient_of: Mapping[str, str | None], records: Iterable[Record] = ()) -> Units:
    """Return the largest independent units that are known of some cases.

    Patients, where all are known and there are several; else recordings, where all are known; else cases, of which
    those of one known patient count once beside others whose patient nobody knows.

    Args:
        patient_of: Case -> its patient, or None.
        records: The cases' records, which know the recordings.
    """
    patients = {*patient_of.values()}
    if len(patients) > 1 and None not in patients:
        return Units("patient", patient_of)
    is_one_person = bool(patients) and None not in patients
    recording_of = {record.case: (record.patient, record.recording) for record in records if record.recording}
    if patient_of and patient_of.keys() <= recording_of.keys():
        # Two patients' recordings may have one name.
        return Units("recording", {case: repr(recording_of[case]) for case in patient_of}, is_one_person)
    if is_one_person:
        return Units("case", {case: case for case in patient_of}, is_one_person)
    return Units("case", {c: f"case {c}" if p is None else f"patient {p}" for c, p in patient_of.items()})


def find_units_of(data: SiteData, part: str) -> Units:
    """Return the units of a part of a site's data, with the recordings that its dataset.json knows."""
    return find_units(getattr(data, part).patient_of, getattr(data.manifest, part, ()))


def count_test_units(data: SiteData) -> int:
    """Return how many units a site's test data have."""
    return len({*find_units_of(data, "test").unit_of.values()})


def average_by_unit(
    values: Mapping[str, float | NDArray[np.float64] | None], unit_of: Mapping[str, str]
) -> NDArray[np.float64]:
    """Return the mean over each unit's cases, shape (..., units), in the order of their first cases.

    Args:
        values: Case -> its value, or its values (...) of several models; a case that is missing or None does not count,
            and a unit without any other is NaN.
        unit_of: Case -> its unit.
    """
    cases = list(unit_of)
    of_unit = [[values.get(cases[i]) for i in rows] for rows in group_positions(list(unit_of.values())).values()]
    counted = [[value for value in found if value is not None] for found in of_unit]
    means = [np.mean(found, axis=0) if found else np.nan for found in counted]
    return np.stack(np.broadcast_arrays(*means), axis=-1).astype(np.float64) if means else np.empty(0)
