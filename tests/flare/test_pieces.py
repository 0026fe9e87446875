import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.download_service import ProduceRC

from silofl.core.array_file import keep_in_files
from silofl.flare import pieces
from silofl.flare.pieces import Pieces, move_in_pieces

ARRAYS = {
    "T0": np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32),
    "T1": np.ones((), np.float32),
    "T2": np.zeros((0, 3), np.float32),
    "T3": np.random.default_rng(1).normal(size=(4, 8)),
}


@pytest.fixture
def sent(monkeypatch):
    """Return what travels of arrays in pieces of 64 bytes, and what is received of it."""
    monkeypatch.setattr(pieces, "BYTES", 64)
    chunks = []

    def fetch(consumer):
        state = {}
        source = Pieces(ARRAYS, 1024)
        source.num_receivers = 1
        while (produced := source.produce(state, "server"))[0] == ProduceRC.OK:
            _, items, state = produced
            chunks.extend(items)
            consumer.consume("ref", state, items)

    monkeypatch.setattr(pieces, "download_object", fetch)
    return chunks


@pytest.mark.parametrize("in_files", [False, True])
def test_arrays_arrive_unchanged_in_bounded_pieces(sent, tmp_path, in_files):
    if in_files:
        with keep_in_files(tmp_path):
            error, found = pieces._download()
    else:
        error, found = pieces._download()
    assert error is None and list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        # Torch takes no others.
        assert found[name].flags.writeable and found[name].flags.aligned
    # 63 * 4 bytes in four pieces, 32 * 8 in four, and two arrays of less than one; with what is said of each.
    assert len(sent) == 10 and max(map(len, sent)) < 64 + 40


@pytest.fixture
def told(monkeypatch):
    """Have this process move arrays as a server does, until the test ends."""
    for kind, name in ((RxTask, "_schedule_remove_task"), (TxTask, "remove_task")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    monkeypatch.setattr(RxTask, "rx_task_map", {})
    monkeypatch.setattr(pieces, "_received", [])
    move_in_pieces()


def test_what_was_sent_goes_without_the_collector(told):
    gc.disable()
    try:
        # One that is sent again until it is answered is for a moment also NVFlare's thread's.
        task = TxTask(SimpleNamespace(), 8, "channel", "topic", "server", {}, BlobStream(b"", {}), False, False, False)
        left, future = weakref.ref(task), task.stream_future
        task.stop()
        del task
        assert left() is None
        assert future.result(0) == 0 and not future.cancel()
    finally:
        gc.enable()
