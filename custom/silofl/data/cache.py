"""Prepared arrays on disk, written by the first process that needs them and opened without decoding afterwards.

A cache of which a file is missing, cut or no array is made anew from the source.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from silofl.base.errors import DataError
from silofl.base.files import make_folder, open_own, write_text
from silofl.data.cache_entries import INDEX, CacheSource, protect_entries
from silofl.data.manifest import PARTS, Manifest
from silofl.data.parts import Examples, PreparedCase
from silofl.data.volumes import Array, Volumes
from silofl.reading.access import TOO_MANY_OPEN, open_error, read_states
from silofl.study import Study

# To be raised when the preparation changes, so that older caches are not used.
VERSION = 11
KINDS = ("images", "targets")
Cases = Iterable[tuple[str, PreparedCase]]
logger = logging.getLogger(__name__)


def describe_source(manifest: Manifest) -> CacheSource:
    """Return the data that an entry is made from, as they are now.

    Raises:
        DataError: A file cannot be looked at.
    """
    # With the version, so that an entry of an older one counts as out of date.
    digest = hashlib.sha256(f"{VERSION} {manifest.digest}".encode())
    for name, place in sorted(manifest.places.items()):
        digest.update(json.dumps([name, read_states(place, name)]).encode())
    return CacheSource(str(manifest.folder.resolve()), digest.hexdigest())


def fingerprint_preparation(source: CacheSource, study: Study) -> str:
    """Return a hash of all that the preparation depends on: dataset.json, every file's state, the study's settings.

    Augmentation and patches are left out, since they come after the cache. What is kept apart is not: whether images in
    two parts may be equal is looked at where the cache is made.
    """
    settings = study.data.model_dump(mode="json", exclude={"augment", "patches"})
    deciding = [source.state, settings, sorted(study.labels.items()), study.task]
    return hashlib.sha256(json.dumps(deciding).encode()).hexdigest()[:32]


def load_or_prepare(
    cache_dir: Path, name: str, prepare: Callable[[], Cases], source: CacheSource
) -> dict[str, Examples]:
    """Open the cached parts, or prepare and cache them first; a damaged cache is made anew.

    Any number of processes may do this at once: each writes a temporary folder, and the first to finish renames it.

    Args:
        prepare: Yields part and case, all cases of the same image size unless they are volumes of one example;
            called only when there is no cache.
        source: The data that they come from.

    Raises:
        DataError: The folder cannot be written, or preparing fails.
    """
    with protect_entries(cache_dir):
        return _load_or_prepare(cache_dir / name, prepare, source)


def _load_or_prepare(target: Path, prepare: Callable[[], Cases], source: CacheSource) -> dict[str, Examples]:
    parts = open_parts(target)
    if parts is not None:
        return parts
    try:
        _build_entry(target, prepare, source)
        return _open_all(target)
    except OSError as error:
        if error.errno in TOO_MANY_OPEN:
            raise open_error("cache_dir", error) from None
        reason = error.strerror or type(error).__name__
        raise DataError(
            f"cache_dir must be a folder with room that can be written; the system said {reason!r}: "
            "free space, or name another folder with cache_dir in site.yaml, in a simulation with --cache"
        ) from None


def open_parts(folder: Path) -> dict[str, Examples] | None:
    """Open the parts in a cache folder without keeping them in memory; None when it is missing or damaged.

    Raises:
        DataError: Too many files are open, so that nothing is known of the cache.
    """
    try:
        return _open_all(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        if isinstance(error, OSError) and error.errno in TOO_MANY_OPEN:
            raise open_error("cache_dir", error) from None
        logger.warning("the cache %s must be as it was written; it is damaged, and is made anew", folder.name)
        return None


def _open_all(folder: Path) -> dict[str, Examples]:
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return {part: _open_part(folder, part, index[part]) for part in PARTS}


def _open_part(folder: Path, part: str, index: dict[str, list]) -> Examples:
    images, targets = (_open_array(folder / f"{part}_{kind}.npy", index[kind]) for kind in KINDS)
    names = (tuple(index[key]) for key in ("cases", "slices", "patients"))
    spacings = {case: tuple(sizes) for case, sizes in index["spacings"].items()}
    digests = {case: tuple(found) for case, found in index["digests"].items()}
    found = Examples(images, targets, *names, spacings=spacings, digests=digests)
    if len({len(images), len(targets), len(found.cases), len(found.slices), len(found.patients)}) > 1:
        raise ValueError("lengths differ")
    return found


def _open_array(path: Path, shapes: list | None) -> Array:
    """Open a part's images or targets; the shapes are those of volumes, which lie one behind the other."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array if shapes is None else Volumes.of(array, shapes)


def _build_entry(target: Path, prepare: Callable[[], Cases], source: CacheSource) -> None:
    make_folder(target.parent)
    # For this account alone, as mkdtemp makes it.
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        source.write(temporary)
        _write_cases(temporary, prepare())
        # Renamed and not deleted in place: another process must never open a folder that is half deleted.
        if target.exists() and open_parts(target) is None:
            os.rename(target, temporary / "damaged")
        _publish_entry(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish_entry(temporary: Path, target: Path) -> None:
    shutil.rmtree(temporary / "damaged", ignore_errors=True)
    try:
        os.rename(temporary, target)
    except OSError:
        # Another process was first; its cache serves as well.
        if open_parts(target) is None:
            raise


class NpyStream:
    """A .npy file that grows along its first axis, so that all images of a site need not fit in memory."""

    def __init__(self, path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
        """Begin with no rows, each of which will be of that shape."""
        self._file, self._dtype, self._shape, self._length = open_own(path, "wb"), np.dtype(dtype), shape, 0
        self._write_header()

    def append(self, rows: NDArray) -> None:
        """Write rows of shape (n, *shape)."""
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._length += len(rows)

    def finish(self) -> None:
        """Write the final length, so that the file can be read, force it to the disk and close it."""
        # NumPy pads the header so that a larger length fits in: the data need not move.
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _write_header(self) -> None:
        descr, shape = np.lib.format.dtype_to_descr(self._dtype), (self._length, *self._shape)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


def _write_cases(folder: Path, cases: Cases) -> None:
    lists, shapes_of = ("cases", "slices", "patients"), dict.fromkeys(KINDS)
    index = {part: {key: [] for key in lists} | shapes_of | {"spacings": {}, "digests": {}} for part in PARTS}
    streams: dict[str, list[NpyStream]] = {}
    for part, case in cases:
        # The first case gives type and shape to the files of all parts, those without any case too.
        if not streams:
            arrays = {f"{kind}.npy": getattr(case, kind) for kind in KINDS}
            forms = [(name, one.dtype, () if case.has_own_size else one.shape[1:]) for name, one in arrays.items()]
            streams = {part: [NpyStream(folder / f"{part}_{name}", *form) for name, *form in forms] for part in PARTS}
            kinds = KINDS if case.has_own_size else ()
            index = {part: known | {kind: [] for kind in kinds} for part, known in index.items()}
        for stream, kind in zip(streams[part], KINDS, strict=True):
            rows = getattr(case, kind)
            stream.append(rows.ravel() if case.has_own_size else rows)
            if case.has_own_size:
                index[part][kind] += [rows.shape[1:]]
        index[part]["cases"] += [case.case] * len(case.images)
        index[part]["patients"] += [case.patient] * len(case.images)
        index[part]["slices"] += case.slices
        index[part]["digests"][case.case] = [*filter(None, case.digests.values())]
        if case.spacing is not None:
            index[part]["spacings"][case.case] = case.spacing
    for stream in chain(*streams.values()):
        stream.finish()
    write_text(folder / INDEX, json.dumps(index))
