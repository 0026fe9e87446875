"""The record of what left a site in one run: ``egress.jsonl``, a chain of records, and its sums in ``egress.md``."""

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from silofl.base.errors import ConfigError, quote_markdown
from silofl.base.files import make_folder, open_own, write_text
from silofl.federation.egress_chain import Link, seal_record

FILE, LOCK = "egress.jsonl", "lock"
# Facts that every record has, which the chain and the page need.
NEEDED = {"time", "round", "task", "kind", "purpose", "refused", "number", "hash"}
HEADER = """# What left site {site}

Study {study}, run {run}, to the study's server; first {begin}, last {end} (UTC).

`egress.jsonl` holds each array by name, shape and SHA-256, and all numbers, with the time in UTC. Its last record is
number {last.number}, with the hash `{last.hash}`; `silofl site egress-check` checks them all.
{partners}{spent}
| | answer to | kind | what it is | rounds | records | bytes |
| --- | --- | --- | --- | --- | --- | --- |
"""
PARTNERS = """
By its own word the server asked at least {} sites in each round, this one among them. Nothing here can check what it
says.
"""
MIXED = """
By its own word it mixed answers of {1} sites in round {0}, the last one; 0 sites mean that this site's was left out.
"""
ROWS = """
Models of single sites may leave their hospitals. This site weighs in them: {}.
"""
SPENT = """
Differential privacy: all models that have left so far, of all runs of this study, spend epsilon {epsilon:.3g} at the
study's delta. Validation and test scores, and the numbers of patients and images, are sent as they are.
"""
RISKS = "\n## What it can tell, to whom, and which switch stops it\n\n"

logger = logging.getLogger(__name__)


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
        risks: Kind -> what it can tell, to whom, and what stops it.

    Raises:
        ConfigError: The records that are there cannot be read.
    """

    def __init__(self, folder: Path, site: str, study: str, risks: Mapping[str, str]) -> None:
        make_folder(folder)
        self.path = folder / FILE
        # Shared, so that a job which goes on with a run need not wait until the last one's process has ended.
        self._lock = open_own(folder / LOCK, "a")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._sums: dict[tuple[bool, str, str], Sum] = {}
        self._names = {"site": site, "study": study, "run": folder.name}
        self._times: list[str] = []
        self._epsilon: float | None = None
        # What the server says: the fewest sites that it asked; the last round, and of how many it mixed answers then.
        self._fewest: int | None = None
        self._mixed: Sequence[int] | None = None
        self._rows: Mapping[str, float] = {}
        self._risks = risks
        # Bytes that have been read or written, and where the chain stands after them.
        self._size, self._last = 0, Link()
        if self.path.is_file():
            with self._open_records():
                pass

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records with the time to the chain, and rewrite the sums.

        Raises:
            OSError: A file cannot be written; then nothing may leave.
            ConfigError: The records that are there cannot be read; then nothing may leave either.
        """
        time, lines = datetime.now(UTC).isoformat(timespec="seconds"), []
        timed = [{"time": time} | dict(record) for record in records]
        with self._open_records() as stream:
            last = self._last
            for record in timed:
                line, last = seal_record(record, last)
                lines.append(line)
            stream.writelines(lines)
            stream.flush()
            # What a power cut takes from the record must not have left the site.
            os.fsync(stream.fileno())
            self._size, self._last = stream.tell(), last
        self._add_to_sums(timed)
        write_text(self.path.with_suffix(".md"), self._format_page())

    def _format_page(self) -> str:
        times = {"begin": min(self._times), "end": max(self._times)}
        partners = "" if self._fewest is None else PARTNERS.format(self._fewest)
        if self._mixed:
            partners += MIXED.format(*self._mixed)
        if self._rows:
            weights = [f"{weight:.2f} ({quote_markdown(site)})" for site, weight in self._rows.items()]
            partners += ROWS.format(", ".join(weights))
        spent = "" if self._epsilon is None else SPENT.format(epsilon=self._epsilon)
        page = HEADER.format(**self._names, **times, last=self._last, partners=partners, spent=spent)
        for (is_refused, task, kind), total in sorted(self._sums.items()):
            # The server names its tasks.
            where = ("refused" if is_refused else "left", quote_markdown(task), kind)
            cells = (*where, total.purpose, total.span(), total.count, total.size)
            page += "| " + " | ".join(str(cell) for cell in cells) + " |\n"
        page += RISKS
        for kind in sorted({kind for _, _, kind in self._sums} & self._risks.keys()):
            page += f"- **{kind}**: {self._risks[kind]}.\n"
        return page

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
            records = [self._parse_line(line) for line in whole.splitlines()]
            if records:
                self._last = Link(records[-1]["number"], records[-1]["hash"])
            self._size += len(whole + end)
            self._add_to_sums(records)
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
        if not isinstance(record, dict) or not record.keys() >= NEEDED:
            raise ConfigError(
                f"{self.path} must hold records as they were written, not a line that is none; site egress-check says "
                "which: keep the file at another place, and a new one is begun"
            )
        return record

    def _add_to_sums(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self._times = [*self._times[:1], record["time"]]
            self._epsilon = read_spent_epsilon(record) or self._epsilon
            if record.get("sites"):
                self._fewest = min(self._fewest or record["sites"], record["sites"])
            self._mixed = record.get("mixed") or self._mixed
            self._rows = record.get("rows") or self._rows
            self._sums.setdefault((record["refused"], record["task"], record["kind"]), Sum()).add(record)


def read_spent_epsilon(record: Mapping[str, Any]) -> float | None:
    """Return what a record of an answer's numbers says that was spent by then; None where it says nothing."""
    metrics = (record.get("values") or {}).get("metrics")
    found = metrics.get("epsilon") if isinstance(metrics, dict) else None
    return found if isinstance(found, float) and not record["refused"] else None
