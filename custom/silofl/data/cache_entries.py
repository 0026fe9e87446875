"""The entries of a cache folder by the data that they were made from, and the removal of those of older data.

Many studies, sites and jobs may use one folder at a time. Whoever opens or makes an entry holds the folder's lock with
the others; whoever removes one must hold it alone, and removes nothing where that cannot be had at once. A process that
has opened an entry keeps its arrays even when the files go, since they are mapped into its memory.
"""

from __future__ import annotations

import fcntl
import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from silofl.documents import read_json_document
from silofl.errors import ConfigError
from silofl.files import held, make_folder, open_own

INDEX, SOURCE, LOCK = "index.json", "source.json", "lock"
# An entry is named by a fingerprint; while it is made, or once its process was killed, with letters of its own behind.
NAME, UNFINISHED = re.compile(r"[0-9a-f]{32}"), re.compile(r"\.[0-9a-f]{32}-.*")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """What an entry was made from.

    Attributes:
        dataset: The folder of dataset.json, links resolved.
        state: A hash of dataset.json and of every file's state.
    """

    dataset: str
    state: str

    def write(self, folder: Path) -> None:
        """Write it into an entry that is being made."""
        (folder / SOURCE).write_text(json.dumps(asdict(self)), encoding="utf-8")


@contextmanager
def used(cache_dir: Path) -> Iterator[None]:
    """Keep every entry of a cache folder from being removed meanwhile."""
    with ExitStack() as stack:
        # On a disk without locks nothing is ever removed; a folder that cannot be written shows where an entry is made.
        with suppress(OSError):
            make_folder(cache_dir)
            lock = stack.enter_context(open_own(cache_dir / LOCK, "a"))
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def prune(cache_dir: Path, source: Source) -> int:
    """Remove entries that no file of the present data needs, and return their number.

    These are entries of the same dataset.json and files in an older state, of an older version of SiloFL, and what
    killed processes have left unfinished. Entries of other data stay: other sites and studies may use the folder.

    Args:
        cache_dir: Folder of all entries.
        source: The data as they are now.
    """
    try:
        with held(cache_dir / LOCK):
            outdated = [path for path in entries(cache_dir) if _is_outdated(path, source)]
            for path in [*outdated, *_unfinished(cache_dir)]:
                shutil.rmtree(path)
    except (ConfigError, OSError):
        # Another process opens or makes an entry, or may not have its files removed: the next start tries again.
        return 0
    if outdated:
        logger.info("%s entries of older data were removed from the cache", len(outdated))
    return len(outdated)


def entries(cache_dir: Path) -> list[Path]:
    """Return the folders of all entries; none where the folder is not there."""
    found = cache_dir.iterdir() if cache_dir.is_dir() else ()
    return sorted(path for path in found if NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink())


def _unfinished(cache_dir: Path) -> list[Path]:
    # With the lock held alone nobody makes an entry.
    return [path for path in cache_dir.iterdir() if UNFINISHED.fullmatch(path.name) and not path.is_symlink()]


def _is_outdated(entry: Path, source: Source) -> bool:
    try:
        found = read_json_document(entry / SOURCE)
        made_from = Source(found["dataset"], found["state"])
    except (ConfigError, TypeError, KeyError):
        # Without it nobody can open the entry: every version that knows the file has written it.
        return True
    return made_from.dataset == source.dataset and made_from.state != source.state
