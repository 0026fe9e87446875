"""The table of a run's rounds: which sites took part, and what travelled."""

from collections.abc import Sequence

from silofl.federation.ledger import Round
from silofl_hospital.report.tables import MISSING, TextTable, format_bytes


def participation_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return one row a site: the rounds in which it was asked, answered or failed, its examples and its bytes."""
    kinds = ("asked", "answered", "failed")
    # Of the last round in which a site said it.
    examples = {site: str(count) for record in ledger for site, count in record.examples.items()}
    rows = []
    for site in sites:
        counts = [str(sum(site in getattr(record, kind) for record in ledger)) for kind in kinds]
        sent = sum(record.bytes_to.get(site, 0) for record in ledger)
        received = sum(record.bytes_from.get(site, 0) for record in ledger)
        rows.append((site, *counts, examples.get(site, MISSING), format_bytes(sent), format_bytes(received)))
    return TextTable(("site", *kinds, "training examples", "sent to it", "sent by it"), tuple(rows))
