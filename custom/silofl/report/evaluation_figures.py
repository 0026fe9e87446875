"""Figures of an evaluation: the worst cases, sizes against the truth, and confidence against accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from silofl.core.calibration import BINS
from silofl.inference.evaluation import ALL, Calibration, Evaluation, Scores
from silofl.report.canvas import (
    INK,
    LINE_COLOURS,
    LINE_STYLES,
    MUTED,
    PageImage,
    PlotData,
    lay_out_panels,
    make_image,
    style_axes,
)
from silofl.report.canvas import make_panels as make_grid
from silofl.report.outlines import (
    add_label_legend,
    draw_outlines,
    grey_window,
    make_trimmed_image,
    name_rows,
    panel_inches,
    show_image,
    write_title,
)
from silofl.report.tables import format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Wide enough for the title of a panel.
LEAST_PANEL = 3.2
SIZES_CAPTION = (
    "Each point is a case: predicted minus true size, over the mean of both. The line is the mean difference; between "
    "the dashed lines lie about 95 % of cases like these (Bland and Altman's limits of agreement)."
)
ROC_CAPTION = (
    "ROC: share of a class's cases that are recognised (sensitivity) against the share of other cases taken for the "
    "class (1 - specificity), for each threshold. A point is the model's own threshold."
)
RELIABILITY_CAPTION = (
    "Each point stands for the cases whose answer has a probability in one tenth of the scale; a larger point for "
    "more cases. On the dashed line the model is as often right as its probability says; below the line it is too "
    "sure."
)


@dataclass(frozen=True)
class CasePicture:
    """A case as it is shown.

    Attributes:
        title: Its value, or its classes.
        case: Its name.
        image: (C, H, W).
        truth: Its label map (H, W); None of a class.
        prediction: The predicted one.
    """

    title: str
    case: str
    image: NDArray
    truth: NDArray | None = None
    prediction: NDArray | None = None


@dataclass(frozen=True)
class WorstCases:
    """The cases with the worst answers.

    Attributes:
        pictures: The worst first, at least one.
        labels: Number -> name; empty where classes are answered.
    """

    pictures: Sequence[CasePicture]
    labels: Mapping[int, str]

    def data(self) -> PlotData:
        """Return one row per case."""
        return PlotData("worst_cases", ("case", "what"), tuple((one.case, one.title) for one in self.pictures))

    def draw(self, width: float) -> Figure:
        """Draw each image, and below it the outlines of truth and prediction; few enough for any width."""
        names = ("image", "truth", "prediction") if self.labels else ("image",)
        size = panel_inches(len(names), len(self.pictures))
        figure, grid = make_grid(len(names), len(self.pictures), size, "compressed")
        for column, one in enumerate(self.pictures):
            window = grey_window([one.image])
            for row, mask in enumerate((None, one.truth, one.prediction)[: len(names)]):
                show_image(grid[row, column], one.image, window)
                if mask is not None:
                    draw_outlines(grid[row, column], mask, self.labels)
            title = one.title if self.labels else one.title.replace(": ", ":\n", 1)
            write_title(grid[0, column], title, one.case)
        name_rows(grid[:, 0], names)
        return add_label_legend(figure, self.labels) if self.labels else figure


@dataclass(frozen=True)
class SizeDifferences:
    """Predicted against true sizes.

    Attributes:
        sizes: Label -> (predicted, true) size of each case that has it, at least one.
        labels: Label -> its scores.
        unit: Of the sizes.
    """

    sizes: Mapping[str, Sequence[tuple[float, float]]]
    labels: Scores
    unit: str

    def data(self) -> PlotData:
        """Return one row per label and case, without the case's name."""
        rows = ((label, *pair) for label, pairs in self.sizes.items() for pair in pairs)
        return PlotData("sizes", ("label", f"predicted_{self.unit}", f"true_{self.unit}"), tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw a panel per label."""
        figure, panels = lay_out_panels(len(self.sizes), width, 2.9, LEAST_PANEL)
        for axes, (label, pairs) in zip(panels, self.sizes.items(), strict=True):
            means, differences = zip(*(((one + other) / 2, one - other) for one, other in pairs), strict=True)
            style_axes(axes, f"{label}: predicted minus true, {self.unit}", f"mean of both, {self.unit}")
            axes.scatter(means, differences, s=16, color=LINE_COLOURS[0], alpha=0.7, linewidths=0)
            error = self.labels[label]["size_error"]
            axes.axhline(0, color=MUTED, linewidth=0.8)
            axes.axhline(error.value, color=INK, linewidth=1.4)
            for limit in error.interval or ():
                axes.axhline(limit, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        return figure


@dataclass(frozen=True)
class RocCurves:
    """ROC curves.

    Attributes:
        curves: Class, or finding -> shares of the other cases, and of its own, that are called so.
        classes: Class, or finding -> its scores.
    """

    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    classes: Scores

    def data(self) -> PlotData:
        """Return one row per class and threshold."""
        rows = ((name, *point) for name, curve in self.curves.items() for point in zip(*curve, strict=True))
        return PlotData("roc", ("class", "one_minus_specificity", "sensitivity"), tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw one panel, small enough for any width; where the model calls a class is a point."""
        figure, ((axes,),) = make_grid(1, 1, (4.2, 3.6))
        style_axes(axes, "sensitivity", "1 - specificity")
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        for number, (name, curve) in enumerate(self.curves.items()):
            colour, one = LINE_COLOURS[number % len(LINE_COLOURS)], self.classes[name]
            style = LINE_STYLES[number // len(LINE_COLOURS) % len(LINE_STYLES)]
            axes.plot(*curve, style, color=colour, linewidth=1.6, label=f"{name}, AUROC {one['auroc'].value:.3f}")
            spared = one["specificity"].value if "specificity" in one else None
            if spared is not None:
                axes.plot(1 - spared, one["recall"].value, "o", color=colour, markersize=7)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        # Curves of poor models run behind it.
        axes.legend(loc="lower right", fontsize=8, framealpha=0.85, edgecolor="none")
        return figure


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy.

    Attributes:
        calibration: What it shows.
    """

    calibration: Calibration

    def data(self) -> PlotData:
        """Return one row per bin."""
        rows = tuple((one.low, one.num_cases, one.confidence, one.accuracy) for one in self.calibration.bins)
        return PlotData("reliability", ("from", "cases", "confidence", "accuracy"), rows)

    def draw(self, width: float) -> Figure:
        """Draw one panel, small enough for any width."""
        figure, ((axes,),) = make_grid(1, 1, (4.2, 3.6))
        bins = self.calibration.bins
        most = max(one.num_cases for one in bins)
        style_axes(axes, "share of right answers", "mean probability of the answer")
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        points = [one.confidence for one in bins], [one.accuracy for one in bins]
        axes.scatter(*points, s=[12 + 160 * one.num_cases / most for one in bins], color=LINE_COLOURS[0], alpha=0.7)
        # No answer of two classes is less sure than one half, but one of many may be.
        axes.set(xlim=(min(one.low for one in bins) - 0.5 / BINS, 1.02), ylim=(-0.04, 1.04))
        return figure


def roc_image(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], classes: Scores) -> PageImage | None:
    """Draw ROC curves; None without any.

    Args:
        curves: As of `RocCurves`.
        classes: Class -> its scores.
    """
    if not curves:
        return None
    areas = "; ".join(f"{name} {format_number(classes[name]['auroc'].value)}" for name in curves)
    return make_image(RocCurves(curves, classes), f"ROC curves; AUROC {areas}.", ROC_CAPTION)


def worst_image(pictures: Sequence[CasePicture], labels: Mapping[int, str], above: str = "") -> PageImage | None:
    """Draw the worst cases; None without any.

    Args:
        pictures: The worst first.
        labels: As of `WorstCases`.
        above: What each one's title is; its value where empty.
    """
    if not pictures:
        return None
    alt = "The worst cases: " + "; ".join(f"{one.case}, {one.title}" for one in pictures) + "."
    caption = (
        f"The worst first. Above each: {above}." if above else "The worst first, by the slice with most wrong pixels."
    )
    return make_trimmed_image(WorstCases(pictures, labels), alt, caption)


def sizes_image(sizes: Mapping[str, Sequence[tuple[float, float]]], labels: Scores, unit: str) -> PageImage | None:
    """Draw predicted minus true sizes by label; None without any.

    Args:
        sizes: As of `SizeDifferences`; labels without a case are left out.
        labels: Label -> its scores.
    """
    known = {label: pairs for label, pairs in sizes.items() if pairs}
    if not known:
        return None
    biases = "; ".join(f"{label} {labels[label]['size_error'].value:+.3g} {unit}" for label in known)
    return make_image(SizeDifferences(known, labels, unit), f"Mean size error: {biases}.", SIZES_CAPTION)


def reliability_image(record: Evaluation) -> PageImage | None:
    """Draw confidence against accuracy; None without a classification."""
    if record.calibration is None:
        return None
    error, calibrated = (format_number(record.scores[ALL][name].value) for name in ("ece", "ece_calibrated"))
    alt = f"Expected calibration error {error}; if calibrated {calibrated}."
    return make_image(Reliability(record.calibration), alt, RELIABILITY_CAPTION)
