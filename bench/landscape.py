"""Draw the loss around the models of finished simulated runs, site by site (HarmoFL, Fig. 1 and 6; FedSM, Fig. 4).

    python bench/landscape.py RUN [RUN ...] [--kind lines] [--out landscape.png]

A simulation has the sites' models and their data in one place; in a network neither leaves its site.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from landscape_figures import SiteLandscape, landscape_table, lines_image, plane_image
from loss_surface import (
    Landscape,
    draw_filter_directions,
    line_points,
    mean_loss,
    measure_losses,
    plane_points,
)
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError, ExitCode, quote_value
from silofl.base.files import write_atomically, write_json
from silofl.base.options import make_console, parse_count, parse_natural
from silofl.cli import Parser, run_command
from silofl.data.batches import evaluation_batches
from silofl.data.manifest import PARTS
from silofl.data.parts import Examples
from silofl.data.progress import track_progress
from silofl.inference.contents import Contents
from silofl.study import Study
from silofl.training.device import choose_device, derive_seed, set_threads
from silofl.training.losses import make_loss
from silofl_desk.options import RUN, add_moved
from silofl_desk.report.run_records import RunRecords, read_run
from silofl_desk.studies.conditions import run_names
from silofl_desk.studies.finished import read_sites
from silofl_desk.studies.leave_out import assemble_models, load_site_networks
from silofl_desk.studies.simulation import Moved
from silofl_hospital.report.tables import print_lines, print_table

PLANE, LINES = "plane", "lines"
# FedSM's Fig. 4 has ten lines.
DIRECTIONS = {PLANE: 2, LINES: 10}
IMAGES = {PLANE: plane_image, LINES: lines_image}
SCALES, MOST_STEPS = (0.125, 1.0), 100
# One for all runs, whatever they trained with: the loss of label maps depends on it.
BATCH_SIZE = 8


@dataclass(frozen=True)
class LandscapePlan:
    """What to measure.

    Attributes:
        kind: ``plane`` or ``lines``.
        scales: How far the outermost points are moved along a direction, in lengths of the filters.
        steps: Points from the model to the border.
        seed: Of the directions and of the choice of images.
        part: Name of the part of each site's data.
        most: Images of each site, slices of volumes, at most.
    """

    kind: str
    scales: tuple[float, ...]
    steps: int
    seed: int
    part: str
    most: int

    def points(self, scale: float) -> NDArray[np.float64]:
        """Return the points of a scale, shape (n, directions)."""
        if self.kind == PLANE:
            return plane_points(scale, self.steps)
        return line_points(scale, self.steps, DIRECTIONS[self.kind])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and draw; returns the exit code."""
    parser = Parser(prog="landscape.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=RUN, nargs="+", metavar="RUN", help="folder of a finished simulated run")
    add_moved(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("landscape.png"), metavar="FILE.png", help="landscape.png by default"
    )
    parser.add_argument(
        "--kind", choices=tuple(DIRECTIONS), default=PLANE, help="a plane of two directions, or lines along ten"
    )
    parser.add_argument(
        "--steps", type=_parse_steps, default=5, help="points from the model to the border; 5 by default"
    )
    parser.add_argument(
        "--scales",
        type=_parse_scales,
        default=SCALES,
        metavar="S1,S2",
        help="in lengths of the filters; 0.125,1 by default",
    )
    parser.add_argument("--seed", type=parse_natural, default=0, help="of directions and images; 0 by default")
    parser.add_argument("--part", choices=PARTS, default="test", help="of each site's data; test by default")
    parser.add_argument(
        "--images", type=parse_count, default=16, help="images, or slices, a site at most; 16 by default"
    )
    return run_command("landscape.py", run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Measure the loss around each run's models, write the figure and its numbers, and print a table."""
    out, console = options.out, make_console(options)
    if out.suffix != ".png":
        raise ConfigError(f"--out must end in .png, not {out.name}; name a picture")
    asked = LandscapePlan(options.kind, options.scales, options.steps, options.seed, options.part, options.images)
    runs = run_names([_read_finished(path) for path in options.runs])
    rows = measure_landscapes(runs, asked, Moved(options.data, options.cache))
    loss = _loss_name(next(iter(runs.values())).study)
    title = f"{loss} of {asked.part} images around each site's model; random directions of seed {asked.seed}, "
    title += "in lengths of the model's filters"
    image = IMAGES[asked.kind](rows, title)
    paths = {name: str(one.path) for name, one in runs.items()}
    facts = {"kind": asked.kind, "seed": asked.seed, "loss": loss, "part": asked.part, "runs": paths}
    write_json(out.with_suffix(".json"), facts | {"landscapes": [row.as_dict() for row in rows]})
    write_atomically(out, lambda stream: stream.write(image.png))
    print_table(landscape_table(rows), console)
    print_lines([f"{title}.", image.caption, f"wrote {out} and {out.with_suffix('.json')}"], console)
    return ExitCode.COMPLETE


def measure_landscapes(runs: Mapping[str, RunRecords], asked: LandscapePlan, moved: Moved) -> list[SiteLandscape]:
    """Measure the loss around the model of each run and site, along the same directions on the same images.

    Args:
        runs: Name -> a finished simulated run.
        asked: What to measure.
        moved: Folders that are not where the first run read them.

    Returns:
        One for each scale, run and site.

    Raises:
        ConfigError: A run has no models, or runs differ in what the loss is measured on.
        DataError: A site's data is wrong, or none of what a run learnt from.
    """
    models = {name: assemble_models(one.path) for name, one in runs.items()}
    first = next(iter(runs))
    for name in runs:
        _check_same_conditions((runs[first].path, models[first]), (runs[name].path, models[name]))
    parts = _read_parts(list(runs.values()), models[first], asked, moved)
    rows = [row for name in runs for row in _measure_run(name, models[name], parts, asked)]
    return sorted(rows, key=lambda row: asked.scales.index(row.scale))


def _measure_run(
    name: str, models: Contents, parts: Mapping[str, Examples], asked: LandscapePlan
) -> Iterator[SiteLandscape]:
    study = models.study
    device = choose_device(study.device)
    # Set as at the sites: on a busy machine more threads are slower than one.
    set_threads(study.torch_threads)
    points = [asked.points(scale) for scale in asked.scales]
    total = sum(map(len, points))
    for site, model in load_site_networks(models, device):
        part = parts[site]
        batches = list(evaluation_batches(part, BATCH_SIZE, device))
        loss = make_loss(study, part.annotated)
        directions = draw_filter_directions(model, DIRECTIONS[asked.kind], asked.seed)
        followed = track_progress(np.concatenate(points), total, f"{name}, {site}", unit="points")
        losses = measure_losses(model, directions, followed, partial(mean_loss, model, batches, loss))
        for scale, here, found in zip(asked.scales, points, np.split(losses, len(points)), strict=True):
            yield SiteLandscape(name, site, scale, len(part), Landscape(here, found))


def _read_finished(path: Path) -> RunRecords:
    """Read a run that has its result, its study and its data at hand."""
    records = read_run(path)
    if not records.results.is_finished:
        raise ConfigError(f"{path} must be finished, not {records.results.status}; to go on: silofl resume {path}")
    if records.study is None or not records.data or not (path / "run.json").is_file():
        raise ConfigError(
            f"{path} must hold run.json, data.json and its job, as silofl simulate writes them; in a network no site's "
            "data are at hand: simulate the study"
        )
    return records


def _check_same_conditions(first: tuple[Path, Contents], other: tuple[Path, Contents]) -> None:
    """Refuse runs whose losses measure different things."""
    wanted, found = _conditions(first[1]), _conditions(other[1])
    for key, value in wanted.items():
        if found[key] != value:
            raise ConfigError(
                f"{other[0]} must have the {key} of {first[0]}, {quote_value(value)}, not {quote_value(found[key])}; "
                "draw it apart"
            )


def _conditions(models: Contents) -> dict[str, object]:
    study = models.study
    preparation = study.data.model_dump(mode="json", exclude={"augment", "split_unit"})
    conditions = {"sites": list(models.sites), "task": study.task, "labels": study.labels, "loss": _loss_name(study)}
    return conditions | {f"data.{key}": value for key, value in preparation.items()}


def _read_parts(
    runs: Sequence[RunRecords], models: Contents, asked: LandscapePlan, moved: Moved
) -> dict[str, Examples]:
    """Read the first run's data, check that all runs learnt from them, and choose images."""
    found = read_sites(models.study, runs[0].path, moved, {one.path: one.data for one in runs}, models.sites)
    return {site: _choose_images(site, getattr(own, asked.part), asked) for site, own in found.items()}


def _choose_images(site: str, part: Examples, asked: LandscapePlan) -> Examples:
    """Return some examples of a part, the same for every run, in their order."""
    if not len(part):
        raise DataError(
            f"site {site!r} must hold {asked.part} data to measure the loss on, not none; choose another --part"
        )
    rng = np.random.default_rng(derive_seed(asked.seed, site, "landscape"))
    return part.select_rows(sorted(rng.choice(len(part), min(asked.most, len(part)), replace=False).tolist()))


def _loss_name(study: Study) -> str:
    if study.task == "classification":
        return "cross_entropy"
    is_batch = study.training.has_batch_dice and study.training.loss != "cross_entropy"
    return f"{study.training.loss}{f' (over batches of {BATCH_SIZE})' if is_batch else ''}"


def _parse_steps(text: str) -> int:
    steps = parse_count(text)
    if steps > MOST_STEPS:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_STEPS}, not {quote_value(text)}")
    return steps


def _parse_scales(text: str) -> tuple[float, ...]:
    try:
        scales = tuple(float(number) for number in text.split(","))
    except ValueError:
        scales = ()
    if not scales or len(set(scales)) < len(scales) or not all(0 < scale < math.inf for scale in scales):
        raise argparse.ArgumentTypeError(f"must be different numbers above 0, as 0.125,1, not {quote_value(text)}")
    return scales


if __name__ == "__main__":
    sys.exit(main())
