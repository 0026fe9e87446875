import gc
import logging
import os
from contextlib import nullcontext

import numpy as np
import pytest

from silofl.core.array_file import ArrayFile, keep_in_files, store

ARRAYS = {
    "matrix": np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32),
    "scalar": np.asarray(3.0),
    "empty": np.zeros((0, 3), np.float32),
    "repeated": np.broadcast_to(np.float32(2), (3, 4)),
    "every second": np.arange(12, dtype=np.float16).reshape(2, 6)[:, ::2],
    "counter": np.asarray(5, np.int64),
}


def check_same(found, wanted=ARRAYS):
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def write_in_pieces(array, length=16):
    file = ArrayFile()
    for start in range(0, array.size, length):
        file.write("whole", array.reshape(-1)[start : start + length], start, array.shape)
    file.write("after", array)
    return file.read()


@pytest.mark.parametrize("keep", [keep_in_files, lambda folder: nullcontext()], ids=["files", "memory"])
def test_arrays_come_back_whole_or_in_pieces(tmp_path, keep):
    with keep(tmp_path):
        check_same(store(ARRAYS))
        check_same(write_in_pieces(ARRAYS["matrix"]), {"whole": ARRAYS["matrix"], "after": ARRAYS["matrix"]})


def test_what_is_in_a_file_is_not_written_again(tmp_path):
    # What other tests have left open.
    gc.collect()
    opened = len(os.listdir("/proc/self/fd"))
    with keep_in_files(tmp_path):
        once = store(ARRAYS)
        twice = store(once)
        assert all(twice[name] is once[name] for name in ARRAYS) and not [*tmp_path.iterdir()]
    check_same(once)
    del once, twice
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_array_that_the_disk_refuses_stays_in_memory(tmp_path, monkeypatch, caplog, taken):
    append = ArrayFile._append
    calls = []

    def refuse(self, file, array):
        calls.append(array)
        if taken < len(calls) < 9:
            raise OSError(28, "No space left on device")
        append(self, file, array)

    monkeypatch.setattr(ArrayFile, "_append", refuse)
    with keep_in_files(tmp_path), caplog.at_level(logging.WARNING):
        # Of 63 numbers in four pieces.
        check_same(write_in_pieces(ARRAYS["matrix"]), {"whole": ARRAYS["matrix"], "after": ARRAYS["matrix"]})
    assert "stays in memory" in caplog.text and "No space left on device" in caplog.text


def test_a_change_of_an_array_changes_no_other(tmp_path):
    with keep_in_files(tmp_path):
        found = store(ARRAYS)
        found["matrix"] += 1
    check_same(found, ARRAYS | {"matrix": ARRAYS["matrix"] + 1})
