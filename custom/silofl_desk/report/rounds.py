"""Figures of a run's rounds: curves of all that was recorded, and AdaFed's weights between sites.

The weights are those of Chen et al., arXiv:2112.00734.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from silofl.federation.ledger import Round, explain_choice, find_best_round
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import SiteScore, mean_of_scores
from silofl_desk.report.heat_map import MOST_SITES_WITH_NUMBERS, draw_heat_map
from silofl_desk.report.run_records import RunRecords, SiteWeights
from silofl_desk.report.sentences import describe_model
from silofl_hospital.report.canvas import (
    INK,
    MUTED,
    Curves,
    PageImage,
    Panel,
    Plot,
    Values,
    lay_out_panels,
    line_style,
    make_image,
)
from silofl_hospital.report.tables import format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = Callable[[Round, str], float | None]
MEAN_STYLE = {"color": INK, "linewidth": 2.6}
MEAN_LINE = "mean over sites"
# Inches that a panel with many rounds wants.
LEAST_WIDE = 3.0
CHOSE_NOTHING = (
    "These scores chose neither a round nor a model. If you choose a setting by them, they are no test any more."
)
MODEL_CURVES = "Each site's validation cases with the global model, and with the site's personalised model."
ACCURACY_CURVES = (
    f"{MODEL_CURVES} Right: the share of a site's slices for which the selector chooses this site. The validation "
    "above is of both models together: a case counts with the personalised model if the selector chooses its site, "
    "else with the global model."
)
Scores = Mapping[str, SiteScore]
COLOURS = "Blues"
# Inches that a heat map of sites wants.
LEAST_MAP = 4.0


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


def curve_images(run: RunRecords) -> list[PageImage]:
    """Return the curves of validation, loss, tests by round and drift; none before the first finished round."""
    if not run.ledger:
        return []
    found = [
        (training_curves(run.ledger, run.sites, run.metric, run.best_round), _best_sentence(run)),
        (model_curves(run), ACCURACY_CURVES if is_validated_with_selector(run) else MODEL_CURVES),
        (round_test_curves(run), f"Each round's model on the sites' test data. {CHOSE_NOTHING}"),
        (
            drift_curves(run),
            "Squared distance of a site's weights to the round's start, mean over its steps (HarmoFL, Eq. 9).",
        ),
    ]
    return [make_image(curves, describe_curves(curves), caption) for curves, caption in found if curves]


def training_curves(ledger: Sequence[Round], sites: Sequence[str], metric: str, best_round: int | None) -> Curves:
    """Return each site's validation, where there is any, and training loss by round, with the reported round marked.

    With differential privacy losses stay at the sites, and what is spent stands in their place.

    Args:
        sites: Those that have a line.
    """
    is_private = any("epsilon" in values for record in ledger for values in record.metrics.values())
    key, words = ("epsilon", "epsilon of differential privacy") if is_private else ("loss", "training loss")
    panels = [Panel(f"{words[:1].upper()}{words[1:]}", _site_values(ledger, sites, partial(_training_number, key)))]
    if any(record.validation for record in ledger):
        panels.insert(0, Panel(f"Validation: {metric}", _score_values(ledger, sites, VALIDATION)))
    marked = tuple(replace(panel, marked_round=best_round) for panel in panels)
    return _site_curves("training", ledger, sites, marked, height=3.4, least_width=LEAST_WIDE)


def model_curves(run: RunRecords) -> Curves | None:
    """Return validation of global and personalised models, and the selector's accuracy; None without such models."""
    ledger, sites = run.ledger, run.sites
    if not any(score.models for record in ledger for score in record.validation.values()):
        return None
    panels = [
        _mean_panel(f"Global model: {run.metric}", ledger, sites, partial(_model_value, "global")),
        _mean_panel(f"Personalised models: {run.metric}", ledger, sites, partial(_model_value, "personal")),
    ]
    if is_validated_with_selector(run):
        accuracy = _mean_panel("Selector: slices it gets right", ledger, sites, selector_accuracy)
        # A site has few slices: its line jumps and would hide the mean.
        panels.append(replace(accuracy, faint=sites, limits=(-0.03, 1.12)))
    marked = tuple(replace(panel, marked_round=run.best_round) for panel in panels)
    return _site_curves("models", ledger, sites, marked, least_width=LEAST_WIDE)


def round_test_curves(run: RunRecords) -> Curves | None:
    """Return each site's test of each round's model; None where no round was tested."""
    if not any(record.test for record in run.ledger):
        return None
    lines = _score_values(run.ledger, run.sites, ROUND_TEST)
    panel = Panel(f"Test: {run.metric}", lines, run.best_round)
    return _site_curves("round_test", run.ledger, run.sites, (panel,))


def drift_curves(run: RunRecords) -> Curves | None:
    """Return how far each site's weights moved from the round's start; None where no round measured it."""
    if all(mean_drift(record) is None for record in run.ledger):
        return None
    lines = _site_values(run.ledger, run.sites, partial(_training_number, "drift"))
    lines[MEAN_LINE] = list(map(mean_drift, run.ledger))
    return _site_curves("drift", run.ledger, run.sites, (Panel("Drift", lines, limits=(0, None)),))


def is_validated_with_selector(run: RunRecords) -> bool:
    """Return whether a site validates its two models together, as a selector chooses between them."""
    return any(selector_accuracy(record, site) is not None for record in run.ledger for site in run.sites)


def selector_accuracy(record: Round, site: str) -> float | None:
    """Return the share of a site's validation slices that the selector of a round takes for this site's."""
    return record.validation[site].selector_accuracy if site in record.validation else None


def mean_drift(record: Round) -> float | None:
    """Return the mean over the sites that measured how far their weights moved; None where none did."""
    return mean_of_known(_training_number("drift", record, site) for site in record.metrics)


def mean_over_sites(scores: Scores) -> float | None:
    """Return the mean over the sites that have a value, by `mean_of_scores`; None without any."""
    return mean_of_scores(scores.values())


def _training_number(name: str, record: Round, site: str) -> float | None:
    """Return a number from a site's training, as its ``loss``; None where it has none."""
    return record.metrics[site].get(name) if site in record.metrics else None


def _model_value(model: str, record: Round, site: str) -> float | None:
    score = record.validation[site] if site in record.validation else None
    return score.models.get(model) if score and score.models else None


def _score_values(ledger: Sequence[Round], sites: Sequence[str], measure: Measure) -> dict[str, Values]:
    """Return each site's score of the model that each round made, and last the mean over the sites."""
    values = _site_values(ledger, sites, lambda record, site: site_value(measure.scores(record), site))
    return values | {MEAN_LINE: [mean_over_sites(measure.scores(record)) for record in ledger]}


def _site_values(ledger: Sequence[Round], sites: Sequence[str], value: Value) -> dict[str, Values]:
    return {site: [value(record, site) for record in ledger] for site in sites}


def _mean_panel(title: str, ledger: Sequence[Round], sites: Sequence[str], value: Value) -> Panel:
    """Return a panel with a line per site and one of their mean."""
    means = [mean_of_known(value(record, site) for site in sites) for record in ledger]
    return Panel(title, _site_values(ledger, sites, value) | {MEAN_LINE: means})


def _site_curves(
    name: str, ledger: Sequence[Round], sites: Sequence[str], panels: tuple[Panel, ...], **layout: float
) -> Curves:
    """Return curves with a line per site, which looks the same in every figure of a run."""
    styles = {site: {"linewidth": 1.6} | line_style(i) for i, site in enumerate(sites)}
    styles[MEAN_LINE] = MEAN_STYLE
    return Curves(name, dict.fromkeys(styles, list_rounds(ledger)), styles, panels, **layout)


def list_rounds(ledger: Sequence[Round]) -> list[int]:
    """Return the numbers of the rounds."""
    return [record.round for record in ledger]


def describe_curves(curves: Curves) -> str:
    """Say where the lines of the panels end, for readers who do not see them."""
    return " ".join(_describe_panel(curves, panel) for panel in curves.panels)


def _describe_panel(curves: Curves, panel: Panel) -> str:
    """Say where each line of a panel ends: its last known value, with its round where that is not the last of all."""
    last = max((number for name in panel.lines for number in curves.rounds[name]), default=0)
    known = {
        name: (number, value)
        for name, values in panel.lines.items()
        for number, value in zip(curves.rounds[name], values, strict=True)
        if value is not None
    }
    listed = ", ".join(
        f"{name} {value:.3g}{'' if number == last else f' (round {number})'}" for name, (number, value) in known.items()
    )
    return f"{panel.title} after round {last}: {listed}." if known else f"{panel.title}: no value."


def _best_sentence(run: RunRecords) -> str:
    """Name the reported round, and why it was chosen."""
    if run.results.model:
        return f"Reported: {describe_model(run.results)}."
    best = find_best_round(run.ledger)
    if best is None:
        return "No site has validated a model yet."
    value = format_number(run.ledger[best - 1].validation_mean)
    return f"So far: {explain_choice(run.ledger)} (validation {run.metric} {value})."


def site_value(scores: Scores, site: str) -> float | None:
    """Return a site's value; None where it has no score."""
    return scores[site].value if site in scores else None


def weights_image(shown: SiteWeights) -> PageImage:
    """Draw the weights and distances between sites, each with its colours from 0 to its largest off the diagonal."""

    def draw(width: float) -> Figure:
        height = 3.6 if len(shown.sites) <= MOST_SITES_WITH_NUMBERS else 4.3
        figure, (left, right) = lay_out_panels(2, width, height, LEAST_MAP)
        draw_heat_map(left, np.array(shown.weights), shown.sites, "Weights", "{:.2f}", COLOURS)
        distances = np.array(shown.distances, dtype=np.float64)
        draw_heat_map(right, distances, shown.sites, "Distances", "{:.3g}", f"{COLOURS}_r")
        left.set_ylabel("listens", fontsize=9, color=MUTED)
        left.set_xlabel("to", fontsize=9, color=MUTED)
        return figure

    alt = (
        f"How much each of {len(shown.sites)} sites listens to itself and most to another: "
        f"{'; '.join(_describe_row(shown, site) for site in shown.sites)}."
    )
    caption = (
        "Left: a row is a site that listens, a column a site that it listens to; a row sums to 1, and the framed "
        f"diagonal is a site's own model, lambda = {shown.self_weight:g}. Right: the distance between the sites' "
        f"{statistics_words(shown)}; the darker, the closer, and the more weight."
    )
    if shown.without:
        caption += " Hatched: a site that shares no statistics has no distance, and listens to all sites equally."
    places = range(len(shown.sites))
    rows = [
        (shown.sites[i], shown.sites[j], shown.weights[i][j], shown.distances[i][j]) for i in places for j in places
    ]
    return make_image(Plot("weights", ("listener", "heard", "weight", "distance"), rows, draw), alt, caption)


def _describe_row(shown: SiteWeights, site: str) -> str:
    others = {other: shown.weight(site, other) for other in shown.sites if other != site}
    own = f"{site} itself {shown.weight(site, site):.2f}"
    if not others:
        return own
    best = max(others, key=others.__getitem__)
    return f"{own}, {best} {others[best]:.2f}"


def statistics_words(shown: SiteWeights) -> str:
    """Return the name of the statistics by which sites are compared."""
    if shown.source == "running":
        return "running statistics of the BatchNorm layers"
    layers = "last layer" if shown.layers == "last" else "BatchNorm layers"
    return f"mean and variance of the inputs of the {layers} in a pretrained model"
