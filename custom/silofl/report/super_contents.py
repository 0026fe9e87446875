"""What the page of a run says of FedSM's models and selector; nothing of the runs without them."""

from __future__ import annotations

from typing import Any

from silofl.report.folder import RunRecords
from silofl.report.illustrations import feature_image
from silofl.report.super_sentences import (
    choices_sentence,
    model_meanings,
    shortfalls,
    threshold_sentence,
    unseen_sentence,
)
from silofl.report.super_tables import (
    alone_table,
    choice_table,
    choices_in_words,
    has_models,
    model_table,
    model_values,
    selector_counts,
    threshold_table,
)


def super_values(run: RunRecords) -> dict[str, Any] | None:
    """Return all that the report shows of a run's models and selector; None where the run has none."""
    results = run.results
    if not has_models(results):
        return None
    metric = results.get("metric") or "value"
    return {
        "model_table": model_table(results),
        "meanings": model_meanings(results),
        "shortfalls": shortfalls(model_values(results)),
        "counts": {unit: counts for unit in ("slices", "cases") if (counts := selector_counts(results, unit))},
        "map": feature_image(run),
        "choices": choice_table(results),
        "choices_sentence": choices_sentence(results),
        "threshold": threshold_sentence(results),
        "by_threshold": threshold_table(results.get("by_threshold") or [], results.get("threshold"), metric),
    }


def unseen_values(run: RunRecords) -> dict[str, Any] | None:
    """Return all that the report shows of a site that was left out of the training; None where none was."""
    if run.unseen is None:
        return None
    metric = run.unseen.get("metric") or run.results.get("metric") or "value"
    by_threshold = run.unseen.get("by_threshold") or []
    return {
        "models": alone_table(run.unseen, metric),
        "sentence": unseen_sentence(run.unseen, metric),
        "choices": choices_in_words(run.unseen.get("choices") or {}),
        "by_threshold": threshold_table(by_threshold, run.unseen.get("threshold"), metric),
    }
