import json

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.importing.importers import ImportOptions, import_layout

LAYOUT, PARTS = "nuclei-tiles", ("training", "validation", "test")
LABORATORIES = ("histo_purple", "histo_white")


@pytest.fixture
def source(tmp_path):
    """Two laboratories with twelve pictures of 256 x 256 each, in every one a column of tiles for each kind."""
    (tmp_path / "source").mkdir()
    mask, samples = np.zeros((256, 256), np.uint8), []
    # In tiles of 64 x 64, by column: none; a tenth; 20 %, which is neither; all of it.
    mask[:, 64:70], mask[:, 128:141], mask[:, 192:] = 255, 255, 255
    Image.fromarray(mask).save(tmp_path / "source" / "mask.png")
    for laboratory in LABORATORIES:
        for number in range(12):
            name = f"{laboratory}_{number}"
            Image.fromarray(np.full((256, 256, 3), 10 * number, np.uint8)).save(tmp_path / "source" / f"{name}.png")
            samples.append({"id": name, "site": laboratory, "group": name, "image": f"{name}.png", "mask": "mask.png"})
    (tmp_path / "source" / "dataset.json").write_text(json.dumps({"samples": samples}))
    return tmp_path / "source"


def read_sites(target):
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(target.glob("*/dataset.json"))}


def test_each_laboratory_becomes_two_hospitals_that_share_no_picture_and_whose_parts_have_as_many_of_each_class(
    run, tmp_path
):
    run()
    sites, pictures = read_sites(tmp_path / "target"), {}
    assert [*sites] == ["histo_purple_1", "histo_purple_2", "histo_white_1", "histo_white_2"]
    for name, site in sites.items():
        assert site["labels"] == {"0": "few", "1": "many"}
        patients = [{record["patient"] for record in site[part]} for part in PARTS]
        pictures[name] = set.union(*patients)
        assert len(pictures[name]) == sum(map(len, patients)) == 6
        for part in PARTS:
            labels = [record["label"] for record in site[part]]
            assert labels.count(0) == labels.count(1) > 0
        # 6 pictures: round(6 * .4) = 2 test, round(4 * .25) = 1 validation, 3 training of 8 and 4 tiles of a class;
        # training keeps 8 of each.
        assert len(site["training"]) == 16
    assert all(not pictures[f"{laboratory}_1"] & pictures[f"{laboratory}_2"] for laboratory in LABORATORIES)


def test_tiles_are_of_40_x_40_and_their_class_follows_from_their_nuclei(run, tmp_path):
    run()
    site, content = tmp_path / "target" / "histo_white_2", read_sites(tmp_path / "target")["histo_white_2"]
    with np.load(site / "images.npz") as arrays:
        images = arrays["images"]
    records = [record for part in PARTS for record in content[part]]
    assert images.shape[1:] == (40, 40, 3)
    for record in records:
        number, column = int(record["patient"].rpartition("_")[2]), int(record["case"].rpartition("_")[2]) % 4
        # Columns 0 and 1 have at most 12 % of nuclei, column 3 at least 25 %.
        assert record["label"] == {0: 0, 1: 0, 3: 1}[column]
        assert (images[record["index"]] == 10 * number).all()


def test_another_seed_deals_the_pictures_otherwise(source, tmp_path):
    for seed in (0, 1):
        import_layout(LAYOUT, source, tmp_path / f"target{seed}", ImportOptions(seed=seed))
    first, second = (read_sites(tmp_path / f"target{seed}")["histo_white_1"] for seed in (0, 1))
    assert {r["patient"] for r in first["test"]} != {r["patient"] for r in second["test"]}


def test_a_set_without_stained_tissue_is_refused(run, source):
    text = (source / "dataset.json").read_text()
    (source / "dataset.json").write_text(text.replace('"site": "histo', '"site": "fluo'))
    with pytest.raises(DataError, match="histo_purple and histo_white"):
        run()
