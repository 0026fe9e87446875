import json

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.manifest import read_manifest
from silofl.data.site_data import load_site_data
from silofl.importing.importers import import_layout
from silofl_desk.sets.nuclei_dsb2018 import classify_look

LAYOUT = "nuclei-dsb2018"


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


def test_tiles_of_one_source_image_stay_together_and_masks_become_zero_and_one(run, source, tmp_path, study):
    run()
    manifest = read_manifest(tmp_path / "target" / "dark", study())
    patients = {part: {record.patient for record in records} for part, records in manifest.parts.items()}
    # 4 sources: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation, 2 training, two tiles each.
    assert {part: len(found) for part, found in patients.items()} == {"training": 2, "validation": 1, "test": 1}
    assert (len(manifest.training), len(manifest.test)) == (4, 2)
    for number in range(8):
        written = np.asarray(Image.open(tmp_path / "target" / "dark" / "masks" / f"tile{number}.png"))
        original = np.asarray(Image.open(source / "dark" / "masks" / f"{number}.png"))
        np.testing.assert_array_equal(written, original // 255)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id": None}, "every sample of source must have id, site and group"),
        ({"site": None}, "every sample of source must have id, site and group"),
        ({"group": None}, "every sample of source must have id, site and group"),
        ({"image": "dark/images/9.png"}, "source must hold dark/images/9.png, which its dataset.json names"),
        ({"mask": "dark/masks/9.png"}, "source must hold dark/masks/9.png, which its dataset.json names"),
        # Paths that leave the set.
        ({"image": "../outside.png"}, "source must hold .*, which its dataset.json names"),
        ({"image": "/etc/hostname"}, "source must hold .*, which its dataset.json names"),
    ],
)
def test_a_sample_without_its_keys_and_files_is_refused(run, source, tmp_path, changes, sentence):
    (tmp_path / "outside.png").write_bytes(b"x")
    content = json.loads((source / "dataset.json").read_text())
    sample = content["samples"][3] | changes
    content["samples"][3] = {key: value for key, value in sample.items() if value is not None}
    (source / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=sentence):
        run()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "dataset.json in source must have the keys samples; samples missing"),
        ("[]", "dataset.json in source must have the keys samples"),
        ("{", "dataset.json in source must be JSON, not broken"),
        (None, "source must hold stage1_train/<id>/images/<id>.png and .*, or a dataset.json"),
        # A download without any image of a known kind.
        ("light", "known size and look, not only 1 of 300x300 light"),
    ],
)
def test_another_dataset_json_or_none_is_refused(run, source, content, sentence):
    if content in (None, "light"):
        (source / "dataset.json").unlink()
    else:
        (source / "dataset.json").write_text(content)
    if content == "light":
        add_image(source / "stage1_train", "light", (300, 300), GREY_LIGHT)
    with pytest.raises(DataError, match=sentence):
        run()


def test_the_real_set_loads_at_every_site(real_data, tmp_path, study):
    source = real_data("nuclei_dsb2018")
    summary = import_layout(LAYOUT, source, tmp_path / "target")
    counts = json.loads((source / "dataset.json").read_text())["counts_per_site"]
    assert {site: sum(parts.values()) for site, parts in summary.examples.items()} == counts
    for site, parts in summary.examples.items():
        data = load_site_data(tmp_path / "target" / site, study(), tmp_path / "cache")
        assert (len(data.training), len(data.validation), len(data.test)) == tuple(parts.values())
        assert data.training.images.shape[1:] == (1, 256, 256)
        assert set(np.unique(data.training.targets)) == {0, 1}
        assert not set(data.training.patients) & set(data.test.patients)


def test_the_look_of_the_real_set_is_that_of_its_sites(real_data):
    source = real_data("nuclei_dsb2018")
    looks = {"fluo": "dark", "brightfield": "light", "histo_white": "white", "histo_purple": "purple"}
    samples = json.loads((source / "dataset.json").read_text())["samples"]
    # Every third of those that are dark, which nothing else resembles.
    dark = [sample for sample in samples if sample["site"].startswith("fluo")]
    tried, wrong = [sample for sample in samples if sample not in dark] + dark[::3], []
    for sample in tried:
        wanted = next(look for site, look in looks.items() if sample["site"].startswith(site))
        pixels = np.atleast_3d(np.asarray(Image.open(source / sample["image"])))
        wrong += [sample["id"]] if classify_look(np.moveaxis(pixels, -1, 0)) != wanted else []
    # the repackaged set has this picture, on a white background, among those on purple
    assert (len(samples), wrong) == (392, ["7f55678298ad"])


# --- the set as it is downloaded

GREY_DARK, GREY_LIGHT, ON_PURPLE, ON_WHITE = (20, 20, 20), (220, 220, 220), (180, 160, 210), (210, 208, 215)
NUCLEUS = {GREY_DARK: (200, 200, 200), GREY_LIGHT: (60, 60, 60), ON_PURPLE: (90, 30, 140), ON_WHITE: (90, 30, 140)}


def add_image(root, name, shape, background, nuclei=((100, 120), (130, 160))):
    """Add an RGBA picture with nuclei of 20 x 20 pixels, and a mask of each, as Kaggle ships them."""
    folder = root / name
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    pixels = np.full((*shape, 4), (*background, 255), np.uint8)
    for number, (row, column) in enumerate(nuclei):
        mask = np.zeros(shape, np.uint8)
        mask[row : row + 20, column : column + 20] = 255
        pixels[mask > 0, :3] = NUCLEUS[background]
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
    Image.fromarray(pixels).save(folder / "images" / f"{name}.png")
    return folder


@pytest.fixture
def stage1(tmp_path):
    """Three images of each kind of 256 rows."""
    root = tmp_path / "download" / "stage1_train"
    for number in range(3):
        add_image(root, f"dark{number}", (256, 256), GREY_DARK)
        add_image(root, f"purple{number}", (256, 320), ON_PURPLE)
        add_image(root, f"white{number}", (256, 320), ON_WHITE)
    return root


@pytest.mark.parametrize("is_root", [False, True])
def test_the_downloaded_set_comes_to_sites_by_its_look(stage1, tmp_path, is_root):
    add_image(stage1, "dark3", (256, 320), GREY_DARK)
    add_image(stage1, "dark4", (256, 320), GREY_DARK)
    add_image(stage1, "light", (300, 300), GREY_LIGHT)
    summary = import_layout(LAYOUT, stage1 if is_root else stage1.parent, tmp_path / "target")
    # 3 images: 1 test, round(2 * 0.2) = 0 but at least 1 validation, 1 training
    counts = {"training": 1, "validation": 1, "test": 1}
    assert summary.examples == dict.fromkeys(("fluo_256", "histo_purple", "histo_white"), counts)
    assert summary.patients == dict.fromkeys(("fluo_256", "histo_purple", "histo_white"), 3)
    assert summary.notes == (
        "the set names no patients: an image counts as one, and its tiles stay together",
        "3 images fit no kind of microscopy and are left out: 2 of 256x320 dark, 1 of 300x300 light",
    )


@pytest.mark.parametrize(
    ("shape", "background", "site", "corners"),
    [
        ((256, 256), GREY_DARK, "fluo_256", [(0, 0)]),
        # the middle: (360 - 256) / 2 = 52, (520 - 256) / 2 = 132, (696 - 256) / 2 = 220, (320 - 256) / 2 = 32
        ((360, 360), GREY_DARK, "fluo_360", [(52, 52)]),
        ((520, 696), GREY_DARK, "fluo_520", [(132, 220)]),
        ((256, 320), ON_WHITE, "histo_white", [(0, 32)]),
        # two by two about the middle: (640 - 512) / 2 = 64, (1024 - 512) / 2 = 256
        ((512, 640), GREY_DARK, "fluo_512x640", [(0, 64), (0, 320), (256, 64), (256, 320)]),
        ((1024, 1024), GREY_LIGHT, "brightfield_1024", [(256, 256), (256, 512), (512, 256), (512, 512)]),
    ],
)
def test_the_middle_of_an_image_becomes_tiles_with_the_union_of_its_nuclei(
    tmp_path, study, shape, background, site, corners
):
    nuclei = [(shape[0] // 2 - 10, shape[1] // 2 - 10), (shape[0] // 2 - 100, shape[1] // 2 + 40)]
    folders = [add_image(tmp_path / "stage1_train", f"image{number}", shape, background, nuclei) for number in range(2)]
    import_layout(LAYOUT, tmp_path, tmp_path / "target")
    pixels = np.asarray(Image.open(folders[0] / "images" / "image0.png"))[..., :3]
    union = np.zeros(shape)
    for row, column in nuclei:
        union[row : row + 20, column : column + 20] = 1
    for number, (top, left) in enumerate(corners):
        place = np.s_[top : top + 256, left : left + 256]
        image, mask = (tmp_path / "target" / site / kind / f"image0_{number}.png" for kind in ("images", "masks"))
        np.testing.assert_array_equal(np.asarray(Image.open(image).convert("RGB")), pixels[place])
        np.testing.assert_array_equal(np.asarray(Image.open(mask)), union[place])
    manifest = read_manifest(tmp_path / "target" / site, study())
    assert [len({record.patient for record in records}) for records in manifest.parts.values()] == [1, 0, 1]
    assert len(manifest.training) == len(corners)


PAIR = "image dark1 must have images/dark1.png and a PNG of each nucleus in masks; one is missing"


@pytest.mark.parametrize(
    ("name", "pixels", "sentence"),
    [
        ("images/dark1.png", None, PAIR),
        ("masks/*.png", None, PAIR),
        ("masks/0.png", np.zeros((8, 8), np.uint8), r"mask 0.png of dark1 must have .*\(256, 256\), not \(8, 8\)"),
        ("images/dark1.png", np.zeros((256, 256), np.uint16), "image dark1 must have 8 bits a channel, not uint16"),
    ],
    ids=["no image", "no mask", "small mask", "deep image"],
)
def test_a_damaged_download_is_refused_with_its_image(stage1, tmp_path, name, pixels, sentence):
    for path in [*(stage1 / "dark1").glob(name)]:
        path.unlink() if pixels is None else Image.fromarray(pixels).save(path)
    with pytest.raises(DataError, match=sentence):
        import_layout(LAYOUT, stage1, tmp_path / "target")
    assert not (tmp_path / "target").exists()
