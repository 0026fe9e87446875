"""``silofl cross-test``: each site's model of a finished simulation on every site's test data.

With the algorithm ``local`` these are the rows "Client k Local" of FedSM's Tables 3 and 4 (Xu et al., CVPR 2022,
arXiv:2203.10144): how far what a site learns alone carries to the others.
"""

import argparse
from collections.abc import Mapping

from silofl.base.errors import ExitCode
from silofl.base.files import write_json
from silofl.base.options import make_console
from silofl.data.site_data import SiteData
from silofl.inference.contents import Contents
from silofl.study.sections import CLASS_MEANS
from silofl.training.device import choose_device, set_threads
from silofl.training.evaluation import evaluate
from silofl.training.metrics import mean_of_known, value_or_none
from silofl_desk.studies.finished import read_finished_run
from silofl_desk.studies.joined_examples import join_examples
from silofl_desk.studies.leave_out import load_site_networks
from silofl_desk.studies.simulation import Moved
from silofl_hospital.report.tables import TextTable, format_number, print_lines, print_table

# Of all sites' test data together.
EVERYONE = "all sites"
NOTE = (
    "A row is a site's model, a column the test data that it is tested on; mean: over the columns of single sites, "
    "none of a metric that averages a site's classes; all sites: over all their cases together. The diagonal is each "
    "site's model at home."
)
Values = Mapping[str, Mapping[str, float | None]]


def run(options: argparse.Namespace) -> int:
    """Test, print the table, and write ``cross_test.json`` into the run's folder."""
    models, data = read_finished_run(options.run, Moved(options.data, options.cache))
    values, metric = cross_test(models, data), models.study.metric
    console = make_console(options)
    numbers = options.run / "cross_test.json"
    write_json(numbers, {"metric": metric, "values": values})
    print_table(cross_table(values, metric), console)
    print_lines([NOTE, str(numbers)], console)
    if options.json:
        print(numbers.read_text(), end="")
    return ExitCode.COMPLETE


def cross_test(contents: Contents, data: Mapping[str, SiteData]) -> dict[str, dict[str, float | None]]:
    """Test each site's model on each site's test data, and on all of them together.

    Args:
        data: Site -> its data.

    Returns:
        Site of the model -> site of the data, the sites' mean, and ``all sites`` last -> the study's metric; None where
        no case counts, and of a mean of means over different classes.
    """
    study, device = contents.study, choose_device(contents.study.device)
    tests = {site: own.test for site, own in data.items()}
    tests |= {EVERYONE: join_examples(tests)}
    set_threads("auto")
    found: dict[str, dict[str, float | None]] = {}
    for owner, model in load_site_networks(contents, device):
        found[owner] = {
            site: value_or_none(evaluate(model, part, study, device)[1]) if len(part) else None
            for site, part in tests.items()
        }
    return found


def cross_table(values: Values, metric: str) -> TextTable:
    """Return one row a model, with the mean over sites before the value on all data together.

    Args:
        values: Site of the model -> site of the data, that of all together last -> value.
        metric: The study's; one that is a mean over classes, which differ by site, has no mean over sites.
    """
    *sites, together = next(iter(values.values()))
    cells = {owner: _row_with_mean(found, sites, together, metric) for owner, found in values.items()}
    rows = tuple((owner, *map(format_number, row)) for owner, row in cells.items())
    return TextTable(("model of", *sites, "mean", together), rows)


def _row_with_mean(
    found: Mapping[str, float | None], sites: list[str], together: str, metric: str
) -> list[float | None]:
    mean = None if metric in CLASS_MEANS else mean_of_known(map(found.get, sites))
    return [*map(found.get, sites), mean, found[together]]
