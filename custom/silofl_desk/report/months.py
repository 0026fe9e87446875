"""What a model answered at hospitals in use: a row for each hospital and month."""

from pathlib import Path

from silofl.base.files import read_json
from silofl.base.settings import Section, parse
from silofl.inference.answers import FILE, SiteMonths
from silofl.report.tables import NOT_SAID, TextTable


class _Record(Section):
    sites: dict[str, SiteMonths]
    sentences: tuple[str, ...]
    not_said: dict[str, str]


def read_months_table(run: Path) -> TextTable | None:
    """Return the table of a run that asked for them; None of another.

    Raises:
        ConfigError: The file is broken.
    """
    if not (run / FILE).is_file():
        return None
    sites = parse(_Record, read_json(run / FILE), FILE).sites
    units = {label: one.unit for one in sites.values() for month in one.months.values() for label in month.labels}
    found = {
        (site, month): (one.answers, one.warned, *map(one.labels.get, units))
        for site, said in sites.items()
        for month, one in said.months.items()
    }
    rows = [(*where, *(NOT_SAID if one is None else f"{one:g}" for one in numbers)) for where, numbers in found.items()]
    titles = (f"{label}, mean ml" if unit == "ml" else label for label, unit in units.items())
    return TextTable(("hospital", "month", "answers", "share with a warning", *titles), tuple(rows), num_text=2)
