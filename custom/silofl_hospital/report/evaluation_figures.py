"""Figures of an evaluation: ROC curves and the worst cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from silofl.inference.evaluation import Scores
from silofl_hospital.report.canvas import (
    LINE_COLOURS,
    LINE_STYLES,
    MUTED,
    PageImage,
    Plot,
    make_image,
    style_axes,
)
from silofl_hospital.report.canvas import make_panels as make_grid
from silofl_hospital.report.outlines import CaseColumn, draw_cases, make_trimmed_image
from silofl_hospital.report.tables import format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        # The figure is small enough for any width; where the model calls a class is a point.
        figure, ((axes,),) = make_grid(1, 1, (4.2, 3.6))
        style_axes(axes, "sensitivity", "1 - specificity")
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        for number, (name, curve) in enumerate(curves.items()):
            colour = LINE_COLOURS[number % len(LINE_COLOURS)]
            scores = classes[name]
            style = LINE_STYLES[number // len(LINE_COLOURS) % len(LINE_STYLES)]
            axes.plot(*curve, style, color=colour, linewidth=1.6, label=f"{name}, AUROC {scores['auroc'].value:.3f}")
            if "specificity" in scores and scores["specificity"].value is not None:
                spared = scores["specificity"].value
                axes.plot(1 - spared, scores["recall"].value, "o", color=colour, markersize=7)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        # Curves of poor models run behind it.
        axes.legend(loc="lower right", fontsize=8, framealpha=0.85, edgecolor="none")
        return figure

    rows: list[tuple[object, ...]] = []
    for name, curve in curves.items():
        rows += [(name, *point) for point in zip(*curve, strict=True)]
    areas = "; ".join(f"{name} {format_number(classes[name]['auroc'].value)}" for name in curves)
    plot = Plot("roc", ("class", "one_minus_specificity", "sensitivity"), rows, draw)
    caption = ROC_CAPTION
    if any("specificity" in classes[name] for name in curves):
        caption += POINTS_CAPTION
    return make_image(plot, f"ROC curves; AUROC {areas}.", caption)


def worst_image(pictures: Sequence[CaseColumn], labels: Mapping[int, str]) -> PageImage | None:
    """Draw each of the worst cases with the outlines of truth and prediction; None without any.

    Args:
        pictures: The worst first.
        labels: Number -> name.
    """
    if not pictures:
        return None
    rows = [(case.case, case.title) for case in pictures]
    alt = f"The worst cases: {'; '.join(map(', '.join, rows))}."
    plot = Plot("worst_cases", ("case", "what"), rows, lambda width: draw_cases(pictures, labels))
    return make_trimmed_image(plot, alt, "The worst first, by the slice with most wrong pixels.")
