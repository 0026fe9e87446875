"""Tables of a run's rounds: who took part, what travelled, and which software each site runs."""

from collections.abc import Sequence

from silofl.federation.ledger import Round, latest_software
from silofl_hospital.report.tables import MISSING, TextTable, format_bytes

KINDS = ("late", "failed", "refused")
SOFTWARE = ("silofl", "nvflare", "torch", "python")


def participation_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return one row a site: the rounds in which it was asked, answered, was late, failed or was refused."""
    kinds = ("asked", "answered", *KINDS)
    # Of the last round in which a site said it.
    examples = {site: str(count) for record in ledger for site, count in record.examples.items()}
    rows = tuple(
        (site, *(str(sum(site in getattr(r, kind) for r in ledger)) for kind in kinds), examples.get(site, MISSING))
        for site in sites
    )
    return TextTable(("site", *kinds, "training examples"), rows)


def software_table(ledger: Sequence[Round]) -> TextTable | None:
    """Return one row a site: what it runs, and of how many of its updates it said that they were recorded there."""
    rows = []
    for site, one in sorted(latest_software(ledger).items()):
        recorded, answered = (sum(site in getattr(r, key) for r in ledger) for key in ("recorded", "answered"))
        known = (one[name] for name in SOFTWARE)
        rows.append((site, *known, one["package"][:12], f"{recorded} of {answered} rounds"))
    return TextTable(("site", *SOFTWARE, "files of silofl, SHA-256", "egress recorded"), tuple(rows)) if rows else None


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
