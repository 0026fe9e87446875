"""Figure of a comparison's models at a hospital that took no part: the own models of the others, and each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silofl.inference.choice import ENSEMBLE
from silofl.inference.unseen import UnseenTest
from silofl.report.canvas import (
    INK,
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
from silofl.report.tables import format_number
from silofl.training.joined import LOCAL, SHIFTED
from silofl_desk.report.result_pictures import MODEL_POINTS
from silofl_desk.report.run_records import RowRuns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE = 0.3
OWN = MODEL_POINTS[LOCAL]
POINTS = {
    "federated": MODEL_POINTS[SHIFTED],
    "mean of the own models' answers": {"color": MUTED, "marker": "D", "markersize": 6.5},
    "a hospital's own model": OWN,
}
CAPTION = (
    "Test {metric} at {site}, which took no part in the training. Each circle is the model that one of the other "
    "hospitals trained alone. Their mean is possible only where every hospital hands its own model out."
)


@dataclass(frozen=True)
class UnseenDots:
    """The models of each method at one hospital that took no part.

    Attributes:
        metric: Of the test.
        site: The hospital.
        methods: Name of the method -> its tests there, one a seed.
    """

    metric: str
    site: str
    methods: Mapping[str, Sequence[UnseenTest]]

    def data(self) -> PlotData:
        """Return one row per method, seed and model."""
        rows = (
            (name, seed, model, value)
            for name, tests in self.methods.items()
            for seed, test in enumerate(tests)
            for model, value in _list_values(test)
        )
        return PlotData("unseen", ("method", "run", "model", self.metric), tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw a line per method and seed."""
        lines = sum(len(tests) for tests in self.methods.values())
        figure, (axes, *_) = lay_out_panels(1, width, 0.9 + LINE * lines, shares_y=True)
        style_axes(axes, f"at {self.site}", self.metric)
        axes.grid(axis="x", color=MUTED, alpha=0.2)
        names = [name for name, tests in self.methods.items() for _ in tests]
        axes.set_yticks(range(lines), [escape_math(name) for name in names])
        axes.set_ylim(lines - 0.5, -0.5)
        axes.tick_params(axis="y", labelcolor=INK)
        for place, test in enumerate(test for tests in self.methods.values() for test in tests):
            for model, value in reversed(_list_values(test)):
                axes.plot(value, place, linestyle="", **POINTS.get(model, OWN))
        draw_legend(figure, [make_legend_handle(linestyle="", **style) for style in POINTS.values()], [*POINTS])
        return figure


def unseen_images(rows: RowRuns) -> list[PageImage]:
    """Draw the models at each hospital that took no part and was tested with the others' own models.

    Args:
        rows: Name of the method -> its runs, one for each seed.
    """
    found = {key: _select_own(tests) for key, tests in group_unseen(rows).items()}
    images = []
    for (site, metric), tests in found.items():
        dots = UnseenDots(metric, site, tests)
        values = "; ".join(f"{name} {model} {format_number(value)}" for name, _, model, value in dots.data().rows)
        if tests:
            images.append(make_image(dots, f"Test {metric} at {site}: {values}.", CAPTION.format(**vars(dots))))
    return images


def group_unseen(rows: RowRuns) -> dict[tuple[str, str], dict[str, list[UnseenTest]]]:
    """Return hospital that took no part and metric -> name of the row -> its tests there that have a value."""
    found: dict[tuple[str, str], dict[str, list[UnseenTest]]] = {}
    for name, runs in rows.items():
        for test in (run.unseen for run in runs if run.unseen and run.unseen.value is not None):
            found.setdefault((test.site, test.metric), {}).setdefault(name, []).append(test)
    return found


def _select_own(tests: Mapping[str, Sequence[UnseenTest]]) -> dict[str, list[UnseenTest]]:
    """Return the tests beside which the others' own models were tested."""
    beside = {name: [one for one in several if one.own] for name, several in tests.items()}
    return {name: several for name, several in beside.items() if several}


def _list_values(test: UnseenTest) -> list[tuple[str, float]]:
    """Return the federated model, the mean of the own models and each of them, as far as they have a value."""
    federated, together, _ = POINTS
    own = test.own or {}
    values = {federated: test.value, together: own.get(ENSEMBLE)}
    values |= {f"own model of {site}": value for site, value in own.items() if site != ENSEMBLE}
    return [(name, value) for name, value in values.items() if value is not None]
