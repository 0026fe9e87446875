"""De-identification by the basic profile of DICOM PS3.15, Annex E, with pseudonyms that only this hospital can undo.

The table of what goes is that of the package dicom-anonymizer. The package itself applies it to a file's outermost
elements only; here it holds within sequences too, and what the table removes is removed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from silofl.base.files import make_folder, read_json, write_atomically, write_json
from silofl.reading.patient_names import key_patient

if TYPE_CHECKING:
    from pydicom import DataElement, Dataset

KEY, TABLE, VERSION = "pseudonyms.key", "pseudonyms.json", "dicomfields_2026c"
PROFILE = ("113100", "DCM", "Basic Application Confidentiality Profile")
# An element of a category of the table becomes this. Where the profile leaves a choice, a type's elements stay valid.
REMOVE, BLANK, DUMMY, NEW_UID = "remove", "blank", "dummy", "uid"
ACTIONS = {
    "X_TAGS": REMOVE,
    **dict.fromkeys(("Z_TAGS", "X_Z_TAGS"), BLANK),
    **dict.fromkeys(("D_TAGS", "Z_D_TAGS", "X_D_TAGS", "X_Z_D_TAGS"), DUMMY),
    **dict.fromkeys(("U_TAGS", "X_Z_U_STAR_TAGS"), NEW_UID),
}


class Pseudonyms:
    """A hospital's pseudonyms: the key in a folder makes them, and the table there says whose they are."""

    def __init__(self, root: Path) -> None:
        make_folder(root)
        if not (root / KEY).exists():
            write_atomically(root / KEY, lambda stream: stream.write(secrets.token_bytes(32)))
        self._key = (root / KEY).read_bytes()
        self._table = root / TABLE
        self._patients = read_json(self._table, absent={})

    def replace(self, folder: Path, target: Path) -> None:
        """Write the images of an exam without identity, named by their new UIDs; other files may hold free text."""
        import pydicom

        for path in sorted(folder.rglob("*.dcm")):
            data = pydicom.dcmread(path)
            if "Rows" not in data:
                continue
            patient = str(data.get("PatientID", ""))
            pseudonym = self.name_patient(patient)
            # Before the image: whose it is must be known once it lies there.
            if pseudonym not in self._patients:
                self._patients[pseudonym] = patient
                write_json(self._table, self._patients)
            self.deidentify(data)
            series = target / data.SeriesInstanceUID
            make_folder(series)
            write_atomically(series / f"{data.SOPInstanceUID}.dcm", partial(data.save_as, enforce_file_format=True))

    def name_patient(self, patient: str) -> str:
        """Return a patient's pseudonym: the same for each exam, and of no use without the key; "" of nobody known."""
        name = key_patient(patient)
        return self._hash("patient", name).hex()[:16] if name else ""

    def name_uid(self, uid: str) -> str:
        """Return the UID that takes another's place, in every file alike."""
        return f"2.25.{int.from_bytes(self._hash('uid', uid)[:16])}"

    def deidentify(self, data: Dataset) -> None:
        """Take from a file what the profile names, its private elements, and its notes of who sent it."""
        from pydicom import Dataset, FileMetaDataset

        pseudonym = self.name_patient(str(data.get("PatientID", "")))
        data.remove_private_tags()
        self._clean(data)
        data.PatientID = data.PatientName = pseudonym
        data.PatientIdentityRemoved = "YES"
        code = Dataset()
        code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = PROFILE
        data.DeidentificationMethodCodeSequence = [code]
        # The old ones name who sent the file, and a preamble may hold anything.
        meta = FileMetaDataset()
        meta.TransferSyntaxUID = data.file_meta.TransferSyntaxUID
        meta.MediaStorageSOPClassUID = data.SOPClassUID
        meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
        data.file_meta = meta
        data.preamble = b"\0" * 128

    def _clean(self, data: Dataset) -> None:
        for element in list(data):
            action = _find_action(element.tag.group, element.tag.element)
            is_sequence = element.VR == "SQ"
            if action == REMOVE or (is_sequence and action in (BLANK, DUMMY)):
                del data[element.tag]
            elif is_sequence:
                for item in element.value:
                    self._clean(item)
            elif action == BLANK:
                element.value = None
            elif action == DUMMY:
                _replace_by_dummy(element)
            elif action == NEW_UID and element.VR == "UI" and element.VM > 1:
                element.value = [*map(self.name_uid, element.value)]
            elif action == NEW_UID and element.VR == "UI" and element.value:
                element.value = self.name_uid(element.value)

    def _hash(self, *parts: str) -> bytes:
        return hmac.new(self._key, "\0".join(parts).encode(), hashlib.sha256).digest()


def _replace_by_dummy(element: DataElement) -> None:
    from dicomanonymizer.simpledicomanonymizer import replace_element

    try:
        replace_element(element)
    except NotImplementedError:  # of a kind without a dummy
        element.value = None


@cache
def _read_table() -> tuple[Mapping[tuple[int, int], str], list[tuple[tuple[int, int, int, int], str]]]:
    """Return what becomes of single elements, and of those of repeating groups."""
    from dicomanonymizer.dicomfields_selector import dicom_anonymization_database_selector

    tags = dicom_anonymization_database_selector(VERSION)
    single, repeating = {}, []
    for category, action in ACTIONS.items():
        for tag in tags[category]:
            if len(tag) == 2:
                single[tag] = action
            else:
                repeating.append((tag, action))
    return single, repeating


def _find_action(group: int, element: int) -> str | None:
    single, repeating = _read_table()
    if action := single.get((group, element)):
        return action
    # Of a repeating group only the bits of a mask count, as of overlays 6000 to 60FE.
    for (masked_group, masked_element, group_mask, element_mask), action in repeating:
        is_group = group & group_mask == masked_group & group_mask
        if is_group and element & element_mask == masked_element & element_mask:
            return action
    return None
