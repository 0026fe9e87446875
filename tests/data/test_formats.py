import re

import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK

from silofl.data.images import read_image, read_label
from silofl.errors import DataError

VOLUME = np.random.default_rng(0).integers(-900, 900, (5, 6, 7), dtype=np.int16)


@pytest.fixture
def write_file(write_dicom):
    """Write a picture, an npz file, a DICOM file or a volume, as the path's ending says."""

    def write(path):
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 255, (40, 50), dtype=np.uint8)
        if path.suffix in (".png", ".jpg", ".tif"):
            Image.fromarray(pixels).save(path)
        elif path.suffix == ".npz":
            np.savez(path, images=pixels[None])
        elif path.suffix == ".dcm":
            (write_dicom(path.parent / "series", VOLUME[..., :1]) / "99.dcm").rename(path)
        else:
            SimpleITK.WriteImage(SimpleITK.GetImageFromArray(pixels[None]), path)

    return write


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
def test_a_nifti_volume_keeps_its_axes_and_its_affine(tmp_path, ending):
    affine = np.diag([-0.5, 0.75, 2, 1])
    nibabel.save(nibabel.Nifti1Image(VOLUME, affine), tmp_path / f"v.{ending}")
    image = read_image(tmp_path / f"v.{ending}")
    np.testing.assert_array_equal(image.array, VOLUME[None])
    np.testing.assert_allclose(image.affine, affine)
    assert image.dtype_max == 32767


def test_a_nifti_with_a_scale_factor_has_no_integer_range(tmp_path):
    image = nibabel.Nifti1Image(VOLUME, np.eye(4))
    image.header.set_slope_inter(0.5, 10)
    nibabel.save(image, tmp_path / "v.nii")
    read = read_image(tmp_path / "v.nii")
    np.testing.assert_allclose(read.array[0], VOLUME * 0.5 + 10)
    assert read.dtype_max is None


def test_one_plane_of_a_nifti_is_a_volume_of_one_slice(tmp_path):
    nibabel.save(nibabel.Nifti1Image(VOLUME[..., 0], np.eye(4)), tmp_path / "v.nii")
    nibabel.save(nibabel.Nifti1Image(VOLUME[..., None], np.eye(4)), tmp_path / "w.nii")
    assert read_image(tmp_path / "v.nii").array.shape == (1, 5, 6, 1)
    assert read_image(tmp_path / "w.nii").array.shape == (1, 5, 6, 7)


@pytest.mark.parametrize("shape", [(5, 6, 7, 2), (5, 6, 7, 1, 2)])
def test_the_last_axis_of_a_nifti_holds_contrasts(tmp_path, shape):
    stored = np.stack([VOLUME, VOLUME + 1], axis=3)
    nibabel.save(nibabel.Nifti1Image(stored.reshape(shape), np.eye(4)), tmp_path / "v.nii")
    image = read_image(tmp_path / "v.nii")
    assert image.has_contrasts and image.affine.shape == (4, 4)
    np.testing.assert_array_equal(image.array, [VOLUME, VOLUME + 1])


def test_a_nifti_with_channels_and_time_points_is_refused(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.zeros((5, 6, 7, 2, 3), np.int16), np.eye(4)), tmp_path / "v.nii")
    with pytest.raises(DataError, match="v.nii must hold 2 or 3 axes, or 4 with channels last, of numbers, not 5 axes"):
        read_image(tmp_path / "v.nii")


@pytest.mark.parametrize("ending", ["mha", "nrrd"])
def test_an_itk_volume_is_the_same_as_its_nifti(tmp_path, ending):
    image = SimpleITK.GetImageFromArray(VOLUME.transpose(2, 1, 0))
    image.SetSpacing((0.5, 0.75, 2))
    image.SetOrigin((10, -20, 30))
    image.SetDirection((0, 1, 0, 1, 0, 0, 0, 0, -1))
    for name in (f"v.{ending}", "v.nii.gz"):
        SimpleITK.WriteImage(image, tmp_path / name)
    read, oracle = read_image(tmp_path / f"v.{ending}"), read_image(tmp_path / "v.nii.gz")
    np.testing.assert_array_equal(read.array, VOLUME[None])
    np.testing.assert_array_equal(read.array, oracle.array)
    np.testing.assert_allclose(read.affine, oracle.affine, atol=1e-5)


def test_an_itk_plane_is_a_volume_of_one_slice(tmp_path):
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOLUME[..., 0].T), tmp_path / "v.mha")
    np.testing.assert_array_equal(read_image(tmp_path / "v.mha").array, VOLUME[None, :, :, :1])


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
def test_channels_of_an_itk_volume_that_are_no_colours_are_contrasts(tmp_path, ending, count, dtype, is_colour):
    voxels = np.random.default_rng(0).integers(0, 255, (7, 6, 5, count)).astype(dtype)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels, isVector=True), tmp_path / f"v.{ending}")
    image = read_image(tmp_path / f"v.{ending}")
    np.testing.assert_array_equal(image.array, voxels.transpose(3, 2, 1, 0))
    assert image.has_contrasts != is_colour


def test_an_itk_file_of_time_points_is_refused(tmp_path):
    SimpleITK.WriteImage(
        SimpleITK.GetImageFromArray(np.zeros((2, 3, 4, 5), np.uint8), isVector=False), tmp_path / "v.nrrd"
    )
    with pytest.raises(DataError, match="v.nrrd must hold 2 or 3 axes, not 4"):
        read_image(tmp_path / "v.nrrd")


def test_a_dicom_series_is_ordered_by_position_with_the_axes_of_nifti(tmp_path, write_dicom):
    image = read_image(write_dicom(tmp_path / "series", VOLUME))
    np.testing.assert_array_equal(image.array, VOLUME[None])
    # DICOM counts to the left and to the back, NIfTI to the right and to the front.
    np.testing.assert_allclose(image.affine, [[-0.5, 0, 0, -10], [0, -0.75, 0, -20], [0, 0, 2, 30], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("syntax", "called"),
    [
        ("HTJ2KLossless", "High-Throughput JPEG 2000 Image Compression (Lossless Only)"),
        ("MPEG2MPML", "MPEG2 Main Profile / Main Level"),
    ],
)
def test_a_compression_that_is_not_known_is_refused_as_such(tmp_path, write_dicom, syntax, called):
    folder = write_dicom(tmp_path / "series", VOLUME[..., :2])
    for file in folder.iterdir():
        data = pydicom.dcmread(file)
        data.file_meta.TransferSyntaxUID = getattr(pydicom.uid, syntax)
        data.PixelData = pydicom.encaps.encapsulate([b"\xff\x4f\xff\x51" * 9])
        data.save_as(file)
    sentence = f"must be compressed as JPEG, JPEG-LS, JPEG 2000 or RLE, or not at all, not as {called}; export it"
    for path in (folder, folder / "99.dcm"):
        with pytest.raises(DataError, match=re.escape(f"{path.name} {sentence}")):
            read_image(path)


@pytest.mark.parametrize(
    ("modality", "called"),
    [
        ("SEG", "an image, not a DICOM segmentation"),
        ("RTSTRUCT", "an image or a label map, not a DICOM structure set; fill its outlines"),
    ],
)
def test_labels_in_a_dicom_form_of_their_own_are_refused_as_such(tmp_path, write_dicom, modality, called):
    file = write_dicom(tmp_path / "series", VOLUME[..., :1]) / "99.dcm"
    data = pydicom.dcmread(file)
    data.Modality = modality
    if modality == "RTSTRUCT":
        del data.PixelData, data.Rows, data.Columns
    data.save_as(file)
    with pytest.raises(DataError, match=f"99.dcm must be {called}"):
        read_label(file)


def test_fractions_in_a_dicom_file_are_refused_as_such(tmp_path, write_dicom):
    file = write_dicom(tmp_path / "series", VOLUME[..., :1]) / "99.dcm"
    data = pydicom.dcmread(file)
    del data.PixelData, data.BitsStored, data.HighBit, data.PixelRepresentation
    data.BitsAllocated, data.FloatPixelData = 32, VOLUME[..., 0].T.astype(np.float32).tobytes()
    data.save_as(file)
    with pytest.raises(DataError, match="99.dcm must hold whole numbers with a rescale slope, not fractions"):
        read_image(file)


@pytest.mark.parametrize(("modality", "is_read"), [("CR", False), ("XA", True)])
def test_a_table_of_intensities_is_never_passed_over_where_it_counts(tmp_path, write_dicom, modality, is_read):
    folder = write_dicom(tmp_path / "series", VOLUME[..., :2])
    for file in folder.iterdir():
        data, table = pydicom.dcmread(file), pydicom.Dataset()
        table.add_new("LUTDescriptor", "SS", [3, 0, 16])
        table.add_new("LUTData", "US", [0, 10, 40])
        table.ModalityLUTType = "US"
        data.ModalityLUTSequence, data.Modality = [table], modality
        data.save_as(file)
    if is_read:
        np.testing.assert_array_equal(read_image(folder).array, VOLUME[None, ..., :2])
        return
    with pytest.raises(DataError, match="series must have a rescale slope and intercept, not a table of intensities"):
        read_image(folder)


def test_a_rescale_slope_of_0_is_not_taken_for_one_of_1(tmp_path, write_dicom):
    file = write_dicom(tmp_path / "series", VOLUME[..., :1]) / "99.dcm"
    data = pydicom.dcmread(file)
    data.RescaleSlope, data.RescaleIntercept = 0, -1024
    data.save_as(file)
    with pytest.raises(DataError, match="99.dcm must have a rescale slope other than 0, by which .*"):
        read_image(file)


@pytest.mark.parametrize("storage", ["XRayAngiographicImageStorage", "NuclearMedicineImageStorage"])
def test_a_series_lies_where_its_headers_say_whatever_its_class_is(tmp_path, write_dicom, storage):
    # Its axes run to the left, to the feet and to the back.
    coronal = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
    folder = write_dicom(tmp_path / "series", VOLUME, coronal)
    for file in folder.iterdir():
        header = pydicom.dcmread(file)
        header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = getattr(pydicom.uid, storage)
        header.save_as(file)
    image = read_image(folder)
    np.testing.assert_array_equal(image.array, VOLUME[None])
    np.testing.assert_allclose(image.affine, [[-0.5, 0, 0, -10], [0, 0, -2, -20], [0, -0.75, 0, 30], [0, 0, 0, 1]])


def test_a_radiograph_that_counts_from_white_is_turned_round(tmp_path, write_dicom):
    file = write_dicom(tmp_path / "series", VOLUME[..., :1]) / "99.dcm"
    data = pydicom.dcmread(file)
    data.PhotometricInterpretation, data.Modality = "MONOCHROME1", "CR"
    data.save_as(file)
    # Of 16 bits with a sign, -32768 becomes 32767 and 0 becomes -1.
    np.testing.assert_array_equal(read_image(file).array, -1 - VOLUME[None, ..., :1])


@pytest.mark.parametrize("modality", ["CT", "MR", "NM", "PT"])
def test_measured_numbers_are_never_turned_round(tmp_path, write_dicom, modality):
    folder = write_dicom(tmp_path / "series", VOLUME)
    for file in folder.iterdir():
        data = pydicom.dcmread(file)
        data.PhotometricInterpretation, data.Modality = "MONOCHROME1", modality
        data.save_as(file)
    with pytest.raises(DataError, match="series must be shown with its largest value white .MONOCHROME2., not black"):
        read_image(folder)


def test_a_refusal_does_not_say_where_in_its_source_a_library_failed(tmp_path, write_dicom):
    file = write_dicom(tmp_path / "series", VOLUME[..., :1]) / "99.dcm"
    data = pydicom.dcmread(file)
    # GDCM cannot turn such numbers round.
    data.PhotometricInterpretation, data.BitsStored, data.HighBit, data.Modality = "MONOCHROME1", 12, 11, "CR"
    data.save_as(file)
    with pytest.raises(DataError, match="99.dcm must be a whole file, .* one .An invalid logic behavior") as caught:
        read_image(file)
    assert "cxx" not in str(caught.value)


def test_a_single_dicom_file_is_a_volume_of_one_slice(tmp_path, write_dicom):
    folder = write_dicom(tmp_path / "series", VOLUME[..., :1])
    np.testing.assert_array_equal(read_image(folder / "99.dcm").array, VOLUME[None, ..., :1])


def test_a_dicom_series_with_a_missing_slice_is_refused(tmp_path, write_dicom):
    folder = write_dicom(tmp_path / "series", VOLUME, skip=(3,))
    with pytest.raises(DataError, match="series must have slices at even distances on one line, not 2.00 to 4.00 mm"):
        read_image(folder)


@pytest.mark.parametrize("is_same", [True, False])
def test_slices_of_a_series_in_a_folder_within_it_are_refused_and_another_series_there_is_not(
    tmp_path, write_dicom, is_same
):
    folder = write_dicom(tmp_path / "series", VOLUME)
    inner = folder / "more" if is_same else write_dicom(folder / "more", VOLUME)
    inner.mkdir(exist_ok=True)
    (inner / "notes.txt").write_text("no image")
    if not is_same:
        assert read_image(folder).spatial_shape == VOLUME.shape
        return
    # The last two, so that what stays is even and reads well.
    for name in ("99.dcm", "98.dcm"):
        (folder / name).rename(inner / name)
    with pytest.raises(DataError, match="series must hold all files of its DICOM series itself, not some in more"):
        read_image(folder)


def test_a_folder_with_two_dicom_series_or_none_is_refused(tmp_path, write_dicom):
    folder = write_dicom(tmp_path / "series", VOLUME[..., :2])
    for path in write_dicom(tmp_path / "other", VOLUME[..., 2:4]).iterdir():
        path.rename(folder / f"other-{path.name}")
    sentence = "series must be a folder with one DICOM series, not 2: 2 files as 98.dcm, 2 files as other-98.dcm;"
    with pytest.raises(DataError, match=sentence):
        read_image(folder)
    none = "must be a folder that holds the files of one DICOM series itself; it does not: name the "
    with pytest.raises(DataError, match=f"other {none}image's own file, or another folder"):
        read_image(tmp_path / "other")
    with pytest.raises(DataError, match=f"{tmp_path.name} {none}folder in it that does, or an image's own file$"):
        read_image(tmp_path)


def test_a_tilted_gantry_moves_each_slice_aside_as_its_positions_say(tmp_path, write_dicom):
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
    ("places", "values", "sentence"),
    [
        (slice(3, None), {"ImageOrientationPatient": [0, 1, 0, 0, 0, 1]}, "one direction.*ImageOrientationPatient"),
        (slice(3, None), {"PixelSpacing": [2, 2]}, "one pixel size .*which differ .PixelSpacing"),
        (slice(3, None), {"PixelSpacing": None}, "one pixel size .*which differ .PixelSpacing"),
        # All are the root of 3 * 3 + 2 * 2, 3.61 mm apart, in a zigzag.
        (slice(None, None, 2), {"ImagePositionPatient": 3}, "on one line, not 3.61 to 3.61 mm apart and up to 3.00 mm"),
    ],
)
def test_slices_that_are_no_one_volume_are_refused(tmp_path, write_dicom, places, values, sentence):
    folder = write_dicom(tmp_path / "series", VOLUME)
    for file in sorted(folder.iterdir())[places]:
        header = pydicom.dcmread(file)
        for key, value in values.items():
            aside = key == "ImagePositionPatient"
            setattr(header, key, [header[key][0] + value, *header[key][1:]] if aside else value)
        header.save_as(file)
    with pytest.raises(DataError, match=f"series must have slices .*{sentence}"):
        read_image(folder)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [({"RescaleSlope": 300}, 300), ({"RescaleSlope": 0.0004}, 0.0004), ({"PixelRepresentation": 0}, 1)],
)
def test_each_slice_has_its_own_scale_whatever_the_first_one_has(tmp_path, write_dicom, changes, factor):
    volume = np.abs(VOLUME)
    folder = write_dicom(tmp_path / "series", volume)
    # By its name the last file is the first slice, which keeps 1.
    for file in sorted(folder.iterdir())[:-1]:
        header = pydicom.dcmread(file)
        header.update(changes)
        header.save_as(file)
    found = read_image(folder).array[0]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[..., 0], volume[..., 0])
    np.testing.assert_allclose(found[..., 1:], np.float64(volume[..., 1:]) * factor, rtol=1e-6)


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def cut_header(path):
    path.write_bytes(path.read_bytes()[:300])


def cut_class(path):
    """End in the middle of the name of the class."""
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"1.2.840.10008.5.1.4") + 8])


def spoil(path):
    path.write_bytes(b"junk")


@pytest.mark.parametrize(
    ("damage", "place"), [(cut, 0), (cut, 2), (cut_header, -1), (cut_class, 0), (spoil, 0), (spoil, 2), (spoil, -1)]
)
def test_a_file_of_a_series_that_cannot_be_read_is_named_wherever_it_lies(tmp_path, write_dicom, damage, place):
    folder = write_dicom(tmp_path / "series", VOLUME)
    file = sorted(folder.iterdir())[place]
    damage(file)
    with pytest.raises(DataError, match="series must ") as caught:
        read_image(folder)
    is_named = f"series must hold whole DICOM files; {file.name} cannot be read" in str(caught.value)
    assert is_named or (damage is cut and "must be a whole file" in str(caught.value))
    assert "cxx" not in str(caught.value) and "0x" not in str(caught.value)


def test_what_lies_beside_a_series_and_is_no_image_disturbs_nothing(tmp_path, write_dicom):
    folder = write_dicom(tmp_path / "series", VOLUME)
    (folder / "README.txt").write_text("exported by a viewer")
    (folder / "._0.dcm").write_bytes(b"a file system's notes")
    report = pydicom.Dataset()
    report.file_meta = pydicom.dataset.FileMetaDataset()
    report.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    report.SOPClassUID, report.SOPInstanceUID = pydicom.uid.BasicTextSRStorage, pydicom.uid.generate_uid()
    report.save_as(folder / "report.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(read_image(folder).array, VOLUME[None])


def test_two_images_at_one_place_are_refused_as_such(tmp_path, write_dicom):
    folder = write_dicom(tmp_path / "series", VOLUME)
    first = pydicom.dcmread(folder / "99.dcm")
    first.SOPInstanceUID = first.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    first.save_as(folder / "copy.dcm")
    with pytest.raises(DataError, match="series must hold one image at each place, not two"):
        read_image(folder)


def test_a_series_of_two_patients_is_refused_without_their_names(tmp_path, write_dicom):
    folder = write_dicom(tmp_path / "series", VOLUME)
    for number, file in enumerate(sorted(folder.iterdir())):
        header = pydicom.dcmread(file)
        header.PatientID = "Meier" if number else "Doe"
        header.save_as(file)
    with pytest.raises(DataError, match="series must be of one patient, not of 2") as caught:
        read_image(folder)
    assert "Meier" not in str(caught.value) and "Doe" not in str(caught.value)


def test_one_image_of_an_npz_file_is_read_by_its_index(tmp_path):
    grey = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    colour = np.stack([grey, grey + 1, grey + 2], axis=-1)
    np.savez(tmp_path / "grey.npz", images=grey, labels=grey)
    np.savez_compressed(tmp_path / "colour.npz", images=colour)
    np.testing.assert_array_equal(read_image(tmp_path / "grey.npz", index=1).array, grey[1][None])
    np.testing.assert_array_equal(read_label(tmp_path / "grey.npz", index=1).array, grey[1][None])
    np.testing.assert_array_equal(read_image(tmp_path / "colour.npz", index=0).array[2], grey[0] + 2)


def test_one_window_of_an_npz_file_is_read_by_its_index(tmp_path):
    windows = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.savez(tmp_path / "windows.npz", windows=windows)
    image = read_image(tmp_path / "windows.npz", index=1)
    np.testing.assert_array_equal(image.array, windows[1].reshape(3, 1, 4))
    assert image.is_window and image.array.dtype == np.float32


def test_an_npz_file_of_images_holds_no_windows(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 4), np.uint8), windows=np.zeros((2, 3, 4)))
    assert not read_image(tmp_path / "a.npz", index=1).is_window


def test_an_npz_file_that_changed_is_read_again(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 2, 2), np.uint8))
    read_image(tmp_path / "a.npz", index=0)
    np.savez(tmp_path / "a.npz", images=np.ones((2, 2, 2), np.uint8))
    assert read_image(tmp_path / "a.npz", index=0).array.min() == 1


@pytest.mark.parametrize(
    ("arrays", "index", "sentence"),
    [
        ({"pictures": np.zeros((2, 3, 4))}, 0, "a.npz must hold an array 'images'"),
        ({"images": np.zeros((2, 3, 4))}, 2, "a.npz must hold the image with 'index' 2, not 2 images"),
        ({"images": np.zeros((2, 3, 4))}, None, "a.npz must be named by a record of dataset.json .* 2 images; save"),
        ({"images": np.zeros((2, 3, 4, 5))}, 0, r"a.npz must hold images of shape \(N, H, W\)"),
        ({"images": np.zeros((2, 3))}, 0, r"a.npz must hold images of shape \(N, H, W\)"),
        ({"windows": np.zeros((2, 3))}, 0, r"a.npz must hold windows of shape \(N, C, T\), not \(2, 3\)"),
        ({"windows": np.zeros((2, 3, 4))}, 2, "a.npz must hold the image with 'index' 2, not 2 images"),
        ({"images": np.array([{}], dtype=object)}, 0, "a.npz must be a whole file.*allow_pickle"),
    ],
)
def test_an_npz_file_of_another_form_is_refused(tmp_path, arrays, index, sentence):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=sentence):
        read_image(tmp_path / "a.npz", index=index)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a", "convert it, or name DICOM a.dcm"),
        ("1.2.840.10008", "convert it, or name DICOM 1.2.840.10008.dcm"),
        ("a.png.txt", "convert it to one of these"),
        ("a.BMP", "save it as PNG"),
        ("a.webp", "save it as PNG"),
        ("a.svs", "export its regions as PNG or TIFF"),
        ("a.mat", "save its array as NIfTI"),
        ("a.h5", "save its array as NIfTI"),
        ("a.img", "name the header beside it, which ends in .hdr"),
        ("a.zraw", "name the header beside it, which ends in .mhd or .nhdr"),
        ("a.par", "convert it to NIfTI, for example with dcm2niix"),
        ("a.pdf", "export the image from the document"),
        ("a.zip", "unpack it"),
        ("a.ima", "it is DICOM: name it a.ima.dcm"),
    ],
)
def test_an_unknown_ending_is_refused_with_a_remedy_that_fits(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=f"{name} must be a DICOM folder or end in one of .png.*; {remedy}"):
        read_image(tmp_path / name)


def test_what_is_dicom_by_its_content_is_to_be_named_so_whatever_its_ending(tmp_path, write_dicom):
    (write_dicom(tmp_path / "series", VOLUME[..., :1]) / "99.dcm").rename(tmp_path / "a.img")
    with pytest.raises(DataError, match="a.img must be .*, not '.img'; it is DICOM: name it a.img.dcm"):
        read_image(tmp_path / "a.img")


def test_a_compressed_volume_without_its_ending_is_to_be_renamed(tmp_path, write_file):
    write_file(tmp_path / "a.nii.gz")
    (tmp_path / "a.nii.gz").rename(tmp_path / "a.nii")
    with pytest.raises(DataError, match="a.nii must end in .nii.gz, as its content is compressed by gzip; rename it"):
        read_image(tmp_path / "a.nii")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "nii", "nii.gz", "mha", "nrrd", "npz", "dcm"])
@pytest.mark.parametrize("kept", [0, 20, 0.5])
def test_a_truncated_file_is_called_truncated(tmp_path, ending, kept, write_file):
    path = tmp_path / f"whole.{ending}"
    write_file(path)
    content = path.read_bytes()
    cut = path.with_name(f"cut.{ending}")
    cut.write_bytes(content[: kept if kept in (0, 20) else int(len(content) * kept)])
    with pytest.raises(DataError, match=f"cut.{ending} must be a whole file, not a truncated") as error:
        read_image(cut, index=0 if ending == "npz" else None)
    assert str(tmp_path) not in str(error.value)


@pytest.fixture
def write_with_sums(tmp_path):
    """Write a picture or a volume in a form that has a checksum; return the place of its content's first byte."""

    def write(name):
        from PIL import Image

        ramp = np.add.outer(np.arange(60), np.arange(40)).astype(np.uint8)
        path = tmp_path / name
        if path.suffix in (".png", ".tif"):
            Image.fromarray(ramp).save(path, compression="tiff_adobe_deflate")
        elif path.suffix == ".npz":
            np.savez(path, images=ramp[None])
        else:
            SimpleITK.WriteImage(SimpleITK.GetImageFromArray(ramp[None]), path, useCompression=True)
        content = path.read_bytes()
        # What has no checksum comes first: the header of MHA and NRRD, the eight bytes that lead to a TIFF's tags.
        first = {".mha": content.find(b"LOCAL\n") + 6, ".nrrd": content.find(b"\n\n") + 2, ".tif": 8}
        # Pillow writes a TIFF's tags behind the pixels.
        last = int.from_bytes(content[4:8], "little") if path.suffix == ".tif" else len(content)
        return path, range(first.get(path.suffix, 0), last)

    return write


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.mha", "a.nrrd", "a.nii.gz", "a.npz"])
def test_one_wrong_bit_never_passes_as_other_voxels(write_with_sums, name):
    path, places = write_with_sums(name)
    index, content, num_refused = 0 if name == "a.npz" else None, path.read_bytes(), 0
    whole = read_image(path, index=index).array
    tried = np.linspace(places.start, places.stop - 1, 60).astype(int)
    for number, place in enumerate(tried):
        broken = bytearray(content)
        broken[place] ^= 1 << number % 8
        path.write_bytes(broken)
        try:
            np.testing.assert_array_equal(read_image(path, index=index).array, whole)
        except DataError:
            num_refused += 1
    # Some bits mean nothing, as the time in gzip and the names in an archive.
    assert num_refused > 40


@pytest.mark.parametrize("ending", ["png", "nii.gz", "npz"])
def test_a_file_with_other_bytes_inside_is_called_corrupt(tmp_path, ending, write_file):
    path = tmp_path / f"a.{ending}"
    write_file(path)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle - 20 : middle + 20] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.{ending} must be a whole file"):
        read_image(path, index=0 if ending == "npz" else None)
