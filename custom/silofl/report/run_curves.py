"""Curves of several runs side by side: validation by round, and test where the runs measured it in every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D

from silofl.federation.ledger import Round
from silofl.report.canvas import Image, as_values, draw_line, legend, line_style, panels, png, style_rounds
from silofl.report.rounds import CHOSE_NOTHING
from silofl.report.run_records import RunRecords, run_names
from silofl.report.tables import mean_of_known
from silofl.training.metrics import pooled
from silofl.training.site_score import SiteScore

# Title of a panel -> run -> a value for each of its rounds.
Panels = Mapping[str, Mapping[str, Sequence[float | None]]]
Ledgers = Mapping[str, Sequence[Round]]
Scores = Mapping[str, SiteScore]
# Short, because five panels may stand in a row.
MEAN, BEST = "Mean over", "Best so far over"
SITES, CASES = "sites", "cases"
CENTRALISED = (
    "The centralised run, on all sites' data in one place, has no sites: it stands beside the others where all cases "
    "count alike, whichever site they are of."
)


@dataclass(frozen=True)
class Measure:
    """What the curves are of.

    Attributes:
        name: Of the figure.
        caption: How to read it, with a place for the metric.
        scores: Round -> each site's score.
        has_best: Whether the best so far is drawn too.
    """

    name: str
    caption: str
    scores: Callable[[Round], Scores]
    has_best: bool


VALIDATION = Measure(
    "Validation",
    "Validation ({metric}) of the model that each round made; the mean is over the sites that validated. The best so "
    "far never falls, and hides how much a curve swings.",
    lambda record: record.validation,
    has_best=True,
)
# The best so far would be a choice by test data.
ROUND_TEST = Measure(
    "Test",
    f"The model that each round made on the sites' test data ({{metric}}). {CHOSE_NOTHING}",
    lambda record: record.test or {},
    has_best=False,
)


def curves_image(measure: Measure, runs: Sequence[RunRecords], centralised: Sequence[RunRecords] = ()) -> Image | None:
    """Return the curves of several runs; None where none has what they are of.

    Args:
        measure: What they are of.
        runs: The runs.
        centralised: Runs on the same sites' data in one place, one a seed.
    """
    ledgers = _with_scores(measure, run_names(runs))
    if not ledgers:
        return None
    beside = _with_scores(measure, _centralised_names(centralised))
    values = _means(measure, SITES, mean_over_sites, ledgers)
    if beside:
        values |= _means(measure, CASES, mean_over_cases, ledgers | beside)
    sites = sorted({site for run in runs for site in run.sites})
    for site in sites:
        values[site] = {name: [_value(measure.scores(record), site) for record in one] for name, one in ledgers.items()}
    also = f"mean over all cases, with {', '.join(beside)}, " if beside else ""
    alt = f"{measure.name} of {len(ledgers)} runs over their rounds: mean over sites, {also}and {', '.join(sites)}."
    caption = measure.caption.format(metric=" or ".join(sorted({run.metric for run in runs})))
    return Image(run_curves(ledgers | beside, values), alt, f"{caption} {CENTRALISED}" if beside else caption)


def run_curves(ledgers: Ledgers, values: Panels) -> bytes:
    """Draw a panel a title, with a line for each run that has values in it.

    Args:
        ledgers: Name of the run -> its rounds; its place decides its line's look in all panels.
        values: What each panel shows.
    """
    rows = -(-len(values) // 5)
    columns = -(-len(values) // rows)
    figure, grid = panels(rows, columns, (10.4, 2.7 * rows + 0.5), shares_y=True)
    rounds = {name: [record.round for record in ledger] for name, ledger in ledgers.items()}
    styles = {name: line_style(place) for place, name in enumerate(ledgers)}
    handles: dict[str, Line2D] = {}
    for axes, (title, of_runs) in zip(grid.flat, values.items(), strict=False):
        for name, of_rounds in of_runs.items():
            handles[name] = draw_line(axes, rounds[name], of_rounds, linewidth=1.8, **styles[name])
        style_rounds(axes, title, [number for numbers in rounds.values() for number in numbers])
    for axes in grid.flat[len(values) :]:
        axes.set_visible(False)
    legend(figure, [*handles.values()], [*handles])
    return png(figure)


def best_so_far(values: Sequence[float | None]) -> list[float | None]:
    """Return after each round the best value up to it, as FedSM's Fig. 2; None before the first one."""
    best = np.fmax.accumulate(as_values(values))
    return [None if np.isnan(value) else float(value) for value in best]


def mean_over_sites(scores: Scores) -> float | None:
    """Return the mean over the sites that have a value; None without any."""
    return mean_of_known(score.value for score in scores.values())


def mean_over_cases(scores: Scores) -> float | None:
    """Return the mean over the cases of all sites together; None without any."""
    return pooled([(score.value, score.num_cases) for score in scores.values() if score.value is not None])


def _with_scores(measure: Measure, runs: Mapping[str, RunRecords]) -> dict[str, Sequence[Round]]:
    return {name: run.ledger for name, run in runs.items() if any(map(measure.scores, run.ledger))}


def _centralised_names(runs: Sequence[RunRecords]) -> dict[str, RunRecords]:
    if len(runs) == 1:
        return {"centralised": runs[0]}
    return {f"centralised seed {run.results.seed}": run for run in runs}


def _means(
    measure: Measure, units: str, mean: Callable[[Scores], float | None], ledgers: Ledgers
) -> dict[str, Mapping[str, Sequence[float | None]]]:
    """Return the panel of a mean and, where it is wanted, that of the best such mean so far."""
    found = {name: [mean(measure.scores(record)) for record in ledger] for name, ledger in ledgers.items()}
    best = {f"{BEST} {units}": {name: best_so_far(values) for name, values in found.items()}}
    return {f"{MEAN} {units}": found} | (best if measure.has_best else {})


def _value(scores: Scores, site: str) -> float | None:
    return scores[site].value if site in scores else None
