import shutil

import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK
from PIL import Image

from silofl.base.errors import DataError
from silofl.reading import formats
from silofl.reading.images import read_image, read_label
from tests.data.conftest import assert_refused, edit

VOLUME = np.random.default_rng(0).integers(-900, 900, (5, 6, 7), dtype=np.int16)


@pytest.fixture
def series(write_dicom, tmp_path):
    return write_dicom(tmp_path / "series", VOLUME)


@pytest.fixture
def slice_file(write_dicom, tmp_path):
    """A DICOM file with the first slice of the volume."""
    return write_dicom(tmp_path / "slice", VOLUME[..., :1]) / "99.dcm"


@pytest.fixture
def write_file(slice_file):
    """Write a picture, an npz file, a DICOM file or a volume, as the path's ending says; some can be packed."""

    def write(path, is_packed=False):
        ramp = np.add.outer(np.arange(60), np.arange(40)).astype(np.uint8)
        if path.suffix in (".png", ".jpg", ".tif"):
            Image.fromarray(ramp).save(path, **{"compression": "tiff_adobe_deflate"} if is_packed else {})
        elif path.suffix == ".npz":
            np.savez(path, images=ramp[None])
        elif path.suffix == ".dcm":
            slice_file.rename(path)
        else:
            SimpleITK.WriteImage(SimpleITK.GetImageFromArray(ramp[None]), path, useCompression=is_packed)
        return path

    return write


def test_a_volume_file_of_one_plane_has_one_slice(tmp_path):
    nibabel.save(nibabel.Nifti1Image(VOLUME[..., 0], np.eye(4)), tmp_path / "v.nii")
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOLUME[..., 0].T), tmp_path / "v.mha")
    for name in ("v.nii", "v.mha"):
        np.testing.assert_array_equal(read_image(tmp_path / name).array, VOLUME[None, :, :, :1])


@pytest.mark.parametrize("shape", [(5, 6, 7, 2), (5, 6, 7, 1, 2)])
def test_the_last_axis_of_a_nifti_holds_contrasts(tmp_path, shape):
    stored = np.stack([VOLUME, VOLUME + 1], axis=3)
    nibabel.save(nibabel.Nifti1Image(stored.reshape(shape), np.eye(4)), tmp_path / "v.nii")
    image = read_image(tmp_path / "v.nii")
    assert image.has_contrasts and image.affine.shape == (4, 4)
    np.testing.assert_array_equal(image.array, [VOLUME, VOLUME + 1])


@pytest.mark.parametrize(
    ("ending", "count", "dtype", "is_colour"),
    [
        ("mha", 3, np.uint8, True),
        ("mha", 2, np.uint8, False),
        ("nrrd", 3, np.int16, False),
        ("mha", 4, np.int16, False),
        ("mha", 4, np.float32, False),
    ],
)
def test_channels_that_are_no_colours_are_contrasts(tmp_path, ending, count, dtype, is_colour):
    voxels = np.random.default_rng(0).integers(0, 255, (7, 6, 5, count)).astype(dtype)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels, isVector=True), tmp_path / f"v.{ending}")
    image = read_image(tmp_path / f"v.{ending}")
    np.testing.assert_array_equal(image.array, voxels.transpose(3, 2, 1, 0))
    assert image.has_contrasts != is_colour


def test_channels_with_time_points_are_refused(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.zeros((5, 6, 7, 2, 3), np.int16), np.eye(4)), tmp_path / "v.nii")
    assert_refused("v.nii holds 5 axes of .*; save it with 2 or 3 axes", tmp_path / "v.nii")
    image = SimpleITK.GetImageFromArray(np.zeros((2, 3, 4, 5), np.uint8), isVector=False)
    SimpleITK.WriteImage(image, tmp_path / "v.nrrd")
    assert_refused("v.nrrd has 4 axes", tmp_path / "v.nrrd")


def test_a_dicom_series_is_ordered_by_position(series):
    image = read_image(series)
    np.testing.assert_array_equal(image.array, VOLUME[None])
    # DICOM counts to the left and to the back, NIfTI to the right and to the front.
    np.testing.assert_allclose(image.affine, [[-0.5, 0, 0, -10], [0, -0.75, 0, -20], [0, 0, 2, 30], [0, 0, 0, 1]])


def cut_class(whole):
    """End in the middle of the name of the class."""
    return whole[: whole.index(b"1.2.840.10008.5.1.4") + 8]


def copy_slice(series):
    shutil.copy(series / "98.dcm", series / "98b.dcm")
    edit(series / "98b.dcm", SeriesDescription="sent again")


def hide_two(series):
    """Move the last two into a folder, so that what stays is even and reads well."""
    (series / "more").mkdir()
    for name in ("99.dcm", "98.dcm"):
        (series / name).rename(series / "more" / name)


def damage(name, change):
    return lambda series: (series / name).write_bytes(change((series / name).read_bytes()))


def add_table(series):
    table = pydicom.Dataset()
    table.add_new("LUTDescriptor", "SS", [3, 0, 16])
    table.add_new("LUTData", "US", [0, 10, 40])
    table.ModalityLUTType = "US"
    edit(series, ModalityLUTSequence=[table])


REFUSED = {
    "a segmentation": (lambda series: edit(series, Modality="SEG"), "is a DICOM segmentation"),
    "a table of intensities": (
        lambda series: edit(series, Modality="CR") and add_table(series),
        "has a table of intensities",
    ),
    "slices within": (hide_two, "has files of its DICOM series in its folder more too"),
    "two series": (
        lambda series: edit(series / "99.dcm", SeriesInstanceUID="1.2.3"),
        "holds 2 DICOM series .6 files as 93.dcm. .1 files as 99",
    ),
    "two versions": (
        copy_slice,
        "holds two images at one place, as (98.dcm and 98b|98b.dcm and 98).dcm; remove",
    ),
    "two patients": (
        lambda series: edit(edit(series, PatientID="Meier") / "99.dcm", PatientID="Doe"),
        "holds slices of several patients or kinds",
    ),
    **{
        f"pictures {more}": (
            lambda series, more=more: edit(series, drop=["ImagePositionPatient"], **more),
            "holds 7 pictures without a place .*; save or name each",
        )
        for more in ({}, {"SliceLocation": "2.5"}, {"ViewPosition": "PA"})
    },
    **{
        f"{name} {number}": (damage(name, change), "cannot be read as DICOM")
        for name in ("93.dcm", "95.dcm", "99.dcm")
        for number, change in enumerate((lambda whole: whole[:300], cut_class, lambda whole: b"junk"))
    },
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_series_that_is_no_one_volume_is_refused(series, change, sentence):
    change(series)
    assert_refused(f"^(9..dcm of )?series {sentence}", series)


def test_a_structure_set_is_refused_as_such(slice_file):
    edit(slice_file, drop=["PixelData", "Rows", "Columns"], Modality="RTSTRUCT")
    with pytest.raises(DataError, match="99.dcm is a DICOM structure set; save"):
        read_label(slice_file)


def test_the_table_of_an_angiogram_is_passed_over(series):
    add_table(edit(series, Modality="XA"))
    np.testing.assert_array_equal(read_image(series).array, VOLUME[None])


def test_a_refusal_names_no_source_of_a_library(tmp_path, monkeypatch):
    def fail(path, name):
        raise RuntimeError(
            "Exception thrown in SimpleITK ImageFileReader_Execute: /tmp/itkNrrd.cxx:302:\nITK ERROR: no axis"
        )

    monkeypatch.setattr(formats, "read_nifti", fail)
    with pytest.raises(DataError, match=r"x.nii is truncated or corrupt \(no axis\)"):
        formats.decode(tmp_path / "x.nii", "x.nii", None, is_label=False)


def test_another_series_in_a_folder_within_one_disturbs_nothing(series, write_dicom):
    (write_dicom(series / "more", VOLUME) / "notes.txt").write_text("no image")
    assert read_image(series).spatial_shape == VOLUME.shape


def test_a_folder_without_a_dicom_series_is_refused(slice_file, tmp_path):
    slice_file.rename(tmp_path / "other.txt")
    sentence = "slice holds 0 DICOM series; name"
    assert_refused(sentence, tmp_path / "slice")


def test_a_tilted_gantry_moves_each_slice_aside(tmp_path, write_dicom):
    # Rows and columns lie 20 degrees from upright, the table moves along the body: 3 mm a slice, 2 mm a row.
    tilt = np.deg2rad(20)
    direction = np.array([[1, 0, 0], [0, np.cos(tilt), 0], [0, np.sin(tilt), 1]])
    image = read_image(write_dicom(tmp_path / "series", VOLUME, direction, (1, 2, 3), (0, 0, 0)))
    np.testing.assert_array_equal(image.array, VOLUME[None])
    wanted = np.diag([-1, -1, 1]) @ direction * (1, 2, 3)
    np.testing.assert_allclose(image.affine[:3, :3], wanted, atol=1e-6)
    # A box's 6 mm3, less by the cosine of the tilt.
    assert np.linalg.det(image.affine[:3, :3]) == pytest.approx(6 * np.cos(tilt))


@pytest.mark.parametrize(
    ("changes", "factor"),
    [({"RescaleSlope": 300}, 300), ({"RescaleSlope": 0.0004}, 0.0004), ({"PixelRepresentation": 0}, 1)],
)
def test_each_slice_has_its_own_scale(tmp_path, write_dicom, changes, factor):
    volume = np.abs(VOLUME)
    folder = write_dicom(tmp_path / "series", volume)
    # By its name the last file is the first slice, which keeps 1.
    for file in sorted(folder.iterdir())[:-1]:
        edit(file, **changes)
    found = read_image(folder).array[0]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[..., 0], volume[..., 0])
    np.testing.assert_allclose(found[..., 1:], np.float64(volume[..., 1:]) * factor, rtol=1e-6)


def test_what_lies_beside_a_series_disturbs_nothing(series, slice_file):
    (series / "README.txt").write_text("exported by a viewer")
    (series / "._0.dcm").write_bytes(b"a file system's notes")
    report = pydicom.dcmread(edit(slice_file, drop=["PixelData", "Rows", "Columns"]))
    report.SOPClassUID = report.file_meta.MediaStorageSOPClassUID = pydicom.uid.BasicTextSRStorage
    report.save_as(series / "report.dcm")
    np.testing.assert_array_equal(read_image(series).array, VOLUME[None])


GREY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
COLOUR = np.stack([GREY, GREY + 1, GREY + 2], axis=-1)


@pytest.mark.parametrize(
    ("read", "arrays", "wanted"),
    [
        (read_image, {"images": GREY, "labels": GREY + 9}, GREY[1][None]),
        (read_label, {"images": GREY + 9, "labels": GREY}, GREY[1][None]),
        (read_image, {"images": COLOUR}, COLOUR[1].transpose(2, 0, 1)),
        (read_image, {"windows": GREY}, GREY[1][:, None]),
        (read_image, {"images": COLOUR, "windows": GREY}, COLOUR[1].transpose(2, 0, 1)),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_image_of_an_npz_file_is_read_by_index(tmp_path, save, read, arrays, wanted):
    save(tmp_path / "a.npz", **arrays)
    found = read(tmp_path / "a.npz", index=1)
    np.testing.assert_array_equal(found.array, wanted)
    assert found.is_window is ("images" not in arrays)


def test_an_npz_file_that_changed_is_read_again(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 2, 2), np.uint8))
    read_image(tmp_path / "a.npz", index=0)
    np.savez(tmp_path / "a.npz", images=np.ones((2, 2, 2), np.uint8))
    assert read_image(tmp_path / "a.npz", index=0).array.min() == 1


@pytest.mark.parametrize(
    ("arrays", "index", "sentence"),
    [
        ({"pictures": np.zeros((2, 3, 4))}, 0, "a.npz holds no array 'images'"),
        ({"images": np.zeros((2, 3, 4))}, 2, "a.npz holds 2 images, of which 'index' 2 is none"),
        ({"images": np.zeros((2, 3, 4))}, None, "a.npz holds 2 images, .* or save the picture to predict"),
        ({"images": np.zeros((2, 3, 4, 5))}, 0, r"a.npz holds images of shape .* to \(N, H, W\)"),
        ({"images": np.zeros((2, 3))}, 0, r"a.npz holds images of shape .* to \(N, H, W\)"),
        ({"windows": np.zeros((2, 3))}, 0, r"a.npz holds windows of shape \(2, 3\); reshape them to \(N, C, T\)"),
        ({"windows": np.zeros((2, 3, 4))}, 2, "a.npz holds 2 windows, of which 'index' 2 is none"),
        ({"images": np.array([{}], dtype=object)}, 0, "a.npz is truncated or corrupt.*allow_pickle"),
    ],
)
def test_an_npz_file_of_another_form_is_refused(tmp_path, arrays, index, sentence):
    np.savez(tmp_path / "a.npz", **arrays)
    assert_refused(sentence, tmp_path / "a.npz", index=index)


APART = ("mgh", "MGZ", "hdr", "img", "nhdr", "mhd", "raw", "zraw", "par")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a", "convert it, or name DICOM a.dcm"),
        ("1.2.840.10008", "convert it, or name DICOM 1.2.840.10008.dcm"),
        ("a.png.txt", "convert it to one of these"),
        ("a.WEBP", "save it as PNG"),
        ("a.webp", "save it as PNG"),
        ("a.svs", "export its regions as PNG or TIFF"),
        ("a.mat", "save its array as NIfTI"),
        ("a.h5", "save its array as NIfTI"),
        *((f"a.{ending}", "save it as one NIfTI file, for example with dcm2niix or mri_convert") for ending in APART),
        ("a.pdf", "export the image from the document"),
        ("a.zip", "unpack it"),
        ("a.ima", "it is DICOM: name it a.ima.dcm"),
    ],
)
def test_an_unknown_ending_is_refused_with_a_remedy_that_fits(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(b"x")
    assert_refused(f"{name} is no DICOM folder and ends in none of .png.*; {remedy}", tmp_path / name)


def test_dicom_under_another_ending_is_to_be_renamed(slice_file):
    path = slice_file.rename(slice_file.with_name("a.img"))
    assert_refused("a.img .*; it is DICOM: name it a.img.dcm", path)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "nii", "nii.gz", "mha", "nrrd", "npz", "dcm"])
@pytest.mark.parametrize("kept", [0, 20, 0.5])
def test_a_truncated_file_is_called_truncated(tmp_path, ending, kept, write_file):
    content = write_file(tmp_path / f"whole.{ending}").read_bytes()
    cut = tmp_path / f"cut.{ending}"
    cut.write_bytes(content[: kept if kept in (0, 20) else int(len(content) * kept)])
    sentence = f"cut.{ending} is truncated"
    assert str(tmp_path) not in assert_refused(sentence, cut, index=0 if ending == "npz" else None)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.mha", "a.nrrd", "a.nii.gz", "a.npz"])
def test_one_wrong_bit_never_passes_as_other_voxels(tmp_path, write_file, name):
    path = write_file(tmp_path / name, is_packed=True)
    index, content, num_refused = 0 if name == "a.npz" else None, path.read_bytes(), 0
    whole = read_image(path, index=index).array
    # What has no checksum comes first: the header of MHA and NRRD, the eight bytes that lead to a TIFF's tags.
    first = {".mha": content.find(b"LOCAL\n") + 6, ".nrrd": content.find(b"\n\n") + 2, ".tif": 8}.get(path.suffix, 0)
    # Pillow writes a TIFF's tags behind the pixels.
    last = int.from_bytes(content[4:8], "little") if path.suffix == ".tif" else len(content)
    for number, place in enumerate(np.linspace(first, last - 1, 60).astype(int)):
        broken = bytearray(content)
        broken[place] ^= 1 << number % 8
        path.write_bytes(broken)
        try:
            np.testing.assert_array_equal(read_image(path, index=index).array, whole)
        except DataError:
            num_refused += 1
    # Some bits mean nothing, as the time in gzip and the names in an archive.
    assert num_refused > 40
