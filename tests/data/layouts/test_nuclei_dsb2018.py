import json

import numpy as np
import pytest
from PIL import Image

from silofl.data.importers import import_layout
from silofl.data.manifest import read_manifest
from silofl.data.site_data import load_site_data
from silofl.errors import DataError


@pytest.fixture
def source(tmp_path):
    """A site of four source images with two tiles each, in the form of the public set."""
    folder, rng, samples = tmp_path / "source", np.random.default_rng(0), []
    for number in range(8):
        names = {}
        for key, kind, high, factor in (("image", "images", 256, 1), ("mask", "masks", 2, 255)):
            names[key] = f"dark/{kind}/{number}.png"
            (folder / names[key]).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, high, (8, 8), dtype=np.uint8) * factor).save(folder / names[key])
        samples.append({"id": f"tile{number}", "site": "dark", "group": f"source{number // 2}", **names})
    (folder / "dataset.json").write_text(json.dumps({"samples": samples}))
    return folder


def change(source, edit):
    content = json.loads((source / "dataset.json").read_text())
    edit(content)
    (source / "dataset.json").write_text(json.dumps(content))


def test_tiles_of_one_source_image_stay_together(source, tmp_path, study):
    import_layout("nuclei-dsb2018", source, tmp_path / "target")
    manifest = read_manifest(tmp_path / "target" / "dark", study())
    patients = {part: {record.patient for record in records} for part, records in manifest.parts.items()}
    # 4 sources: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation, 2 training, two tiles each.
    assert {part: len(found) for part, found in patients.items()} == {"training": 2, "validation": 1, "test": 1}
    assert (len(manifest.training), len(manifest.test)) == (4, 2)


def test_masks_become_zero_and_one(source, tmp_path):
    import_layout("nuclei-dsb2018", source, tmp_path / "target")
    for number in range(8):
        written = np.asarray(Image.open(tmp_path / "target" / "dark" / "masks" / f"tile{number}.png"))
        original = np.asarray(Image.open(source / "dark" / "masks" / f"{number}.png"))
        np.testing.assert_array_equal(written, original // 255)


@pytest.mark.parametrize("key", ["id", "site", "group"])
def test_a_sample_that_lacks_a_key_is_refused(source, tmp_path, key):
    change(source, lambda content: content["samples"][3].pop(key))
    with pytest.raises(DataError, match="every sample of source must have id, site and group"):
        import_layout("nuclei-dsb2018", source, tmp_path / "target")


@pytest.mark.parametrize("key", ["image", "mask"])
def test_a_missing_file_is_named(source, tmp_path, key):
    (source / "dark" / f"{key}s" / "5.png").unlink()
    with pytest.raises(DataError, match=f"source must hold dark/{key}s/5.png, which its dataset.json names"):
        import_layout("nuclei-dsb2018", source, tmp_path / "target")


@pytest.mark.parametrize("path", ["../outside.png", "/etc/hostname"])
def test_a_path_that_leaves_the_set_is_refused(source, tmp_path, path):
    (tmp_path / "outside.png").write_bytes(b"x")
    change(source, lambda content: content["samples"][0].update(image=path))
    with pytest.raises(DataError, match="source must hold .*, which its dataset.json names"):
        import_layout("nuclei-dsb2018", source, tmp_path / "target")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "dataset.json in source must have the keys samples; samples missing"),
        ("[]", "dataset.json in source must have the keys samples"),
        ("{", "dataset.json in source must be JSON, not broken"),
    ],
)
def test_another_dataset_json_is_refused(source, tmp_path, content, sentence):
    (source / "dataset.json").write_text(content)
    with pytest.raises(DataError, match=sentence):
        import_layout("nuclei-dsb2018", source, tmp_path / "target")


def test_a_source_without_dataset_json_is_told(source, tmp_path):
    (source / "dataset.json").unlink()
    with pytest.raises(DataError, match="dataset.json in source must exist; it is not there"):
        import_layout("nuclei-dsb2018", source, tmp_path / "target")


def test_the_real_set_loads_at_every_site(real_data, tmp_path, study):
    source = real_data("nuclei_dsb2018")
    summary = import_layout("nuclei-dsb2018", source, tmp_path / "target")
    counts = json.loads((source / "dataset.json").read_text())["counts_per_site"]
    assert {site: sum(parts.values()) for site, parts in summary.examples.items()} == counts
    for site, parts in summary.examples.items():
        data = load_site_data(tmp_path / "target" / site, study(), tmp_path / "cache")
        assert (len(data.training), len(data.validation), len(data.test)) == tuple(parts.values())
        assert data.training.images.shape[1:] == (1, 256, 256)
        assert set(np.unique(data.training.targets)) == {0, 1}
        assert not set(data.training.patients) & set(data.test.patients)
