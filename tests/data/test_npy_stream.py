import numpy as np
import pytest

from silofl.data.npy_stream import NpyStream


@pytest.mark.parametrize("lengths", [[1], [7, 0, 5]])
def test_what_is_appended_is_what_numpy_loads(tmp_path, lengths):
    blocks = [np.random.default_rng(n).normal(size=(n, 2, 3)).astype(np.float32) for n in lengths]
    stream = NpyStream(tmp_path / "a.npy", np.float32)
    for block in blocks:
        stream.append(block)
    stream.finish((2, 3))
    stream.sync()
    for mode in (None, "r"):
        loaded = np.load(tmp_path / "a.npy", mmap_mode=mode)
        np.testing.assert_array_equal(loaded, np.concatenate(blocks))
        assert loaded.dtype == np.float32


def test_nothing_appended_is_an_empty_array(tmp_path):
    stream = NpyStream(tmp_path / "a.npy", np.uint8)
    stream.finish((4, 4))
    stream.sync()
    assert np.load(tmp_path / "a.npy", mmap_mode="r").shape == (0, 4, 4)


def test_rows_may_be_single_numbers_and_of_any_layout(tmp_path):
    stream = NpyStream(tmp_path / "a.npy", np.int64)
    stream.append(np.arange(10)[::3])
    stream.finish(())
    stream.sync()
    assert np.load(tmp_path / "a.npy").tolist() == [0, 3, 6, 9]
