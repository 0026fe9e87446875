"""The pages' figures with their alternative texts and captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from silofl.report.canvas import Image
from silofl.report.figures import drift_curves, mean_validation, run_curves, traffic_bars, training_curves
from silofl.report.folder import Pictures, RunRecords
from silofl.report.ledger_tables import duration
from silofl.report.pictures import before_and_after, case_grid, case_ranks, same_case, shared_window


def curve_images(run: RunRecords) -> list[Image]:
    """Return the curves of validation, loss and drift; none before the first finished round."""
    if not run.ledger:
        return []
    metric = run.results.get("metric") or "metric"
    images = [Image(training_curves(run.ledger, run.sites, metric, run.best_round), _curves_alt(run), _curves_caption(run))]
    drift = drift_curves(run.ledger, run.sites)
    if drift:
        caption = "Drift: mean squared distance of a site's weights to the round's start, over its steps and weights."
        last = run.ledger[-1]
        images.append(Image(drift, f"Drift of each site by round; mean {last.drift} in round {last.round}.", caption))
    return images


def traffic_image(run: RunRecords) -> Image:
    """Return the bytes and seconds of each round."""
    seconds = [record.seconds for record in run.ledger]
    alt = f"Traffic and time of {len(seconds)} rounds; the longest took {duration(max(seconds))}."
    caption = "Bytes of the arrays before the transport wraps them; time includes waiting and, at first, the start."
    return Image(traffic_bars(run.ledger), alt, caption)


def picture_images(run: RunRecords) -> list[Image]:
    """Return one grid of cases a site, then the effect of amplitude normalisation where there is one."""
    metric = run.results.get("metric") or "metric"
    images = [
        Image(case_grid(shown, run.labels, metric), _grid_alt(site, shown, metric), f"{site}")
        for site, shown in run.pictures.items()
    ]
    return images


def normalization_image(run: RunRecords) -> Image | None:
    """Return the sites' images before and after amplitude normalisation; None where it changed nothing."""
    if not any(shown.is_normalized for shown in run.pictures.values()):
        return None
    low, high = shared_window(run.pictures)
    alt = f"One test image of each of {', '.join(run.pictures)} before and after amplitude normalisation."
    caption = f"Before and after amplitude normalisation, all with the same grey scale from {low:.2f} to {high:.2f}."
    return Image(before_and_after(run.pictures), alt, caption)
