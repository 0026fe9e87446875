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
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from silofl.base.errors import DataError
from silofl.base.files import make_folder, open_own, write_text
from silofl.data.cache_entries import INDEX, CacheSource, protect_entries
from silofl.data.manifest import PARTS, Manifest
from silofl.data.parts import Examples, PreparedCase
from silofl.data.volumes import Array, Volumes
from silofl.reading.access import read_states
from silofl.study import Study

# To be raised when the preparation changes, so that older caches are not used.
VERSION = 12
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
        reason = error.strerror or type(error).__name__
        raise DataError(
            f"cache_dir must be a folder with room that can be written; the system said {reason!r}: "
            "free space, or name another folder with cache_dir in site.yaml, in a simulation with --cache"
        ) from None


def open_parts(folder: Path) -> dict[str, Examples] | None:
    """Open the parts in a cache folder without keeping them in memory; None when it is missing or damaged."""
    try:
        return _open_all(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        logger.warning("the cache %s must be as it was written; it is damaged, and is made anew", folder.name)
        return None


def _open_all(folder: Path) -> dict[str, Examples]:
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return {part: _open_part(folder, part, index[part], index["forms"]) for part in PARTS}


def _open_part(folder: Path, part: str, index: dict[str, list], forms: list) -> Examples:
    images = _open_array(folder / f"{part}_images", *forms[0], index["images"])
    targets = _open_array(folder / f"{part}_targets", *forms[1], index["targets"])
    names = (tuple(index[key]) for key in ("cases", "slices", "patients"))
    spacings = {case: tuple(sizes) for case, sizes in index["spacings"].items()}
    digests = {case: tuple(found) for case, found in index["digests"].items()}
    found = Examples(images, targets, *names, spacings=spacings, digests=digests)
    if len({len(images), len(targets), len(found.cases), len(found.slices), len(found.patients)}) > 1:
        raise ValueError("lengths differ")
    return found


def _open_array(path: Path, dtype: str, shape: list[int] | None, shapes: list) -> Array:
    """Open a part's images or targets, which lie one behind the other, all of one shape or volumes of several."""
    # No system maps an empty file.
    flat = np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)
    return Volumes.of(flat, shapes) if shape is None else flat.reshape(-1, *shape)


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


def _write_cases(folder: Path, cases: Cases) -> None:
    lists, tables = ("cases", "slices", "patients", *KINDS), ("spacings", "digests")
    index = {part: {key: [] for key in lists} | {key: {} for key in tables} for part in PARTS}
    forms: list[tuple[str, tuple[int, ...] | None]] = []
    with ExitStack() as stack:
        paths = {(part, kind): folder / f"{part}_{kind}" for part in PARTS for kind in KINDS}
        files = {key: stack.enter_context(open_own(path, "wb")) for key, path in paths.items()}
        for part, case in cases:
            arrays = {"images": case.images, "targets": case.targets}
            # The first case gives type and shape to the files of all parts, those without any case too.
            forms = forms or [(one.dtype.str, None if case.has_own_size else one.shape[1:]) for one in arrays.values()]
            for (kind, rows), (dtype, _) in zip(arrays.items(), forms, strict=True):
                files[part, kind].write(np.ascontiguousarray(rows, dtype).data)
                index[part][kind] += [rows.shape[1:]] if case.has_own_size else []
            index[part]["cases"] += [case.case] * len(case.images)
            index[part]["patients"] += [case.patient] * len(case.images)
            index[part]["slices"] += case.slices
            index[part]["digests"][case.case] = [*filter(None, case.digests.values())]
            if case.spacing is not None:
                index[part]["spacings"][case.case] = case.spacing
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    write_text(folder / INDEX, json.dumps({**index, "forms": forms}))
