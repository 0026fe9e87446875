"""What one site's data hold, by files of which every number is known."""

import json

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.ct_values import EDGES
from silofl.data.inventory import take_inventory

CAST = np.array([200, 100, 100])


@pytest.fixture
def write_site(tmp_path):
    """Write a site with a picture for each label; its patients are p0, p1 and so on unless they are given."""

    def write(labels, patients=None, name="north", names=("healthy", "sick"), colour=CAST, **changes):
        folder = tmp_path / name
        folder.mkdir()
        records = []
        for number, label in enumerate(labels):
            Image.fromarray(np.full((6, 8, 3), colour + number, np.uint8)).save(folder / f"{number}.png")
            patient = {"patient": f"p{number}"} if patients is None else {"patient": patients[number]}
            records.append({"image": f"{number}.png", "label": label} | (patient if patient["patient"] else {}))
        content = {"task": "classification", "labels": dict(enumerate(names)), "training": records} | changes
        (folder / "dataset.json").write_text(json.dumps(content))
        return folder

    return write


def test_patients_are_counted_by_class_and_each_once(write_site):
    # p0 has a healthy picture and two sick ones.
    found = take_inventory(write_site([0, 1, 1, 0, 1], ["p0", "p0", "p0", "p1", "p2"]), 0)
    assert (found.unit, found.patients, found.cases) == ("patients", 3, 5)
    assert found.labels == {"healthy": 2, "sick": 2} and found.shape == (6, 8)
    assert found.spacing_mm is None and found.contrasts == {}


def test_unknown_patients_count_by_case_and_for_no_floor(write_site):
    folder = write_site([0, 0, 1], [None, None, "p2"], split_unit="unknown")
    found = take_inventory(folder, 0)
    assert (found.unit, found.patients, found.labels) == ("cases", 3, {"healthy": 2, "sick": 1})
    assert take_inventory(folder, 2) is None


def test_a_class_of_two_patients_cannot_be_computed(write_site):
    folder = write_site([0] * 9 + [1] * 2 + [2] * 6, names=("healthy", "rare", "sick"))
    found = take_inventory(folder, 5)
    # The total of 17 less 9 would be 2 and 6 together, so the smallest of the others is withheld with it.
    assert found.labels == {"healthy": 9, "rare": None, "sick": None} and found.patients == 17
    assert take_inventory(write_site([0] * 9 + [1] * 2, name="south"), 5).labels == {"healthy": None, "sick": None}


def test_a_label_map_has_the_labels_that_a_site_annotates(tmp_path):
    for number, value in enumerate((0, 1, 1)):
        Image.fromarray(np.full((6, 8), 90, np.uint8)).save(tmp_path / f"{number}.png")
        Image.fromarray(np.full((6, 8), value, np.uint8)).save(tmp_path / f"m{number}.png")
    records = [{"image": f"{n}.png", "label": f"m{n}.png", "patient": f"p{n}"} for n in range(3)]
    content = {"task": "segmentation", "labels": {"1": "organ", "2": "lesion"}, "labels_annotated": [1]}
    (tmp_path / "dataset.json").write_text(json.dumps(content | {"training": records[:1], "test": records[1:]}))
    found = take_inventory(tmp_path, 0)
    assert found.labels == {"organ": 2} and found.ct_shares == ()


def write_volumes(folder, affine, channel="CT", shape=(7, 8, 9)):
    """Write three volumes whose labelled voxels have 50 HU, of three patients."""
    records = []
    for number in range(3):
        pixels, label = np.full(shape, -1000, np.int16), np.zeros(shape, np.uint8)
        pixels[0, 0, :3], label[0, 0, :3] = 50, 1
        nib.save(nib.Nifti1Image(pixels, affine), folder / f"{number}.nii")
        nib.save(nib.Nifti1Image(label, affine), folder / f"m{number}.nii")
        records.append({"image": [f"{number}.nii"], "label": f"m{number}.nii", "patient": f"p{number}"})
    content = {"task": "segmentation", "labels": {"1": "organ"}, "channel_names": [channel], "training": records}
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder


def test_size_and_spacing_of_volumes_run_along_the_body(tmp_path):
    # The first voxel axis runs to the head, the second to the left, the third to the back.
    affine = np.array([[0, -2.0, 0, 0], [0, 0, -3, 0], [5, 0, 0, 0], [0, 0, 0, 1]])
    found = take_inventory(write_volumes(tmp_path, affine), 0)
    assert found.shape == (8, 9, 7) and found.spacing_mm == (2, 3, 5)


def test_only_ct_has_shares_of_values_with_the_floor(tmp_path):
    found = take_inventory(write_volumes(tmp_path, np.eye(4)), 3)
    assert found.ct_shares[np.digitize(50, EDGES) - 1] == 1 and sum(found.ct_shares) == 1
    assert take_inventory(write_volumes(tmp_path, np.eye(4), "T1"), 3).ct_shares == ()


def test_what_is_wrong_names_the_case_and_what_to_correct(write_site):
    folder = write_site([0, 1])
    (folder / "1.png").write_bytes(b"no picture")
    wrong = {
        "case '1': 1.png is": folder,
        "dataset.json has no case in test; list one there": write_site([], name="empty"),
        "cannot name a label: it begins with one of": write_site([0], name="south", names=("=cmd", "sick")),
    }
    for sentence, wrong_folder in wrong.items():
        with pytest.raises(DataError, match=sentence):
            take_inventory(wrong_folder, 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task": "detection"}, "^task of dataset.json must be segmentation or .*, not 'detection'; correct it$"),
        (
            {"labels": [str(number) for number in range(9999)]},
            r"^labels of .* as {\"1\": \"nucleus\"}, not \['0', '1'.{,70}$",
        ),
        ({"channel_names": ["T1\n"]}, r"^channel_names in dataset.json has the contrast 'T1\\n'; use a name of"),
    ],
)
def test_a_wrong_key_of_dataset_json_is_named_with_its_value_cut_short(write_site, changes, sentence):
    folder = write_site([0, 1])
    content = json.loads((folder / "dataset.json").read_text()) | changes
    (folder / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=sentence):
        take_inventory(folder, 0)
