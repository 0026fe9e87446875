import zipfile

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.reading import npz
from silofl.reading.images import read_image

GREY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.fixture
def opened(monkeypatch):
    """The paths of the archives that are opened."""
    monkeypatch.setattr(npz, "_kept", {})
    load, paths = npz._load_array, []
    monkeypatch.setattr(npz, "_load_array", lambda path, keys: paths.append(path.name) or load(path, keys))
    return paths


def test_an_npz_is_opened_once_for_images_and_for_labels(tmp_path, opened):
    np.savez(tmp_path / "a.npz", images=GREY, labels=GREY)
    for index in (0, 1, 0):
        for is_label in (False, True):
            found = npz.read_npz(tmp_path / "a.npz", "a.npz", index, is_label)
            np.testing.assert_array_equal(found.array, GREY[index][None])
    assert opened == ["a.npz"] * 2
    assert npz.kept_bytes() == 2 * GREY.nbytes


def test_no_more_than_two_arrays_are_kept(tmp_path, opened):
    for name in ("a.npz", "b.npz", "c.npz", "a.npz"):
        np.savez(tmp_path / name, images=GREY)
        npz.read_npz(tmp_path / name, name, 0, is_label=False)
        assert npz.kept_bytes() <= 2 * GREY.nbytes
    assert opened == ["a.npz", "b.npz", "c.npz", "a.npz"]


@pytest.mark.parametrize("rows", [1, 3])
def test_an_array_of_another_length_than_stated_is_refused(tmp_path, rows):
    np.savez(tmp_path / "a.npz", images=GREY)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        content = archive.read("images.npy").replace(b"(2, 3, 4)", f"({rows}, 3, 4)".encode())
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", content)
    with pytest.raises(DataError, match="a.npz is truncated or corrupt"):
        read_image(tmp_path / "a.npz", index=0)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["2020-01-01"], "M8[D]"),
        np.array([[[b"a"]]], "S1"),
        *(np.zeros((1, 2, 2), kind) for kind in ("V8", "c8")),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, array):
    np.savez(tmp_path / "a.npz", images=array)
    with pytest.raises(DataError, match="a.npz holds "):
        read_image(tmp_path / "a.npz", index=0)
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 2, 2)))
    assert read_image(tmp_path / "a.npz", index=0).array.max() == 0
