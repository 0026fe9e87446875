"""The table of a run's rounds: which sites took part, and what travelled."""

from collections.abc import Sequence

from silofl.federation.ledger import Round
from silofl_hospital.report.tables import MISSING, TextTable, format_bytes


def participation_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return one row a site: the rounds in which it was asked, answered or failed, its examples and its bytes."""
    rows = []
    for site in sites:
        counts = dict.fromkeys(("asked", "answered", "failed"), 0)
        # The last round in which a site states it counts.
        examples = MISSING
        sent = 0
        received = 0
        for record in ledger:
            for event in counts:
                counts[event] += site in getattr(record, event)
            examples = str(record.examples.get(site, examples))
            sent += record.bytes_to.get(site, 0)
            received += record.bytes_from.get(site, 0)
        rows.append((site, *map(str, counts.values()), examples, format_bytes(sent), format_bytes(received)))
    return TextTable(
        ("site", "asked", "answered", "failed", "training examples", "sent to it", "sent by it"), tuple(rows)
    )
