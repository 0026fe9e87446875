"""Groups of a site's cases, as by sex, age and scanner: what dataset.json says of each, or its DICOM files."""

from collections.abc import Mapping, Sequence
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
# Name -> its groups, where nobody gives others: values, or limits of numbers.
GROUPS: Mapping[str, tuple[str, ...] | tuple[float, ...]] = {"sex": ("F", "M"), "age": (18.0, 40.0, 65.0)}
UNKNOWN, OTHERS = "not stated", "others"
# A table of more is read by nobody, and each comparison makes the others harder.
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
    known = {name for record in records for name in record.groups}
    elements = {key for name in divisions for key in ELEMENTS.get(name, (name,))}
    # Once of each case: a folder of slices takes long.
    stated = {one.case: read_dicom_elements(manifest.places[one.image], elements) for one in records}
    divided = {}
    for name, wanted in divisions.items():
        keys = ELEMENTS.get(name, (name,))
        if name not in known and not all(map(_is_element, keys)):
            listed = ", ".join(sorted(known)) or "it has none"
            raise DataError(
                f"groups must be by {', '.join(ELEMENTS)}, a name in groups of dataset.json ({listed}) or an element "
                f"of DICOM, as ManufacturerModelName, not by {quote_value(name)}"
                f"{suggest_nearest(name, (*ELEMENTS, *known))}; correct it"
            )
        values = {
            one.case: one.groups.get(name) or " ".join(filter(None, map(stated[one.case].get, keys))) for one in records
        }
        if name == "year":
            values = {case: value and value[:4] for case, value in values.items()}
        limits = wanted or GROUPS.get(name, ())
        divided[name] = {case: name_group(value, limits) for case, value in values.items()}
        if (number := len({*divided[name].values()})) > MOST_GROUPS:
            raise DataError(
                f"groups by {name} must be at most {MOST_GROUPS}, not {number}; give limits or values, as age=40,65 or "
                "scanner=GE,SIEMENS"
            )
    return divided


def list_groups(wanted: Wanted) -> list[str]:
    """Return the groups that values, or limits of numbers, make."""
    if any(isinstance(one, str) for one in wanted):
        return [*map(str, wanted), OTHERS, UNKNOWN]
    limits = sorted(map(float, wanted))
    between = [f"{low:g} to under {high:g}" for low, high in zip(limits, limits[1:], strict=False)]
    return [f"under {limits[0]:g}", *between, f"{limits[-1]:g} and above", UNKNOWN]


def name_group(value: str | None, wanted: Wanted) -> str:
    """Return the group of a value: that whose text it begins with, or between whose limits it lies."""
    if not value:
        return UNKNOWN
    if not wanted:
        return value
    if all(isinstance(one, str) for one in wanted):
        start = value.casefold()
        return next((str(one) for one in wanted if start.startswith(str(one).casefold())), OTHERS)
    number = _read_number(value)
    return UNKNOWN if number is None else list_groups(wanted)[sum(number >= float(one) for one in wanted)]


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
