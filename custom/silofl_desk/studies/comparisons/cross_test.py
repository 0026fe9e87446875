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
from silofl.training.device import choose_device, set_threads
from silofl.training.evaluation import evaluate
from silofl.training.metrics import value_or_none
from silofl_desk.studies.comparisons.comparison import Value, make_values_table, pivot
from silofl_desk.studies.runs.finished import read_finished_run
from silofl_desk.studies.runs.joined_examples import join_examples
from silofl_desk.studies.runs.leave_out import load_site_networks
from silofl_desk.studies.runs.simulation import Moved
from silofl_hospital.report.tables import print_lines, print_table

# The test data of all sites together have this name.
EVERYONE = "all sites"
NOTE = (
    "A row is a site's model, a column the test data that it is tested on; all sites: over all their cases together. "
    "The diagonal is each site's model at home."
)


def run(options: argparse.Namespace) -> int:
    """Test, print the table, and write ``cross_test.json`` into the run's folder."""
    models, data = read_finished_run(options.run, Moved(options.data, options.cache))
    values = cross_test(models, data)
    console = make_console(options)
    numbers = options.run / "cross_test.json"
    write_json(numbers, {"metric": models.study.metric, "values": values})
    cells = []
    for owner, scores in values.items():
        cells += [Value(owner, site, score) for site, score in scores.items()]
    print_table(make_values_table(pivot(cells), "model of"), console)
    print_lines([NOTE, str(numbers)], console)
    if options.json:
        print(numbers.read_text(), end="")
    return ExitCode.COMPLETE


def cross_test(contents: Contents, data: Mapping[str, SiteData]) -> dict[str, dict[str, float | None]]:
    """Test each site's model on each site's test data, and on all of them together.

    Args:
        data: Site -> its data.

    Returns:
        Site of the model -> site of the data, and ``all sites`` last -> the study's metric; None where no case counts.
    """
    study = contents.study
    device = choose_device(study.device)
    tests = {site: site_data.test for site, site_data in data.items()}
    tests[EVERYONE] = join_examples(tests)
    # The study's number of threads is one site's of many; here one model is tested at a time.
    set_threads("auto")
    values: dict[str, dict[str, float | None]] = {}
    # The models come one at a time, so that only one is in memory.
    for owner, model in load_site_networks(contents, device):
        values[owner] = dict.fromkeys(tests)
        for site, part in tests.items():
            if len(part):
                _, score = evaluate(model, part, study, device)
                values[owner][site] = value_or_none(score)
    return values
