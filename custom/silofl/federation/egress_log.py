"""The record of what left a site in one run: ``egress.jsonl``, a chain of records."""

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from silofl.base.errors import ConfigError
from silofl.base.files import make_folder, open_own
from silofl.federation.egress_chain import Link, seal_record

FILE, LOCK = "egress.jsonl", "lock"
# Facts that every record has, which the chain and the dossier need.
NEEDED = {"time", "round", "task", "kind", "purpose", "refused", "number", "hash"}

logger = logging.getLogger(__name__)


class EgressLog:
    """``egress.jsonl`` of one run; while this object lives, the run's folder counts as in use.

    Args:
        folder: The site's folder of the run; made when missing.

    Raises:
        ConfigError: The records that are there cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.path = folder / FILE
        # Shared, so that a job which goes on with a run need not wait until the last one's process has ended.
        self._lock = open_own(folder / LOCK, "a")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        # Bytes that have been read or written, and where the chain stands after them.
        self._size = 0
        self._last = Link()
        if self.path.is_file():
            with self._open_records():
                pass

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records with the time to the chain.

        Raises:
            OSError: The file cannot be written; then nothing may leave.
            ConfigError: The records that are there cannot be read; then nothing may leave either.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        lines = []
        with self._open_records() as stream:
            link = self._last
            for record in records:
                line, link = seal_record({"time": time} | dict(record), link)
                lines.append(line)
            stream.writelines(lines)
            stream.flush()
            # What a power cut takes from the record must not have left the site.
            os.fsync(stream.fileno())
            # Only now: after a failed write the next one looks at what the file holds.
            self._size = stream.tell()
            self._last = link

    @contextmanager
    def _open_records(self) -> Iterator[IO[bytes]]:
        """Open the records for this process alone, after a look at what another one has added."""
        with open_own(self.path, "a+b") as stream:
            # Two processes have a run's record for a moment, and each must chain its records to the very last one.
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.seek(self._size)
            whole, end, torn = stream.read().rpartition(b"\n")
            if torn:
                # Its answer never left.
                stream.truncate(self._size + len(whole + end))
            for line in whole.splitlines():
                record = self._parse_line(line)
                self._last = Link(record["number"], record["hash"])
            self._size += len(whole + end)
            if torn:
                logger.warning(
                    "%s ended within a record, as after a kill; it goes on after record %s, the last whole one",
                    self.path.name,
                    self._last.number,
                )
            yield stream

    def _parse_line(self, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        # Whether the hash fits is for site egress-check to say; the next record needs the last number and hash.
        if not isinstance(record, dict) or not record.keys() >= NEEDED:
            raise ConfigError(
                f"{self.path} must hold records as they were written, not a line that is none; site egress-check says "
                "which: keep the file at another place, and a new one is begun"
            )
        return record


def read_spent_epsilon(record: Mapping[str, Any]) -> float | None:
    """Return what a record of an answer's numbers says that was spent by then; None where it says nothing."""
    metrics = (record.get("values") or {}).get("metrics")
    epsilon = metrics.get("epsilon") if isinstance(metrics, dict) else None
    return epsilon if isinstance(epsilon, float) and not record["refused"] else None
