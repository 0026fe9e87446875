import gc
import weakref

import numpy as np
import pytest
from nvflare.app_common.np.np_downloader import ArrayConsumer
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

    def fetch(arrays_received_cb):
        consumer, state = ArrayConsumer(arrays_received_cb, {}), {}
        source = Pieces(ARRAYS, 1024)
        source.num_receivers = 1
        while (produced := source.produce(state, "server"))[0] == ProduceRC.OK:
            _, items, state = produced
            chunks.extend(items)
            consumer.consume("ref", state, items)
        return consumer.error, consumer.result

    monkeypatch.setattr(pieces, "download_arrays", fetch)
    return chunks


@pytest.mark.parametrize("in_files", [False, True])
def test_arrays_arrive_as_they_were_in_pieces_of_a_bounded_size(sent, tmp_path, in_files):
    if in_files:
        with keep_in_files(tmp_path):
            error, found = pieces._download()
    else:
        error, found = pieces._download()
    assert error is None and list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
    # 63 * 4 bytes in four pieces, 32 * 8 in four, and two arrays of less than one; an archive takes some 300 beside.
    assert len(sent) == 10 and max(map(len, sent)) < 64 + 400


def test_what_is_left_in_a_circle_is_collected_after_so_many_bytes(sent, monkeypatch):
    class Left:
        def __init__(self):
            self.itself = self

    monkeypatch.setattr(pieces, "MOST_LEFT", 600)
    monkeypatch.setattr(pieces, "_left", 0)
    gc.disable()
    try:
        left, found = weakref.ref(Left()), []
        Pieces({"T3": ARRAYS["T3"]}, 1024).produce_item(0)
        found.append(left() is None)
        pieces._download()
        found.append(left() is None)
    finally:
        gc.enable()
    assert found == [False, True]


def test_a_process_sends_and_receives_in_pieces_once_it_is_told(monkeypatch):
    from nvflare.fuel.utils import fobs
    from nvflare.fuel.utils.fobs import dots

    move_in_pieces()
    handler = fobs.get_dot_handler(dots.NUMPY_DOWNLOAD)
    assert isinstance(handler.to_downloadable(ARRAYS, 1024, {}), Pieces) and handler.download is pieces._download
