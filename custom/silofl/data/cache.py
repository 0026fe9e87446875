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
from typing import Any

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
Cases = Iterable[tuple[str, PreparedCase]]
logger = logging.getLogger(__name__)


def describe_source(manifest: Manifest) -> CacheSource:
    """Return the data that an entry is made from, as they are now.

    Raises:
        DataError: A file cannot be looked at.
    """
    # The version goes in too, so that an entry of an older one counts as out of date.
    digest = hashlib.sha256(f"{VERSION} {manifest.digest}".encode())
    for name, path in sorted(manifest.places.items()):
        digest.update(json.dumps([name, read_states(path, name)]).encode())
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
    target = cache_dir / name
    with protect_entries(cache_dir):
        parts = _open_parts(target)
        if parts is not None:
            return parts
        try:
            _build_entry(target, prepare, source)
            return _open_all(target)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise DataError(
                f"the cache folder cannot be written ({reason}); free space, or name another folder with cache_dir in "
                "site.yaml, in a simulation with --cache"
            ) from None


def _open_parts(folder: Path) -> dict[str, Examples] | None:
    # The arrays are mapped, not read: most data do not fit into the memory.
    try:
        return _open_all(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        logger.warning("cache %s is damaged and is made anew", folder.name)
        return None


def _open_all(folder: Path) -> dict[str, Examples]:
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return {part: _open_part(folder, part, index[part], index["forms"]) for part in PARTS}


def _open_part(folder: Path, part: str, index: dict[str, Any], forms: list[list[Any]]) -> Examples:
    images = _open_array(folder / f"{part}_images", forms[0], index["images"])
    targets = _open_array(folder / f"{part}_targets", forms[1], index["targets"])
    # JSON has no tuples: it gives lists back.
    examples = Examples(
        images=images,
        targets=targets,
        cases=tuple(index["cases"]),
        slices=tuple(index["slices"]),
        patients=tuple(index["patients"]),
        spacings={case: tuple(sides) for case, sides in index["spacings"].items()},
        digests={case: tuple(digests) for case, digests in index["digests"].items()},
    )
    if len({len(images), len(targets), len(examples.cases), len(examples.slices), len(examples.patients)}) > 1:
        raise ValueError("lengths differ")
    return examples


def _open_array(path: Path, form: list[Any], shapes: list[list[int]]) -> Array:
    dtype, shape = form
    # No system maps an empty file into memory.
    flat = np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)
    # Without a common shape these are volumes of several sizes, one behind the other.
    return Volumes.of(flat, shapes) if shape is None else flat.reshape(-1, *shape)


def _build_entry(target: Path, prepare: Callable[[], Cases], source: CacheSource) -> None:
    make_folder(target.parent)
    # What mkdtemp makes can be read by this account only.
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        source.write(temporary)
        _write_cases(temporary, prepare())
        # It is renamed and not deleted in place: another process must never open a folder that is half deleted.
        if target.exists() and _open_parts(target) is None:
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
        if _open_parts(target) is None:
            raise


def _write_cases(folder: Path, cases: Cases) -> None:
    index: dict[str, Any] = {}
    forms: list[tuple[str, tuple[int, ...] | None]] = []
    with ExitStack() as stack:
        files = {}
        for part in PARTS:
            # An example has a case, a slice and a patient, a volume of its own size its shapes; a case has the rest.
            index[part] = {key: [] for key in ("cases", "slices", "patients", "images", "targets")}
            index[part] |= {"spacings": {}, "digests": {}}
            for role in ("images", "targets"):
                files[part, role] = stack.enter_context(open_own(folder / f"{part}_{role}", "wb"))
        for part, case in cases:
            entry = index[part]
            arrays = {"images": case.images, "targets": case.targets}
            # The first case gives type and shape to the files of all parts, those without any case too.
            if not forms:
                forms = [(rows.dtype.str, None if case.has_own_size else rows.shape[1:]) for rows in arrays.values()]
            for (role, rows), (dtype, _) in zip(arrays.items(), forms, strict=True):
                files[part, role].write(np.ascontiguousarray(rows, dtype).data)
                if case.has_own_size:
                    entry[role].append(rows.shape[1:])
            entry["cases"] += [case.case] * len(case.images)
            entry["patients"] += [case.patient] * len(case.images)
            entry["slices"] += case.slices
            # An image that shows nobody has no digest.
            entry["digests"][case.case] = [*filter(None, case.digests.values())]
            if case.spacing is not None:
                entry["spacings"][case.case] = case.spacing
        # The index names what the files hold, so that they must be on the disk before it.
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    index["forms"] = forms
    write_text(folder / INDEX, json.dumps(index))
