"""Small inputs as scanners, annotators and spreadsheets write them: read rightly, or refused with a remedy."""

import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK

from silofl.base.errors import DataError
from silofl.reading.images import read_image, read_label
from silofl.reading.label_grid import lay_on_image
from silofl_hospital.importing.importers import ImportOptions, import_layout
from tests.conftest import case_builder

pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a case in a folder of its own, once."""
    return case_builder("build4.py", tmp_path_factory.mktemp("cases"))


# -------- masks and segmentations


DICOM_PATTERNS = {"image_pattern": "{case}/ct", "mask_pattern": "{case}/seg.dcm"}


@pytest.fixture
def import_masks(tmp_path):
    """Import hospitals' folders; returns the notes and, by site and case, each mask on the voxels of its image."""

    def run(source, *labels, **options):
        target = tmp_path / f"data{len([*tmp_path.iterdir()])}"
        summary = import_layout("folders", source, target, ImportOptions(labels=labels, **options))
        numbers, laid = dict(enumerate(labels, start=1)), {}
        for site in sorted(target.iterdir()):
            for mask in sorted((site / "masks").iterdir()):
                case = mask.name.partition(".")[0]
                (file,) = [path for path in (site / "images").glob(f"{case}*")]
                file = file / "ct" if file.is_dir() else file
                image = read_image(file)
                label = read_label(mask, labels=numbers, image=image)
                laid[site.name, case] = lay_on_image(label, image, case, (mask, file)).array[0]
        return summary.notes, laid

    return run


@pytest.mark.parametrize("library", ["nibabel", "SimpleITK"])
def test_masks_with_the_identity_are_taken_once_they_have_their_images_place(build, import_masks, tmp_path, library):
    folder = build("mask_with_identity")
    for options in ({}, {"resample_masks": True}):
        with pytest.raises(
            DataError, match="c0.nii.gz must state a place in its header, not the identity; where"
        ) as told:
            import_masks(folder / "in", "organ", **options)
        assert "--resample-masks" not in str(
            told.value
        ) and "numpy.array(mask.dataobj), image.affine, image.header" in str(told.value)
    for path in folder.rglob("masks/*.nii.gz"):
        mended = tmp_path / "in" / path.relative_to(folder / "in")
        mended.parent.mkdir(parents=True, exist_ok=True)
        whole = path.parent.parent / "images" / path.name
        if library == "nibabel":
            mask, image = nibabel.load(path), nibabel.load(whole)
            nibabel.save(type(image)(np.asarray(mask.dataobj), image.affine, image.header), mended)
        else:
            mask, image = SimpleITK.ReadImage(path), SimpleITK.ReadImage(whole)
            mask.CopyInformation(image)
            SimpleITK.WriteImage(mask, mended)
        for other in (whole, path.parent.parent / "patients.csv"):
            link = tmp_path / "in" / other.relative_to(folder / "in")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(other)
    _, laid = import_masks(tmp_path / "in", "organ")
    for (site, case), mask in laid.items():
        np.testing.assert_array_equal(mask, np.load(folder / f"right_{site}_{case}.npy"))


def liver(build):
    return build.module.LIVER.transpose(2, 1, 0)


def test_a_segmentation_of_the_thick_series_belongs_to_it_or_is_resampled(build, import_masks):
    folder = build("seg_of_thick_series")
    sentence = (
        "c0/seg.dcm must have a frame for each slice of its image, 2.5 mm apart, not for slices 5 mm apart; name "
    )
    with pytest.raises(DataError, match=sentence):
        import_masks(folder / "in", "liver", **DICOM_PATTERNS)
    notes, laid = import_masks(folder / "in", "liver", resample_masks=True, **DICOM_PATTERNS)
    assert len(laid) == 12 and all(np.array_equal(mask, liver(build)) for mask in laid.values())
    # 6 masks of 144 pixels on 2 slices, and on 4
    assert any(
        "6 of 6 masks were resampled: liver 1728 voxels (4.838 ml) before, 3456 (4.838 ml)" in note for note in notes
    )
    # The series on which it was drawn.
    target = import_layout(
        "folders",
        folder / "in",
        folder / "thick",
        ImportOptions(labels=("liver",), image_pattern="{case}/thick", mask_pattern="{case}/seg.dcm"),
    )
    assert target.examples["north"]["training"]


def test_a_nested_segment_is_said_and_never_vanishes(build, import_masks):
    folder = build("seg_nested")
    with pytest.raises(
        DataError, match="not none of 'tumor', which 'liver' covers; name it after the others in --labels"
    ):
        import_masks(folder / "in", "tumor", "liver", **DICOM_PATTERNS)
    notes, laid = import_masks(folder / "in", "liver", "tumor", **DICOM_PATTERNS)
    # 4 x 4 pixels on 2 slices in each of 6 masks
    for site in ("north", "south"):
        assert any(note.startswith(f"{site}: segments overlap in 6 of 6 masks: 192 voxels of liver") for note in notes)
    tumor = build.module.TUMOR.transpose(2, 1, 0)
    assert all(np.array_equal(mask, np.where(tumor, 2, liver(build))) for mask in laid.values())


@pytest.mark.parametrize(("case", "label"), [("seg_labelmap", "liver"), ("seg_same_name", "lesion")])
def test_a_background_that_is_named_and_segments_of_one_name_are_read(build, import_masks, case, label):
    notes, laid = import_masks(build(case) / "in", label, **DICOM_PATTERNS)
    assert len(laid) == 12 and all(np.array_equal(mask, liver(build)) for mask in laid.values())
    assert not any("overlap" in note for note in notes)


# -------- readers


@pytest.mark.parametrize(("case", "count"), [("chest_views", 2), ("slice_location_alone", 5)])
def test_pictures_without_a_place_are_no_volume_and_each_is_read_by_its_name(build, case, count):
    exam = build(case) / "exam"
    with pytest.raises(DataError, match=rf"exam must hold slices .*, not {count} pictures without .*; name each file"):
        read_image(exam)
    assert {read_image(path).array.shape[-1] for path in exam.iterdir()} == {1}


def test_a_mosaic_of_united_imaging_is_refused_by_its_name(build):
    with pytest.raises(DataError, match="0.dcm of exam must hold a slice, .*ImageType VFRAME of United Imaging"):
        read_image(build("uih_mosaics") / "exam")


def test_frames_that_are_called_a_mosaic_are_read_by_their_places(build):
    folder = build("enhanced_called_mosaic")
    image = read_image(folder / "x.dcm")
    np.testing.assert_array_equal(image.array, np.load(folder / "right.npy"))
    # Columns to the left, rows to the back, 0.8 and 0.7 mm apart, and slices of 3 mm.
    np.testing.assert_allclose(image.affine[:3, :3], np.diag([-0.8, -0.7, 3]), atol=1e-6)


def test_a_jpeg_is_read_by_its_own_markers(build):
    folder = build("jpeg_said_rgb")
    np.testing.assert_allclose(np.int16(read_image(folder / "x.dcm").array), np.load(folder / "right.npy"), atol=3)


def test_label_numbers_whose_scale_is_no_number_are_as_stored(build):
    folder = build("nan_slope")
    np.testing.assert_array_equal(read_label(folder / "x.nii").array, np.load(folder / "right.npy"))


def test_exams_that_nobody_has_read_are_no_class(build, tmp_path):
    with pytest.raises(DataError) as caught:
        import_layout("table", build("table_nan") / "in", tmp_path / "data", ImportOptions())
    assert "a5.png, not nothing, as 'nan'" in str(caught.value) and "a7.png, not nothing, as 'NA'" in str(caught.value)
    assert "remove the row" in str(caught.value)
    source = tmp_path / "mended"
    _copy_without_rows(build("table_nan") / "in", source, ("nan", "NA"))
    import_layout("table", source, tmp_path / "data", ImportOptions())


def _copy_without_rows(source: Path, target: Path, words: tuple[str, ...]) -> None:
    shutil.copytree(source, target)
    for table in target.glob("*/labels.csv"):
        rows = table.read_text().splitlines()
        table.write_text("\n".join(row for row in rows if row.split(",")[1] not in words))
