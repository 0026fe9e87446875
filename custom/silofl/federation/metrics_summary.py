"""A run's metrics in the form that NVFlare's own workflows leave, for the tools that read it.

NVFlare 2.9, `nvflare.app_common.widgets.metrics_artifact_writer`: a summary of the run and a line for each round.
``nvflare job download`` finds both by their names. NVFlare's writer itself listens to events of one shared model,
takes means over examples, and leaves nothing for the rounds before a restart.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from silofl.federation.ledger import Round
from silofl.parts.part import Reported
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import SiteScore, mean_of_scores

SUMMARY, ROUNDS = "metrics_summary.json", "round_metrics.jsonl"
VERSION = "1"
NOTES = (
    "Aggregated metrics are means over the sites, each with the same weight.",
    "Rounds count from 1; a round's validation is that of the models that it made.",
)


def metrics_summary(
    study: str, metric: str, ledger: Sequence[Round], reported: Reported, tests: Mapping[str, SiteScore]
) -> dict[str, Any]:
    """Return the summary of a run with at least one finished round.

    Args:
        reported: What the run reports.
        tests: Site -> its score on test data; empty before the test.
    """
    last, tested = ledger[-1], mean_of_scores(tests.values())
    validation = mean_of_scores(reported.validation.values())
    return {
        "schema_version": VERSION,
        "status": "metrics_reported",
        "final_round": last.round,
        "final_aggregated_metrics": _mean_metrics(last, metric),
        "round_metrics_file": ROUNDS,
        "notes": list(NOTES),
        "job_name": study,
        "key_metric": {"name": _validation_name(metric), "mode": "max"},
        "best_round": None if reported.rounds else reported.round,
        "best_metrics": _list_metrics({_validation_name(metric): validation, f"test_{metric}": tested}),
    }


def round_metrics(metric: str, record: Round) -> str:
    """Return a line of JSON on a round: the means over the sites, and each site's numbers and examples."""
    values = {
        "round": record.round,
        "aggregated_metrics": _mean_metrics(record, metric),
        "sites": [_site_metrics(record, site, metric) for site in sorted({*record.metrics, *record.validated})],
        "skipped_metrics": [],
        "key_metric": {"name": _validation_name(metric), "mode": "max"},
    }
    return json.dumps(values, allow_nan=False) + "\n"


def _site_metrics(record: Round, site: str, metric: str) -> dict[str, Any]:
    values = {**record.metrics.get(site, {}), _validation_name(metric): record.validated.get(site)}
    weight = {"weight": record.examples[site], "weight_key": "examples"} if site in record.examples else {}
    return {"name": site, "metrics": _list_metrics(values), **weight}


def _mean_metrics(record: Round, metric: str) -> list[dict[str, Any]]:
    """Return the mean over sites of each number of the training, and of the validation."""
    names = sorted({name for values in record.metrics.values() for name in values})
    means = {name: mean_of_known(values.get(name) for values in record.metrics.values()) for name in names}
    return _list_metrics({**means, _validation_name(metric): record.validation_mean})


def _list_metrics(values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return [{"name": name, "value": value} for name, value in known.items()]


def _validation_name(metric: str) -> str:
    return f"validation_{metric}"
