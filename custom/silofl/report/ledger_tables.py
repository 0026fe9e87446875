"""The ledger as tables: who took part, what went wrong, what travelled, and who was listened to how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from silofl.federation.ledger import Round
from silofl.report.tables import MISSING, TextTable

KINDS = ("late", "failed", "refused")
LATE_REASON = "no answer in time"


@dataclass(frozen=True)
class WeightTable:
    """Aggregation weights of one round.

    Attributes:
        round: Number of the round.
        columns: The sites that are listened to.
        rows: Listener -> {site: weight}.
    """

    round: int
    columns: list[str]
    rows: dict[str, dict[str, float]]


def participation_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return in how many rounds each site was asked, answered, was late, failed or was refused."""
    columns = ("site", "asked", "answered", *KINDS, "training examples")
    rows = tuple(
        (
            site,
            *(str(_rounds_in(ledger, kind, site)) for kind in ("asked", "answered", *KINDS)),
            _examples(ledger, site),
        )
        for site in sites
    )
    return TextTable(columns, rows)


def incidents(ledger: Sequence[Round]) -> list[str]:
    """Return a sentence for each site and reason, late, failed, refused or withheld, and each note, with its rounds."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in ledger:
        for incident in _incidents(record):
            rounds.setdefault(incident, []).append(record.round)
    return [f"{what} in {_spans(numbers)}: {why}" for (what, why), numbers in rounds.items()]


def traffic_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return the bytes of the arrays to and from each site over all rounds, and those of one round."""
    rows = [
        _traffic_row(site, [r.bytes_to.get(site) for r in ledger], [r.bytes_from.get(site) for r in ledger])
        for site in sites
    ]
    to = [sum(record.bytes_to.values()) for record in ledger]
    back = [sum(record.bytes_from.values()) for record in ledger]
    columns = ("site", "to the site", "from the site", "both in one round")
    return TextTable(columns, (*rows, _traffic_row("all sites", to, back)), num_summary=1)


def last_weights(ledger: Sequence[Round]) -> WeightTable | None:
    """Return the weights of the last round; equal rows become one, ``every site``; None before the first round."""
    if not ledger or not ledger[-1].weights:
        return None
    rows = ledger[-1].weights
    first = next(iter(rows.values()))
    is_shared = all(row == first for row in rows.values())
    return WeightTable(ledger[-1].round, list(first), {"every site": first} if is_shared else rows)


def byte_size(size: float) -> str:
    """Return a number of bytes in the decimal unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _rounds_in(ledger: Sequence[Round], kind: str, site: str) -> int:
    return sum(site in getattr(record, kind) for record in ledger)


def _examples(ledger: Sequence[Round], site: str) -> str:
    counts = [record.examples[site] for record in ledger if site in record.examples]
    return str(counts[-1]) if counts else MISSING


def _incidents(record: Round) -> Iterator[tuple[str, str]]:
    """Return what happened in a round, and why."""
    yield from ((f"{site}: late", LATE_REASON) for site in record.late)
    yield from ((f"{site}: failed", reason) for site, reason in record.failed.items())
    yield from ((f"{site}: refused", reason) for site, reason in record.refused.items())
    for site, names in record.withheld.items():
        shown = f"{', '.join(names[:3])}{', ...' * (len(names) > 3)}"
        yield f"{site}: withheld by its policy", f"{len(names)} arrays ({shown})"
    yield from (("noted", note) for note in record.notes)


def _spans(numbers: Sequence[int]) -> str:
    """Return rounds as ``round 4`` or ``rounds 1-3, 7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"round {text}" if len(numbers) == 1 else f"rounds {text}"


def _traffic_row(name: str, to: Sequence[int | None], back: Sequence[int | None]) -> tuple[str, ...]:
    sent, received = (sum(size or 0 for size in sizes) for sizes in (to, back))
    asked = sum(size is not None for size in to)
    return name, byte_size(sent), byte_size(received), byte_size((sent + received) / asked) if asked else MISSING
