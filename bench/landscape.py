"""Draw the loss around the models of finished simulated runs, site by site (HarmoFL, Fig. 1 and 6; FedSM, Fig. 4).

    python bench/landscape.py RUN [RUN ...] [--kind lines] [--out landscape.png]

A simulation has the sites' models and their data in one place; in a network neither leaves its site. All runs are
measured on the same images, along the same random directions, whose lengths are those of the model's filters.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from loss_surface import Landscape, draw_filter_directions, line_points, mean_loss, measure_losses, plane_points
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table

from silofl.base.errors import ConfigError, DataError, ExitCode
from silofl.base.files import write_json
from silofl.base.options import make_console, parse_count, parse_natural
from silofl.command_line.cli import Parser, run_command
from silofl.data.batches import evaluation_batches
from silofl.data.manifest import PARTS
from silofl.data.parts import Examples
from silofl.inference.contents import Contents
from silofl.training.device import choose_device, derive_seed, set_threads
from silofl.training.losses import make_loss
from silofl_desk.options import RUN, add_moved
from silofl_desk.report.run_records import RunRecords, read_run
from silofl_desk.studies.comparisons.conditions import run_names
from silofl_desk.studies.runs.finished import read_sites
from silofl_desk.studies.runs.leave_out import assemble_models, load_site_networks
from silofl_desk.studies.runs.simulation import Moved

# FedSM's Fig. 4 has ten lines.
DIRECTIONS = {"plane": 2, "lines": 10}
# One for all runs, whatever they trained with: the loss of label maps depends on it.
BATCH_SIZE = 8
# From this ratio of the largest to the smallest loss only a logarithmic scale shows both.
WIDE = 20


@dataclass(frozen=True)
class SiteLandscape:
    """The loss around one site's model.

    Attributes:
        run: Name of the run.
        site: Name of the site.
        scale: How far its outermost points are moved along a direction, in lengths of the filters.
        num_images: Images on which the loss is measured.
        found: The losses.
    """

    run: str
    site: str
    scale: float
    num_images: int
    found: Landscape


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and draw; returns the exit code."""
    parser = Parser(prog="landscape.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=RUN, nargs="+", metavar="RUN", help="folder of a finished simulated run")
    add_moved(parser)
    parser.add_argument("--out", type=Path, default=Path("landscape.png"), metavar="FILE.png")
    parser.add_argument("--kind", choices=tuple(DIRECTIONS), default="plane", help="a plane, or lines along ten")
    parser.add_argument("--steps", type=parse_count, default=5, help="points from the model to the border")
    parser.add_argument("--scales", default="0.125,1", help="how far to go, in lengths of the filters")
    parser.add_argument("--seed", type=parse_natural, default=0, help="of directions and images")
    parser.add_argument("--part", choices=PARTS, default="test", help="of each site's data")
    parser.add_argument("--images", type=parse_count, default=16, help="images, or slices, a site at most")
    return run_command("landscape.py", run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Measure the loss around each run's models, write the figure and its numbers, and print a table."""
    runs = run_names([read_run(path) for path in options.runs])
    rows = measure_landscapes(runs, options)
    draw = draw_planes if options.kind == "plane" else draw_lines
    figure = draw(rows)
    figure.suptitle(f"Loss on {options.part} images; random directions of seed {options.seed}", fontsize=10)
    figure.savefig(options.out, dpi=110, metadata={"Software": None})
    numbers = options.out.with_suffix(".json")
    write_json(numbers, [as_dict(row) for row in rows])
    table = Table("run", "site", "scale", "images", "loss at centre", "lowest loss", "at distance", "mean rise")
    for row in rows:
        found = row.found
        losses = (found.centre, found.losses[found.lowest], found.distance, found.mean_rise)
        table.add_row(row.run, row.site, f"{row.scale:g}", str(row.num_images), *(f"{value:.4g}" for value in losses))
    console = make_console(options)
    console.print(table)
    console.print(f"wrote {options.out} and {numbers}")
    return ExitCode.COMPLETE


def measure_landscapes(runs: Mapping[str, RunRecords], options: argparse.Namespace) -> list[SiteLandscape]:
    """Measure the loss around the model of each run and site, by scale.

    Raises:
        ConfigError: A run has no models, or the runs differ in sites, task, labels, loss or data.
        DataError: A site has no data of the part.
    """
    models = {name: assemble_models(records.path) for name, records in runs.items()}
    first = next(iter(models))
    for name, contents in models.items():
        _check_same_conditions(models[first], contents, runs[name].path)
    moved = Moved(options.data, options.cache)
    data = {records.path: records.data for records in runs.values()}
    sites = read_sites(models[first].study, runs[first].path, moved, data, models[first].sites)
    parts = {site: _choose_images(site, getattr(own, options.part), options) for site, own in sites.items()}
    scales = [float(scale) for scale in options.scales.split(",")]
    rows = []
    for name, contents in models.items():
        rows += _measure_run(name, contents, parts, scales, options)
    return sorted(rows, key=lambda row: scales.index(row.scale))


def _measure_run(
    name: str,
    models: Contents,
    parts: Mapping[str, Examples],
    scales: Sequence[float],
    options: argparse.Namespace,
) -> Iterator[SiteLandscape]:
    study, count = models.study, DIRECTIONS[options.kind]
    device = choose_device(study.device)
    # As at the sites: on a busy machine more threads are slower than one.
    set_threads(study.torch_threads)
    for site, model in load_site_networks(models, device):
        part = parts[site]
        batches = list(evaluation_batches(part, BATCH_SIZE, device))
        measure = partial(mean_loss, model, batches, make_loss(study, part.annotated))
        directions = draw_filter_directions(model, count, options.seed)
        for scale in scales:
            is_plane = options.kind == "plane"
            points = plane_points(scale, options.steps) if is_plane else line_points(scale, options.steps, count)
            losses = measure_losses(model, directions, points, measure)
            yield SiteLandscape(name, site, scale, len(part), Landscape(points, losses))


def _check_same_conditions(first: Contents, other: Contents, path: Path) -> None:
    """Refuse runs whose losses measure different things."""
    found = _conditions(other)
    for key, value in _conditions(first).items():
        if found[key] != value:
            raise ConfigError(f"Run {path} has the {key} {found[key]!r}, the first run {value!r}. Draw it apart.")


def _conditions(models: Contents) -> dict[str, object]:
    study = models.study
    preparation = study.data.model_dump(mode="json", exclude={"augment", "split_unit"})
    conditions = {"sites": list(models.sites), "task": study.task, "labels": study.labels, "loss": study.training.loss}
    return conditions | preparation


def _choose_images(site: str, part: Examples, options: argparse.Namespace) -> Examples:
    """Return some examples of a part, the same for every run, in their order."""
    if not len(part):
        raise DataError(f"Site {site!r} has no {options.part} data. Choose another --part.")
    rng = np.random.default_rng(derive_seed(options.seed, site, "landscape"))
    chosen = rng.choice(len(part), min(options.images, len(part)), replace=False)
    return part.select_rows(sorted(chosen.tolist()))


def as_dict(row: SiteLandscape) -> dict[str, object]:
    """Return the numbers of a landscape as plain values; None where a loss is not finite."""
    losses = [[float(loss) if np.isfinite(loss) else None for loss in line] for line in row.found.grid]
    return {
        "run": row.run,
        "site": row.site,
        "scale": row.scale,
        "num_images": row.num_images,
        "axis": row.found.axis.tolist(),
        "losses": losses,
    }


def draw_planes(rows: Sequence[SiteLandscape]) -> Figure:
    """Draw maps of planes: one column a site, one row a scale and run; all maps of a scale have one range of colours.

    A cross marks the model, a circle the site's lowest loss.
    """
    runs, sites, scales = _runs_sites_scales(rows)
    figure, grid = _make_panels(len(scales) * len(runs), len(sites))
    for row in rows:
        axes = grid[scales.index(row.scale) * len(runs) + runs.index(row.run), sites.index(row.site)]
        found, axis = row.found, row.found.axis
        # Transposed: the first direction points to the right.
        image = axes.pcolormesh(axis, axis, found.grid.T, norm=_loss_range(rows, row.scale), shading="nearest")
        axes.plot(0, 0, "w+", *found.points[found.lowest][:, None], "ro", fillstyle="none")
        axes.set_title(f"{row.site}, {row.run}\ncentre {found.centre:.3g}, rise {found.mean_rise:.3g}", fontsize=8)
        axes.set_aspect("equal")
        figure.colorbar(image, ax=axes, fraction=0.05)
    return figure


def draw_lines(rows: Sequence[SiteLandscape]) -> Figure:
    """Draw curves along lines: one column a site, one row a scale, a colour a run; thick is the mean of its lines."""
    runs, sites, scales = _runs_sites_scales(rows)
    figure, grid = _make_panels(len(scales), len(sites))
    for row in rows:
        axes, colour = grid[scales.index(row.scale), sites.index(row.site)], f"C{runs.index(row.run)}"
        axes.plot(row.found.axis, row.found.grid.T, linewidth=0.6, alpha=0.35, color=colour)
        axes.plot(row.found.axis, row.found.grid.mean(axis=0), linewidth=2.2, color=colour, label=row.run)
        axes.set_title(f"{row.site}, scale {row.scale:g}", fontsize=8)
        axes.set_yscale("log" if isinstance(_loss_range(rows, row.scale), LogNorm) else "linear")
    grid[0, 0].legend(fontsize=7)
    return figure


def _runs_sites_scales(rows: Sequence[SiteLandscape]) -> tuple[list[str], list[str], list[float]]:
    runs = list(dict.fromkeys(row.run for row in rows))
    sites = list(dict.fromkeys(row.site for row in rows))
    return runs, sites, list(dict.fromkeys(row.scale for row in rows))


def _make_panels(rows: int, columns: int) -> tuple[Figure, NDArray[Axes]]:
    figure = Figure(figsize=(max(2.4 * columns + 1, 6.4), 2.4 * rows + 1), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _loss_range(rows: Sequence[SiteLandscape], scale: float) -> Normalize:
    """Return the range of all finite losses of a scale, logarithmic where it is wide."""
    losses = np.concatenate([row.found.losses for row in rows if row.scale == scale])
    known = losses[np.isfinite(losses)]
    if not len(known):
        return Normalize(0, 1)
    is_wide = 0 < known.min() and known.max() / known.min() >= WIDE
    return (LogNorm if is_wide else Normalize)(known.min(), known.max())


if __name__ == "__main__":
    sys.exit(main())
