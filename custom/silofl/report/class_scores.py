"""The scores of a classification beside the study's metric: at each site, and on the test data of all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Results = Mapping[str, Any]
NAMES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auroc": "AUROC"}
# What several runs are compared by beside their metric: key -> name of the column.
AVERAGES_ALSO = {
    "accuracy": "accuracy (site average)",
    "balanced_accuracy": "balanced accuracy (site average)",
    "auroc": "AUROC (site average, where defined)",
    "everyone_balanced_accuracy": "balanced accuracy on all sites' test data",
}


def scores_beside(results: Results) -> dict[str, list[float | None]]:
    """Return name -> value of each site, in the order of the result's sites, of the scores that are not the metric."""
    also, metric = results.get("also") or {}, results.get("metric")
    columns = {key: [also.get(site, {}).get(key) for site in results["sites"]] for key in NAMES if key != metric}
    return {NAMES[key]: values for key, values in columns.items() if any(value is not None for value in values)}


def averages_also(results: Results, sites: Sequence[str]) -> dict[str, float]:
    """Return key of `AVERAGES_ALSO` -> average of a run over the sites, without those that it does not have.

    An average needs a value of every site; that of the AUROC is over the sites that have one.
    """
    also, metric = results.get("also") or {}, results.get("metric")
    values = {key: [also.get(site, {}).get(key) for site in sites] for key in NAMES if key != metric}
    values["auroc"] = [value for value in values["auroc"] if value is not None]
    found = {key: float(np.mean(column)) for key, column in values.items() if column and None not in column}
    together = (results.get("everyone") or {}).get("balanced_accuracy")
    return found if together is None else found | {"everyone_balanced_accuracy": together}


def everyone_sentence(results: Results) -> str:
    """Return how the sites' models do on the test data of all sites; nothing where they were not tested on them."""
    everyone = results.get("everyone")
    if not everyone:
        return ""
    values = ", ".join(f"{NAMES[key]} {everyone[key]:.3f}" for key in NAMES if everyone.get(key) is not None)
    return f"on all sites' test data ({everyone['num_cases']} cases): {values}, mean over the sites' models"
