"""What a model answered at hospitals in use: a row for each hospital and month."""

from pathlib import Path

from silofl.base.files import read_json
from silofl.base.settings import Section, parse
from silofl.inference.answers import FILE, SiteMonths
from silofl.report.page import PageSection, Table, make_section
from silofl.report.tables import NOT_SAID, TextTable


class _Record(Section):
    sites: dict[str, SiteMonths]
    sentences: tuple[str, ...]
    not_said: dict[str, str]


def months_section(run: Path) -> PageSection | None:
    """Return the section of a run that asked for them; None of another.

    Raises:
        ConfigError: The file is broken.
    """
    if not (run / FILE).is_file():
        return None
    sites = parse(_Record, read_json(run / FILE), FILE).sites
    units = {label: one.unit for one in sites.values() for month in one.months.values() for label in month.labels}
    rows = [
        (site, name, *(NOT_SAID if n is None else f"{n:g}" for n in (m.answers, m.warned, *map(m.labels.get, units))))
        for site, said in sites.items()
        for name, m in said.months.items()
    ]
    titles = (f"{label}, mean ml" if unit == "ml" else label for label, unit in units.items())
    table = TextTable(("hospital", "month", "answers", "share with a warning", *titles), tuple(rows), num_text=2)
    return make_section("months", "Answers in use", "Answers in use", Table(table))
