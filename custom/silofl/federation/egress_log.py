"""The record of what left a site in one run: ``egress.jsonl``, a record a line, and its sums in ``egress.md``."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from silofl.files import make_folder, open_own, write_text

LOCK = "lock"
HEADER = """# What left site {site}

Study {study}, run {run}, to the study's server; first {first}, last {last} (UTC).

`egress.jsonl` holds each array by name, shape and SHA-256, and all numbers, with the time in UTC.

| | answer to | kind | what it is | rounds | records | bytes |
| --- | --- | --- | --- | --- | --- | --- |
"""
RISKS = "\n## What it can tell, to whom, and which switch stops it\n\n"


@dataclass
class Sum:
    """The sum of records of one kind.

    Attributes:
        rounds: Numbers of their rounds.
        count: Their number.
        size: Bytes of their arrays.
        purpose: The sentence on the kind for people.
    """

    rounds: set[int] = field(default_factory=set)
    count: int = 0
    size: int = 0
    purpose: str = ""

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        self.rounds |= {record["round"]} - {None}
        self.count += 1
        self.size += record.get("bytes", 0)
        self.purpose = record["purpose"]

    def span(self) -> str:
        """Return the first and the last round."""
        return "-".join(str(number) for number in sorted({min(self.rounds), max(self.rounds)})) if self.rounds else ""


class EgressLog:
    """``egress.jsonl`` and ``egress.md`` of one run; while this object lives, the run's folder counts as in use.

    Args:
        folder: The site's folder of the run; made when missing.
        site: The site's name.
        study: The study's name.
        risks: Kind -> what it can tell, to whom, and what stops it.
    """

    def __init__(self, folder: Path, site: str, study: str, risks: Mapping[str, str]) -> None:
        make_folder(folder)
        self.path = folder / "egress.jsonl"
        # Shared, so that a job which goes on with a run need not wait until the last one's process has ended.
        self._lock = open_own(folder / LOCK, "a")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._sums: dict[tuple[bool, str, str], Sum] = {}
        self._names = {"site": site, "study": study, "run": folder.name}
        self._times: list[str] = []
        self._risks = risks
        self._add(_complete_records(self.path))

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records with the time, and rewrite the sums.

        Raises:
            OSError: A file cannot be written; then nothing may leave.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        timed = [{"time": time} | dict(record) for record in records]
        with open_own(self.path, "a") as stream:
            stream.writelines(json.dumps(record, allow_nan=False) + "\n" for record in timed)
        self._add(timed)
        rows = [_row(*key, self._sums[key]) for key in sorted(self._sums)]
        header = HEADER.format(**self._names, first=min(self._times), last=max(self._times))
        sent = sorted({kind for _, _, kind in self._sums} & self._risks.keys())
        risks = "".join(f"- **{kind}**: {self._risks[kind]}.\n" for kind in sent)
        write_text(self.path.with_suffix(".md"), header + "".join(rows) + f"{RISKS}{risks}")

    def _add(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self._times = [*self._times[:1], record["time"]]
            self._sums.setdefault((record["refused"], record["task"], record["kind"]), Sum()).add(record)


def _complete_records(path: Path) -> list[dict[str, Any]]:
    """Return the records so far; a line that was cut off is removed, for its answer never left."""
    content = path.read_bytes() if path.is_file() else b""
    whole, _, rest = content.rpartition(b"\n")
    if rest:
        os.truncate(path, len(content) - len(rest))
    return [json.loads(line) for line in whole.splitlines()]


def _row(is_refused: bool, task: str, kind: str, total: Sum) -> str:
    cells = ("refused" if is_refused else "left", task, kind, total.purpose, total.span(), total.count, total.size)
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"
