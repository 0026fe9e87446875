"""Curves of several runs side by side: validation by round, and test where the runs measured it in every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.lines import Line2D

from silofl.federation.ledger import Round
from silofl.report.canvas import Image, as_values, draw_line, legend, line_style, panels, png, style_rounds
from silofl.report.rounds import (
    CHOSE_NOTHING,
    mean_round_test,
    mean_validation,
    round_test_value,
    validation_value,
)
from silofl.report.run_records import RunRecords, run_names

# Title of a panel -> run -> a value for each of its rounds.
Panels = Mapping[str, Mapping[str, Sequence[float | None]]]
Ledgers = Mapping[str, Sequence[Round]]
MEAN = "Mean over sites"


def validation_image(runs: Sequence[RunRecords]) -> Image | None:
    """Return the validation curves of several runs; None where none has validated a round."""
    ledgers = _ledgers(runs, lambda record: bool(record.validation))
    if not ledgers:
        return None
    sites, metrics = _sites_and_metrics(runs)
    values = {
        MEAN: {name: [mean_validation(record) for record in ledger] for name, ledger in ledgers.items()},
        f"{MEAN}, best so far": {name: best_so_far(ledger) for name, ledger in ledgers.items()},
    }
    alt = f"Validation of {len(ledgers)} runs over their rounds: mean over sites, and {', '.join(sites)}."
    caption = (
        f"Validation ({metrics}) of the model that each round made; the mean is over the sites that validated. The "
        "best so far never falls, and hides how much a curve swings."
    )
    return Image(run_curves(ledgers, values | _by_site(ledgers, sites, validation_value)), alt, caption)


def round_test_image(runs: Sequence[RunRecords]) -> Image | None:
    """Return the curves of several runs' tests by round; None where none tested each round's model."""
    ledgers = _ledgers(runs, lambda record: bool(record.test))
    if not ledgers:
        return None
    sites, metrics = _sites_and_metrics(runs)
    values = {MEAN: {name: [mean_round_test(record) for record in ledger] for name, ledger in ledgers.items()}}
    alt = f"Test of {len(ledgers)} runs over their rounds: mean over sites, and {', '.join(sites)}."
    caption = f"The model that each round made on the sites' test data ({metrics}). {CHOSE_NOTHING}"
    return Image(run_curves(ledgers, values | _by_site(ledgers, sites, round_test_value)), alt, caption)


def run_curves(ledgers: Ledgers, values: Panels) -> bytes:
    """Draw a panel a title, with a line for each run that has values in it.

    Args:
        ledgers: Name of the run -> its rounds; its place decides its line's look in all panels.
        values: What each panel shows.
    """
    rows = -(-len(values) // 5)
    columns = -(-len(values) // rows)
    figure, grid = panels(rows, columns, (10.4, 2.7 * rows + 0.5), shares_y=True)
    rounds = {name: [record.round for record in ledger] for name, ledger in ledgers.items()}
    styles = {name: line_style(place) for place, name in enumerate(ledgers)}
    handles: dict[str, Line2D] = {}
    for axes, (title, of_runs) in zip(grid.flat, values.items(), strict=False):
        for name, of_rounds in of_runs.items():
            handles[name] = draw_line(axes, rounds[name], of_rounds, linewidth=1.8, **styles[name])
        style_rounds(axes, title, [number for numbers in rounds.values() for number in numbers])
    for axes in grid.flat[len(values) :]:
        axes.set_visible(False)
    legend(figure, [*handles.values()], [*handles])
    return png(figure)


def best_so_far(ledger: Sequence[Round]) -> list[float | None]:
    """Return after each round the best mean validation up to it, as FedSM's Fig. 2; None before the first one."""
    means = np.fmax.accumulate(as_values([mean_validation(record) for record in ledger]))
    return [None if np.isnan(value) else float(value) for value in means]


def _ledgers(runs: Sequence[RunRecords], has_values: Callable[[Round], bool]) -> dict[str, Sequence[Round]]:
    return {name: run.ledger for name, run in run_names(runs).items() if any(map(has_values, run.ledger))}


def _by_site(ledgers: Ledgers, sites: Sequence[str], value: Callable[[Round, str], float | None]) -> Panels:
    return {
        site: {name: [value(record, site) for record in ledger] for name, ledger in ledgers.items()} for site in sites
    }


def _sites_and_metrics(runs: Sequence[RunRecords]) -> tuple[list[str], str]:
    return sorted({site for run in runs for site in run.sites}), " or ".join(sorted({run.metric for run in runs}))
