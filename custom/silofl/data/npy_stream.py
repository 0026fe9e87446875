"""Write a .npy file case by case, so that all images of a site need not fit in memory."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from silofl.base.files import open_own


class NpyStream:
    """A .npy file that grows along its first axis."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._file = open_own(path, "wb")
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._shape: tuple[int, ...] | None = None

    def append(self, rows: NDArray) -> None:
        """Write rows of shape (n, ...), the same (...) every time."""
        if self._shape is None:
            self._start(rows.shape[1:])
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._length += len(rows)

    def finish(self, empty_shape: tuple[int, ...]) -> None:
        """Write the final length, so that the file can be read; `empty_shape` is a row's form where there is none."""
        if self._shape is None:
            self._start(empty_shape)
        # NumPy pads the header so that a larger length fits in: the data need not move.
        self._file.seek(0)
        self._write_header()
        self._file.flush()

    def sync(self) -> None:
        """Force the finished file to the disk, and close it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _start(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._write_header()

    def _write_header(self) -> None:
        shape = (self._length, *self._shape)
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
