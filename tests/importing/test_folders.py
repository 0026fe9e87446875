import json
import shutil

import nibabel
import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl.data.site_data import load_site_data
from silofl_hospital.importing.importers import ImportOptions, import_layout
from tests.conftest import list_records

pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture
def source(tmp_path):
    """One site with six pictures and masks of 0 and 255."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "source" / "north"
    for kind, high, factor in (("images", 256, 1), ("masks", 2, 255)):
        (folder / kind).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, high, (8, 8), dtype=np.uint8) * factor
            Image.fromarray(pixels).save(folder / kind / f"scan{number}.png")
    return tmp_path / "source"


@pytest.fixture
def run(source, tmp_path):
    """Import the site and return its dataset.json."""

    def go(**options):
        import_layout("folders", source, tmp_path / "target", ImportOptions(**options))
        return json.loads((tmp_path / "target" / "north" / "dataset.json").read_text())

    return go


PATTERNS = {"image_pattern": "T1={case}/t1.nii.gz,T2={case}/t2.nii.gz", "mask_pattern": "{case}/seg.nii.gz"}
LESIONS = {"labels": ("organ", "lesion"), "label_values": (1, 4)}
AFFINE = np.diag([0.5, 0.5, 3, 1])


@pytest.fixture
def contrasts(tmp_path):
    """Two sites with six cases each, a folder a case with T1, T2 and a mask of 0, 1 and 4; north/c5 has no T2."""
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for number in range(6):
            folder = tmp_path / "contrasts" / site / f"c{number}"
            folder.mkdir(parents=True)
            for name in ("t1", "t2", "seg"):
                seg = rng.choice(np.int16([0, 1, 4]), (8, 8, 3))
                volume = seg if name == "seg" else rng.integers(1, 900, (8, 8, 3), dtype=np.int16)
                nibabel.save(nibabel.Nifti1Image(volume, AFFINE), folder / f"{name}.nii.gz")
        rows = [f"c{number},p{number // 2}" for number in range(6)]
        (tmp_path / "contrasts" / site / "patients.csv").write_text("\n".join(["file,patient", *rows]))
    (tmp_path / "contrasts" / "north" / "c5" / "t2.nii.gz").unlink()
    return tmp_path / "contrasts"


@pytest.fixture
def run_patterns(contrasts, tmp_path):
    """Import both sites and return the summary and north's dataset.json."""

    def go(**options):
        summary = import_layout("folders", contrasts, tmp_path / "target", ImportOptions(**{**PATTERNS, **options}))
        return summary, json.loads((tmp_path / "target" / "north" / "dataset.json").read_text())

    return go


def test_a_folder_without_a_table_has_unknown_patients(run, study, tmp_path, source):
    content, folder = run(labels=("nucleus",)), tmp_path / "target" / "north"
    assert content["split_unit"] == "unknown" and not any("patient" in record for record in list_records(content))
    data = load_site_data(folder, study(split_unit="unknown"), tmp_path / "cache")
    assert (data.training.num_patients, data.test.num_patients) == (0, 0)
    for part in (data.training, data.validation, data.test):
        for number, case in enumerate(part.cases):
            pixels, mask = (np.asarray(Image.open(source / "north" / k / f"{case}.png")) for k in ("images", "masks"))
            np.testing.assert_allclose(part.images[number, 0] * 255, pixels, rtol=1e-5)
            np.testing.assert_array_equal(part.targets[number], mask // 255)
    with pytest.raises(DataError, match="has no 'patient'.*set split_unit to 'unknown' in both"):
        load_site_data(folder, study(), tmp_path / "cache")


# --- patterns


def test_cases_of_several_contrasts_become_records_with_their_files(run_patterns):
    summary, content = run_patterns(**LESIONS)
    assert (content["channel_names"], content["labels"]) == (["T1", "T2"], {"1": "organ", "2": "lesion"})
    records = {record["case"]: record for record in list_records(content)}
    assert records["c0"]["image"] == ["images/c0/t1.nii.gz", "images/c0/t2.nii.gz"]
    assert records["c5"]["image"] == ["images/c5/t1.nii.gz", None]
    assert (records["c5"]["label"], records["c5"]["patient"]) == ("masks/c5.nii.gz", "p2")
    assert summary.notes == (
        "north: 1 of 6 cases have no T2; dataset.json has null there, for which networks see zeros",
    )
    assert summary.patients == {"north": 3, "south": 3}


def test_an_unnamed_value_and_one_pattern_alone_are_refused(run_patterns, tmp_path):
    sentence = r"site 'north': c0/seg.nii.gz holds 4, but the labels are .*, 2 .lesion.; name each value with"
    with pytest.raises(DataError, match=sentence):
        run_patterns(labels=("organ", "lesion"))
    assert not (tmp_path / "target").exists()
    for option in ("image_pattern", "mask_pattern"):
        with pytest.raises(ConfigError, match="one of image-pattern and mask-pattern is missing"):
            run_patterns(**{option: None})
    _, content = run_patterns(image_pattern="{case}/t1.nii.gz", **LESIONS)
    assert "channel_names" not in content
    assert {record["image"] for record in list_records(content)} == {f"images/c{n}/t1.nii.gz" for n in range(6)}


ORGANS = {"image_pattern": "{case}/ct.nii.gz", "mask_pattern": "{case}/segmentations/{label}.nii.gz"}
LIVER, TUMOR = np.zeros((2, 8, 8, 3), np.uint8)
LIVER[1:6, 1:6], TUMOR[3:5, 3:7] = 1, 1


@pytest.fixture
def organs(tmp_path):
    """A site with four cases, each with a mask for each organ, as TotalSegmentator saves them; spleens are empty."""
    for number in range(4):
        folder = tmp_path / "organs" / "north" / f"c{number}" / "segmentations"
        folder.mkdir(parents=True)
        ct = np.random.default_rng(number).normal(0, 99, LIVER.shape).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(ct, AFFINE), folder.parent / "ct.nii.gz")
        # Whatever number a file of one label holds.
        for name, drawn in (("liver", LIVER), ("tumor", TUMOR * 5), ("spleen", LIVER * 0), ("rib_left_1", LIVER)):
            nibabel.save(nibabel.Nifti1Image(drawn, AFFINE), folder / f"{name}.nii.gz")
    return tmp_path / "organs"


@pytest.fixture
def run_organs(organs, tmp_path):
    """Import the cases and return the summary and their masks."""

    def go(*labels, **options):
        options = ImportOptions(**{**ORGANS, "labels": labels or None, **options})
        summary = import_layout("folders", organs, tmp_path / "target", options)
        masks = sorted((tmp_path / "target" / "north" / "masks").iterdir())
        return summary, [np.asarray(nibabel.load(mask).dataobj) for mask in masks]

    return go


def test_files_of_one_label_each_become_one_mask(run_organs):
    summary, masks = run_organs("liver", "tumor", "spleen")
    assert len(masks) == 4
    for mask in masks:
        np.testing.assert_array_equal(mask, np.where(TUMOR > 0, 2, LIVER))
    # ribs
    assert any("images that fit no pattern or have no mask are left out: 4" in note for note in summary.notes)


def test_an_absent_file_of_a_label_is_refused(run_organs, organs, tmp_path):
    lacking = organs / "north" / "c2" / "segmentations" / "tumor.nii.gz"
    lacking.unlink()
    sentence = r"has no \{case\}/segmentations/tumor.nii.gz for c2; add it, empty"
    with pytest.raises(DataError, match=f"site 'north' {sentence}"):
        run_organs("liver", "tumor")
    np.testing.assert_array_equal(run_organs("liver")[1][2], LIVER)
    shutil.rmtree(tmp_path / "target")
    nibabel.save(nibabel.Nifti1Image(LIVER * 0, AFFINE), lacking)
    np.testing.assert_array_equal(run_organs("liver", "tumor")[1][2], LIVER)


def test_a_label_file_with_two_numbers_is_refused(run_organs, organs):
    path = organs / "north" / "c1" / "segmentations" / "liver.nii.gz"
    nibabel.save(nibabel.Nifti1Image(LIVER + TUMOR, AFFINE), path)
    with pytest.raises(DataError, match="north': liver.nii.gz of c1 holds several numbers beside 0, 1, 2; save it"):
        run_organs("liver", "tumor")
    with pytest.raises(ConfigError, match=r"mask-pattern must hold {case} and no other braces, .*; {label} in a"):
        run_organs()
    with pytest.raises(ConfigError, match="mask-pattern must be a path within the folder of a site"):
        run_organs("../liver")


@pytest.mark.parametrize("kind", ["patients", "images"])
def test_a_site_with_fewer_than_two_patients_is_refused(run, source, kind):
    with pytest.raises(DataError, match="test must be above 0 for a share of the images of site 'north', not 0"):
        run(test=0)
    for number in range(1, 6):
        for place in ("images", "masks"):
            (source / "north" / place / f"scan{number}.png").unlink()
    if kind == "patients":
        (source / "north" / "patients.csv").write_text("file,patient\nscan0.png,p0", encoding="utf-8-sig")
    with pytest.raises(DataError, match=f"site 'north' has 1 {kind}, fewer than the 2 .*; join it"):
        run()
