import json

import numpy as np
import pytest
from PIL import Image

from silofl.data.importers import ImportOptions, import_layout
from silofl.errors import DataError

LABORATORIES = ("histo_purple", "histo_white")


@pytest.fixture
def source(tmp_path):
    """Two laboratories with twelve pictures of 256 x 256 each, half of each without nuclei, half full of them."""
    folder, samples = tmp_path / "source", []
    for laboratory in LABORATORIES:
        for number in range(12):
            name = f"{laboratory}_{number}"
            mask = np.zeros((256, 256), np.uint8)
            # In tiles of 64 x 64, by column: none; a tenth; 20 %, which is neither; all of it.
            mask[:, 64:128][:, :6], mask[:, 128:192][:, :13], mask[:, 192:] = 255, 255, 255
            picture = np.full((256, 256, 3), 10 * number, np.uint8)
            paths = {"image": f"{name}.png", "mask": f"{name}_mask.png"}
            for key, array in (("image", picture), ("mask", mask)):
                folder.mkdir(exist_ok=True)
                Image.fromarray(array).save(folder / paths[key])
            samples.append({"id": name, "site": laboratory, "group": name, **paths})
    (folder / "dataset.json").write_text(json.dumps({"samples": samples}))
    return folder


def read_sites(target):
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(target.glob("*/dataset.json"))}


def test_each_laboratory_becomes_two_hospitals_that_share_no_picture(source, tmp_path):
    import_layout("nuclei-tiles", source, tmp_path / "target")
    sites = read_sites(tmp_path / "target")
    assert [*sites] == ["histo_purple_1", "histo_purple_2", "histo_white_1", "histo_white_2"]
    patients = {name: {r["patient"] for part in PARTS for r in site[part]} for name, site in sites.items()}
    for laboratory in LABORATORIES:
        first, second = (patients[f"{laboratory}_{number}"] for number in (1, 2))
        assert len(first) == len(second) == 6 and not first & second


PARTS = ("training", "validation", "test")


def test_a_picture_is_in_one_part_and_each_part_has_as_many_of_each_class(source, tmp_path):
    import_layout("nuclei-tiles", source, tmp_path / "target")
    for site in read_sites(tmp_path / "target").values():
        assert site["labels"] == {"0": "few", "1": "many"}
        patients = [{record["patient"] for record in site[part]} for part in PARTS]
        assert len(set.union(*patients)) == sum(map(len, patients))
        for part in PARTS:
            labels = [record["label"] for record in site[part]]
            assert labels.count(0) == labels.count(1) > 0
        # 6 pictures: round(6 * .4) = 2 test, round(4 * .25) = 1 validation, 3 training of 8 and 4 tiles of a class;
        # training keeps 8 of each.
        assert len(site["training"]) == 16


def test_tiles_are_of_40_x_40_and_their_class_follows_from_their_nuclei(source, tmp_path):
    import_layout("nuclei-tiles", source, tmp_path / "target")
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
        import_layout("nuclei-tiles", source, tmp_path / f"target{seed}", ImportOptions(seed=seed))
    first, second = (read_sites(tmp_path / f"target{seed}")["histo_white_1"] for seed in (0, 1))
    assert {r["patient"] for r in first["test"]} != {r["patient"] for r in second["test"]}


def test_a_set_without_stained_tissue_is_refused(source, tmp_path):
    content = json.loads((source / "dataset.json").read_text())
    for sample in content["samples"]:
        sample["site"] = "fluo_256"
    (source / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="histo_purple and histo_white"):
        import_layout("nuclei-tiles", source, tmp_path / "target")
