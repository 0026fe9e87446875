"""Tables of a run's rounds: who took part, and what travelled."""

from collections.abc import Sequence

from silofl.federation.ledger import Round
from silofl_hospital.report.tables import MISSING, TextTable, format_bytes

KINDS = ("asked", "answered", "failed")


def participation_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return one row a site: the rounds in which it was asked, answered or failed."""
    # Of the last round in which a site said it.
    examples = {site: str(count) for record in ledger for site, count in record.examples.items()}
    rows = tuple(
        (site, *(str(sum(site in getattr(r, kind) for r in ledger)) for kind in KINDS), examples.get(site, MISSING))
        for site in sites
    )
    return TextTable(("site", *KINDS, "training examples"), rows)


def traffic_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return one row a site: the bytes of the rounds' arrays to and from it, and those of one round."""
    rows = [
        _traffic_row(site, [r.bytes_to.get(site) for r in ledger], [r.bytes_from.get(site) for r in ledger])
        for site in sites
    ]
    to = [sum(record.bytes_to.values()) for record in ledger]
    back = [sum(record.bytes_from.values()) for record in ledger]
    columns = ("site", "to the site", "from the site", "both in one round")
    return TextTable(columns, (*rows, _traffic_row("all sites", to, back)), num_summary=1)


def _traffic_row(name: str, to: Sequence[int | None], back: Sequence[int | None]) -> tuple[str, ...]:
    sent, received = (sum(size or 0 for size in sizes) for sizes in (to, back))
    asked = sum(size is not None for size in to)
    return (
        name,
        format_bytes(sent),
        format_bytes(received),
        format_bytes((sent + received) / asked) if asked else MISSING,
    )
