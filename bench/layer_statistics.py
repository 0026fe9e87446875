"""Do BatchNorm's running statistics stand for those of a layer's inputs?

    python bench/layer_statistics.py RUN [--json]

AdaFed's Fig. 4 (Chen et al., arXiv:2112.00734): what f-AdaFed compares sites by, the running mean and variance of each
BatchNorm layer, beside what AdaFed collects, mean and variance of the layer's inputs over the site's training data. The
table has their correlation (Pearson) over channels, of all layers the median and the lowest.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from silofl.algorithms.adafed import collect_statistics, running_statistics
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import write_json
from silofl.base.options import add_json, make_console
from silofl.command_line.cli import Parser, run_command
from silofl.data.batches import evaluation_batches
from silofl.data.site_data import SiteData
from silofl.inference.contents import Contents
from silofl.training.device import choose_device, set_threads
from silofl_desk.options import RUN, add_moved
from silofl_desk.studies.runs.finished import read_finished_run
from silofl_desk.studies.runs.leave_out import load_site_networks
from silofl_desk.studies.runs.simulation import Moved

# Running, and of the inputs, each of shape (channels,).
Pair = tuple[NDArray, NDArray]
Pairs = Mapping[str, Mapping[str, Sequence[Pair]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and draw; returns the exit code."""
    parser = Parser(
        prog="layer_statistics.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=RUN, metavar="RUN", help="folder of a finished simulation with BatchNorm")
    add_moved(parser)
    add_json(parser, "layer_statistics.json")
    return run_command("layer_statistics.py", run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Measure, print the correlations, and write them and the figure into the run's folder."""
    pairs = layer_pairs(*read_finished_run(options.run, Moved(options.data, options.cache)))
    numbers = options.run / "layer_statistics.json"
    write_json(numbers, correlations(pairs))
    draw_statistics(pairs).savefig(numbers.with_suffix(".png"), dpi=110, metadata={"Software": None})
    console = make_console(options)
    print_correlations(correlations(pairs), console)
    console.print(f"{numbers}, {numbers.with_suffix('.png')}")
    if options.json:
        print(numbers.read_text(), end="")
    return ExitCode.COMPLETE


def layer_pairs(models: Contents, data: Mapping[str, SiteData]) -> dict[str, dict[str, list[Pair]]]:
    """Return site -> ``mean`` and ``variance`` -> for each BatchNorm layer (running, of the inputs), each (channels,).

    Raises:
        ConfigError: The network has no BatchNorm with running statistics.
    """
    study, device = models.study, choose_device(models.study.device)
    if study.model.normalization != "batch":
        raise ConfigError(
            f"the run's network must have BatchNorm, not normalization {study.model.normalization}; name another run"
        )
    set_threads(study.torch_threads)
    pairs = {}
    for site, model in load_site_networks(models, device):
        batches = evaluation_batches(data[site].training, study.training.batch_size, device)
        collected = collect_statistics(model, (inputs for inputs, _ in batches))
        running = running_statistics(model)
        pairs[site] = {
            kind: [(own[place], of_inputs[place]) for own, of_inputs in zip(running, collected, strict=True)]
            for place, kind in enumerate(("mean", "variance"))
        }
    return pairs


def correlations(pairs: Pairs) -> dict[str, dict[str, list[float | None]]]:
    """Return site -> ``mean`` and ``variance`` -> the correlation in each layer; None of a layer of one value."""
    return {
        site: {kind: [_correlation(*pair) for pair in layers] for kind, layers in kinds.items()}
        for site, kinds in pairs.items()
    }


def print_correlations(found: Mapping[str, Mapping[str, Sequence[float | None]]], console: Console) -> None:
    """Print one row a site: the layers, and of means and variances the median and the lowest correlation."""
    table = Table("site", "layers", "means: median", "lowest", "variances: median", "lowest")
    for site, kinds in found.items():
        cells = []
        for values in kinds.values():
            known = [value for value in values if value is not None]
            cells += [f"{np.median(known):.3f}", f"{min(known):.3f}"] if known else ["-", "-"]
        table.add_row(site, str(len(kinds["mean"])), *cells)
    console.print(table)


def draw_statistics(pairs: Pairs) -> Figure:
    """Draw each channel of each layer as a point, means on the left and variances on the right, one colour a site.

    On the dotted line both are equal.
    """
    figure = Figure(figsize=(10.4, 4.6), layout="constrained")
    for panel, kind in zip(figure.subplots(1, 2), ("mean", "variance"), strict=True):
        for site, kinds in pairs.items():
            running = np.concatenate([pair[0] for pair in kinds[kind]])
            of_inputs = np.concatenate([pair[1] for pair in kinds[kind]])
            panel.plot(of_inputs, running, "o", markersize=3, alpha=0.5, label=site)
        panel.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle=":")
        panel.set_xlabel(f"{kind} of the layer's inputs over the site's training data")
        panel.set_ylabel(f"running {kind}")
        if kind == "variance":
            # Layers' variances differ by orders of magnitude.
            panel.set_xscale("log")
            panel.set_yscale("log")
    figure.axes[0].legend(fontsize=8)
    return figure


def _correlation(one: NDArray, other: NDArray) -> float | None:
    """Return Pearson's correlation; None where one of both has one value only."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


if __name__ == "__main__":
    sys.exit(main())
