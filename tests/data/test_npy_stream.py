import numpy as np
import pytest

from silofl.data.npy_stream import NpyStream

ROWS = {n: np.random.default_rng(n).normal(size=(n, 2, 3)).astype(np.float32) for n in (0, 1, 5, 7)}


@pytest.mark.parametrize(
    "blocks",
    # Nothing at all, and single numbers that lie apart.
    [[ROWS[1]], [ROWS[7], ROWS[0], ROWS[5]], [ROWS[0]], [np.arange(10)[::3]]],
)
def test_what_is_appended_is_what_numpy_loads(tmp_path, blocks):
    stream = NpyStream(tmp_path / "a.npy", blocks[0].dtype)
    for block in blocks:
        if len(block):
            stream.append(block)
    stream.finish(blocks[0].shape[1:])
    stream.sync()
    for mode in (None, "r"):
        loaded = np.load(tmp_path / "a.npy", mmap_mode=mode)
        np.testing.assert_array_equal(loaded, np.concatenate(blocks))
        assert loaded.dtype == blocks[0].dtype
