"""The chain of the records of what left a site: each line holds its number, the hash of the one before, and its own.

A record's hash is the SHA-256 of its line up to the key ``hash``, and so of everything before it:
h_n = SHA-256(number n, facts, h_{n-1}), with h_0 = 0.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARK = b', "hash": "'


@dataclass(frozen=True)
class Link:
    """Where a chain stands after a record.

    Attributes:
        number: The record's, from 1; 0 before the first.
        hash: The record's, in hexadecimal digits; zeros before the first.
    """

    number: int = 0
    hash: str = "0" * 64


@dataclass(frozen=True)
class Verdict:
    """What the lines of a record show.

    Attributes:
        links: Of the records up to the first fault, in their order.
        fault: The first record that was altered, removed or inserted, as a sentence; None where there is none.
        is_torn: Whether a last line without its end follows the records.
    """

    links: tuple[Link, ...]
    fault: str | None
    is_torn: bool

    @property
    def last(self) -> Link:
        """Where the chain stands after the last sound record."""
        return self.links[-1] if self.links else Link()


def seal_record(record: Mapping[str, Any], before: Link) -> tuple[bytes, Link]:
    """Return a record as its line of the chain, and where the chain stands after it.

    Args:
        record: The record's facts; NaN is refused.
        before: Where the chain stands before it.
    """
    facts = {"number": before.number + 1} | dict(record) | {"before": before.hash}
    body = json.dumps(facts, allow_nan=False).encode().removesuffix(b"}")
    digest = hashlib.sha256(body).hexdigest()
    return body + MARK + digest.encode() + b'"}\n', Link(before.number + 1, digest)


def read_link(record: Mapping[str, Any], before: Link) -> Link:
    """Return where a chain stands after a record that was read; it is not checked.

    Args:
        before: Where the chain stands before it; a record of an older version, without a hash, leaves it there.
    """
    return Link(record["number"], record["hash"]) if {"number", "hash"} <= record.keys() else before


def check_chain(content: bytes) -> Verdict:
    """Check the lines of a record, one after the other.

    Args:
        content: Of ``egress.jsonl``.
    """
    whole, _, torn = content.rpartition(b"\n")
    links: list[Link] = []
    for place, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        link, fault = _check_line(place, line, links[-1] if links else Link())
        if fault:
            return Verdict(tuple(links), fault, bool(torn))
        links.append(link)
    return Verdict(tuple(links), None, bool(torn))


def _check_line(place: int, line: bytes, before: Link) -> tuple[Link, str | None]:
    """Return where the chain stands after a line, and what is wrong with it."""
    body, mark, end = line.rpartition(MARK)
    link, was = _read_line(body)
    if not mark:
        return before, f"record {place} must have a hash; it was altered, or an older version of SiloFL wrote it"
    if end != link.hash.encode() + b'"}' or not link.number:
        return before, f"record {place} must be as it was written; it was altered"
    if link.number > before.number + 1:
        first, last = before.number + 1, link.number - 1
        gone = f"record {first}" if first == last else f"records {first} to {last}"
        return (
            before,
            f"{gone} must stand before record {link.number}; {'it was' if first == last else 'they were'} removed",
        )
    if link.number <= before.number:
        return before, f"record {link.number} must stand once, not in line {place} again; one of the two was inserted"
    if was != before.hash:
        return before, f"record {link.number} must follow the record that it was written after; that one was replaced"
    return link, None


def _read_line(body: bytes) -> tuple[Link, str | None]:
    """Return a line's own link, with number 0 where it is no record, and the hash of the record before it."""
    digest = hashlib.sha256(body).hexdigest()
    try:
        record = json.loads(body + b"}")
        number, was = int(record["number"]), record["before"]
    except (ValueError, TypeError, KeyError, OverflowError):
        return Link(0, digest), None
    return Link(number, digest), was
