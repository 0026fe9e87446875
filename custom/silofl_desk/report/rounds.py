"""Figures of a run's rounds: curves of all that was recorded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from silofl.federation.ledger import Round, explain_choice, find_best_round
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import SiteScore, mean_of_scores
from silofl_desk.report.run_records import RunRecords
from silofl_desk.report.sentences import describe_model
from silofl_hospital.report.canvas import INK, Curves, PageImage, Panel, Values, line_style, make_image
from silofl_hospital.report.tables import format_number

Value = Callable[[Round, str], float | None]
MEAN_STYLE = {"color": INK, "linewidth": 2.6}
MEAN_LINE = "mean over sites"
# A panel with many rounds wants so many inches.
LEAST_WIDE = 3.0
CHOSE_NOTHING = (
    "These scores chose neither a round nor a model. If you choose a setting by them, they are no test any more."
)
Scores = Mapping[str, SiteScore]


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


# No best so far is drawn: it would be a choice by test data.
ROUND_TEST = Measure(
    "Test",
    f"The model that each round made on the sites' test data ({{metric}}). {CHOSE_NOTHING}",
    lambda record: record.test or {},
    has_best=False,
)


def _read_number(name: str) -> Value:
    """Return what reads a number from a site's training, as its ``loss``."""
    return lambda record, site: record.metrics.get(site, {}).get(name)


def _read_model(name: str) -> Value:
    """Return what reads the validation of one of a site's models."""

    def read(record: Round, site: str) -> float | None:
        score = record.validation.get(site)
        return (score.models or {}).get(name) if score else None

    return read


def _read_selector(record: Round, site: str) -> float | None:
    """Return the share of a site's validation slices that the selector of a round takes for this site's."""
    score = record.validation.get(site)
    return score.selector_accuracy if score else None


@dataclass(frozen=True)
class PanelOf:
    """A panel with a line for each site; it is drawn where some round has a value.

    Attributes:
        title: Stands above it, with a place for the metric.
        value: Round and site -> value.
        measure: By whose scores the mean is; None for a mean of the values.
        has_mean: Whether the mean over the sites is drawn.
    """

    title: str
    value: Value
    measure: Measure | None = None
    has_mean: bool = True

    def make(self, run: RunRecords) -> Panel | None:
        """Return the panel of a run; None where no round has a value."""
        lines: dict[str, Values] = {}
        for site in run.sites:
            lines[site] = [self.value(record, site) for record in run.ledger]
        # An algorithm without this number has no panel of it.
        if all(value is None for value in chain(*lines.values())):
            return None
        if self.measure:
            lines[MEAN_LINE] = [mean_over_sites(self.measure.scores(record)) for record in run.ledger]
        elif self.has_mean:
            lines[MEAN_LINE] = [mean_of_known(values) for values in zip(*lines.values(), strict=True)]
        return Panel(self.title.format(run.metric), lines, run.best_round)


# Name of a figure -> its panels, and how to read them.
FIGURES: dict[str, tuple[tuple[PanelOf, ...], str]] = {
    "training": (
        (
            PanelOf("Validation: {}", lambda record, site: site_value(record.validation, site), VALIDATION),
            PanelOf("Training loss", _read_number("loss"), has_mean=False),
            # With differential privacy losses stay at the sites.
            PanelOf("Epsilon of differential privacy", _read_number("epsilon"), has_mean=False),
        ),
        "",
    ),
    "models": (
        (
            PanelOf("Global model: {}", _read_model("global")),
            PanelOf("Personalised models: {}", _read_model("personal")),
            PanelOf("Selector: slices it gets right", _read_selector),
        ),
        "Each site's validation cases with the global model, and with the site's personalised model. The validation "
        "above is of both where a selector learns: a case counts with the personalised model if the selector chooses "
        "its site, else with the global model.",
    ),
    "round_test": (
        (PanelOf("Test: {}", lambda record, site: site_value(ROUND_TEST.scores(record), site), ROUND_TEST),),
        f"Each round's model on the sites' test data. {CHOSE_NOTHING}",
    ),
    "drift": (
        (PanelOf("Drift", _read_number("drift")),),
        "Squared distance of a site's weights to the round's start, mean over its steps (HarmoFL, Eq. 9).",
    ),
}


def curve_images(run: RunRecords) -> list[PageImage]:
    """Return the curves of validation, loss, tests by round and drift; none before the first finished round."""
    images = []
    for name, (_, caption) in FIGURES.items():
        if curves := make_curves(run, name):
            images.append(make_image(curves, describe_curves(curves), caption or _best_sentence(run)))
    return images


def make_curves(run: RunRecords, name: str) -> Curves | None:
    """Return a figure of `FIGURES`, in which a site looks as in every other; None where no round has a value."""
    panels = tuple(filter(None, [panel.make(run) for panel in FIGURES[name][0]]))
    # A site has its style by its place among all sites, also in a panel that lacks others.
    styles: dict[str, Mapping[str, Any]] = {
        site: {"linewidth": 1.6} | line_style(number) for number, site in enumerate(run.sites)
    }
    styles[MEAN_LINE] = MEAN_STYLE
    rounds = dict.fromkeys(styles, list_rounds(run.ledger))
    return Curves(name, rounds, styles, panels, least_width=LEAST_WIDE) if panels else None


def mean_over_sites(scores: Scores) -> float | None:
    """Return the mean over the sites that have a value, by `mean_of_scores`; None without any."""
    return mean_of_scores(scores.values())


def list_rounds(ledger: Sequence[Round]) -> list[int]:
    """Return the numbers of the rounds."""
    return [record.round for record in ledger]


def describe_curves(curves: Curves) -> str:
    """Say where the lines of the panels end, for readers who do not see them."""
    return " ".join(_describe_panel(curves, panel) for panel in curves.panels)


def _describe_panel(curves: Curves, panel: Panel) -> str:
    """Say where each line of a panel ends: its last known value, with its round where that is not the last of all."""
    # A line that ends before the others is said with its round.
    latest = max(chain.from_iterable(curves.rounds[name] for name in panel.lines), default=0)
    ends = []
    for name, values in panel.lines.items():
        points = [
            (number, value) for number, value in zip(curves.rounds[name], values, strict=True) if value is not None
        ]
        if points:
            number, value = points[-1]
            ends.append(f"{name} {value:.3g}" if number == latest else f"{name} {value:.3g} (round {number})")
    if not ends:
        return f"{panel.title}: no value."
    return f"{panel.title} after round {latest}: {', '.join(ends)}."


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
