import pydicom
import pytest
from pydicom import Dataset, Sequence
from pydicom.uid import generate_uid

from silofl_clinic.exams import BROKEN, DRAWN, EXAMS, Inbox
from silofl_clinic.pseudonyms import KEY, TABLE, Pseudonyms

OTHER = generate_uid()


@pytest.fixture
def identified(write_exam):
    """A file with identity in plain elements, in sequences, in private elements and in its meta header."""
    data = pydicom.dcmread(write_exam("a", "Jane-1")[0])
    data.InstitutionName, data.StudyDescription, data.PatientBirthDate = "Saint Elsewhere", "of Doe", "19700101"
    data.StudyDate, data.AcquisitionDateTime, data.OperatorsName = "20260102", "20260102101112", "Doctor^Who"
    data.PatientAddress, data.OtherPatientIDs, data.PatientComments = "1 Doe Street", "Jane-1", "Doe, Jane"
    item, within = Dataset(), Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = data.SOPClassUID, OTHER
    item.PatientName, item.InstitutionName = "Doe^Jane-1", "Saint Elsewhere"
    data.ReferencedImageSequence = Sequence([item])
    within.OperatorsName, within.ReferencedSOPInstanceUID = "Doctor^Who", OTHER
    deep = Dataset()
    deep.DerivationImageSequence = Sequence([within])
    data.PerFrameFunctionalGroupsSequence = Sequence([deep])
    data.private_block(0x0009, "MAKER", create=True).add_new(1, "LO", "Doe^Jane-1")
    data.file_meta.SourceApplicationEntityTitle = "ELSEWHERE"
    return data


def test_no_trace_of_a_patient_is_left_at_any_depth(identified, tmp_path):
    names = Pseudonyms(tmp_path / "own")
    names.deidentify(identified)
    text = str(identified)
    for word in ("Jane", "Doe", "Elsewhere", "Who", "19700101", "20260102", OTHER, "ELSEWHERE"):
        assert word not in text, word
    assert identified.PatientID == identified.PatientName == names.name_patient("Jane-1")
    # What the profile leaves empty stays there, since files of this kind must have it.
    assert identified["StudyDate"].is_empty and identified["AccessionNumber"].is_empty
    assert identified.InstitutionName == "ANONYMIZED" and "StudyDescription" not in identified
    assert identified.PatientIdentityRemoved == "YES"
    assert identified.DeidentificationMethodCodeSequence[0].CodeValue == "113100"


def test_what_a_reader_of_images_needs_stays(identified, tmp_path):
    before = {key: identified[key].value for key in ("PixelData", "ImagePositionPatient", "Modality", "SOPClassUID")}
    uids = {key: identified[key].value for key in ("SOPInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")}
    names = Pseudonyms(tmp_path / "own")
    names.deidentify(identified)
    assert {key: identified[key].value for key in before} == before
    assert {key: identified[key].value for key in uids} == {key: names.name_uid(uid) for key, uid in uids.items()}
    assert identified.file_meta.MediaStorageSOPInstanceUID == identified.SOPInstanceUID
    # A reference within a sequence leads to the same new name.
    assert identified.ReferencedImageSequence[0].ReferencedSOPInstanceUID == names.name_uid(OTHER)


def test_pseudonyms_are_the_hospitals_own_and_the_same_each_time(tmp_path):
    ours, again, theirs = (Pseudonyms(tmp_path / name) for name in ("own", "own", "other"))
    assert ours.name_patient("p1") == again.name_patient("P1 ") != ours.name_patient("p2")
    assert ours.name_patient("p1") != theirs.name_patient("p1") and ours.name_uid("1.2") != theirs.name_uid("1.2")
    assert len(ours.name_uid("1.2")) <= 64


def test_an_exam_gets_a_pseudonym_that_the_hospital_can_undo(make_clinic, write_exam):
    clinic = make_clinic(has_pseudonyms=True)
    inbox = Inbox(clinic)
    for path in write_exam("a", "Jane-1"):
        folder = inbox.add(path.read_bytes())
    assert inbox.put_away(folder) == "" and not folder.exists()
    files = [*(clinic.root / EXAMS).rglob("*.dcm")]
    (patient,) = {pydicom.dcmread(path).PatientID for path in files}
    assert len(files) == 6 and f'"{patient}": "Jane-1"' in (clinic.root / TABLE).read_text()
    assert all((clinic.root / name).stat().st_mode & 0o077 == 0 for name in (TABLE, KEY))
    assert all(pydicom.dcmread(path).StudyInstanceUID == path.parts[-3] != folder.name for path in files)


def test_an_image_with_a_drawn_name_gets_no_pseudonym(make_clinic, write_exam):
    inbox = Inbox(make_clinic(has_pseudonyms=True))
    for path in write_exam("a", BurnedInAnnotation="YES"):
        folder = inbox.add(path.read_bytes())
    assert inbox.put_away(folder) == DRAWN


def test_an_exam_that_cannot_be_renamed_leaves_nothing(make_clinic, write_exam, monkeypatch):
    clinic = make_clinic(has_pseudonyms=True)
    inbox, right, seen = Inbox(clinic), Pseudonyms.deidentify, []
    for path in write_exam("a", "Jane-1"):
        folder = inbox.add(path.read_bytes())

    def fail_at_third(self, data):
        seen.append(data)
        if len(seen) == 3:
            raise ValueError("broken element")
        right(self, data)

    monkeypatch.setattr(Pseudonyms, "deidentify", fail_at_third)
    assert inbox.put_away(folder) == BROKEN and not [*(clinic.root / EXAMS).iterdir()]


def test_an_unnamed_patient_gets_no_pseudonym(identified, tmp_path):
    identified.PatientID, identified.IrradiationEventUID = "", None
    Pseudonyms(tmp_path / "own").deidentify(identified)
    assert identified.PatientID == identified.PatientName == ""
