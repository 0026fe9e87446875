"""The entries of a cache folder by the data that they were made from, and the removal of those of older data.

Many studies, sites and jobs may use one folder at a time. Whoever opens or makes an entry holds the folder's lock with
the others; whoever removes one must hold it alone, and removes nothing where that cannot be had at once. A process that
has opened an entry keeps its arrays even when the files go, since they are mapped into its memory.
"""

import fcntl
import json
import logging
import re
import shutil
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from silofl.base.documents import read_json_document
from silofl.base.errors import ConfigError
from silofl.base.files import hold_lock, make_folder, open_own, write_text
from silofl.reading.patient_names import key_patient

INDEX, SOURCE, LOCK = "index.json", "source.json", "lock"
# An entry is named by a fingerprint; while it is made, or once its process was killed, with letters of its own behind.
NAME = re.compile(r"[0-9a-f]{32}")
UNFINISHED = re.compile(r"\.[0-9a-f]{32}-.*")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheSource:
    """What an entry was made from.

    Attributes:
        dataset: The folder of dataset.json, links resolved.
        state: A hash of dataset.json and of every file's state.
    """

    dataset: str
    state: str

    def write(self, folder: Path) -> None:
        """Write it into an entry that is being made."""
        write_text(folder / SOURCE, json.dumps(asdict(self)))


@contextmanager
def protect_entries(cache_dir: Path) -> Iterator[None]:
    """Keep every entry of a cache folder from being removed meanwhile."""
    with ExitStack() as stack:
        # On a disk without locks nothing is ever removed; a folder that cannot be written shows where an entry is made.
        with suppress(OSError):
            make_folder(cache_dir)
            lock = stack.enter_context(open_own(cache_dir / LOCK, "a"))
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def prune(cache_dir: Path, source: CacheSource) -> int:
    """Remove entries that no file of the present data needs, and return their number.

    These are entries of the same dataset.json and files in an older state, of an older version of SiloFL, and what
    killed processes have left unfinished. Entries of other data stay: other sites and studies may use the folder.

    Args:
        source: The data as they are now.
    """
    try:
        with hold_lock(cache_dir / LOCK):
            # The lock is held alone here, so that no process is making what looks unfinished.
            outdated = [path for path in list_entries(cache_dir) if _is_outdated(path, source)]
            for path in [*outdated, *list_unfinished_entries(cache_dir)]:
                shutil.rmtree(path)
    except (ConfigError, OSError):
        # Another process opens or makes an entry, or may not have its files removed: the next start tries again.
        return 0
    if outdated:
        logger.info("%s entries of older data were removed from the cache", len(outdated))
    return len(outdated)


def list_entries(cache_dir: Path) -> list[Path]:
    """Return the folders of all entries; none where the folder is not there."""
    return [path for path in _list_named(cache_dir, NAME) if path.is_dir()]


def list_unfinished_entries(cache_dir: Path) -> list[Path]:
    """Return the folders in which an entry is made, or was when its process was killed; only the lock tells which."""
    return _list_named(cache_dir, UNFINISHED)


def _list_named(cache_dir: Path, name: re.Pattern[str]) -> list[Path]:
    if not cache_dir.is_dir():
        return []
    # A link may lead out of the folder, where nothing is to be removed.
    return sorted(path for path in cache_dir.iterdir() if name.fullmatch(path.name) and not path.is_symlink())


@dataclass(frozen=True)
class CacheEntry:
    """An entry and the cases in it.

    Attributes:
        folder: Its folder.
        dataset: The folder of dataset.json that it was made from; None of an older version's or a damaged entry.
        cases: Part -> the case of each example.
        patients: Part -> the patient of each example, None where unknown.
    """

    folder: Path
    dataset: str | None
    cases: dict[str, list[str]]
    patients: dict[str, list[str | None]]

    def list_patient_cases(self, part: str, patient: str) -> set[str]:
        """Return the cases in a part of a patient, by the name's `key_patient`."""
        cases = set()
        for case, name in zip(self.cases.get(part, ()), self.patients.get(part, ()), strict=True):
            # Older versions kept names as they were written, so that the key is made of each.
            if name is not None and key_patient(name) == patient:
                cases.add(case)
        return cases

    def select_cases(self, part: str, cases: Set[str]) -> set[str]:
        """Return which of some cases are in a part."""
        return {*self.cases.get(part, ())} & cases


def read_entry(folder: Path) -> CacheEntry:
    """Read which cases are in an entry.

    Raises:
        ConfigError: It is damaged, so that nobody can say; the next start makes it anew.
    """
    try:
        index: Any = read_json_document(folder / INDEX)
        source = read_json_document(folder / SOURCE)
        # Beside the parts the index holds what all have in common, in lists.
        parts = {part: value for part, value in index.items() if isinstance(value, dict)}
        return CacheEntry(
            folder,
            dataset=source["dataset"] if isinstance(source, dict) else None,
            cases={part: value["cases"] for part, value in parts.items()},
            patients={part: value["patients"] for part, value in parts.items()},
        )
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} is damaged: {INDEX} does not say whose images it holds; delete the folder, which is made anew"
        ) from None


def _is_outdated(entry: Path, source: CacheSource) -> bool:
    try:
        made_from: Any = read_json_document(entry / SOURCE)
        state = made_from["state"]
        return bool(made_from["dataset"] == source.dataset and state != source.state)
    except (ConfigError, TypeError, KeyError):
        # Without it nobody can open the entry: every version that knows the file has written it.
        return True
