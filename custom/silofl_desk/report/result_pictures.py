"""Figures of a run's test: what each site gains, outlines in its test cases, and amplitude normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from silofl.core.gain import Verdict
from silofl.training.joined import CHOSEN, LOCAL, SHIFTED, Joined
from silofl.training.metrics import mean_of_known
from silofl_desk.report.result_tables import MODEL_NAMES, case_metric
from silofl_desk.report.run_records import CasePictures, RowRuns, RunRecords
from silofl_desk.report.verdict_words import count_verdicts
from silofl_hospital.report.canvas import (
    INK,
    LINE_COLOURS,
    MUTED,
    PageImage,
    Plot,
    draw_legend,
    escape_math,
    lay_out_panels,
    make_image,
    make_legend_handle,
    make_panels,
    style_axes,
)
from silofl_hospital.report.outlines import (
    CaseColumn,
    draw_cases,
    grey_window,
    make_trimmed_image,
    name_rows,
    panel_inches,
    short_metric,
    show_image,
    write_title,
)
from silofl_hospital.report.tables import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Hospital -> seed -> its choice.
BySeed = Mapping[str, Mapping[int | None, Joined]]
# A reader compares so many at a glance.
SITES_IN_A_ROW = 3
HOSPITALS_CAPTION = (
    "If the square is left of the circle, the federated model is worse than training alone. The line is the 95 % "
    "interval of the federated model over the hospital's test patients, in one start. It is missing with fewer than 6 "
    "test patients, and if the mean difference per patient is not the difference of the two points."
)
# Name of a model -> how its points are drawn.
MODEL_POINTS: dict[str, dict[str, Any]] = {
    # It lies above the square, which it leaves to be seen.
    LOCAL: {"color": INK, "marker": "o", "markerfacecolor": "none", "markersize": 6.5, "zorder": 4},
    SHIFTED: {"color": LINE_COLOURS[1], "marker": "s", "markersize": 6.5},
    # It lies around the one of the two that is kept.
    CHOSEN: {"color": LINE_COLOURS[0], "marker": "D", "markerfacecolor": "none", "markersize": 12, "zorder": 3},
}
# A line of dots takes so many inches.
LEAST_LINE = 0.17
# Two differences that are no farther apart are shown as equal.
SAME = 0.001
INTERVAL: dict[str, Any] = {"color": LINE_COLOURS[0], "linewidth": 1.4}


def case_images(run: RunRecords) -> list[PageImage]:
    """Draw each site's worst, median and best case with the outlines of truth and prediction."""
    return [case_image(site, shown, run.labels, run.metric) for site, shown in run.pictures.items()]


def case_ranks(pictures: CasePictures) -> dict[int, str]:
    """Return place -> worst, median or best of the pictures of different cases."""
    places = pictures.ranked_places
    if len(places) == 1:
        return {places[0]: "only case"}
    return dict(zip(places, ["worst", *["median"] * (len(places) - 2), "best"], strict=True))


def case_image(site: str, shown: CasePictures, labels: Mapping[int, str], metric: str) -> PageImage:
    """Draw each case once, its labels in the same colours at every site."""
    masks = {"truth": shown.truths, "prediction": shown.predictions}
    if shown.own is not None:
        masks = {"truth": shown.truths, "local": shown.own, "federated": shown.predictions}
    cases = []
    rows = []
    for place, rank in case_ranks(shown).items():
        case = str(shown.cases[place])
        value = float(shown.values[place])
        local = local_value(shown, place)
        title = f"{rank}: {short_metric(metric)} {value:.3f}"
        if shown.scored is not None and shown.label_values is not None and len(shown.scored) > 1:
            for label, of_label in zip(shown.scored.tolist(), shown.label_values[place].tolist(), strict=True):
                name = labels.get(int(label), label) if label.isdecimal() else label
                title += f"\n{name} {format_number(None if np.isnan(of_label) else of_label)}"
        if shown.own is not None:
            title += f"\nlocal {format_number(local)}"
        outlines = {name: of_cases[place] for name, of_cases in masks.items()}
        cases.append(CaseColumn(title, case, shown.images[place], outlines))
        rows.append((case, rank, value, local))
    listed = ", ".join(f"{rank} {format_number(value)}" for _, rank, value, _ in rows)
    alt = f"Site {site}: image, outline of the truth and of the prediction; {metric} of the cases: {listed}."
    if shown.own is not None:
        listed = ", ".join(f"{rank} {format_number(local)}" for _, rank, _, local in rows)
        alt += f" Of the site's local model: {listed}."
    columns = ("case", "rank", metric, f"local_{metric}")
    window = grey_window([shown.images])
    plot = Plot(f"cases_{site}", columns, rows, lambda width: draw_cases(cases, labels, window))
    return make_trimmed_image(plot, alt, site)


def normalization_image(run: RunRecords) -> PageImage | None:
    """Draw one case of the first sites before and after amplitude normalisation; None where it changed nothing."""
    pictures = dict([*run.pictures.items()][:SITES_IN_A_ROW])
    if not any(shown.is_normalized for shown in pictures.values()):
        return None
    shared = []
    places = {}
    rows = []
    for site, shown in pictures.items():
        shared += [shown.images, shown.normalized]
        # The median case stands for the others.
        place = shown.ranked_places[len(shown.ranked_places) // 2]
        places[site] = place
        before = float(shown.images[place].mean())
        rows.append((site, str(shown.cases[place]), before, float(shown.normalized[place].mean())))
    # All images share one grey scale.
    window = grey_window(shared)

    def draw(width: float) -> Figure:
        # These are few enough for any width.
        figure, grid = make_panels(2, len(pictures), panel_inches(2, len(pictures)), "compressed")
        for column, (site, shown) in zip(grid.T, pictures.items(), strict=True):
            show_image(column[0], shown.images[places[site]], window)
            show_image(column[1], shown.normalized[places[site]], window)
            write_title(column[0], site, str(shown.cases[places[site]]))
        name_rows(grid[:, 0], ("before", "after"))
        return figure

    means = ", ".join(f"{site} {before:.2f} before and {after:.2f} after" for site, _, before, after in rows)
    plot = Plot("normalization", ("site", "case", "mean_before", "mean_after"), rows, draw)
    alt = f"One test image per site, before and after amplitude normalisation; its mean: {means}."
    return make_trimmed_image(plot, alt, "Before and after amplitude normalisation, with one grey scale.")


def local_value(shown: CasePictures, place: int) -> float | None:
    """Return the value of a case with the site's local model; None without one, or without a value."""
    value = np.nan if shown.local_values is None else float(shown.local_values[place])
    return None if np.isnan(value) else value


def hospitals_image(rows: RowRuns) -> PageImage | None:
    """Draw local, federated and kept at each hospital, a panel per method; None where no hospital made a choice.

    The rows' gain is the mean over units of federated minus local, with its 95 % interval; of a metric that a single
    unit does not have it is named after the one that is compared, and cannot be drawn beside the models.
    """
    chosen = rows_with_choices(rows)
    if not chosen:
        return None
    metric = next(iter(chosen.values()))[0].metric
    has_intervals = metric == case_metric(metric)
    methods = {name: _group_by_hospital(runs) for name, runs in chosen.items()}
    values = []
    for name, sites in methods.items():
        for site, seeds in sites.items():
            for seed, joined in seeds.items():
                models = [joined.shown(model) for model in MODEL_NAMES]
                interval = (joined.difference, joined.low, joined.high)
                values.append((name, site, seed, *models, *interval, joined.verdict))
    gain = "gain" if has_intervals else f"{case_metric(metric)}_gain"
    columns = ("method", "hospital", "seed", *MODEL_NAMES.values(), gain, f"{gain}_low", f"{gain}_high", "verdict")
    plot = Plot("hospitals", columns, values, partial(_draw_hospitals, methods, metric, has_intervals))
    described = "; ".join(_describe_method(name, runs) for name, runs in chosen.items())
    caption = f"Test {metric} at each hospital. {HOSPITALS_CAPTION}"
    return make_image(plot, f"Test {metric}, mean over the hospitals: {described}.", caption)


def _draw_hospitals(shown: Mapping[str, BySeed], metric: str, has_intervals: bool, width: float) -> Figure:
    """Draw a panel per method with a line per hospital, all with one scale, or a small loss would look large."""
    # A hospital takes as many lines as it has seeds in the method with the most.
    lines: dict[str, int] = {}
    for sites in shown.values():
        for site, seeds in sites.items():
            lines[site] = max(lines.get(site, 0), len(seeds))
    hospitals = list(lines)
    height = 0.75 + LEAST_LINE * max(sum(lines.values()), 1.6 * len(hospitals))
    figure, panels = lay_out_panels(len(shown), width, height, shares_y=True)
    panels[0].set_yticks(range(len(hospitals)), [escape_math(site) for site in hospitals])
    panels[0].set_ylim(len(hospitals) - 0.5, -0.5)
    for axes, (name, sites) in zip(panels, shown.items(), strict=True):
        style_axes(axes, name, metric)
        axes.grid(axis="x", color=MUTED, alpha=0.2)
        axes.tick_params(axis="y", labelcolor=INK)
        for site, seeds in sites.items():
            for number, joined in enumerate(seeds.values()):
                # Seeds of one hospital lie below one another.
                y = hospitals.index(site) + (number + 0.5) / len(seeds) - 0.5
                if has_intervals:
                    _draw_interval(axes, y, joined)
                for model, style in MODEL_POINTS.items():
                    value = joined.shown(model)
                    if value is not None:
                        axes.plot(value, y, linestyle="", clip_on=False, **style)
        axes.sharex(panels[0])
    panels[0].autoscale(axis="x")
    handles = [make_legend_handle(linestyle="", **style) for style in MODEL_POINTS.values()]
    names = [MODEL_NAMES[model] for model in MODEL_POINTS]
    if has_intervals:
        handles.append(make_legend_handle(**INTERVAL))
        names.append("95 % interval")
    draw_legend(figure, handles, names)
    return figure


def _group_by_hospital(runs: Sequence[RunRecords]) -> BySeed:
    grouped: dict[str, dict[int | None, Joined]] = {}
    for run in runs:
        for site, joined in (run.results.joining or {}).items():
            grouped.setdefault(site, {})[run.results.seed] = joined
    return grouped


def _describe_method(name: str, runs: Sequence[RunRecords]) -> str:
    means = average_models(runs)
    listed = ", ".join(f"{MODEL_NAMES[model]} {format_number(means[model])}" for model in MODEL_POINTS)
    return f"{name} {listed} ({', '.join(count_verdicts(list_verdicts(runs)))})"


def rows_with_choices(rows: RowRuns) -> RowRuns:
    """Return the rows with the runs in which some site made a choice; a row without any is left out."""
    chosen = {}
    for name, runs in rows.items():
        chosen[name] = [run for run in runs if run.results.joining]
    return {name: runs for name, runs in chosen.items() if runs}


def list_verdicts(runs: Sequence[RunRecords]) -> list[Verdict]:
    """Return the verdict of each site of each run."""
    verdicts: list[Verdict] = []
    for run in runs:
        verdicts += [joined.verdict for joined in (run.results.joining or {}).values()]
    return verdicts


def average_models(runs: Sequence[RunRecords]) -> dict[str, float | None]:
    """Return each model of `MODEL_NAMES` -> mean over the hospitals, then over the seeds."""
    means = [run.results.joining_means for run in runs]
    return {model: mean_of_known(map(itemgetter(model), means)) for model in MODEL_NAMES}


def _draw_interval(axes: Axes, y: float, joined: Joined) -> None:
    """Draw a site's interval, where it is known and of the difference of its two points."""
    local = joined.shown(LOCAL)
    federated = joined.shown(SHIFTED)
    if local is None or federated is None or joined.low is None or joined.high is None or joined.difference is None:
        return
    # A metric that no single patient has is compared by another one, whose interval does not belong to these points.
    if abs(federated - local - joined.difference) < SAME:
        axes.plot(np.clip([local + joined.low, local + joined.high], 0, 1), [y, y], **INTERVAL)
