"""Figure of what each hospital gains: alone, federated and kept, by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silofl.core.gain import count_verdicts
from silofl.report.canvas import (
    INK,
    LINE_COLOURS,
    MUTED,
    PageImage,
    PlotData,
    draw_legend,
    escape_math,
    lay_out_panels,
    make_image,
    make_legend_handle,
    style_axes,
)
from silofl.report.result_tables import MODEL_NAMES, case_metric
from silofl.report.run_records import RowRuns, RunRecords
from silofl.report.tables import format_number
from silofl.training.joined import CHOSEN, LOCAL, SHIFTED, Joined
from silofl.training.metrics import mean_of_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOSPITALS_CAPTION = (
    "Test {} at each hospital. {}Where the square lies left of the circle, the federated model is worse than training "
    "alone."
)
INTERVAL_CAPTION = "The line is the 95 % interval of what joining adds to training alone. "
# Name of a model -> how its points are drawn.
MODEL_POINTS = {
    LOCAL: {"color": MUTED, "marker": "o", "markerfacecolor": "white"},
    SHIFTED: {"color": LINE_COLOURS[1], "marker": "s"},
    CHOSEN: {"color": LINE_COLOURS[0], "marker": "D"},
}
# Inches that a line of dots takes.
LEAST_LINE = 0.17
INTERVAL = {"color": LINE_COLOURS[0], "linewidth": 1.4}


@dataclass(frozen=True)
class HospitalDots:
    """The models of each hospital by method.

    Attributes:
        metric: Of the test.
        methods: Name of the method -> hospital -> seed -> what it chose.
    """

    metric: str
    methods: Mapping[str, Mapping[str, Mapping[int | None, Joined]]]

    @property
    def has_intervals(self) -> bool:
        """Whether differences are in the metric of the test, and so can be drawn beside it."""
        return self.metric == case_metric(self.metric)

    def data(self) -> PlotData:
        """Return one row per method, hospital and seed.

        The gain is the mean over units of kept minus alone, with its 95 % interval; of a metric that a single unit does
        not have it is named after the one that is compared.
        """
        rows = (
            (name, site, seed, *map(one.test.get, MODEL_NAMES), one.difference, one.low, one.high, one.verdict)
            for name, sites in self.methods.items()
            for site, seeds in sites.items()
            for seed, one in seeds.items()
        )
        gain = "gain" if self.has_intervals else f"{case_metric(self.metric)}_gain"
        columns = ("method", "hospital", "seed", *MODEL_NAMES.values(), gain, f"{gain}_low", f"{gain}_high", "verdict")
        return PlotData("hospitals", columns, tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw a panel per method with a line per hospital, all with one scale, or a small loss would look large."""
        hospitals = list(dict.fromkeys(site for sites in self.methods.values() for site in sites))
        lines = sum(max(len(sites.get(one, ())) for sites in self.methods.values()) for one in hospitals)
        height = 0.75 + LEAST_LINE * max(lines, 1.6 * len(hospitals))
        figure, panels = lay_out_panels(len(self.methods), width, height, shares_y=True)
        panels[0].set_yticks(range(len(hospitals)), [escape_math(site) for site in hospitals])
        panels[0].set_ylim(len(hospitals) - 0.5, -0.5)
        for axes, (name, sites) in zip(panels, self.methods.items(), strict=True):
            style_axes(axes, name, self.metric)
            axes.grid(axis="x", color=MUTED, alpha=0.2)
            axes.tick_params(axis="y", labelcolor=INK)
            for site, seeds in sites.items():
                for number, one in enumerate(seeds.values()):
                    # Seeds of one hospital lie below one another.
                    place = hospitals.index(site) + (number + 0.5) / len(seeds) - 0.5
                    if self.has_intervals:
                        _draw_interval(axes, place, one)
                    _draw_hospital(axes, place, one)
            axes.sharex(panels[0])
        panels[0].autoscale(axis="x")
        handles = [make_legend_handle(linestyle="", **style) for style in MODEL_POINTS.values()]
        names = [*map(MODEL_NAMES.__getitem__, MODEL_POINTS)]
        if self.has_intervals:
            handles, names = [*handles, make_legend_handle(**INTERVAL)], [*names, "95 % interval"]
        draw_legend(figure, handles, names)
        return figure


def hospitals_image(rows: RowRuns) -> PageImage | None:
    """Draw alone, federated and kept at each hospital, a panel per method; None where no hospital made a choice.

    Args:
        rows: Name of the method -> its runs, one for each seed.
    """
    chosen = rows_with_choices(rows)
    if not chosen:
        return None
    metric = next(iter(chosen.values()))[0].metric
    dots = HospitalDots(metric, {name: _group_by_hospital(runs) for name, runs in chosen.items()})
    described = "; ".join(_describe_method(name, runs) for name, runs in chosen.items())
    caption = HOSPITALS_CAPTION.format(metric, INTERVAL_CAPTION * dots.has_intervals)
    return make_image(dots, f"Test {metric}, mean over the hospitals: {described}.", caption)


def _group_by_hospital(runs: Sequence[RunRecords]) -> dict[str, dict[int | None, Joined]]:
    sites = dict.fromkeys(site for run in runs for site in run.results.joining)
    return {
        site: {run.results.seed: run.results.joining[site] for run in runs if site in run.results.joining}
        for site in sites
    }


def _describe_method(name: str, runs: Sequence[RunRecords]) -> str:
    found = average_models(runs)
    means = ", ".join(f"{MODEL_NAMES[model]} {format_number(found[model])}" for model in MODEL_POINTS)
    return f"{name} {means} ({', '.join(count_verdicts(list_verdicts(runs)))})"


def rows_with_choices(rows: RowRuns) -> RowRuns:
    """Return the rows with the runs in which some site made a choice; a row without any is left out."""
    chosen = {name: [run for run in runs if run.results.joining] for name, runs in rows.items()}
    return {name: runs for name, runs in chosen.items() if runs}


def list_verdicts(runs: Sequence[RunRecords]) -> list[str]:
    """Return the verdict of each site of each run."""
    return [one.verdict for run in runs for one in run.results.joining.values()]


def average_models(runs: Sequence[RunRecords]) -> dict[str, float | None]:
    """Return each model of `MODEL_NAMES` -> mean over the hospitals, then over the seeds."""
    return {model: mean_of_known(run.results.joining_means[model] for run in runs) for model in MODEL_NAMES}


def _draw_interval(axes: Axes, place: float, one: Joined) -> None:
    local = one.tested(LOCAL)
    if local is not None and one.low is not None and one.high is not None:
        axes.plot([local + one.low, local + one.high], [place, place], **INTERVAL)


def _draw_hospital(axes: Axes, place: float, one: Joined) -> None:
    for model, style in MODEL_POINTS.items():
        if one.tested(model) is not None:
            axes.plot(one.test[model], place, linestyle="", markersize=6.5, **style)
