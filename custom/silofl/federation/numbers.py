"""Checks of the numbers in a site's answer: counts, losses and scores."""

from __future__ import annotations

import json
import math
from typing import Any

from silofl.data.domain import Domain
from silofl.errors import AggregationError, ConfigError
from silofl.schema import read
from silofl.training.site_score import SiteScore


def check_numbers(site: str, meta: dict[str, Any], has_drift: bool = False) -> None:
    """Refuse an answer to a training task with numbers that cannot be used as weights or written as JSON.

    Args:
        site: Who sent it.
        meta: The numbers.
        has_drift: Whether the study measures the drift, so that it must be among them.

    Raises:
        AggregationError: The number of examples, the loss or a wanted drift is missing or not finite.
    """
    count = meta.get("num_examples")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise AggregationError(f"site {site!r} must have at least 1 training example, not {count!r}")
    metrics = meta.get("metrics") or {}
    wanted = ("loss", "drift") if has_drift else ("loss",)
    for name in {**dict.fromkeys(wanted), **metrics}:
        if name != "validation" and not _is_finite(metrics.get(name)):
            raise AggregationError(f"site {site!r} must send its {name} as a finite number, not {metrics.get(name)!r}")
    check_score(site, "validation", meta)


def check_score(site: str, part: str, meta: dict[str, Any], kind: type[SiteScore] = SiteScore) -> SiteScore | None:
    """Return a site's score on a part of its data; None where that part is empty or was not asked for.

    Raises:
        AggregationError: A value is not finite, a number of cases is no count, or two tables are of other labels.
    """
    score = (meta.get("metrics") or {}).get(part)
    if score is None:
        return None
    value, counts = score.get("value"), [score.get("num_cases"), score.get("num_excluded")]
    if (value is not None and not _is_finite(value)) or not all(isinstance(count, int) for count in counts):
        raise AggregationError(f"site {site!r} must send its {part} as a finite number with counts, not {score}")
    try:
        # Tried here, so that no answer can make the ledger unwritable later.
        json.dumps(score, allow_nan=False)
    except (TypeError, ValueError):
        raise AggregationError(f"site {site!r} must send its {part} as plain finite values, not {score}") from None
    _check_tables(site, part, score)
    try:
        return kind.from_dict(score, f"the {part} of site {site!r}")
    except ConfigError as error:
        raise AggregationError(str(error)) from None


def check_domain(site: str, meta: dict[str, Any]) -> Domain:
    """Return what a site says of its training images; nothing where it says nothing.

    Raises:
        AggregationError: A key or a value is none that a domain has.
    """
    try:
        return read(Domain, meta.get("domain", {}), f"the domain of site {site!r}")
    except ConfigError as error:
        raise AggregationError(str(error)) from None


def _check_tables(site: str, part: str, score: dict[str, Any]) -> None:
    for key, is_right in {"labels": _is_finite, "also": _is_finite, "label_cases": _is_count}.items():
        table = score.get(key, {})
        if not isinstance(table, dict) or not all(is_right(value) for value in table.values()):
            kind = "counts" if is_right is _is_count else "finite numbers"
            raise AggregationError(f"site {site!r} must send the {key} of its {part} as {kind} by name, not {table!r}")
    labels = list(score.get("labels", {}))
    counted = list(score.get("label_cases", labels))
    if set(counted) != set(labels):
        raise AggregationError(f"site {site!r} must send the label_cases of its {part} for {labels}, not {counted}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
