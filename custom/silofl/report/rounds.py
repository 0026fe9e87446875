"""Curves and tables of rounds: of one run all that was recorded, of several side by side validation and test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from silofl.federation.ledger import Round, absence_sentence, format_spans, latest_software
from silofl.federation.unlike import SHORT
from silofl.report.canvas import (
    INK,
    LINE_COLOURS,
    MUTED,
    PageImage,
    as_values,
    draw_legend,
    draw_line,
    encode_png,
    line_style,
    make_panels,
    style_rounds,
)
from silofl.report.run_records import RunRecords, run_names
from silofl.report.tables import MISSING, TextTable, format_bytes, format_duration, format_number
from silofl.training.joined import CHOSEN
from silofl.training.metrics import mean_of_known, pool_values
from silofl.training.site_score import SiteScore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Value = Callable[[Round, str], float | None]
KINDS = ("late", "failed", "refused")
SOFTWARE = ("silofl", "nvflare", "torch", "python")
LATE_REASON = "no answer in time"
MEAN_STYLE = {"color": INK, "linewidth": 2.6}
CHOSE_NOTHING = (
    "These scores chose nothing, neither a round nor a model; whoever chooses a setting by them has no test any more."
)
MODEL_CURVES = "Each site's validation cases with the global model, and with the site's personalised model."
ACCURACY_CURVES = (
    f"{MODEL_CURVES} On the right the share of its slices that the selector takes for this site's. The validation "
    "above is of both models together: a case that the selector gives to its own site counts with the personalised "
    "model, any other with the global one."
)
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


def curve_images(run: RunRecords) -> list[PageImage]:
    """Return the curves of validation, loss, tests by round and drift; none before the first finished round."""
    if not run.ledger:
        return []
    validation = f"Validation {run.metric} and " if any(record.validation for record in run.ledger) else ""
    words = validation + _training_curve_key(run.ledger)[1]
    alt = f"{words[:1].upper()}{words[1:]} of {len(run.sites)} sites over {len(run.ledger)} rounds"
    kept = mean_of_known(one.validation.get(CHOSEN) for one in (run.results.joining or {}).values())
    curves = draw_training_curves(run.ledger, run.sites, run.metric, run.best_round, kept)
    caption = _best_sentence(run)
    if kept is not None:
        caption += f" What the sites keep has {format_number(kept)} on the validation data by which they chose it."
    images = [PageImage(curves, f"{alt}. {caption}", caption)]
    models = draw_model_curves(run.ledger, run.sites, run.metric, run.best_round)
    if models:
        images.append(_model_image(run, models))
    tests = draw_round_tests(run.ledger, run.sites, run.metric, run.best_round)
    if tests:
        alt = f"Test {run.metric} of {len(run.sites)} sites over {len(run.ledger)} rounds."
        images.append(PageImage(tests, alt, f"Each round's model on the sites' test data. {CHOSE_NOTHING}"))
    drift = draw_drift_curves(run.ledger, run.sites)
    if drift:
        alt = f"Drift of each site by round; mean {format_number(mean_drift(run.ledger[-1]))} in the last."
        caption = "Squared distance of a site's weights to the round's start, mean over its steps (HarmoFL, Eq. 9)."
        images.append(PageImage(drift, alt, caption))
    return images


def traffic_image(run: RunRecords) -> PageImage | None:
    """Return the bytes and seconds of each round; None before the first finished round."""
    if not run.ledger:
        return None
    longest = format_duration(max(record.seconds for record in run.ledger))
    alt = f"Bars of the megabytes and seconds of {len(run.ledger)} rounds; the longest took {longest}."
    caption = (
        "Bytes of the rounds' arrays, before the transport wraps them; the models that are sent after the last round, "
        "to be validated and tested, are not counted. The time includes waiting for the slowest site."
    )
    return PageImage(draw_traffic_bars(run.ledger), alt, caption)


def is_validated_with_selector(run: RunRecords) -> bool:
    """Return whether a site validates its two models together, as a selector chooses between them."""
    return any(selector_accuracy(record, site) is not None for record in run.ledger for site in run.sites)


def participation_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return one row a site: the rounds in which it was asked, answered, was late, failed or was refused."""
    columns = ("site", "asked", "answered", *KINDS, "training examples")
    rows = tuple(
        (
            site,
            *(str(sum(site in getattr(r, kind) for r in ledger)) for kind in ("asked", "answered", *KINDS)),
            _last_examples(ledger, site),
        )
        for site in sites
    )
    return TextTable(columns, rows)


def software_table(ledger: Sequence[Round]) -> TextTable | None:
    """Return one row a site: what it runs, and of how many of its updates it said that they were recorded there."""
    rows = tuple(
        (site, *(one[name] for name in SOFTWARE), one["package"][:12], _count_recorded(ledger, site))
        for site, one in sorted(latest_software(ledger).items())
    )
    return TextTable(("site", *SOFTWARE, "files of silofl, SHA-256", "egress recorded"), rows) if rows else None


def list_incidents(ledger: Sequence[Round]) -> list[str]:
    """Return a sentence for each note and each reason why a site was late, failed or refused, with its rounds."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in ledger:
        for incident in _incidents(record):
            rounds.setdefault(incident, []).append(record.round)
    return [
        f"{what} in {'round' if len(numbers) == 1 else 'rounds'} {format_spans(numbers)}: {why}"
        for (what, why), numbers in rounds.items()
    ]


def traffic_table(ledger: Sequence[Round], sites: Sequence[str]) -> TextTable:
    """Return one row a site: the bytes of the rounds' arrays to and from it, and those of one round."""
    rows = [
        _traffic_row(site, [r.bytes_to.get(site) for r in ledger], [r.bytes_from.get(site) for r in ledger])
        for site in sites
    ]
    to = [sum(record.bytes_to.values()) for record in ledger]
    back = [sum(record.bytes_from.values()) for record in ledger]
    columns = ("site", "to the site", "from the site", "both in one round")
    return TextTable(columns, (*rows, _traffic_row("all sites", to, back)), num_summary=1)


def draw_training_curves(
    ledger: Sequence[Round], sites: Sequence[str], metric: str, best_round: int | None, kept: float | None = None
) -> bytes:
    """Draw each site's validation, where there is any, and training loss by round, with the reported round marked.

    With differential privacy losses stay at the sites, and what is spent stands in their place.

    Args:
        ledger: The finished rounds.
        sites: Those that have a line.
        metric: Of validation.
        best_round: The reported round.
        kept: Mean validation of what the sites keep, as a line across all rounds; None without a choice.
    """
    has_validation = any(record.validation for record in ledger)
    key, words = _training_curve_key(ledger)
    figure, (row,) = make_panels(1, 1 + has_validation, (10.4, 3.9))
    handles = _site_lines(row[-1], ledger, sites, partial(_training_number, key))
    names = list(sites)
    if has_validation:
        handles.append(_score_lines(row[0], ledger, sites, VALIDATION)[-1])
        names.append("mean over sites")
        if kept is not None:
            handles.append(row[0].axhline(kept, color=INK, linewidth=1.6, linestyle=(0, (4, 3))))
            names.append("kept, mean over sites")
        _finish_axes(row[0], ledger, f"Validation: {metric}", best_round)
    _finish_axes(row[-1], ledger, f"{words[:1].upper()}{words[1:]}", best_round)
    draw_legend(figure, handles, names)
    return encode_png(figure)


def _training_curve_key(ledger: Sequence[Round]) -> tuple[str, str]:
    """Return the key of the training's curve in a round's metrics, and its name."""
    is_private = any("epsilon" in values for record in ledger for values in record.metrics.values())
    return ("epsilon", "epsilon of differential privacy") if is_private else ("loss", "training loss")


def draw_model_curves(
    ledger: Sequence[Round], sites: Sequence[str], metric: str, best_round: int | None
) -> bytes | None:
    """Draw the validation of global and personalised models, and the selector's accuracy; None without such models."""
    if not any(score.models for record in ledger for score in record.validation.values()):
        return None
    values = {
        f"Global model: {metric}": partial(_model_value, "global"),
        f"Personalised models: {metric}": partial(_model_value, "personal"),
    }
    if any(selector_accuracy(record, site) is not None for record in ledger for site in sites):
        values["Selector: slices it gets right"] = selector_accuracy
    figure, (row,) = make_panels(1, len(values), (10.4, 3.6))
    row[1].sharey(row[0])
    handles: list[Line2D] = []
    for axes, (title, value) in zip(row, values.items(), strict=True):
        lines = _site_lines(axes, ledger, sites, value)
        if value is selector_accuracy:
            # A site has few slices: its line jumps and would hide the mean.
            axes.set_ylim(-0.03, 1.12)
            for line in lines:
                line.set(alpha=0.35, linewidth=1)
        means = [mean_of_known(value(record, site) for site in sites) for record in ledger]
        lines.append(draw_line(axes, _ledger_rounds(ledger), means, **MEAN_STYLE))
        handles = handles or lines
        _finish_axes(axes, ledger, title, best_round)
    draw_legend(figure, handles, [*sites, "mean over sites"])
    return encode_png(figure)


def draw_round_tests(
    ledger: Sequence[Round], sites: Sequence[str], metric: str, best_round: int | None
) -> bytes | None:
    """Draw each site's test of each round's model, with the reported round marked; None where no round was tested."""
    if not any(record.test for record in ledger):
        return None
    figure, ((axes,),) = make_panels(1, 1, (10.4, 3.6))
    handles = _score_lines(axes, ledger, sites, ROUND_TEST)
    _finish_axes(axes, ledger, f"Test: {metric}", best_round)
    draw_legend(figure, handles, [*sites, "mean over sites"])
    return encode_png(figure)


def draw_drift_curves(ledger: Sequence[Round], sites: Sequence[str]) -> bytes | None:
    """Draw how far each site's weights moved from the round's start; None where no round measured it."""
    if all(mean_drift(record) is None for record in ledger):
        return None
    figure, ((axes,),) = make_panels(1, 1, (10.4, 3.2))
    handles = _site_lines(axes, ledger, sites, partial(_training_number, "drift"))
    handles.append(draw_line(axes, _ledger_rounds(ledger), [mean_drift(record) for record in ledger], **MEAN_STYLE))
    _finish_axes(axes, ledger, "Drift", None)
    axes.set_ylim(bottom=0)
    draw_legend(figure, handles, [*sites, "mean over sites"])
    return encode_png(figure)


def draw_traffic_bars(ledger: Sequence[Round]) -> bytes:
    """Draw the megabytes of all sites, sent and received, and the seconds of each round."""
    figure, ((left, right),) = make_panels(1, 2, (10.4, 3.2))
    rounds = _ledger_rounds(ledger)
    sent, received = ([sum(getattr(r, key).values()) / 1e6 for r in ledger] for key in ("bytes_to", "bytes_from"))
    handles = [left.bar(rounds, sent, 0.7, color=LINE_COLOURS[0])]
    bars = left.bar(rounds, received, 0.7, bottom=sent, color=LINE_COLOURS[5], hatch="///", edgecolor="white")
    handles.append(bars)
    right.bar(rounds, [record.seconds for record in ledger], 0.7, color=MUTED)
    _finish_axes(left, ledger, "Traffic of all sites, MB", None)
    _finish_axes(right, ledger, "Time, seconds", None)
    draw_legend(figure, handles, ["server to sites", "sites to server"])
    return encode_png(figure)


def selector_accuracy(record: Round, site: str) -> float | None:
    """Return the share of a site's validation slices that the selector of a round takes for this site's."""
    return record.validation[site].selector_accuracy if site in record.validation else None


def mean_drift(record: Round) -> float | None:
    """Return the mean over the sites that measured how far their weights moved; None where none did."""
    return mean_of_known(_training_number("drift", record, site) for site in record.metrics)


def curves_image(
    measure: Measure, runs: Sequence[RunRecords], centralised: Sequence[RunRecords] = ()
) -> PageImage | None:
    """Return the curves of several runs; None where no run has a score of this kind.

    Args:
        measure: What they are of.
        runs: The runs.
        centralised: Runs on the same sites' data in one place, one a seed.
    """
    ledgers = _select_scored(measure, run_names(runs))
    if not ledgers:
        return None
    beside = _select_scored(measure, _centralised_names(centralised))
    values = _mean_panels(measure, SITES, mean_over_sites, ledgers)
    if beside:
        values |= _mean_panels(measure, CASES, mean_over_cases, ledgers | beside)
    sites = sorted({site for run in runs for site in run.sites})
    for site in sites:
        values[site] = {
            name: [_site_value(measure.scores(record), site) for record in one] for name, one in ledgers.items()
        }
    also = f"mean over all cases, with {', '.join(beside)}, " if beside else ""
    alt = f"{measure.name} of {len(ledgers)} runs over their rounds: mean over sites, {also}and {', '.join(sites)}."
    caption = measure.caption.format(metric=" or ".join(sorted({run.metric for run in runs})))
    return PageImage(draw_run_curves(ledgers | beside, values), alt, f"{caption} {CENTRALISED}" if beside else caption)


def draw_run_curves(ledgers: Ledgers, values: Panels) -> bytes:
    """Draw a panel a title, with a line for each run that has values in it.

    Args:
        ledgers: Name of the run -> its rounds; its place decides its line's look in all panels.
        values: What each panel shows.
    """
    rows = -(-len(values) // 5)
    columns = -(-len(values) // rows)
    figure, grid = make_panels(rows, columns, (10.4, 2.7 * rows + 0.5), shares_y=True)
    rounds = {name: [record.round for record in ledger] for name, ledger in ledgers.items()}
    styles = {name: line_style(place) for place, name in enumerate(ledgers)}
    handles: dict[str, Line2D] = {}
    for axes, (title, of_runs) in zip(grid.flat, values.items(), strict=False):
        for name, of_rounds in of_runs.items():
            handles[name] = draw_line(axes, rounds[name], of_rounds, linewidth=1.8, **styles[name])
        style_rounds(axes, title, [number for numbers in rounds.values() for number in numbers])
    for axes in grid.flat[len(values) :]:
        axes.set_visible(False)
    draw_legend(figure, [*handles.values()], [*handles])
    return encode_png(figure)


def best_so_far(values: Sequence[float | None]) -> list[float | None]:
    """Return after each round the best value up to it, as FedSM's Fig. 2; None before the first one."""
    best = np.fmax.accumulate(as_values(values))
    return [None if np.isnan(value) else float(value) for value in best]


def mean_over_sites(scores: Scores) -> float | None:
    """Return the mean over the sites that have a value; None without any."""
    return mean_of_known(score.value for score in scores.values())


def mean_over_cases(scores: Scores) -> float | None:
    """Return the mean over the cases of all sites together; None without any."""
    return pool_values([(score.value, score.num_cases) for score in scores.values() if score.value is not None])


def _training_number(name: str, record: Round, site: str) -> float | None:
    """Return a number from a site's training, as its ``loss``; None where it has none."""
    return record.metrics[site].get(name) if site in record.metrics else None


def _model_value(model: str, record: Round, site: str) -> float | None:
    score = record.validation[site] if site in record.validation else None
    return score.models.get(model) if score and score.models else None


def _score_lines(axes: Axes, ledger: Sequence[Round], sites: Sequence[str], measure: Measure) -> list[Line2D]:
    """Draw each site's score of the model that each round made, and last the mean over the sites."""
    lines = _site_lines(axes, ledger, sites, lambda record, site: _site_value(measure.scores(record), site))
    means = [mean_over_sites(measure.scores(record)) for record in ledger]
    return [*lines, draw_line(axes, _ledger_rounds(ledger), means, **MEAN_STYLE)]


def _site_lines(axes: Axes, ledger: Sequence[Round], sites: Sequence[str], value: Value) -> list[Line2D]:
    return [
        draw_line(
            axes, _ledger_rounds(ledger), [value(record, site) for record in ledger], linewidth=1.6, **line_style(i)
        )
        for i, site in enumerate(sites)
    ]


def _ledger_rounds(ledger: Sequence[Round]) -> list[int]:
    return [record.round for record in ledger]


def _finish_axes(axes: Axes, ledger: Sequence[Round], title: str, best_round: int | None) -> None:
    rounds = _ledger_rounds(ledger)
    style_rounds(axes, title, rounds)
    if best_round is not None:
        # Room above the curves for the number.
        axes.margins(y=0.1)
        axes.axvline(best_round, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        is_left = 2 * best_round < rounds[0] + rounds[-1]
        axes.annotate(
            f"round {best_round}",
            (best_round, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3 if is_left else -3, -2),
            textcoords="offset points",
            ha="left" if is_left else "right",
            va="top",
            fontsize=8.5,
            color=MUTED,
        )


def _model_image(run: RunRecords, curves: bytes) -> PageImage:
    has_accuracy = is_validated_with_selector(run)
    alt = f"Validation {run.metric} of the global model and of the personalised models of {len(run.sites)} sites"
    alt += f" over {len(run.ledger)} rounds{', and the accuracy of the selector' if has_accuracy else ''}."
    return PageImage(curves, alt, ACCURACY_CURVES if has_accuracy else MODEL_CURVES)


def _best_sentence(run: RunRecords) -> str:
    """Name the reported round, and why it was chosen."""
    if run.best_round is None:
        return "No site has validated a model yet."
    best = next((record for record in run.ledger if record.round == run.best_round), None)
    if best is None or best.validation_mean is None:
        return f"The reported round is {run.best_round}, the last: there are no validation data."
    value, absence = format_number(best.validation_mean), absence_sentence(run.ledger, best)
    sentence = f"The best round on validation is {run.best_round}: {run.metric} {value}, mean over sites."
    return sentence + (f" {absence[0].upper()}{absence[1:]}." if absence else "")


def _count_recorded(ledger: Sequence[Round], site: str) -> str:
    answered = sum(site in record.answered for record in ledger)
    return f"{sum(site in record.recorded for record in ledger)} of {answered} rounds"


def _last_examples(ledger: Sequence[Round], site: str) -> str:
    counts = [record.examples[site] for record in ledger if site in record.examples]
    return str(counts[-1]) if counts else MISSING


def _incidents(record: Round) -> Iterator[tuple[str, str]]:
    """Yield each incident of a round with its reason."""
    yield from ((f"{site}: late", LATE_REASON) for site in record.late)
    yield from ((f"{site}: failed", reason) for site, reason in record.failed.items())
    yield from ((f"{site}: refused", reason) for site, reason in record.refused.items())
    for site, names in record.withheld.items():
        shown = f"{', '.join(names[:3])}{', ...' * (len(names) > 3)}"
        yield f"{site}: withheld by its policy", f"{len(names)} arrays ({shown})"
    for site, found in (record.unlike or {}).items():
        yield from ((f"{site}: unlike the others", SHORT.get(what, f"its {what}")) for what in found)
    yield from (("noted", note) for note in record.notes)


def _traffic_row(name: str, to: Sequence[int | None], back: Sequence[int | None]) -> tuple[str, ...]:
    sent, received = (sum(size or 0 for size in sizes) for sizes in (to, back))
    asked = sum(size is not None for size in to)
    return (
        name,
        format_bytes(sent),
        format_bytes(received),
        format_bytes((sent + received) / asked) if asked else MISSING,
    )


def _select_scored(measure: Measure, runs: Mapping[str, RunRecords]) -> dict[str, Sequence[Round]]:
    return {name: run.ledger for name, run in runs.items() if any(map(measure.scores, run.ledger))}


def _centralised_names(runs: Sequence[RunRecords]) -> dict[str, RunRecords]:
    if len(runs) == 1:
        return {"centralised": runs[0]}
    return {f"centralised seed {run.results.seed}": run for run in runs}


def _mean_panels(
    measure: Measure, units: str, mean: Callable[[Scores], float | None], ledgers: Ledgers
) -> dict[str, Mapping[str, Sequence[float | None]]]:
    """Return the panel of a mean and, where it is wanted, that of the best such mean so far."""
    found = {name: [mean(measure.scores(record)) for record in ledger] for name, ledger in ledgers.items()}
    best = {f"{BEST} {units}": {name: best_so_far(values) for name, values in found.items()}}
    return {f"{MEAN} {units}": found} | (best if measure.has_best else {})


def _site_value(scores: Scores, site: str) -> float | None:
    return scores[site].value if site in scores else None
