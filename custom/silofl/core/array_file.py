"""Arrays in files instead of memory: written one after the other, then read like any others.

A server gets a model from each site, and need not have memory for all of them at once.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)
# Arrays begin at multiples of it, as those in memory do.
ALIGNED = 64

logger = logging.getLogger(__name__)
_folder: Path | None = None


@contextmanager
def keep_in_files(folder: Path) -> Iterator[None]:
    """Have this process keep in files, and not in memory, what an `ArrayFile` takes.

    The files are for this account alone and have no name: they end with the last array in them, or with the process,
    however that ends. What was read of them the system takes from memory again where it needs it, as of every file.
    """
    global _folder
    _folder = folder
    try:
        yield
    finally:
        _folder = None


class ArrayFile(Generic[K]):
    """Arrays by key, which nobody may change: in a file where the process keeps them so, else in memory.

    Args:
        in_memory: Whether to keep them in memory all the same.
    """

    def __init__(self, in_memory: bool = False) -> None:
        self._file: FileIO | None = None
        if not in_memory and _folder is not None:
            self._file = TemporaryFile(dir=_folder, buffering=0)
        self._end = 0
        # Arrays in the file are known by where each begins, its type and its shape.
        self._entries: dict[K, NDArray[Any] | tuple[int, np.dtype, tuple[int, ...]]] = {}

    def write(self, key: K, array: NDArray[Any], start: int = 0, shape: tuple[int, ...] | None = None) -> None:
        """Take an array, or a piece of one; where it is in a file already, or the disk takes it not, it stays there.

        In memory an array that can be changed is kept itself, any other as a copy.

        Args:
            start: Where a piece begins, in numbers of the whole; pieces come in their order, of `ALIGNED` bytes or a
                multiple.
            shape: The shape of the whole; None for the array's own.
        """
        shape = array.shape if shape is None else shape
        if not start:
            if self._file is not None and array.nbytes and not _is_mapped(array):
                self._entries[key] = (self._end, array.dtype, shape)
            elif shape == array.shape and array.flags.writeable:
                self._entries[key] = array
            else:
                self._entries[key] = np.empty(shape, array.dtype)
        entry = self._entries[key]
        if isinstance(entry, tuple) and self._file is not None:
            try:
                self._append(self._file, array)
                return
            except OSError as error:
                logger.warning("an array stays in memory, since %s does not take it: %s", _folder, error.strerror)
                entry = self._entries[key] = self._take_back(self._file, start, *entry)
        if entry is not array and isinstance(entry, np.ndarray):
            entry.reshape(-1)[start : start + array.size] = array.reshape(-1)

    def _append(self, file: FileIO, array: NDArray[Any]) -> None:
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        file.seek(self._end)
        # An unbuffered write may take only a part of what it is given.
        while left:
            left = left[file.write(left) :]
        self._end += -(-array.nbytes // ALIGNED) * ALIGNED

    def _take_back(
        self, file: FileIO, numbers: int, begin: int, dtype: np.dtype, shape: tuple[int, ...]
    ) -> NDArray[Any]:
        """Return an array of which so many numbers are in the file, in memory."""
        whole = np.empty(shape, dtype)
        file.seek(begin)
        file.readinto(whole.reshape(-1)[:numbers].view(np.uint8).data)
        self._end = begin
        return whole

    def read(self) -> dict[K, NDArray[Any]]:
        """Return all arrays, in the order of their first pieces; call it once, after the last `write`."""
        pages = None
        if self._file is not None:
            with self._file as file:
                # Nobody can map an empty file.
                if self._end:
                    # Whoever changes an array has a copy of its pages: torch warns of arrays that nobody can change.
                    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        arrays: dict[K, NDArray[Any]] = {}
        for key, entry in self._entries.items():
            if isinstance(entry, tuple):
                begin, dtype, shape = entry
                arrays[key] = np.ndarray(shape, dtype, pages, begin)
            else:
                arrays[key] = entry
        return arrays


def store(arrays: dict[K, NDArray[Any]]) -> dict[K, NDArray[Any]]:
    """Return the same arrays as an `ArrayFile` keeps them."""
    file = ArrayFile[K]()
    for key, array in arrays.items():
        file.write(key, array)
    return file.read()


def _is_mapped(array: NDArray[Any]) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(getattr(base, "obj", base), mmap.mmap)
