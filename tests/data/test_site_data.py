import re
from unittest.mock import Mock

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data import cache, leakage, preparation
from silofl.data.site_data import load_site_data
from silofl.reading import formats


@pytest.fixture
def load(site, study, tmp_path, decoded_here):
    """Load the site under a study's data settings."""
    site.write()
    return lambda **data: load_site_data(site.folder, study(**data), tmp_path / "cache")


@pytest.fixture
def no_decoding(monkeypatch):
    """Let every attempt to decode an image fail."""

    def forbid():
        for module, name in (
            (preparation, "read_images"),
            (preparation, "read_label"),
            (formats, "decode"),
            (leakage, "digest_content"),
        ):
            monkeypatch.setattr(module, name, lambda *args, **kwargs: pytest.fail("an image was decoded"))

    return forbid


def test_the_parts_hold_what_the_files_hold(site, study, tmp_path):
    data = load_site_data(site.write(), study(), tmp_path / "cache")
    from PIL import Image

    assert (data.training.cases, data.validation.cases, data.test.cases) == (("a", "b", "c"), ("d",), ("e", "f"))
    for part in (data.training, data.validation, data.test):
        assert len(part) == len(part.images) == len(part.targets)
        assert (part.images.dtype, part.targets.dtype) == (np.float32, np.uint8)
        for number, case in enumerate(part.cases):
            pixels, mask = (np.asarray(Image.open(site.folder / f"{case}{end}.png")) for end in ("", "-mask"))
            np.testing.assert_allclose(part.images[number, 0], pixels / 255, rtol=1e-6)
            np.testing.assert_array_equal(part.targets[number], mask)
    assert (data.training.patients, data.training.slices) == (("a", "b", "c"), (None, None, None))
    assert data.manifest.folder == site.folder
    data_profile = data.data_profile
    assert (data_profile.kinds, data_profile.colours, data_profile.modalities, data_profile.axes) == (
        ("pictures",),
        ("grey",),
        (),
        (),
    )
    assert [values.measure for values in data_profile.intensities] == ["mean", "contrast", "roughness"]


def test_a_second_load_and_one_with_another_augmentation_decode_nothing(load, no_decoding):
    first = load()
    no_decoding()
    second = load()
    np.testing.assert_array_equal(first.training.images, second.training.images)
    assert isinstance(second.training.images, np.memmap)
    assert (first.test.cases, first.test.slices) == (second.test.cases, second.test.slices)
    assert len(load(augment=["RandFlip"]).training) == 3


@pytest.mark.parametrize(("part", "size"), [("training", (8, 10)), ("test", (16, 16))])
def test_images_of_several_sizes_are_refused_with_the_remedy(site, load, part, size):
    site.add(part, "odd", size=size)
    site.write()
    shown = re.escape(f"has {size}, case 'a' has (8, 8); add Resize: {{spatial_size: [8, 8]}}")
    with pytest.raises(DataError, match=f"case 'odd' {shown}"):
        load()
    resized = load(transforms=[{"Resize": {"spatial_size": [8, 8]}}])
    assert resized.training.images.shape[1:] == resized.test.images.shape[1:] == (1, 8, 8)


def test_equal_images_in_two_parts_are_refused_despite_a_cache(empty_site, study, tmp_path):
    images = empty_site.rng.integers(0, 255, (4, 8, 8), dtype=np.uint8)
    np.savez(empty_site.folder / "all.npz", images=images[[0, 1, 2, 3, 0]])
    for number, part in enumerate(["training"] * 3 + ["validation", "test"]):
        record = {"image": "all.npz", "index": number, "label": number % 2, "patient": f"p{number}"}
        empty_site.content[part].append(record)
    folder = empty_site.write(task="classification", labels={"0": "normal", "1": "tumour"}, split_unit="examples")
    lax, strict = (study("classification", split_unit=unit) for unit in ("examples", "patient"))
    assert load_site_data(folder, lax, tmp_path / "cache").training.targets.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="case .* shows the image of case .*; remove one of the two"):
        load_site_data(folder, strict, tmp_path / "cache")


def test_an_unwritable_cache_and_a_full_disk_are_told(load, site, study, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(DataError, match="cache folder cannot be written .*cache_dir in site.yaml"):
            load_site_data(site.folder, study(), folder)
    monkeypatch.setattr(cache.os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(DataError, match="cannot be written .No space left on device.; free space"):
        load()


def test_all_broken_cases_are_told_at_once(site, load):
    for name in ("a", "d", "f"):
        (site.folder / f"{name}.png").write_bytes(b"no picture " + name.encode())
    with pytest.raises(DataError, match=r"^3 faults: case 'a': .* \(and 2 more of this kind\)$") as error:
        load()
    assert "\n" not in str(error.value)
