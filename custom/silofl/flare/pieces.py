"""Arrays on their way: in pieces, so that neither end holds a large one several times.

NVFlare sends each array as a whole, of which either end makes some four copies at once, and keeps all that it receives
in memory. A piece is a line of JSON with the key of its array, where it begins in it, its type and the sides of the
whole; then the bytes of its numbers.
"""

import heapq
import json
import time
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.np.np_downloader import ArrayDownloadable
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.cacheable import ItemConsumer
from nvflare.fuel.f3.streaming.download_service import download_object

from silofl.core.array_file import ArrayFile
from silofl.flare.nvflare_patches import replace_array_transfer, replace_message_ends

# Of a piece: the line is idle once between two of them.
BYTES = 1 << 24
END = b"\n"
# What NVFlare cancels where a message that has come is forgotten before its time.
WAITS = SimpleNamespace(cancel=lambda: None)
_remove_sent = TxTask.remove_task
# When a message that has come is forgotten, a number that no other has, and the message.
_received: list[tuple[float, int, RxTask]] = []
_lock = Lock()


class Pieces(ArrayDownloadable):
    """Arrays that another process fetches, piece by piece.

    Args:
        arrays: NVFlare's key -> array.
        max_chunk_size: Bytes from which on no further array comes with others.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], max_chunk_size: int) -> None:
        self._pieces = [
            (key, start) for key, array in arrays.items() for start in range(0, max(1, array.size), _length(array))
        ]
        super().__init__(arrays, max_chunk_size)

    def get_item_count(self) -> int:
        """Return how many pieces there are."""
        return len(self._pieces)

    def produce_item(self, index: int) -> bytes:
        """Return a piece, or a small array, as it travels."""
        key, start = self._pieces[index]
        array = self.base_obj[key]
        piece = np.ascontiguousarray(array.reshape(-1)[start : start + _length(array)])
        about = json.dumps([key, start, array.dtype.str, array.shape])
        return b"".join((about.encode(), END, piece.view(np.uint8).data))


class Taken(ItemConsumer):
    """Pieces of another process, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.file = ArrayFile[str]()

    def consume_items(self, items: list[bytes], result: object) -> None:
        """Take some."""
        for item in items:
            end = item.index(END)
            key, start, dtype, shape = json.loads(item[:end])
            self.file.write(key, np.frombuffer(item, dtype, offset=end + len(END)), start, tuple(shape))


def move_in_pieces() -> None:
    """Have this process send arrays in pieces, an `ArrayFile` take those that it receives, and both soon let go."""
    replace_array_transfer(lambda arrays, max_chunk_size, context: Pieces(arrays, max_chunk_size), _download)
    replace_message_ends(_let_go, _forget_later)


def _let_go(task: TxTask) -> None:
    """End a message that was sent.

    It and its future hold each other: without this all that it carried would stay until Python's collector comes, which
    counts objects and not bytes.
    """
    _remove_sent(task)
    task.stream_future.task_handle = None


def _forget_later(task: RxTask, ttl: float | None = None) -> None:
    """Forget a message that has come once nobody sends it again, when another one comes.

    NVFlare has a thread of its own wait for each: with 40 sites thousands, whose objects slow Python's collector.
    """
    now = time.monotonic()
    with task.stop_lock:
        if task.cleanup_timer:
            return
        task.cleanup_timer = WAITS
    due = now + (task.completed_task_ttl if ttl is None else ttl)
    expired = []
    with _lock:
        heapq.heappush(_received, (due, id(task), task))
        while _received and _received[0][0] <= now:
            expired.append(heapq.heappop(_received)[2])
    for message in expired:
        message._remove_task()


def _length(array: NDArray[Any]) -> int:
    """Return of how many numbers a piece is."""
    return BYTES // array.itemsize


def _download(**options: Any) -> tuple[str | None, dict[str, NDArray[Any]] | None]:  # noqa: ANN401 - of `download_object`
    taken = Taken()
    download_object(consumer=taken, **options)
    return taken.error, None if taken.error else taken.file.read()
