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
from silofl.federation.egress_chain import Link, read_link, seal_record

FILE, LOCK = "egress.jsonl", "lock"
# Facts that every record has and the page adds up.
SUMMED = {"time", "round", "task", "kind", "purpose", "refused"}
HEADER = """# What left site {site}

Study {study}, run {run}, to the study's server; first {begin}, last {end} (UTC).

`egress.jsonl` holds each array by name, shape and SHA-256, and all numbers, with the time in UTC. Its last record is
number {last.number}, with the hash `{last.hash}`; `silofl site egress-check` checks them all.
{partners}{spent}
| | answer to | kind | what it is | rounds | records | bytes |
| --- | --- | --- | --- | --- | --- | --- |
"""
PARTNERS = """
By its own word the server asks {}. Nothing here can check what it says.
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
        # What the server says: how many sites it asks, the last round, and of how many it mixed an answer in it.
        self._sites: set[int] = set()
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
        rows = [_format_sum(*key, self._sums[key]) for key in sorted(self._sums)]
        spent = "" if self._epsilon is None else SPENT.format(epsilon=self._epsilon)
        times = {"begin": min(self._times), "end": max(self._times)}
        header = HEADER.format(**self._names, **times, last=self._last, partners=self._describe_partners(), spent=spent)
        sent = sorted({kind for _, _, kind in self._sums} & self._risks.keys())
        risks = "".join(f"- **{kind}**: {self._risks[kind]}.\n" for kind in sent)
        write_text(self.path.with_suffix(".md"), header + "".join(rows) + f"{RISKS}{risks}")

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
            for record in records:
                self._last = read_link(record, self._last)
            self._size += len(whole + end)
            self._add_to_sums(records)
            if torn:
                logger.warning(
                    "%s ended within a record, as after a kill; it goes on after record %s, the last whole one",
                    self.path.name,
                    self._last.number,
                )
            yield stream

    def _describe_partners(self) -> str:
        """Return what the server says of the other sites."""
        if not self._sites:
            return ""
        number, count = self._mixed or (0, 0)
        rows = ", ".join(f"{weight:.2f} ({quote_markdown(site)})" for site, weight in self._rows.items())
        least, most = min(self._sites), max(self._sites)
        asked = f"{least if least == most else f'{least}-{most}'} sites, this one among them"
        mixed = (
            f"answers of {count} sites, this one's among them" if count > 1 else "no answer of this site with others'"
        )
        return PARTNERS.format(
            ("1 site, this one alone" if most == 1 else asked)
            + (f"; in round {number} it mixed {mixed}" if number else "")
            + (f". Models of single sites may leave their hospitals, in which this one weighs {rows}" if rows else "")
        )

    def _parse_line(self, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not record.keys() >= SUMMED:
            raise ConfigError(
                f"{self.path} must hold records as they were written, not a line that is none; site egress-check says "
                "which: keep the file at another place, and a new one is begun"
            )
        return record

    def _add_to_sums(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self._times = [*self._times[:1], record["time"]]
            self._epsilon = read_spent_epsilon(record) or self._epsilon
            self._sites |= {record["sites"]} if record.get("sites") else set()
            self._mixed = record.get("mixed") or self._mixed
            self._rows = record.get("rows") or self._rows
            self._sums.setdefault((record["refused"], record["task"], record["kind"]), Sum()).add(record)


def sum_sent_arrays(path: Path) -> dict[str, Sum]:
    """Return kind -> the sum of the arrays that left, by a record as it is; nothing where there is none.

    Args:
        path: The ``egress.jsonl``.
    """
    sums: dict[str, Sum] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
            if not record["refused"] and "values" not in record:
                sums.setdefault(record["kind"], Sum()).add(record)
        except (ValueError, TypeError, KeyError):
            # Cut off by a kill, or altered: `site egress-check` says which.
            continue
    return sums


def read_spent_epsilon(record: Mapping[str, Any]) -> float | None:
    """Return what a record of an answer's numbers says that was spent by then; None where it says nothing."""
    metrics = (record.get("values") or {}).get("metrics")
    found = metrics.get("epsilon") if isinstance(metrics, dict) else None
    return found if isinstance(found, float) and not record["refused"] else None


def _format_sum(is_refused: bool, task: str, kind: str, total: Sum) -> str:
    # The server names its tasks.
    where = ("refused" if is_refused else "left", quote_markdown(task), kind)
    cells = (*where, total.purpose, total.span(), total.count, total.size)
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"
