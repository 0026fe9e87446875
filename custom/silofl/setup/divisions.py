"""By what a job may divide a hospital's test cases: never by what names a patient, or by a day."""

from collections.abc import Collection, Mapping

from silofl.base.errors import PinError

# `annotator` is a group of dataset.json, all others are elements of DICOM too.
LISTED = ("sex", "age", "scanner", "slice_thickness", "field_strength", "year", "annotator")
# Limits are full decades, since between two that are a year apart there may be one patient only.
AGES = {*range(10, 100, 10), 18, 65}
# Elements of these kinds, and with names of these ends, name somebody or something, or hold a date or any text.
PERSONAL_KINDS = {"PN", "UI", "DA", "DT", "TM", "LT", "ST", "UT"}
PERSONAL_ENDS = ("ID", "IDs", "Number", "Numbers", "Identifier", "UID", "Comments", "Address", "Sequence")


def check_divisions(divisions: Mapping[str, Collection[object]], others: Collection[str]) -> None:
    """Refuse what a job may not divide test cases by.

    Args:
        divisions: What to divide by -> its groups, or limits of numbers.
        others: What may divide beside the list: groups of dataset.json, and elements that the hospital has named.

    Raises:
        PinError: The sentence may leave the site.
    """
    for name, groups in divisions.items():
        if is_personal(name):
            raise PinError(f"test cases are not divided by {name}, which may name a patient or a day; leave it out")
        if name not in (*LISTED, *others):
            raise PinError(
                f"divisions of site.yaml does not name {name}; ask the hospital to add it, or divide by "
                f"{', '.join(LISTED)}"
            )
        if name == "age" and not AGES.issuperset(groups):
            raise PinError("a limit of age is neither 18, 65 nor a full decade; divide as age=40,60")


def is_personal(name: str) -> bool:
    """Return whether an element of DICOM of this name may tell who somebody is, or a date."""
    from pydicom.datadict import dictionary_VR, tag_for_keyword

    tag = tag_for_keyword(name)
    if tag is None:
        return False
    is_of_patient = name.startswith(("Patient", "OtherPatient", "IssuerOf", "Referring"))
    return is_of_patient or name.endswith(PERSONAL_ENDS) or dictionary_VR(tag) in PERSONAL_KINDS
