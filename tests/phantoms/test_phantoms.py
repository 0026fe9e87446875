import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.manifest import PARTS
from silofl_desk.phantoms.phantoms import PATIENTS, SITES, SLICED, UNSEEN_SITE, deal_patients, make_phantoms
from tests.conftest import list_records

FEW = {"north": 6, "south": 7}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    return make_phantoms(tmp_path_factory.mktemp("hospitals"), seed=3, patients=FEW)


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cases_of(site):
    content = json.loads((site / "dataset.json").read_text())
    records = list_records(content)
    return [(nib.load(site / record["image"]), nib.load(site / record["label"])) for record in records]


def test_every_site_tests_with_twenty_patients():
    assert set(PATIENTS) == {*SITES, UNSEEN_SITE} and UNSEEN_SITE not in SITES
    for count in PATIENTS.values():
        dealt = deal_patients([f"p{number}" for number in range(count)], np.random.default_rng(0))
        found = {part: len(dealt[part]) + number for part, number in SLICED.further.items()}
        assert found == {"test": 20, "validation": 6}


def test_further_patients_are_for_the_named_parts_alone(hospitals, tmp_path):
    further = {"test": 2, "validation": 1}
    more = make_phantoms(tmp_path, seed=3, kind=replace(SLICED, patients={"north": 6}, further=further))
    parts, dealt = (json.loads((folder / "north" / "dataset.json").read_text()) for folder in (more, hospitals))
    new = {part: [one["patient"] for one in parts[part] if one not in dealt[part]] for part in PARTS}
    assert new == {"training": [], "validation": ["north_09"], "test": ["north_07", "north_08"]}
    assert all(one in parts[part] for part in PARTS for one in dealt[part])
    found, first = files_of(more / "north"), files_of(hospitals / "north")
    assert all(found[name] == content for name, content in first.items() if name.endswith(".nii.gz"))


@pytest.mark.parametrize(
    ("count", "sizes"),
    # 20 // 5 = 4 validate, 20 // 4 = 5 test, 20 - 4 - 5 = 11 train; at least 2 validate and 3 test
    [(6, [1, 2, 3]), (9, [4, 2, 3]), (20, [11, 4, 5])],
)
def test_every_patient_is_in_one_part(count, sizes):
    names = [f"p{number}" for number in range(count)]
    parts = deal_patients(names, np.random.default_rng(0))
    assert sorted(name for members in parts.values() for name in members) == sorted(names)
    assert [len(parts[part]) for part in ("training", "validation", "test")] == sizes


def test_image_and_label_lie_on_the_same_grid(hospitals):
    for image, label in (pair for site in FEW for pair in cases_of(hospitals / site)):
        assert image.shape == label.shape
        assert 6 <= image.shape[2] <= 10
        np.testing.assert_array_equal(image.affine, label.affine)
        assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
        assert image.get_data_dtype() == np.int16
        assert np.isin(label.dataobj, (0, 1, 2)).all()
        assert (np.asarray(label.dataobj) == 1).any()


def test_a_second_call_writes_nothing(hospitals):
    before = {path: path.stat().st_mtime_ns for path in hospitals.rglob("*")}
    assert make_phantoms(hospitals, seed=3, patients=FEW) == hospitals
    assert {path: path.stat().st_mtime_ns for path in hospitals.rglob("*")} == before


def test_an_incomplete_set_is_made_again_by_its_seed(hospitals, tmp_path):
    whole = files_of(hospitals / "north")
    (tmp_path / "north" / "images").mkdir(parents=True)
    (tmp_path / "north" / "images" / "north_02.nii.gz").write_bytes(b"half, without the marker")
    assert files_of(make_phantoms(tmp_path, 3, {"north": 6}) / "north") == whole
    (tmp_path / "north" / "labels" / "north_05.nii.gz").unlink()
    assert files_of(make_phantoms(tmp_path, 3, {"north": 6}) / "north") == whole


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"seed": 5, "patients": FEW}, "seed 3 and not of 5; .* remove this one"),
        ({"seed": 3, "patients": {"north": 6}}, "patients {'north': 6, 'south': 7} and not of {'north': 6}"),
    ],
)
def test_a_folder_of_another_request_is_refused(hospitals, asked, sentence):
    before = files_of(hospitals)
    with pytest.raises(DataError, match=f"holds simulated hospitals of {sentence}"):
        make_phantoms(hospitals, **asked)
    assert files_of(hospitals) == before


def test_real_data_under_a_sites_name_is_never_overwritten(tmp_path):
    manifest = tmp_path / "north" / "dataset.json"
    manifest.parent.mkdir()
    manifest.write_text('{"training": [{"image": "a.png", "label": 0, "patient": "p17"}]}')
    with pytest.raises(DataError, match="north holds other data"):
        make_phantoms(tmp_path, patients={"north": 6})
    assert "p17" in manifest.read_text()
