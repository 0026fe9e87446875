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


def check_chain(content: bytes) -> Verdict:
    """Check the lines of a record, one after the other.

    Args:
        content: Of ``egress.jsonl``.
    """
    whole, _, torn = content.rpartition(b"\n")
    links: list[Link] = []
    fault = None
    lines = whole.split(b"\n") if whole else []
    for index, line in enumerate(lines, start=1):
        before = links[-1] if links else Link()
        link, hash_before = _read_line(line)
        if link is None:
            fault = f"record {index} was altered"
            break
        if (link.number, hash_before) != (before.number + 1, before.hash):
            fault = f"record {link.number} follows record {before.number}: one was removed, added or replaced"
            break
        links.append(link)
    return Verdict(tuple(links), fault, bool(torn))


def _read_line(line: bytes) -> tuple[Link | None, str]:
    """Return a record's link, None where it is not as it was written, and the hash of the one before it."""
    body, _, end = line.rpartition(MARK)
    digest = hashlib.sha256(body).hexdigest()
    # Before anything else is read: JSON that was altered is never parsed.
    if end != digest.encode() + b'"}':
        return None, ""
    try:
        record = json.loads(body + b"}")
        return Link(int(record["number"]), digest), record["before"]
    except (ValueError, TypeError, KeyError, OverflowError):
        return None, ""
