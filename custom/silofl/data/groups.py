"""Groups of a site's cases, as by sex, age and scanner: what dataset.json says of each, or its DICOM files."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite

from silofl.base.errors import DataError, quote_value, suggest_nearest
from silofl.data.manifest import Manifest
from silofl.data.records import Record
from silofl.reading.header import read_dicom_elements

# Name -> the elements of DICOM that say it.
ELEMENTS = {
    "sex": ("PatientSex",),
    "age": ("PatientAge",),
    "scanner": ("Manufacturer", "ManufacturerModelName"),
    "year": ("StudyDate",),
    "slice_thickness": ("SliceThickness",),
    "field_strength": ("MagneticFieldStrength",),
}
# These groups of a name are taken where nobody gives others: values, or limits of numbers.
GROUPS: Mapping[str, tuple[str, ...] | tuple[float, ...]] = {"sex": ("F", "M"), "age": (18.0, 40.0, 65.0)}
UNKNOWN, OTHERS = "not stated", "others"
# Nobody reads a table of more groups, and each comparison makes the others harder.
MOST_GROUPS = 12
YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}
# What to divide by -> its groups; none where each value is one.
Wanted = tuple[str, ...] | tuple[float, ...]
Divisions = Mapping[str, Wanted]
# What to divide by -> case -> its group.
Divided = Mapping[str, Mapping[str, str]]


def divide_records(manifest: Manifest, records: Sequence[Record], divisions: Divisions) -> Divided:
    """Return the group of each case, by groups of dataset.json, else by elements of DICOM.

    Raises:
        DataError: What to divide by is neither, or it has too many values.
    """
    recorded = set[str]().union(*(record.groups for record in records))
    elements_by_name = {name: ELEMENTS.get(name, (name,)) for name in divisions}
    elements = set[str]().union(*elements_by_name.values())
    # All elements of a case are read at once, because a folder of slices takes long.
    stated = {record.case: read_dicom_elements(manifest.places[record.image], elements) for record in records}
    divided = {}
    for name, wanted in divisions.items():
        if name not in recorded and not all(map(_is_element, elements_by_name[name])):
            listed = ", ".join(sorted(recorded)) or "it has none"
            raise DataError(
                f"groups must be by {', '.join(ELEMENTS)}, a name in groups of dataset.json ({listed}) or an element "
                f"of DICOM, as ManufacturerModelName, not by {quote_value(name)}"
                f"{suggest_nearest(name, (*ELEMENTS, *recorded))}; correct it"
            )
        limits = wanted or GROUPS.get(name, ())
        groups = {}
        for record in records:
            # What dataset.json says of a case goes before its DICOM files.
            parts = [stated[record.case].get(key) for key in elements_by_name[name]]
            value = record.groups.get(name) or " ".join(filter(None, parts))
            groups[record.case] = name_group(value[:4] if name == "year" else value, limits)
        number = len({*groups.values()})
        if number > MOST_GROUPS:
            raise DataError(
                f"dividing by {name} makes {number} groups, more than {MOST_GROUPS}; give limits or values, as "
                "age=40,65 or scanner=GE,SIEMENS"
            )
        divided[name] = groups
    return divided


def list_groups(wanted: Wanted) -> list[str]:
    """Return the groups that values, or limits of numbers, make."""
    if any(isinstance(value, str) for value in wanted):
        return [*map(str, wanted), OTHERS, UNKNOWN]
    limits = sorted(map(float, wanted))
    between = [f"{low:g} to under {high:g}" for low, high in pairwise(limits)]
    return [f"under {limits[0]:g}", *between, f"{limits[-1]:g} and above", UNKNOWN]


def name_group(value: str | None, wanted: Wanted) -> str:
    """Return the group of a value: that whose text it begins with, or between whose limits it lies."""
    if not value:
        return UNKNOWN
    if not wanted:
        return value
    if all(isinstance(group, str) for group in wanted):
        for group in wanted:
            if value.casefold().startswith(str(group).casefold()):
                return str(group)
        return OTHERS
    number = _read_number(value)
    if number is None:
        return UNKNOWN
    # A number lies in the group behind the last limit that it reaches.
    return list_groups(wanted)[sum(number >= float(limit) for limit in wanted)]


def _is_element(key: str) -> bool:
    from pydicom.datadict import tag_for_keyword

    return tag_for_keyword(key) is not None


def _read_number(value: str) -> float | None:
    """Return a number, or the years of an age as DICOM writes it: 054Y, 006M."""
    factor = YEARS.get(value[-1:], 1.0)
    try:
        number = float(value[:-1] if value[-1:] in YEARS else value) * factor
    except ValueError:
        return None
    return number if isfinite(number) else None
