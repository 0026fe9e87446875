"""Figures of an evaluation: ROC curves, the worst cases, and sizes against the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from silofl.inference.evaluation import Scores
from silofl.report.canvas import (
    INK,
    LINE_COLOURS,
    LINE_STYLES,
    MUTED,
    PageImage,
    Plot,
    lay_out_panels,
    make_image,
    style_axes,
)
from silofl.report.canvas import make_panels as make_grid
from silofl.report.outlines import CaseColumn, draw_cases, make_trimmed_image
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
    "class (1 - specificity), for each threshold."
)
POINTS_CAPTION = " A point is the model's own threshold."


def roc_image(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], classes: Scores) -> PageImage | None:
    """Draw ROC curves; None without any.

    Args:
        curves: Class, or finding -> shares of the other cases, and of its own, that are called so.
        classes: Class, or finding -> its scores.
    """
    if not curves:
        return None

    def draw(width: float) -> Figure:
        # Small enough for any width; where the model calls a class is a point.
        figure, ((axes,),) = make_grid(1, 1, (4.2, 3.6))
        style_axes(axes, "sensitivity", "1 - specificity")
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        for number, (name, curve) in enumerate(curves.items()):
            colour, one = LINE_COLOURS[number % len(LINE_COLOURS)], classes[name]
            style = LINE_STYLES[number // len(LINE_COLOURS) % len(LINE_STYLES)]
            axes.plot(*curve, style, color=colour, linewidth=1.6, label=f"{name}, AUROC {one['auroc'].value:.3f}")
            spared = one["specificity"].value if "specificity" in one else None
            if spared is not None:
                axes.plot(1 - spared, one["recall"].value, "o", color=colour, markersize=7)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        # Curves of poor models run behind it.
        axes.legend(loc="lower right", fontsize=8, framealpha=0.85, edgecolor="none")
        return figure

    rows = [(name, *point) for name, curve in curves.items() for point in zip(*curve, strict=True)]
    areas = "; ".join(f"{name} {format_number(classes[name]['auroc'].value)}" for name in curves)
    plot = Plot("roc", ("class", "one_minus_specificity", "sensitivity"), rows, draw)
    has_points = any("specificity" in classes[name] for name in curves)
    return make_image(plot, f"ROC curves; AUROC {areas}.", ROC_CAPTION + POINTS_CAPTION * has_points)


def worst_image(pictures: Sequence[CaseColumn], labels: Mapping[int, str], above: str = "") -> PageImage | None:
    """Draw each of the worst cases, and below it the outlines of truth and prediction; None without any.

    Args:
        pictures: The worst first.
        labels: Number -> name; empty where classes are answered.
        above: What each one's title is; its value where empty.
    """
    if not pictures:
        return None
    cases = pictures if labels else [replace(one, title=one.title.replace(": ", ":\n", 1)) for one in pictures]
    rows = [(one.case, one.title) for one in pictures]
    alt = "The worst cases: " + "; ".join(f"{one.case}, {one.title}" for one in pictures) + "."
    caption = (
        f"The worst first. Above each: {above}." if above else "The worst first, by the slice with most wrong pixels."
    )
    return make_trimmed_image(
        Plot("worst_cases", ("case", "what"), rows, lambda width: draw_cases(cases, labels)), alt, caption
    )


def sizes_image(sizes: Mapping[str, Sequence[tuple[float, float]]], labels: Scores, unit: str) -> PageImage | None:
    """Draw predicted minus true sizes, a panel per label; None without any.

    Args:
        sizes: Label -> (predicted, true) size of each case that has it; labels without a case are left out.
        labels: Label -> its scores.
        unit: Of the sizes.
    """
    known = {label: pairs for label, pairs in sizes.items() if pairs}
    if not known:
        return None

    def draw(width: float) -> Figure:
        figure, panels = lay_out_panels(len(known), width, 2.9, LEAST_PANEL)
        for axes, (label, pairs) in zip(panels, known.items(), strict=True):
            means, differences = zip(*(((one + other) / 2, one - other) for one, other in pairs), strict=True)
            style_axes(axes, f"{label}: predicted minus true, {unit}", f"mean of both, {unit}")
            axes.scatter(means, differences, s=16, color=LINE_COLOURS[0], alpha=0.7, linewidths=0)
            error = labels[label]["size_error"]
            axes.axhline(0, color=MUTED, linewidth=0.8)
            if error.value is not None:
                axes.axhline(error.value, color=INK, linewidth=1.4)
            for limit in error.interval or ():
                axes.axhline(limit, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        return figure

    # Without the cases' names.
    rows = [(label, *pair) for label, pairs in known.items() for pair in pairs]
    biases = "; ".join(f"{label} {labels[label]['size_error'].value:+.3g} {unit}" for label in known)
    plot = Plot("sizes", ("label", f"predicted_{unit}", f"true_{unit}"), rows, draw)
    return make_image(plot, f"Mean size error: {biases}.", SIZES_CAPTION)
