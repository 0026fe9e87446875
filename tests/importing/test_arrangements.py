"""Folders that are arranged as BIDS or nnU-Net do it."""

import json

import nibabel
import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl_hospital.importing.importers import ImportOptions, import_layout
from tests.conftest import records_of

pytestmark = pytest.mark.usefixtures("decoded_here")
KINDS = {"arrangement": "bids", "image_pattern": "T1w", "mask_pattern": "labels/dseg"}
NNUNET = {"arrangement": "nnunet"}
SUBJECTS, SESSIONS = 5, ("ses-1", "ses-2")
SECOND = {"channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "PZ": 1, "TZ": 2}}
SECOND |= {"numTraining": 4, "file_ending": ".nii.gz"}
FIRST = {"modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "background", "1": "PZ", "2": "TZ"}, "numTraining": 4}
CASES = ("prostate_00", "prostate_01", "prostate_02", "prostate_03")


def save(array, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.fromarray(array.astype(np.uint8)).save(path)
    else:
        nibabel.save(nibabel.Nifti1Image(array, np.diag([0.5, 0.5, 3, 1])), path)


def write_tree(root):
    """Write five subjects with two sessions of T1w and T2w, and masks of 0 and 1."""
    rng = np.random.default_rng(0)
    for number in range(SUBJECTS):
        for session in SESSIONS:
            stem, place = f"sub-{number:02}_{session}", f"sub-{number:02}/{session}/anat"
            for suffix in ("T1w", "T2w"):
                save(rng.integers(1, 99, (6, 6, 3), dtype=np.int16), root / place / f"{stem}_{suffix}.nii.gz")
            mask = rng.integers(0, 2, (6, 6, 3), dtype=np.uint8)
            save(mask, root / "derivatives" / "labels" / place / f"{stem}_dseg.nii.gz")


def write_set(folder, description=SECOND, size=(8, 8, 3), numbers=(0, 1, 2), channels=2):
    """Write a data set of four cases as nnU-Net's documentation describes it."""
    rng = np.random.default_rng(len(folder.name))
    ending = description.get("file_ending", ".nii.gz")
    for case in CASES:
        for channel in range(channels):
            pixels = rng.integers(0, 250, size, dtype=np.int16)
            save(pixels, folder / "imagesTr" / f"{case}_{channel:04}{ending}")
        mask = rng.choice(np.int16(numbers), size[:2] if ending == ".png" else size)
        save(mask, folder / "labelsTr" / f"{case}{ending}")
    describe(folder, description)


def describe(folder, description):
    (folder / "dataset.json").write_text(json.dumps(description))


@pytest.fixture
def run(tmp_path):
    """Import the site north, and return its dataset.json and what was said."""

    def go(**options):
        summary = import_layout("folders", tmp_path / "source", tmp_path / "target", ImportOptions(**options))
        content = json.loads((tmp_path / "target" / "north" / "dataset.json").read_text())
        return content, summary.notes

    return go


@pytest.fixture
def tree(tmp_path):
    write_tree(tmp_path / "source" / "north")
    return tmp_path / "source" / "north"


@pytest.fixture
def nnunet(tmp_path):
    write_set(tmp_path / "source" / "north")
    return tmp_path / "source" / "north"


def test_sessions_are_cases_of_one_patient(tree, run):
    content, notes = run(**KINDS | {"labels": ("organ",), "image_pattern": "T1=T1w,T2=T2w"})
    assert content["channel_names"] == ["T1", "T2"] and content["split_unit"] == "patient" and notes == ()
    assert records_of(content)["sub-03_ses-2"] == {
        "image": [f"images/sub-03/ses-2/anat/sub-03_ses-2_{suffix}.nii.gz" for suffix in ("T1w", "T2w")],
        "label": "masks/sub-03_ses-2.nii.gz",
        "patient": "sub-03",
        "case": "sub-03_ses-2",
    }
    # 5 subjects: 1 for the test, with both sessions
    assert len(records_of(content)) == 10 and len({record["patient"] for record in content["test"]}) == 1


def test_images_without_a_mask_are_counted(tree, run):
    (tree / "derivatives/labels/sub-00/ses-1/anat/sub-00_ses-1_dseg.nii.gz").unlink()
    content, notes = run(**KINDS)
    assert len(records_of(content)) == 9
    # 10 of T2w, and the image that has no mask
    (note,) = notes
    assert note.startswith("north: images that fit no pattern or have no mask are left out: 11, as sub-00/ses-1/")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mask_pattern": None}, "--layout bids needs --image-pattern and --mask-pattern. Name kinds, as T1w and"),
        ({"image_pattern": "FLAIR"}, "Site 'north' has no image FLAIR with a mask labels/dseg. Correct the kinds"),
        ({"mask_pattern": "dseg"}, "sub-00_ses-1 has two files of the kind dseg: .*second.* Name the folder in deriv"),
    ],
)
def test_kinds_that_give_no_pairs_are_refused(tree, run, options, sentence):
    name = "sub-00/ses-1/anat/sub-00_ses-1_dseg.nii.gz"
    save(np.ones((6, 6, 3), np.uint8), tree / "derivatives" / "second" / name)
    with pytest.raises((ConfigError, DataError), match=sentence):
        run(**KINDS | options)


def test_an_nnunet_set_gives_contrasts_and_labels(nnunet, run):
    content, notes = run(**NNUNET)
    assert (content["channel_names"], content["labels"]) == (["T2", "ADC"], {"1": "PZ", "2": "TZ"})
    assert records_of(content)["prostate_01"] == {
        "image": ["images/prostate_01_0000.nii.gz", "images/prostate_01_0001.nii.gz"],
        "label": "masks/prostate_01.nii.gz",
        "case": "prostate_01",
    }
    assert notes[0].startswith("PATIENTS UNKNOWN: no patients.csv says whose the 4 images are (north 4)")


def test_version_1_is_read_with_a_table_of_patients(nnunet, run):
    describe(nnunet, FIRST)
    rows = [f"{case},p{place // 2}" for place, case in enumerate(CASES)]
    (nnunet / "patients.csv").write_text("\n".join(["file,patient", *rows]))
    content, _ = run(**NNUNET)
    assert (content["channel_names"], content["labels"]) == (["T2", "ADC"], {"1": "PZ", "2": "TZ"})
    patients = {case: record["patient"] for case, record in records_of(content).items()}
    assert patients == dict(zip(CASES, ("p0", "p0", "p1", "p1"), strict=True))


def test_what_nobody_annotated_keeps_its_number_and_is_ignored(nnunet, run, study, tmp_path):
    describe(nnunet, SECOND | {"labels": {"background": 0, "PZ": 1, "ignore": 2}})
    content, _ = run(**NNUNET)
    assert content["labels"] == {"1": "PZ"} and content["ignore"] == 2
    settings = {"channels": 2, "channel_names": ["T2", "ADC"], "intensity": "raw", "split_unit": "unknown"}
    data = load_site_data(tmp_path / "target" / "north", study(labels={1: "PZ"}, **settings), tmp_path / "cache")
    mask = np.asanyarray(nibabel.load(nnunet / "labelsTr" / f"{data.test.cases[0]}.nii.gz").dataobj)
    np.testing.assert_array_equal(data.test.targets[1], np.where(mask == 2, IGNORED, mask)[..., 1])


def test_regions_become_labels_and_their_unions(nnunet, run):
    # As BraTS in nnU-Net's form, in which 4 is the enhancing tumour.
    labels = {"background": 0, "whole": [1, 2, 4], "core": [2, 4], "enhancing": 4}
    describe(nnunet, SECOND | {"labels": labels, "regions_class_order": [1, 2, 4]})
    content, _ = run(**NNUNET)
    assert content["labels"] == {"1": "whole 1", "2": "core 2", "3": "enhancing"}
    assert content["regions"] == {"whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": ["PZ", "TZ"]},
        {"labels": {"PZ": "one"}},
        {"labels": {"PZ": None}},
        {"channel_names": ["T2", "ADC"]},
        {"channel_names": {"0": "T2", "2": "ADC"}},
        {"channel_names": None},
    ],
)
def test_a_description_that_nnunet_does_not_write_is_refused(nnunet, run, changes):
    describe(nnunet, SECOND | changes)
    with pytest.raises(DataError, match="dataset.json of site 'north' is not as nnU-Net writes it .*. Correct its"):
        run(**NNUNET)
