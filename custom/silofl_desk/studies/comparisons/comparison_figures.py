"""The figures of a comparison: curves of several runs side by side, and one test case with each run's prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl.federation.ledger import Round
from silofl_desk.report.rounds import Measure, describe_curves, list_rounds, mean_over_sites, site_value
from silofl_desk.report.run_records import CasePictures, RunRecords
from silofl_desk.studies.comparisons.conditions import run_names
from silofl_hospital.report.canvas import Curves, PageImage, Panel, Plot, as_values, line_style, make_image, make_panels
from silofl_hospital.report.outlines import (
    MARGIN,
    PANEL_INCH,
    add_label_legend,
    draw_outlines,
    grey_window,
    make_trimmed_image,
    panel_inches,
    short_metric,
    show_image,
    write_title,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ledgers = Mapping[str, Sequence[Round]]
# A pane has a title, a line below it, an image (C, H, W) and a label map (H, W).
Pane = tuple[str, str, NDArray[Any], NDArray[Any]]
# These titles are short, because five panels may stand in a row.
MEAN, BEST = "Mean over sites", "Best so far over sites"
PANELS_IN_A_ROW, LEAST_PANEL = 6, 1.6


def curves_image(measure: Measure, runs: Sequence[RunRecords]) -> PageImage | None:
    """Return the curves of several runs; None where no run has a score of this kind."""
    curves = run_curves(measure, runs)
    if curves is None:
        return None
    caption = measure.caption.format(metric=" or ".join(sorted({run.metric for run in runs})))
    return make_image(curves, f"{measure.name} by round. {describe_curves(curves)}", caption)


def run_curves(measure: Measure, runs: Sequence[RunRecords]) -> Curves | None:
    """Return the values of `curves_image`: panels of means and of each site, with a line per run."""
    ledgers = {name: run.ledger for name, run in run_names(runs).items() if any(map(measure.scores, run.ledger))}
    if not ledgers:
        return None
    panels = _mean_panels(measure, ledgers)
    for site in sorted(set(chain.from_iterable(run.sites for run in runs))):
        values = {}
        for name, ledger in ledgers.items():
            values[name] = [site_value(measure.scores(record), site) for record in ledger]
        panels.append(Panel(site, values))
    return Curves(
        name=measure.name.lower(),
        rounds={name: list_rounds(ledger) for name, ledger in ledgers.items()},
        # A run looks alike in all panels: by its number in the order of the rows.
        styles={name: {"linewidth": 1.8} | line_style(i) for i, name in enumerate(ledgers)},
        panels=tuple(panels),
        height=2.5,
        shares_y=True,
    )


def best_so_far(values: Sequence[float | None]) -> list[float | None]:
    """Return after each round the best value up to it, as FedSM's Fig. 2; None before the first one."""
    best = np.fmax.accumulate(as_values(values))
    return [None if np.isnan(value) else float(value) for value in best]


def _mean_panels(measure: Measure, ledgers: Ledgers) -> list[Panel]:
    """Return the panel of the mean over sites and, where it is wanted, that of the best such mean so far."""
    means = {}
    for name, ledger in ledgers.items():
        means[name] = [mean_over_sites(measure.scores(record)) for record in ledger]
    panels = [Panel(MEAN, means)]
    if measure.has_best:
        panels.append(Panel(BEST, {name: best_so_far(values) for name, values in means.items()}))
    return panels


def comparison_images(runs: Sequence[RunRecords]) -> list[PageImage]:
    """Draw for each site the test case that most runs have a picture of, with each such run's prediction."""
    sites = sorted(set(chain.from_iterable(run.pictures for run in runs)))
    # A site without a case that two runs share has no image.
    return list(filter(None, map(partial(_comparison_image, runs=runs), sites)))


def find_shared_case(pictures: Mapping[str, CasePictures]) -> tuple[str, list[str]] | None:
    """Return the case that most runs have with the same truth, and those runs; None where no two share one.

    Args:
        pictures: Name of the run -> its pictures of one site.
    """
    holders: dict[tuple[str, bytes], list[str]] = {}
    for name, shown in pictures.items():
        # The truth is part of the key: on other data, or of another slice, a case of the same name is another picture.
        cases = {str(case): truth for case, truth in zip(shown.cases, shown.truths, strict=True)}
        for case, truth in cases.items():
            holders.setdefault((case, repr(truth.shape).encode() + truth.tobytes()), []).append(name)
    (case, _), names = max(holders.items(), key=lambda item: len(item[1]), default=(("", b""), []))
    return (case, names) if len(names) > 1 else None


def _comparison_image(site: str, runs: Sequence[RunRecords]) -> PageImage | None:
    names = run_names(runs)
    pictures = {name: run.pictures[site] for name, run in names.items() if site in run.pictures}
    shared = find_shared_case(pictures)
    if shared is None:
        return None
    case, holders = shared
    labels = names[holders[0]].labels
    metric = names[holders[0]].metric
    rows = []
    panes: list[Pane] = []
    for name in holders:
        shown = pictures[name]
        index = list(shown.cases).index(case)
        value = float(shown.values[index])
        rows.append((name, case, value))
        image = shown.images[index]
        # The truth is the same in all runs: it is drawn once, over the image of the first one.
        if not panes:
            panes.append(("truth", case, image, shown.truths[index]))
        panes.append((name, f"{short_metric(metric)} {value:.3f}", image, shown.predictions[index]))
    values = ", ".join(f"{name} {value:.3f}" for name, _, value in rows)
    alt = f"Site {site}, case {case}: truth and predictions of the runs, with their {metric}: {values}."
    plot = Plot(f"same_case_{site}", ("run", "case", metric), rows, partial(draw_panes, panes, labels))
    return make_trimmed_image(plot, alt, f"{site}: {case}")


def draw_panes(panes: Sequence[Pane], labels: Mapping[int, str], width: float) -> Figure:
    """Draw label maps over their images side by side, in as many rows as the width asks for."""
    columns = min(len(panes), PANELS_IN_A_ROW, int(width / LEAST_PANEL))
    rows = ceil(len(panes) / columns)
    inch = min(PANEL_INCH, (width - MARGIN) / columns)
    figure, grid = make_panels(rows, columns, panel_inches(rows, columns, inch), "compressed")
    for axes, (title, name, image, mask) in zip(grid.flat, panes, strict=False):
        show_image(axes, image, grey_window([image]))
        draw_outlines(axes, mask, labels)
        write_title(axes, title, name, inch)
    # The last row may have room for more panes than there are.
    for axes in grid.flat[len(panes) :]:
        axes.set_visible(False)
    return add_label_legend(figure, labels)
