"""Small inputs as scanners, annotators and spreadsheets write them: read rightly, or refused with a remedy."""

import numpy as np
import pytest

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


def liver(build):
    return build.module.LIVER.transpose(2, 1, 0)


def test_a_segmentation_of_the_thick_series_belongs_to_it_or_is_resampled(build, import_masks):
    folder = build("seg_of_thick_series")
    sentence = (
        "c0/seg.dcm must have a frame for each slice of its image, 2.5 mm apart, not for slices 5 mm apart; name "
    )
    with pytest.raises(DataError, match=sentence):
        import_masks(folder / "in", "liver", **DICOM_PATTERNS)
    _, laid = import_masks(folder / "in", "liver", resample_masks=True, **DICOM_PATTERNS)
    assert len(laid) == 12 and all(np.array_equal(mask, liver(build)) for mask in laid.values())
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
