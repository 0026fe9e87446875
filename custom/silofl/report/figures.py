"""Curves of a run over its rounds: validation, training loss, drift, bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from silofl.federation.ledger import Round
from silofl.report.canvas import INK, LINE_COLOURS, MUTED, as_values, legend, line_style, panels, png, style_axes

Value = Callable[[Round, str], float | None]


def training_curves(ledger: Sequence[Round], sites: Sequence[str], metric: str, best_round: int | None) -> bytes:
    """Draw each site's training loss by round, validation beside it where there is any, the reported round marked."""
    has_validation = any(record.validation for record in ledger)
    figure, (row,) = panels(1, 1 + has_validation, (10.4, 3.9))
    handles = _site_lines(row[-1], ledger, sites, lambda record, site: record.metrics.get(site, {}).get("loss"))
    names = list(sites)
    if has_validation:
        _site_lines(row[0], ledger, sites, validation_value)
        handles.append(_mean_line(row[0], ledger, mean_validation))
        names.append("mean over sites")
        _finish(row[0], ledger, f"Validation: {metric}", best_round)
    _finish(row[-1], ledger, "Training loss", best_round)
    return _with_legend(figure, handles, names)


def model_curves(ledger: Sequence[Round], sites: Sequence[str], metric: str, best_round: int | None) -> bytes | None:
    """Draw the validation of global and personalised models, and the selector's accuracy; None without such models."""
    if not any(score.models for record in ledger for score in record.validation.values()):
        return None
    values = {f"Global model: {metric}": _value_of("global"), f"Personalised models: {metric}": _value_of("personal")}
    if any(selector_accuracy(record, site) is not None for record in ledger for site in sites):
        values["Selector: slices it gets right"] = selector_accuracy
    figure, (row,) = panels(1, len(values), (10.4, 3.6))
    row[1].sharey(row[0])
    handles: list[Line2D] = []
    for axes, (title, value) in zip(row, values.items(), strict=True):
        lines = _site_lines(axes, ledger, sites, value)
        if value is selector_accuracy:
            # A site has few slices: its line jumps and would hide the mean.
            axes.set_ylim(-0.03, 1.12)
            for line in lines:
                line.set(alpha=0.35, linewidth=1)
        lines.append(_mean_line(axes, ledger, partial(_mean_of, value, sites)))
        handles = handles or lines
        _finish(axes, ledger, title, best_round)
    return _with_legend(figure, handles, [*sites, "mean over sites"])


def drift_curves(ledger: Sequence[Round], sites: Sequence[str]) -> bytes | None:
    """Draw how far each site's weights moved from the round's start; None where no round measured it."""
    if all(record.drift is None for record in ledger):
        return None
    figure, ((axes,),) = panels(1, 1, (10.4, 3.2))
    handles = _site_lines(axes, ledger, sites, lambda record, site: record.metrics.get(site, {}).get("drift"))
    handles.append(_mean_line(axes, ledger, lambda record: record.drift))
    _finish(axes, ledger, "Drift", None)
    axes.set_ylim(bottom=0)
    return _with_legend(figure, handles, [*sites, "mean over sites"])


def traffic_bars(ledger: Sequence[Round]) -> bytes:
    """Draw the megabytes of all sites, sent and received, and the seconds of each round."""
    figure, ((left, right),) = panels(1, 2, (10.4, 3.2))
    rounds = [record.round for record in ledger]
    sent, received = ([sum(getattr(r, key).values()) / 1e6 for r in ledger] for key in ("bytes_to", "bytes_from"))
    handles = [left.bar(rounds, sent, 0.7, color=LINE_COLOURS[0])]
    handles.append(left.bar(rounds, received, 0.7, bottom=sent, color=LINE_COLOURS[5]))
    right.bar(rounds, [record.seconds for record in ledger], 0.7, color=MUTED)
    _finish(left, ledger, "Traffic of all sites, MB", None)
    _finish(right, ledger, "Time, seconds", None)
    return _with_legend(figure, handles, ["server to sites", "sites to server"])


def run_curves(ledgers: Mapping[str, Sequence[Round]], sites: Sequence[str]) -> bytes:
    """Draw the validation of several runs in one panel for the mean over sites and one a site.

    Args:
        ledgers: Name of the run -> its rounds.
        sites: All sites of the runs.
    """
    rows = -(-(len(sites) + 1) // 5)
    columns = -(-(len(sites) + 1) // rows)
    figure, grid = panels(rows, columns, (10.4, 2.7 * rows + 0.5), shares_y=True)
    rounds = [record.round for ledger in ledgers.values() for record in ledger]
    handles = []
    for axes, site in zip(grid.flat, [None, *sites], strict=False):
        handles = [_run_line(axes, i, ledger, site) for i, ledger in enumerate(ledgers.values())]
        style_axes(axes, site or "Mean over sites", rounds)
    for axes in grid.flat[len(sites) + 1 :]:
        axes.set_visible(False)
    legend(figure, handles, list(ledgers))
    return png(figure)


def validation_value(record: Round, site: str) -> float | None:
    """Return a site's validation of the model that a round made."""
    score = record.validation.get(site)
    return score and score.value


def selector_accuracy(record: Round, site: str) -> float | None:
    """Return the share of a site's validation slices that the selector of a round takes for this site's."""
    score = record.validation.get(site)
    return score and score.selector_accuracy


def mean_validation(record: Round) -> float | None:
    """Return the mean over the sites that validated the model that a round made."""
    return record.rank[1] if record.rank else None


def _value_of(model: str) -> Value:
    def value(record: Round, site: str) -> float | None:
        score = record.validation.get(site)
        return score.models.get(model) if score and score.models else None

    return value


def _mean_of(value: Value, sites: Sequence[str], record: Round) -> float | None:
    known = [found for found in (value(record, site) for site in sites) if found is not None]
    return float(np.mean(known)) if known else None


def _site_lines(axes: Axes, ledger: Sequence[Round], sites: Sequence[str], value: Value) -> list[Line2D]:
    return [
        _line(axes, ledger, [value(record, site) for record in ledger], linewidth=1.6, **line_style(i))
        for i, site in enumerate(sites)
    ]


def _mean_line(axes: Axes, ledger: Sequence[Round], value: Callable[[Round], float | None]) -> Line2D:
    return _line(axes, ledger, [value(record) for record in ledger], color=INK, linewidth=2.6)


def _run_line(axes: Axes, place: int, ledger: Sequence[Round], site: str | None) -> Line2D:
    values = [validation_value(record, site) if site else mean_validation(record) for record in ledger]
    return _line(axes, ledger, values, linewidth=1.8, **line_style(place))


def _line(axes: Axes, ledger: Sequence[Round], values: Sequence[float | None], **style: object) -> Line2D:
    """Draw a line; where it is short, or gaps leave single points, also its points."""
    numbers = as_values(values)
    gaps = np.isnan(np.pad(numbers, 1, constant_values=np.nan))
    is_sparse = len(ledger) <= 30 or bool((gaps[:-2] & ~gaps[1:-1] & gaps[2:]).any())
    marker = {"marker": "o", "markersize": 4} if is_sparse else {}
    return axes.plot([record.round for record in ledger], numbers, **style, **marker)[0]


def _finish(axes: Axes, ledger: Sequence[Round], title: str, best_round: int | None) -> None:
    rounds = [record.round for record in ledger]
    style_axes(axes, title, rounds)
    if best_round is not None:
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


def _with_legend(figure: Figure, handles: Sequence[object], names: Sequence[str]) -> bytes:
    legend(figure, handles, names)
    return png(figure)
