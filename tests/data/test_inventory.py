"""What one site's data hold, by files of which every number is known."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from pydicom.data import get_testdata_file

from silofl.base.errors import DataError
from silofl.data.inventory import ALL, build_reading_study, take_inventory

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
    assert found.spacing_mm is None and found.vendors == {} and found.contrasts == {}


def test_a_look_is_the_mean_over_patients_and_their_deviation(write_site):
    looks = take_inventory(write_site([0, 0, 0], ["p0", "p0", "p1"]), 0).looks["healthy"]
    # Brightness of the pictures: (400 + 3 n) / 3 / 255; p0 has the mean of n = 0 and 1, p1 has n = 2.
    one, other = (400 / 3 + 0.5) / 255, (400 / 3 + 2) / 255
    assert looks["brightness"].patients == 2
    assert looks["brightness"].mean == pytest.approx((one + other) / 2, rel=1e-2)
    assert looks["brightness"].deviation == pytest.approx((other - one) / np.sqrt(2), rel=1e-2)
    assert looks["red"].mean == pytest.approx(0.5, abs=0.01)


def test_who_is_not_known_counts_by_case_and_for_no_floor(write_site):
    folder = write_site([0, 0, 1], [None, None, "p2"], split_unit="unknown")
    found = take_inventory(folder, 0)
    assert (found.unit, found.patients, found.labels) == ("cases", 3, {"healthy": 2, "sick": 1})
    assert take_inventory(folder, 2) is None


def test_a_class_of_two_patients_is_withheld_and_follows_from_nothing_else(write_site):
    folder = write_site([0] * 9 + [1] * 2 + [2] * 6, names=("healthy", "rare", "sick"))
    found = take_inventory(folder, 5)
    # The total of 17 less 9 would be 2 and 6 together, so the smallest of the others is withheld with it.
    assert found.labels == {"healthy": 9, "rare": None, "sick": None} and found.patients == 17
    assert found.looks.keys() == {"healthy"}
    assert take_inventory(write_site([0] * 9 + [1] * 2, name="south"), 5).labels == {"healthy": None, "sick": None}


def test_a_class_of_nobody_is_withheld_like_one_of_few(write_site):
    folder = write_site([0] * 9 + [2] * 6, names=("healthy", "rare", "sick"))
    assert take_inventory(folder, 5).labels == {"healthy": 9, "rare": None, "sick": None}
    assert take_inventory(folder, 0).labels["rare"] == 0


def test_the_maker_of_the_scanner_is_known_from_dicom_files_and_a_single_machine_is_nobodys(tmp_path):
    records = []
    for number in range(3):
        shutil.copy(get_testdata_file("CT_small.dcm"), tmp_path / f"{number}.dcm")
        records.append({"image": f"{number}.dcm", "label": 0, "patient": f"p{number}"})
    content = {"task": "classification", "labels": {"0": "healthy", "1": "sick"}, "training": records}
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    assert take_inventory(tmp_path, 3).vendors == {"GE MEDICAL SYSTEMS": 3}
    assert take_inventory(tmp_path, 0).kind == "volumes"
    shutil.copy(get_testdata_file("MR_small.dcm"), tmp_path / "2.dcm")
    assert take_inventory(tmp_path, 2).vendors == {"others": None}


def test_a_label_map_has_the_labels_that_a_site_annotates(tmp_path):
    for number, value in enumerate((0, 1, 1)):
        Image.fromarray(np.full((6, 8), 90, np.uint8)).save(tmp_path / f"{number}.png")
        Image.fromarray(np.full((6, 8), value, np.uint8)).save(tmp_path / f"m{number}.png")
    records = [{"image": f"{n}.png", "label": f"m{n}.png", "patient": f"p{n}"} for n in range(3)]
    content = {"task": "segmentation", "labels": {"1": "organ", "2": "lesion"}, "labels_annotated": [1]}
    (tmp_path / "dataset.json").write_text(json.dumps(content | {"training": records[:1], "test": records[1:]}))
    found = take_inventory(tmp_path, 0)
    assert found.labels == {"organ": 2} and found.looks[ALL]["red"].mean == pytest.approx(1 / 3, abs=1e-3)


def test_what_is_wrong_names_the_case_and_what_to_correct(write_site):
    folder = write_site([0, 1])
    (folder / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="case '1': 1.png must be"):
        take_inventory(folder, 0)
    with pytest.raises(DataError, match="the name of a label must begin with none of"):
        build_reading_study(write_site([0], name="south", names=("=cmd", "sick")))
