import json

import numpy as np
import pytest

from silofl_desk.phantoms import stains
from silofl_desk.phantoms.stains import LABELS, SITES, make_stains
from tests.conftest import list_records


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    return make_stains(tmp_path_factory.mktemp("stains"), seed=3)


@pytest.fixture
def few_patients(monkeypatch):
    monkeypatch.setattr(stains, "PATIENTS", {"training": 3, "validation": 3, "test": 6})


def read_site(folder):
    """Return a site's images in [0, 1], their classes and its dataset.json."""
    content = json.loads((folder / "dataset.json").read_text())
    records = list_records(content)
    with np.load(folder / "images.npz") as arrays:
        images = arrays["images"][[record["index"] for record in records]] / 255
    return images, np.array([record["label"] for record in records]), content


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mean_colours(folder):
    return [read_site(folder / site)[0].mean(axis=(1, 2)) for site in SITES]


def test_mean_intensity_hardly_tells_the_classes_of_a_hospital(hospitals):
    for site in SITES:
        images, classes, _ = read_site(hospitals / site)
        intensity = images.mean(axis=(1, 2, 3))
        # The area under the ROC curve: how often an image of one class is brighter than one of the other.
        assert 0.4 < np.mean(intensity[classes == 1, None] > intensity[classes == 0]) < 0.6


def test_every_part_has_both_classes_and_patients_of_its_own(hospitals):
    for site in SITES:
        images, _, content = read_site(hospitals / site)
        assert images.shape == (184, 32, 32, 3)
        assert content["labels"] == {str(number): name for number, name in LABELS.items()}
        for part, count in (("training", 24), ("validation", 40), ("test", 120)):
            assert [record["label"] for record in content[part]].count(1) == count / 2 == len(content[part]) / 2
        parts = [{record["patient"] for record in content[part]} for part in ("training", "validation", "test")]
        assert len(set.union(*parts)) == sum(map(len, parts))


def test_another_seed_makes_other_hospitals(hospitals, few_patients, tmp_path):
    other = make_stains(tmp_path, seed=4)
    for mine, theirs in zip(mean_colours(hospitals), mean_colours(other), strict=True):
        assert not np.allclose(mine.mean(axis=0), theirs.mean(axis=0), atol=0.01)
    whole = files_of(other)
    for site in SITES[2:]:
        (tmp_path / site / "images.npz").unlink()
    assert files_of(make_stains(tmp_path, seed=4)) == whole
