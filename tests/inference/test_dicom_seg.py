import importlib.util

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from silofl.base.errors import ConfigError, DataError
from silofl.reading.header import dicom_headers
from silofl.reading.images import read_image, read_label
from silofl_hospital.inference.dicom_seg import check_can_write, write_dicom_seg

highdicom = pytest.importorskip("highdicom")

OBLIQUE = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
OBLIQUE *= np.sign(np.linalg.det(OBLIQUE))
AXES = {
    "axial": np.eye(3),
    "oblique": OBLIQUE,
    # Columns run to the back, rows to the feet, slices to the left.
    "sagittal": np.float64([[0, 0, 1], [1, 0, 0], [0, -1, 0]]),
}
LABELS = {1: "organ", 2: "lesion"}


@pytest.fixture
def series(tmp_path, write_dicom):
    """Write an empty series as a scanner does, with a patient, a study and a frame of reference."""

    def write(direction=AXES["axial"]):
        return whole(write_dicom(tmp_path / "series", np.zeros((7, 6, 5), np.int16), direction))

    return write


@pytest.fixture
def segment(tmp_path, make_study):
    """Write labels on a series; return the segmentation's path and the series' image."""

    def write(folder, labels, names=LABELS, affine=None, said="global model"):
        image = read_image(folder) if affine is None else None
        target, affine = tmp_path / "seg.dcm", image.affine if affine is None else affine
        write_dicom_seg(target, [*dicom_headers(folder)], labels, affine, make_study(labels=names), "abc", said)
        return target, image

    return write


def change_headers(folder, change):
    """Change the header of each file of a series."""
    for path in folder.iterdir():
        header = pydicom.dcmread(path)
        change(header)
        header.save_as(path)


def whole(folder):
    """Fill in what a segmentation takes over."""
    frame = generate_uid()

    def fill(header):
        header.FrameOfReferenceUID, header.PatientName, header.PatientID = frame, "Doe^Jane", "p1"
        header.PatientBirthDate = header.PatientSex = header.StudyDate = header.StudyTime = ""
        header.AccessionNumber = header.StudyID = header.ReferringPhysicianName = ""
        header.Manufacturer = header.PositionReferenceIndicator = ""

    change_headers(folder, fill)
    return folder


def random_labels(shape=(7, 6, 5)):
    return np.random.default_rng(0).integers(0, 3, shape, dtype=np.uint8)


@pytest.mark.parametrize("direction", AXES.values(), ids=AXES)
def test_a_segmentation_lies_on_its_series_voxel_by_voxel(series, segment, direction):
    labels = random_labels()
    target, image = segment(series(direction), labels)
    volume = highdicom.seg.segread(target).get_volume(combine_segments=True)
    # Each voxel's label at its place in the patient, whatever order the frames are stored in.
    places = np.argwhere(volume.array >= 0)
    in_patient = places @ volume.affine[:3, :3].T + volume.affine[:3, 3]
    back = np.linalg.inv(np.diag([-1, -1, 1, 1]) @ image.affine)
    voxels = in_patient @ back[:3, :3].T + back[:3, 3]
    np.testing.assert_allclose(voxels, voxels.round(), atol=1e-4)
    np.testing.assert_array_equal(volume.array[tuple(places.T)], labels[tuple(voxels.round().astype(int).T)])
    assert volume.array.size == labels.size


TILT = np.deg2rad(20)
TILTED = np.array([[1, 0, 0], [0, np.cos(TILT), 0], [0, np.sin(TILT), 1]])


# All slices, one alone, or every other one, whose distance is not that of the image; or no label at all.
@pytest.mark.parametrize(
    ("direction", "slices"),
    [
        (OBLIQUE, slice(None)),
        (TILTED, slice(None)),
        (AXES["sagittal"], slice(3, 4)),
        (TILTED, slice(3, 4)),
        (OBLIQUE, slice(0, None, 2)),
        (AXES["axial"], slice(0, 0)),
    ],
    ids=str,
)
def test_what_was_written_is_read_back_as_a_mask(series, segment, direction, slices):
    labels = np.zeros((7, 6, 5), np.uint8)
    labels[..., slices] = random_labels()[..., slices]
    target, image = segment(series(direction), labels)
    np.testing.assert_array_equal(read_label(target, labels=LABELS, image=image).array[0], labels)
    # At another site the labels may have other numbers.
    turned = read_label(target, labels={1: "lesion", 2: "organ"}, image=image)
    np.testing.assert_array_equal(turned.array[0], np.choose(labels, [0, 2, 1]))


@pytest.mark.parametrize("slices", [[4, 3, 2, 1, 0], [0, 2, 4, 1, 3]])
def test_a_segmentation_of_frames_in_any_order_lies_on_them(write_frames, segment, slices):
    labels = random_labels()
    # The image is its own label map, so that each voxel of both can be compared.
    folder = whole(write_frames(labels.astype(np.int16), slices))
    target, _ = segment(folder, read_image(folder).array[0].astype(np.uint8))
    written, heights = pydicom.dcmread(target), []
    for frame, pixels in zip(written.PerFrameFunctionalGroupsSequence, written.pixel_array, strict=True):
        height = frame.PlanePositionSequence[0].ImagePositionPatient[2]
        number = frame.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        (source,) = frame.DerivationImageSequence[0].SourceImageSequence
        z = slices[source.ReferencedFrameNumber - 1]
        np.testing.assert_array_equal(pixels, labels[:, :, z].T == number)
        assert height == 30 + 2 * z
        heights.append(height)
    assert len({*heights}) == 5 and len(heights) == 10


def test_a_segmentation_names_patient_labels_and_program(series, segment):
    folder = series()
    target, _ = segment(folder, random_labels(), said="model of north (0.70); axes")
    written, source = pydicom.dcmread(target), pydicom.dcmread(folder / "99.dcm")
    for key in ("PatientName", "PatientID", "StudyInstanceUID", "FrameOfReferenceUID"):
        assert getattr(written, key) == getattr(source, key)
    assert written.SeriesInstanceUID != source.SeriesInstanceUID and written.Modality == "SEG"
    assert [segment_item.SegmentLabel for segment_item in written.SegmentSequence] == ["organ", "lesion"]
    assert (written.Manufacturer, written.SegmentSequence[0].SegmentAlgorithmType) == ("SiloFL", "AUTOMATIC")
    assert written.SegmentSequence[0].SegmentationAlgorithmIdentificationSequence[0].AlgorithmVersion == "abc"
    # A viewer shows the segments, not prediction.json.
    assert written.ContentDescription == "Research only, no medical device"
    assert written.SeriesDescription.startswith("Research only, SiloFL ")
    for segment_item in written.SegmentSequence:
        assert segment_item.SegmentDescription == "Research only: model of north (0.70); axes"


@pytest.mark.parametrize(
    ("letters", "name"),
    [
        (None, "Doe^Jane"),
        (["", "ISO 2022 IR 87"], "Yamada^Tarou=\u5c71\u7530^\u592a\u90ce"),
    ],
)
def test_labels_have_their_names_whatever_letters_the_series_can_hold(series, segment, letters, name):
    labels, names, folder = random_labels(), {1: "L\u00e4sion", 2: "\u80bf\u7624"}, series()

    def rename(header):
        header.SpecificCharacterSet, header.PatientName = letters, name

    change_headers(folder, rename)
    target, image = segment(folder, labels, names, said="model of Z\u00fcrich")
    written = pydicom.dcmread(target)
    assert [item.SegmentLabel for item in written.SegmentSequence] == list(names.values())
    assert written.SegmentSequence[0].SegmentDescription == "Research only: model of Z\u00fcrich"
    assert str(written.PatientName) == name
    np.testing.assert_array_equal(read_label(target, labels=names, image=image).array[0], labels)


@pytest.mark.parametrize("key", ["ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_what_places_the_slices_is_named_where_it_is_missing(series, segment, key, is_empty):
    folder = series()
    affine = read_image(folder).affine
    change_headers(folder, lambda header: setattr(header, key, None) if is_empty else delattr(header, key))
    with pytest.raises(DataError, match=f"no DICOM segmentation, because {key} is missing; take"):
        segment(folder, random_labels(), affine=affine)


def test_a_patients_odd_value_is_named_and_not_shown(series, segment):
    folder = series()
    odd = pydicom.DataElement("PatientBirthDate", "DA", "1970-05-01", validation_mode=0)
    change_headers(folder, lambda header: header.add(odd))
    with pytest.raises(DataError, match="highdicom says: Unable to convert PatientBirthDate to 'DA' object") as caught:
        segment(folder, random_labels())
    assert "1970-05-01" not in str(caught.value)


def test_the_package_and_the_labels_are_checked_before_any_work(make_study, monkeypatch, segment, series):
    names = {1: "a\\b", 2: "x" * 65}
    written = pydicom.dcmread(segment(series(), random_labels(), names)[0])
    assert [item.SegmentLabel for item in written.SegmentSequence] == ["a/b", "x" * 64]
    check_can_write(make_study(labels={1: "x" * 64}))
    for label in ("x" * 65, "left\\right", "lesion "):
        with pytest.raises(ConfigError, match="has more than 64 letters, a backslash .* NIfTI label map"):
            check_can_write(make_study(labels={1: "organ", 2: label}))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="the package highdicom is missing, .*; pip install"):
        check_can_write(make_study())


def test_uids_follow_from_source_model_and_options(series, make_study, tmp_path):
    folder, labels, study = series(), random_labels(), make_study(labels=LABELS)
    affine = read_image(folder).affine

    def uids(fingerprint="abc", **options):
        headers = [*dicom_headers(folder)]
        write_dicom_seg(tmp_path / "seg.dcm", headers, labels, affine, study, fingerprint, "", options=options)
        written = pydicom.dcmread(tmp_path / "seg.dcm")
        return written.SeriesInstanceUID, written.SOPInstanceUID

    same = uids(threshold=0.5)
    assert uids(threshold=0.5) == same
    different = [uids(), uids(threshold=0.6), uids("abd", threshold=0.5)]
    change_headers(folder, lambda header: setattr(header, "SOPInstanceUID", generate_uid()))
    every = [uid for pair in (same, *different, uids(threshold=0.5)) for uid in pair]
    assert len({*every}) == len(every) == 10 and all(uid.startswith("2.25.") and len(uid) <= 64 for uid in every)


def test_a_segment_has_its_labels_code_of_the_study(series, segment, tmp_path, make_study):
    study, folder = make_study(labels=LABELS), series()
    codes = {"lesion": {"code": "52988006", "meaning": "Lesion", "is_abnormal": True}}
    study = study.model_validate(study.model_dump() | {"codes": codes})
    target = tmp_path / "coded.dcm"
    write_dicom_seg(target, [*dicom_headers(folder)], random_labels(), read_image(folder).affine, study, "abc", "")
    organ, lesion = pydicom.dcmread(target).SegmentSequence
    code = lesion.SegmentedPropertyTypeCodeSequence[0]
    assert (code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning) == ("52988006", "SCT", "Lesion")
    category = lesion.SegmentedPropertyCategoryCodeSequence[0].CodeMeaning
    assert category == "Morphologically Abnormal Structure"
    assert organ.SegmentedPropertyTypeCodeSequence[0].CodeMeaning == "Tissue"
