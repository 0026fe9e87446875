import shutil
import subprocess
import sys

import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK

from silofl.reading.header import Header, read_header
from silofl.reading.images import read_image, read_label
from tests.conftest import group
from tests.data.conftest import assert_refused, edit

VOLUME = np.arange(60 * 5, dtype=np.int16).reshape(10, 6, 5)


@pytest.fixture
def series(write_dicom, tmp_path):
    return write_dicom(tmp_path / "slices", VOLUME)


@pytest.fixture
def frames(write_frames):
    """Write the volume's frames, of some slices in their order, in one file; returns its folder and it."""

    def write(*slices, **options):
        folder = write_frames(VOLUME, slices or range(5), **options)
        return folder, folder / "frames.dcm"

    return write


@pytest.fixture
def write_itk(tmp_path):
    """Write the volume by SimpleITK, with one change to the text of its header."""

    def write(name, old=b"", new=b""):
        path = tmp_path / name
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOLUME.transpose(2, 1, 0)), path)
        path.write_bytes(path.read_bytes().replace(old, new, 1))
        return path

    return write


@pytest.mark.parametrize(("code", "wanted"), [("CR", "DX"), ("OT", None)])
def test_computed_radiography_counts_as_radiography(series, code, wanted):
    edit(series, Modality=code)
    assert read_header(series).modality == read_header(series / "99.dcm").modality == wanted


@pytest.mark.parametrize("has_preamble", [True, False])
def test_a_series_states_modality_spacing_axes_and_place(series, has_preamble):
    (series / "0_readme.txt").write_text("from an old archive")
    for file in [] if has_preamble else series.glob("*.dcm"):
        pydicom.dcmwrite(file, pydicom.Dataset(pydicom.dcmread(file)), implicit_vr=True, little_endian=True)
        assert file.read_bytes()[128:132] != b"DICM"
    assert read_header(series) == Header("CT", True, True, True)
    assert read_header(series / "99.dcm") == Header("CT", False, True, True)
    np.testing.assert_array_equal(read_image(series).array, VOLUME[None])


# In their own order, in that of their acquisition, and beginning with the last one.
@pytest.mark.parametrize("slices", [[0, 1, 2, 3, 4], [0, 2, 4, 1, 3], [4, 2, 0, 3, 1]])
def test_frames_in_any_order_are_one_volume(write_dicom, frames, tmp_path, slices):
    wanted = read_image(write_dicom(tmp_path / "wanted", VOLUME))
    for path in frames(*slices):
        found = read_image(path)
        np.testing.assert_array_equal(found.array, wanted.array)
        np.testing.assert_allclose(found.affine, wanted.affine)
        assert found.array.strides[1:] == wanted.array.strides[1:] and read_header(path) == Header(
            "MR", True, True, True
        )
        np.testing.assert_array_equal(read_label(path).array, wanted.array)


def number_by_b_value(header):
    """Number three places of one b-value and two of another, at even distances together too."""
    indices = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    for index, frame in zip(indices, header.PerFrameFunctionalGroupsSequence, strict=True):
        frame.update(group("FrameContentSequence", DimensionIndexValues=list(index)))


@pytest.mark.parametrize(
    ("slices", "change", "sentence"),
    [
        ([0, 2, 4, 1, 3], number_by_b_value, "has slices .* mm apart .*each time point, echo or"),
        (
            [0, 2, 1],
            lambda header: header.PerFrameFunctionalGroupsSequence.pop(),
            "describes 2 of its 3 frames",
        ),
        *(
            (slices, lambda header: None, "(has slices .* mm apart|holds two images at one place)")
            for slices in ([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2], [0, 2, 4, 1], [0, 1, 3, 4])
        ),
    ],
)
def test_frames_that_are_no_one_volume_are_refused(frames, slices, change, sentence):
    folder, file = frames(*slices)
    edit(file, change)
    for name in ("README.txt", ".DS_Store"):
        (folder / name).write_text("from a viewer's export")
    for path in (folder, file):
        assert_refused(sentence, path)


def test_frames_without_the_size_of_their_voxels_state_none(frames):
    assert not read_header(frames(has_spacing=False)[0]).has_spacing


def test_frames_without_places_lie_apart_as_stated(frames):
    def turn(header):
        header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = (
            pydicom.uid.MultiFrameGrayscaleWordSecondaryCaptureImageStorage
        )
        # Columns run to the back, rows to the feet.
        header.ImagePositionPatient, header.ImageOrientationPatient = [10, 20, 30], [0, 1, 0, 0, 0, -1]
        header.PixelSpacing, header.SpacingBetweenSlices = [0.75, 0.5], 2

    path = edit(frames()[1], turn, ["SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"])
    # 2 mm from one to the next, to the right.
    np.testing.assert_allclose(read_image(path).affine[:3], [[0, 0, 2, -10], [-0.5, 0, 0, -20], [0, -0.75, 0, 30]])
    assert read_header(path) == Header("MR", False, True, True)


def test_frames_of_a_tilted_gantry_lie_as_stated(frames):
    for path in frames(aside=1):
        np.testing.assert_allclose(read_image(path).affine[:3, 2], [0, -1, 2])


def test_two_files_of_frames_in_one_series_are_refused(frames):
    folder, path = frames()
    shutil.copy(path, folder / "others.dcm")
    edit(path, SOPInstanceUID=pydicom.uid.generate_uid())
    assert_refused("or several in one file; .*, or name a file of many frames itself", folder)


def turned(*rows):
    """Return a change of a NIfTI by which its two grids run otherwise."""

    def change(image):
        image.set_sform(np.diag([2, 2, 2, 1]), code=2)
        image.set_qform(nibabel.affines.from_matvec(2 * np.array(rows)), code=1)

    return change


def break_quaternion(image):
    image.set_qform(image.affine, code=1)
    image.header["quatern_b"] = image.header["quatern_c"] = 0.8


# What is changed of a NIfTI, and whether it states sizes, axes and place.
NIFTIS = [
    # Millimetres, unknown, micrometres, and a code that stands for no unit.
    *(
        (lambda image, unit=unit: image.header.__setitem__("xyzt_units", unit), (has_spacing, True, True))
        for unit, has_spacing in ((2, True), (0, True), (3, True), (5, False))
    ),
    # Of a second size of its voxels.
    *(
        (lambda image, size=size: image.header["pixdim"].__setitem__([1, 2, 3], size), (has_spacing, True, True))
        for size, has_spacing in ((2, True), (2.01, True), (2.1, False), (0.002, False))
    ),
    (turned((1, 0, 0), (0, 1, 0), (0, 0, 1)), (True, True, True)),
    (turned((-1, 0, 0), (0, 1, 0), (0, 0, 1)), (True, False, True)),
    (turned((-1, 0, 0), (0, -1, 0), (0, 0, 1)), (True, False, True)),
    (turned((0, 1, 0), (0, 0, 1), (1, 0, 0)), (True, False, True)),
    # By 20 degrees, as a scan that was turned to an atlas, and by 60.
    (turned((0.94, -0.342, 0), (0.342, 0.94, 0), (0, 0, 1)), (True, True, True)),
    (turned((0.5, -0.866, 0), (0.866, 0.5, 0), (0, 0, 1)), (True, False, True)),
    (break_quaternion, (True, True, True)),
]


@pytest.mark.parametrize(("change", "states"), NIFTIS)
def test_nifti_states_what_unit_sizes_and_grids_say(tmp_path, change, states):
    image = nibabel.Nifti1Image(VOLUME, np.diag([2.0, 2, 2, 1]))
    change(image)
    nibabel.save(image, tmp_path / "a.nii.gz")
    assert read_header(tmp_path / "a.nii.gz") == Header(None, *states)


@pytest.mark.parametrize(("sizes", "has_spacing"), [((2, 2, 3), True), ((1, 1, 1), False)])
def test_nifti_without_a_grid_may_state_spacing(tmp_path, sizes, has_spacing):
    image = nibabel.Nifti1Image(VOLUME, None)
    image.header.set_zooms(sizes)
    nibabel.save(image, tmp_path / "scan.nii")
    assert read_header(tmp_path / "scan.nii") == Header(None, has_spacing, False)


@pytest.mark.parametrize(
    ("name", "fields"),
    [("a.mha", (b"ElementSpacing", b"TransformMatrix", b"Offset")), ("a.nrrd", (b"space directions", b"space"))],
)
def test_mha_and_nrrd_state_what_stands_in_their_text(write_itk, name, fields):
    path = write_itk(name)
    assert read_header(path) == Header(None, True, True, True)
    path.write_bytes(b"\n".join(line for line in path.read_bytes().split(b"\n") if not line.startswith(fields)))
    assert read_header(path) == Header()


@pytest.mark.parametrize(
    ("space", "has_orientation"),
    [(b"RAS", True), (b"left-anterior-superior", True), (b"3D-right-handed", False), (b"scanner-xyz", False)],
)
def test_nrrd_states_its_axes_in_a_space_of_the_body(write_itk, space, has_orientation):
    path = write_itk("a.nrrd", b"left-posterior-superior", space)
    assert read_image(path).affine is not None
    assert read_header(path) == Header(None, True, has_orientation, True)


@pytest.mark.filterwarnings("ignore")
def test_odd_elements_are_read_without_the_librarys_warning(series):
    # DICOM allows 64 letters.
    edit(series, SeriesInstanceUID="1.2." + "3" * 62)
    script = "import sys, pathlib; from silofl.reading.header import *; "
    script += "list_uids([*dicom_headers(pathlib.Path(sys.argv[1]))])"
    found = subprocess.run([sys.executable, "-c", script, str(series)], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
