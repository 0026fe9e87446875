import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.site_data import load_site_data
from silofl.importing.importers import import_layout
from silofl.study import load_study
from tests.conftest import records_of

STUDY = Path(__file__).resolve().parents[2] / "jobs" / "fedsm_fundus" / "app" / "config" / "study.yaml"
LAYOUT = "fundus-disc-cup"
GREYS = np.array([255, 128, 0], np.uint8)  # background, rim of the disc, cup: by label number


def write_pictures(images, masks, names, seed=0, is_rgb=False):
    """Write photographs and their masks of 0, 128 and 255; return the label numbers by name."""
    rng, numbers = np.random.default_rng(seed), {}
    for folder in (images, masks):
        folder.mkdir(parents=True)
    for name in names:
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(images / f"{name}.png")
        numbers[name] = rng.integers(0, 3, (16, 16))
        mask = Image.fromarray(GREYS[numbers[name]])
        (mask.convert("RGB") if is_rgb else mask).save(masks / f"{name}.png")
    return numbers


@pytest.fixture
def source(tmp_path):
    """A domain in the form of the release, train and test apart, and a hospital with images and masks."""
    for part, names in (
        ("train", ["gdrishtiGS_002", "gdrishtiGS_004", "gdrishtiGS_005"]),
        ("test", ["gdrishtiGS_001"]),
    ):
        place = tmp_path / "source" / "Domain1" / part / "ROIs"
        write_pictures(place / "image", place / "mask", names, seed=len(names))
    place = tmp_path / "source" / "north"
    write_pictures(place / "images", place / "masks", [f"{number:04d}" for number in range(5)], seed=9)
    return tmp_path / "source"


def test_train_and_test_of_a_domain_are_put_together_and_split_anew_without_patients(run, source, tmp_path):
    # What is no picture is left out.
    for name in ("Thumbs.db", "._0001.png"):
        (source / "north" / "images" / name).write_bytes(b"x")
    summary = run()
    # 4 images: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation; 5 images: 1 test, round(4 * 0.2) = 1
    assert summary.examples == {
        "Domain1": {"training": 2, "validation": 1, "test": 1},
        "north": {"training": 3, "validation": 1, "test": 1},
    }
    cases = records_of(json.loads((tmp_path / "target" / "Domain1" / "dataset.json").read_text()))
    assert set(cases) == {"test-gdrishtiGS_001", *(f"train-gdrishtiGS_00{number}" for number in (2, 4, 5))}
    assert all("patient" not in record for record in cases.values())
    assert json.loads((tmp_path / "target" / "Domain1" / "dataset.json").read_text())["split_unit"] == "unknown"
    original = (source / "Domain1" / "test" / "ROIs" / "image" / "gdrishtiGS_001.png").read_bytes()
    assert (tmp_path / "target" / "Domain1" / "images" / "test-gdrishtiGS_001.png").read_bytes() == original


def test_the_job_reads_the_rim_and_the_darkest_as_cup_and_scores_them_together_as_disc(run, source, tmp_path):
    run()
    data = load_site_data(tmp_path / "target" / "north", load_study(STUDY), tmp_path / "cache")
    assert data.training.images.shape == (3, 3, 256, 256)
    for part in (data.training, data.validation, data.test):
        for case, target in zip(part.cases, part.targets, strict=True):
            grey = np.asarray(Image.open(source / "north" / "masks" / f"{case}.png"))
            # 16 pixels grow to 256: each becomes a square of 16 x 16
            np.testing.assert_array_equal(target[8::16, 8::16], np.select([grey == 128, grey == 0], [1, 2]))
    study = load_study(STUDY)
    assert {study.labels[number] for number in study.regions["disc"]} == {"rim", "cup"}
    assert [study.labels[number] for number in study.regions["cup"]] == ["cup"]


@pytest.mark.parametrize("is_rgb", [False, True])
def test_a_mask_may_be_grey_or_three_times_the_same(tmp_path, is_rgb):
    place = tmp_path / "source" / "Domain2" / "train"
    numbers = write_pictures(place / "image", place / "mask", ["G-1-L", "G-2-R"], is_rgb=is_rgb)
    import_layout("fundus-disc-cup", tmp_path / "source", tmp_path / "target")
    for name, wanted in numbers.items():
        written = np.asarray(Image.open(tmp_path / "target" / "Domain2" / "masks" / f"train-{name}.png"))
        np.testing.assert_array_equal(written, wanted)


def test_greys_between_are_read_as_the_nearest_of_the_three(run, source, tmp_path):
    path = source / "north" / "masks" / "0002.png"
    Image.fromarray(np.array([[0, 50], [51, 200], [201, 255]], np.uint8).repeat(16, 0).repeat(16, 1)).save(path)
    Image.fromarray(np.zeros((96, 32, 3), np.uint8)).save(source / "north" / "images" / "0002.png")
    run()
    (found,) = (tmp_path / "target" / "north").rglob("masks/0002.png")
    assert np.asarray(Image.open(found))[8::16, 8::16].tolist() == [[2, 2], [1, 1], [0, 0]]


def no_background(source):
    Image.fromarray(np.full((32, 32), 2, np.uint8)).save(source / "north" / "masks" / "0002.png")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (no_background, "the mask 0002.png of 0002 must hold 0 .* not greys up to 2 alone"),
        (
            lambda source: (source / "Domain1/train/ROIs/image/gdrishtiGS_004.png").unlink(),
            "site 'Domain1' must have each picture in train/ROIs/image .* gdrishtiGS_004",
        ),
        (
            lambda source: (source / "Domain1/train/ROIs/mask/gdrishtiGS_004.png").unlink(),
            "site 'Domain1' must have each picture in train/ROIs/image .* gdrishtiGS_004",
        ),
        (
            lambda source: (source / "north" / "masks").rename(source / "north" / "labels"),
            "site 'north' must have each picture in images and in masks; .* 0000, 0001",
        ),
        (
            lambda source: (source / "empty").mkdir(),
            "site 'empty' must have pictures in images or train/ROIs/image, not none",
        ),
        (
            lambda source: (source / "north" / "images" / "0001.jpg").write_bytes(b"x"),
            "0001.jpg must be the only picture of its name in images",
        ),
    ],
)
def test_a_set_without_whole_pairs_is_refused(run, source, damage, sentence):
    damage(source)
    with pytest.raises(DataError, match=sentence):
        run()
