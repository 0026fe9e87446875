import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from silofl.data.importers import import_layout
from silofl.data.site_data import load_site_data
from silofl.errors import DataError
from silofl.study import load_study

STUDY = Path(__file__).resolve().parents[3] / "jobs" / "fedsm_fundus" / "app" / "config" / "study.yaml"
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


def cases_of(folder):
    content = json.loads((folder / "dataset.json").read_text())
    return {record["case"]: record for part in ("training", "validation", "test") for record in content[part]}


def test_train_and_test_of_a_domain_are_put_together_and_split_anew(source, tmp_path):
    summary = import_layout("fundus-disc-cup", source, tmp_path / "target")
    # 4 images: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation; 5 images: 1 test, round(4 * 0.2) = 1
    assert summary.examples == {
        "Domain1": {"training": 2, "validation": 1, "test": 1},
        "north": {"training": 3, "validation": 1, "test": 1},
    }
    cases = cases_of(tmp_path / "target" / "Domain1")
    assert set(cases) == {"test-gdrishtiGS_001", *(f"train-gdrishtiGS_00{number}" for number in (2, 4, 5))}


def test_nobodys_patient_is_known(source, tmp_path):
    import_layout("fundus-disc-cup", source, tmp_path / "target")
    for site in ("Domain1", "north"):
        assert all("patient" not in record for record in cases_of(tmp_path / "target" / site).values())
        assert json.loads((tmp_path / "target" / site / "dataset.json").read_text())["split_unit"] == "unknown"


def test_the_job_reads_the_rim_and_the_darkest_as_cup_and_scores_them_together_as_disc(source, tmp_path):
    import_layout("fundus-disc-cup", source, tmp_path / "target")
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


def test_a_photograph_is_copied_as_it_is(source, tmp_path):
    import_layout("fundus-disc-cup", source, tmp_path / "target")
    original = (source / "Domain1" / "test" / "ROIs" / "image" / "gdrishtiGS_001.png").read_bytes()
    written = tmp_path / "target" / "Domain1" / "images" / "test-gdrishtiGS_001.png"
    assert written.read_bytes() == original


def test_greys_between_are_read_as_the_nearest_of_the_three(source, tmp_path):
    path = source / "north" / "masks" / "0002.png"
    Image.fromarray(np.array([[0, 50], [51, 200], [201, 255]], np.uint8).repeat(16, 0).repeat(16, 1)).save(path)
    Image.fromarray(np.zeros((96, 32, 3), np.uint8)).save(source / "north" / "images" / "0002.png")
    import_layout("fundus-disc-cup", source, tmp_path / "out")
    (found,) = (tmp_path / "out" / "north").rglob("masks/0002.png")
    assert np.asarray(Image.open(found))[8::16, 8::16].tolist() == [[2, 2], [1, 1], [0, 0]]


def test_a_mask_without_background_is_refused_with_its_name(source, tmp_path):
    path = source / "north" / "masks" / "0002.png"
    Image.fromarray(np.full((32, 32), 2, np.uint8)).save(path)
    with pytest.raises(DataError, match="the mask 0002.png of 0002 must hold 0 .* not greys up to 2 alone"):
        import_layout("fundus-disc-cup", source, tmp_path / "out")


@pytest.mark.parametrize("kind", ["image", "mask"])
def test_a_picture_without_its_partner_is_refused(source, tmp_path, kind):
    (source / "Domain1" / "train" / "ROIs" / kind / "gdrishtiGS_004.png").unlink()
    with pytest.raises(DataError, match="site 'Domain1' must have each picture in train/ROIs/image .* gdrishtiGS_004"):
        import_layout("fundus-disc-cup", source, tmp_path / "target")


def test_a_folder_without_masks_is_refused(source, tmp_path):
    (source / "north" / "masks").rename(source / "north" / "labels")
    with pytest.raises(DataError, match="site 'north' must have each picture in images and in masks; .* 0000, 0001"):
        import_layout("fundus-disc-cup", source, tmp_path / "target")


def test_a_hospital_without_pictures_is_refused(source, tmp_path):
    (source / "empty").mkdir()
    with pytest.raises(DataError, match="site 'empty' must have pictures in images or train/ROIs/image, not none"):
        import_layout("fundus-disc-cup", source, tmp_path / "target")


def test_two_pictures_of_one_name_are_refused(source, tmp_path):
    (source / "north" / "images" / "0001.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="0001.jpg must be the only picture of its name in images"):
        import_layout("fundus-disc-cup", source, tmp_path / "target")


def test_other_files_are_left_out(source, tmp_path):
    (source / "north" / "images" / "Thumbs.db").write_bytes(b"x")
    (source / "north" / "images" / "._0001.png").write_bytes(b"x")
    assert import_layout("fundus-disc-cup", source, tmp_path / "target").examples["north"]["training"] == 3
