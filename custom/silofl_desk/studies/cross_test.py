"""``silofl cross-test``: each site's model of a finished simulation on every site's test data.

With the algorithm ``local`` these are the rows "Client k Local" of FedSM's Tables 3 and 4 (Xu et al., CVPR 2022,
arXiv:2203.10144): how far what a site learns alone carries to the others.
"""

import argparse
from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps

from silofl.base.errors import ExitCode
from silofl.data.site_data import SiteData
from silofl.inference.contents import Contents
from silofl.report.canvas import INK, MUTED, PageImage, as_values, encode_png, escape_math, make_panels
from silofl.report.tables import TextTable, format_number
from silofl.study.sections import CLASS_MEANS
from silofl.training.device import choose_device, set_threads
from silofl.training.evaluation import evaluate
from silofl.training.metrics import mean_of_known, value_or_none
from silofl_desk.studies.finished import read_finished_run, report_measurement
from silofl_desk.studies.joined_examples import join_examples
from silofl_desk.studies.leave_out import load_site_networks
from silofl_desk.studies.simulation import Moved

# Of all sites' test data together.
EVERYONE = "all sites"
NOTE = (
    "A row is a site's model, a column the test data that it is tested on; mean: over the columns of single sites, "
    "none of a metric that averages a site's classes; all sites: over all their cases together. The diagonal is each "
    "site's model at home."
)
Values = Mapping[str, Mapping[str, float | None]]
COLOURS = "Blues"
# Above it a cell is dark, and its number is written in white.
DARK = 0.6


def run(options: argparse.Namespace) -> int:
    """Test, print the table, and write ``cross_test.json`` and ``cross_test.png`` into the run's folder."""
    models, data = read_finished_run(options.run, Moved(options.data, options.cache))
    values, metric = cross_test(models, data), models.study.metric
    image, table = cross_image(values, metric), cross_table(values, metric)
    report_measurement(options, "cross_test", {"metric": metric, "values": values}, image, table)
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


def cross_image(values: Values, metric: str) -> PageImage:
    """Draw the values as a map, one row a model."""
    *sites, together = next(iter(values.values()))
    columns = [*sites, "mean", together]
    cells = np.stack([as_values(_row_with_mean(found, sites, together, metric)) for found in values.values()])
    figure, ((axes,),) = make_panels(1, 1, (2.2 + 0.8 * len(columns), 1.4 + 0.5 * len(values)))
    # Of a metric from 0 to 1.
    axes.imshow(cells, cmap=colormaps[COLOURS], vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), map(escape_math, columns), rotation=30, ha="right")
    axes.set_yticks(range(len(values)), map(escape_math, values))
    axes.set_ylabel("model of", fontsize=9, color=MUTED)
    axes.set_title(f"{metric} at", loc="left", fontsize=10.5, color=INK, fontweight="bold")
    axes.tick_params(labelsize=8.5, colors=MUTED, length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(cells):
        colour = "white" if value > DARK else INK
        axes.text(
            column, row, format_number(None if np.isnan(value) else value), ha="center", va="center", color=colour
        )
    alt = f"{metric} of {len(values)} sites' models at {len(sites)} sites, as in the table."
    missing = [site for site in sites if site not in values]
    return PageImage(
        encode_png(figure), alt, NOTE + (f" No model of {', '.join(missing)} was kept." if missing else "")
    )


def _row_with_mean(
    found: Mapping[str, float | None], sites: list[str], together: str, metric: str
) -> list[float | None]:
    mean = None if metric in CLASS_MEANS else mean_of_known(map(found.get, sites))
    return [*map(found.get, sites), mean, found[together]]
