from functools import partial

import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK
from PIL import Image as Picture

from silofl.data.header import Header, check_affine, is_dicom, read_header
from silofl.data.images import read_image, read_label
from silofl.errors import DataError
from tests.conftest import group

VOLUME = np.arange(60 * 5, dtype=np.int16).reshape(10, 6, 5)


@pytest.fixture
def write_frames(write_frames):
    """Write the volume's frames, of some slices in their order, in one file in a folder."""
    return partial(write_frames, VOLUME)


def test_a_dicom_series_states_modality_spacing_and_axes(write_dicom, tmp_path):
    assert read_header(write_dicom(tmp_path / "series", VOLUME)) == Header("CT", True, True)


def test_computed_radiography_counts_as_radiography_and_an_unknown_code_as_none(write_dicom, tmp_path):
    for code, wanted in (("CR", "DX"), ("OT", None)):
        folder = write_dicom(tmp_path / code, VOLUME[..., :1])
        data = pydicom.dcmread(folder / "99.dcm")
        data.Modality = code
        data.save_as(folder / "99.dcm")
        assert read_header(folder).modality == read_header(folder / "99.dcm").modality == wanted


def test_other_files_beside_a_series_are_passed_over(write_dicom, tmp_path):
    folder = write_dicom(tmp_path / "series", VOLUME[..., :1])
    (folder / "0_readme.txt").write_text("one slice")
    assert read_header(folder) == Header("CT", False, True)


def test_files_without_a_preamble_state_the_same(write_dicom, tmp_path):
    folder = write_dicom(tmp_path / "series", VOLUME)
    (folder / "notes").write_text("from an old archive")
    for file in folder.glob("*.dcm"):
        data = pydicom.dcmread(file)
        pydicom.dcmwrite(file, pydicom.Dataset(data), implicit_vr=True, little_endian=True)
        assert file.read_bytes()[128:132] != b"DICM"
    assert read_header(folder) == Header("CT", True, True)
    assert read_header(folder / "99.dcm") == Header("CT", False, True)
    np.testing.assert_array_equal(read_image(folder).array, VOLUME[None])


# In their own order, in that of their acquisition, and beginning with the last one.
@pytest.mark.parametrize("slices", [[0, 1, 2, 3, 4], [0, 2, 4, 1, 3], [4, 2, 0, 3, 1]])
def test_frames_in_any_order_are_the_volume_that_their_slices_are(write_dicom, write_frames, tmp_path, slices):
    wanted, folder = read_image(write_dicom(tmp_path / "wanted", VOLUME)), write_frames(slices)
    for path in (folder, folder / "frames.dcm"):
        found = read_image(path)
        np.testing.assert_array_equal(found.array, wanted.array)
        np.testing.assert_allclose(found.affine, wanted.affine)
        assert found.array.strides[1:] == wanted.array.strides[1:] and read_header(path) == Header("MR", True, True)
    np.testing.assert_array_equal(read_label(folder).array, wanted.array)


def test_frames_of_two_b_values_between_one_another_are_no_one_volume(write_frames):
    # Three places of the one and two of the other, at even distances together too.
    folder = write_frames([0, 2, 4, 1, 3])
    header = pydicom.dcmread(folder / "frames.dcm")
    indices = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    for index, frame in zip(indices, header.PerFrameFunctionalGroupsSequence, strict=True):
        frame.update(group("FrameContentSequence", DimensionIndexValues=list(index)))
    header.save_as(folder / "frames.dcm")
    for path in (folder, folder / "frames.dcm"):
        with pytest.raises(DataError, match="must have slices at even distances on one line.*each time point, echo or"):
            read_image(path)


def test_a_file_that_describes_other_frames_than_it_has_is_refused(write_frames):
    folder = write_frames([0, 2, 1])
    header = pydicom.dcmread(folder / "frames.dcm")
    header.PerFrameFunctionalGroupsSequence = header.PerFrameFunctionalGroupsSequence[:2]
    header.save_as(folder / "frames.dcm")
    with pytest.raises(DataError, match="series must describe each of its 3 frames, not 2"):
        read_image(folder)


def test_frames_without_the_size_of_their_voxels_state_none(write_frames):
    assert not read_header(write_frames(has_spacing=False)).has_spacing


def test_frames_without_places_of_their_own_do_not_state_how_far_they_are_apart(write_frames):
    folder = write_frames()
    header = pydicom.dcmread(folder / "frames.dcm")
    del header.SharedFunctionalGroupsSequence, header.PerFrameFunctionalGroupsSequence
    header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = (
        pydicom.uid.MultiFrameGrayscaleWordSecondaryCaptureImageStorage
    )
    # Columns run to the back, rows to the feet.
    header.ImagePositionPatient, header.ImageOrientationPatient = [10, 20, 30], [0, 1, 0, 0, 0, -1]
    header.PixelSpacing, header.SpacingBetweenSlices = [0.75, 0.5], 2
    header.save_as(folder / "frames.dcm")
    # 1 mm from one to the next, to the right, as nobody says how far.
    np.testing.assert_allclose(read_image(folder).affine[:3], [[0, 0, 1, -10], [-0.5, 0, 0, -20], [0, -0.75, 0, 30]])
    assert read_header(folder) == Header("MR", False, True)


@pytest.mark.parametrize("slices", [[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2], [0, 2, 4, 1], [0, 1, 3, 4]])
def test_frames_that_are_no_one_volume_are_refused(write_frames, slices):
    folder = write_frames(slices)
    for path in (folder, folder / "frames.dcm"):
        with pytest.raises(DataError, match="must (have slices at even distances on one line|hold one image at each)"):
            read_image(path)


def test_frames_that_a_tilted_gantry_moved_aside_lie_where_they_say(write_frames):
    for path in (folder := write_frames(aside=1), folder / "frames.dcm"):
        np.testing.assert_allclose(read_image(path).affine[:3, 2], [0, -1, 2])


def test_frames_of_several_slopes_are_refused(write_frames):
    folder = write_frames()
    header = pydicom.dcmread(folder / "frames.dcm")
    for slope, frame in enumerate(header.PerFrameFunctionalGroupsSequence, start=1):
        frame.update(group("PixelValueTransformationSequence", RescaleSlope=slope, RescaleIntercept=0))
    header.save_as(folder / "frames.dcm")
    with pytest.raises(DataError, match="series must have one rescale slope and intercept for all frames"):
        read_image(folder)


def test_two_files_of_frames_in_one_series_are_refused_as_such(write_frames):
    folder = write_frames()
    header = pydicom.dcmread(folder / "frames.dcm")
    header.SOPInstanceUID = header.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    header.save_as(folder / "others.dcm")
    sentence = "series must hold one file with many frames, or a file for each slice, not 2 files of which some have"
    with pytest.raises(DataError, match=sentence):
        read_image(folder)
    assert read_image(folder / "others.dcm").array.shape == (1, 10, 6, 5)


def test_what_lies_beside_frames_changes_nothing(write_frames):
    folder = write_frames([0, 1, 2, 0, 1, 2])
    for name in ("README.txt", "LICENSE.txt", ".DS_Store"):
        (folder / name).write_text("from a viewer's export")
    with pytest.raises(DataError, match="series must hold one image at each place, not two"):
        read_image(folder)


def test_frames_from_head_to_foot_are_taken(write_frames):
    assert read_image(write_frames([4, 3, 2, 1, 0])).array.shape == (1, 10, 6, 5)


@pytest.mark.parametrize(
    ("affine", "unit", "wanted"),
    [
        (np.diag([2, 2, 3, 1]), "mm", Header(None, True, True)),
        (np.diag([2, 2, 3, 1]), "unknown", Header(None, True, True)),
        (np.diag([2, 2, 3, 1]), "micron", Header(None, True, True)),
        (np.diag([2, 2, 3, 1]), 5, Header(None, False, True)),
        (None, "mm", Header(None, False, False)),
    ],
)
def test_nifti_states_what_its_codes_and_its_unit_say(tmp_path, affine, unit, wanted):
    image = nibabel.Nifti1Image(VOLUME, affine)
    # 5 stands for no unit.
    image.header["xyzt_units"] = unit if unit == 5 else nibabel.nifti1.unit_codes.code[unit]
    nibabel.save(image, tmp_path / "scan.nii.gz")
    assert read_header(tmp_path / "scan.nii.gz") == wanted


@pytest.mark.parametrize(("size", "has_spacing"), [(2, True), (2.01, True), (2.1, False), (0.002, False)])
def test_nifti_with_two_sizes_of_its_voxels_states_none(tmp_path, size, has_spacing):
    image = nibabel.Nifti1Image(VOLUME, np.diag([2.0, 2, 2, 1]))
    image.header["pixdim"][1:4] = size
    nibabel.save(image, tmp_path / "a.nii")
    assert read_header(tmp_path / "a.nii") == Header(None, has_spacing, True)


@pytest.mark.parametrize(
    ("turn", "has_orientation"),
    [
        (np.eye(3), True),
        (np.diag([-1, 1, 1]), False),
        (np.diag([-1, -1, 1]), False),
        (np.eye(3)[[1, 2, 0]], False),
        # By 20 degrees, as a scan that was turned to an atlas, and by 60.
        ([[0.94, -0.342, 0], [0.342, 0.94, 0], [0, 0, 1]], True),
        ([[0.5, -0.866, 0], [0.866, 0.5, 0], [0, 0, 1]], False),
    ],
)
def test_nifti_whose_two_grids_run_otherwise_does_not_state_how_its_axes_lie(tmp_path, turn, has_orientation):
    image = nibabel.Nifti1Image(VOLUME, None)
    image.set_sform(np.diag([2, 2, 2, 1]), code=2)
    image.set_qform(nibabel.affines.from_matvec(2 * np.asarray(turn)), code=1)
    nibabel.save(image, tmp_path / "a.nii")
    assert read_header(tmp_path / "a.nii") == Header(None, True, has_orientation)


def test_nifti_with_a_quaternion_that_is_none_has_one_grid(tmp_path):
    image = nibabel.Nifti1Image(VOLUME, np.diag([2.0, 2, 2, 1]))
    image.set_qform(image.affine, code=1)
    image.header["quatern_b"] = image.header["quatern_c"] = 0.8
    nibabel.save(image, tmp_path / "a.nii")
    assert read_header(tmp_path / "a.nii") == Header(None, True, True)


def test_nifti_without_a_grid_may_give_the_size_of_its_voxels(tmp_path):
    image = nibabel.Nifti1Image(VOLUME, None)
    image.header.set_zooms((2, 2, 3))
    nibabel.save(image, tmp_path / "scan.nii")
    assert read_header(tmp_path / "scan.nii") == Header(None, True, False)


@pytest.mark.parametrize(
    ("name", "fields"),
    [("a.mha", (b"ElementSpacing", b"TransformMatrix")), ("a.nrrd", (b"space directions", b"space"))],
)
def test_mha_and_nrrd_state_what_stands_in_their_text(tmp_path, name, fields):
    path = tmp_path / name
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOLUME.transpose(2, 1, 0)), path)
    assert read_header(path) == Header(None, True, True)
    for field in fields:
        lines = [line for line in path.read_bytes().split(b"\n") if not line.startswith(field)]
        path.write_bytes(b"\n".join(lines))
    assert read_header(path) == Header()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a.mha", b"ElementSpacing", b"ElementSize"),
        ("a.mha", b"TransformMatrix", b"Rotation"),
        ("a.mha", b"TransformMatrix", b"Orientation"),
        ("a.nrrd", b"space directions", b"Space Directions"),
        ("a.nrrd", b"encoding", b'space units: "mm" "mm" "mm"\nencoding'),
    ],
)
def test_what_the_reader_knows_by_another_word_is_stated_too(tmp_path, name, old, new):
    path = tmp_path / name
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOLUME.transpose(2, 1, 0)), path)
    wanted = read_image(path).affine
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    np.testing.assert_array_equal(read_image(path).affine, wanted)
    assert read_header(path) == Header(None, True, True)


@pytest.mark.parametrize(
    ("name", "units", "has_spacing"),
    [
        ("a.nrrd", b'space units: "um" "um" "um"', True),
        ("a.nrrd", b'Space Units: "mm" "mm" "cm"', True),
        ("a.nrrd", b'units: "m" "m" "m"', True),
        ("a.nrrd", b'space units: "furlong" "mm" "mm"', False),
        ("a.mha", b"DistanceUnits = MM", True),
        ("a.mha", b"DistanceUnits = um", True),
        ("a.mha", b"DistanceUnits = inch", False),
    ],
)
def test_a_unit_that_nobody_knows_does_not_state_the_size_of_the_voxels(tmp_path, name, units, has_spacing):
    path = tmp_path / name
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOLUME.transpose(2, 1, 0)), path)
    before = b"encoding" if name.endswith(".nrrd") else b"ElementSpacing"
    path.write_bytes(path.read_bytes().replace(before, units + b"\n" + before, 1))
    assert read_header(path) == Header(None, has_spacing, True)


@pytest.mark.parametrize(
    ("space", "has_orientation"),
    [("RAS", True), ("left-anterior-superior", True), ("3D-right-handed", False), ("scanner-xyz", False)],
)
def test_nrrd_states_how_its_axes_lie_only_in_a_space_of_the_body(tmp_path, space, has_orientation):
    path = tmp_path / "a.nrrd"
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOLUME.transpose(2, 1, 0)), path)
    path.write_bytes(path.read_bytes().replace(b"left-posterior-superior", space.encode(), 1))
    assert read_image(path).affine is not None
    assert read_header(path) == Header(None, True, has_orientation)


def test_a_picture_states_nothing(tmp_path):
    Picture.new("L", (4, 4)).save(tmp_path / "a.png")
    assert read_header(tmp_path / "a.png") == Header()


def test_a_sheared_grid_is_one_and_parallel_axes_are_none():
    check_affine(np.array([[1, 0, 0, 0], [0, 1, 0.5, 0], [0, 0, 3, 0], [0, 0, 0, 1.0]]), "scan")
    with pytest.raises(DataError, match="scan must have axes in three directions"):
        check_affine(np.array([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1e-6, 0], [0, 0, 0, 1.0]]), "scan")


def test_a_folder_and_a_file_by_its_ending_are_dicom(tmp_path):
    assert is_dicom(tmp_path) and is_dicom(tmp_path / "a.DCM") and not is_dicom(tmp_path / "a.nii.gz")
