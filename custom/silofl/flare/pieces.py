"""Arrays on their way: in pieces, so that neither end holds a large one several times.

NVFlare sends each array as a whole, of which either end makes some four copies at once, and keeps all that it receives
in memory.
"""

import gc
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.app_common.np.np_downloader import ArrayDownloadable, download_arrays
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import dots

from silofl.core.array_file import ArrayFile

# Of a piece: the line is idle once between two of them.
BYTES = 1 << 22
# NVFlare leaves each piece that it has moved in a circle of objects, which Python's own collector would find too late:
# so many bytes of them at the most.
MOST_LEFT = 1 << 26
# Between a piece's array, where it begins in it, and the array's sides.
MARK = "@"
_left = 0


class Pieces(ArrayDownloadable):
    """Arrays that another process fetches, piece by piece.

    Args:
        arrays: NVFlare's key -> array.
        max_chunk_size: Bytes from which on no further array comes with others.
    """

    def __init__(self, arrays: dict[str, NDArray], max_chunk_size: int) -> None:
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
        array, name = self.base_obj[key], key
        if array.size > _length(array):
            name = MARK.join(map(str, (key, start, *array.shape)))
            array = array.reshape(-1)[start : start + _length(array)]
        stream = BytesIO()
        np.savez(stream, allow_pickle=False, **{name: array})
        _collect(array.nbytes)
        return stream.getvalue()


def move_in_pieces() -> None:
    """Have this process send arrays in pieces, and an `ArrayFile` take those that it receives."""
    numpy_decomposers.register()
    # What is there now stays, and need not be looked through again.
    gc.freeze()
    handler = fobs.get_dot_handler(dots.NUMPY_DOWNLOAD)
    # NVFlare has settings for torch's tensors alone.
    handler.to_downloadable = lambda arrays, max_chunk_size, context: Pieces(arrays, max_chunk_size)
    handler.download = _download


def _collect(size: int) -> None:
    """Have what NVFlare has left behind collected, once it is enough."""
    global _left
    _left += size
    if _left >= MOST_LEFT:
        _left = 0
        gc.collect()


def _length(array: NDArray) -> int:
    """Return of how many numbers a piece is."""
    return BYTES // array.itemsize


def _download(**options: Any) -> tuple[str | None, dict[str, NDArray] | None]:  # noqa: ANN401 - of `download_arrays`
    file = ArrayFile[str]()

    def take(arrays: dict[str, NDArray]) -> None:
        for name, array in arrays.items():
            key, *place = name.split(MARK)
            start, *shape = map(int, place or (0, *array.shape))
            file.write(key, array, start, tuple(shape))
            _collect(array.nbytes)

    error, _ = download_arrays(arrays_received_cb=take, **options)
    return error, None if error else file.read()
