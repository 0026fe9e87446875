"""What a run comes to: the sites' test scores as one result, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from silofl import __version__
from silofl.federation.ledger import Round
from silofl.federation.results import (
    UNFINISHED,
    ClassResults,
    Results,
    SelectorResults,
    SuperResults,
    Tested,
    ThresholdValue,
)
from silofl.federation.server import ServerRounds
from silofl.federation.super_rounds import SuperRounds
from silofl.study import Study
from silofl.training.metrics import pooled_score
from silofl.training.site_score import SiteScore, SuperScore

OF_THE_STUDY = ("algorithm", "preset", "seed", "rounds", "metric", "normalization", "split_unit", "version")


def finished_results(
    server: ServerRounds,
    tests: Mapping[str, Mapping[str, Any]],
    missing: Mapping[str, str],
    together: SuperRounds | None = None,
) -> Results:
    """Return a finished run's result: one value a site, their mean, and the mean over all cases together.

    Args:
        server: The run after its last round.
        tests: What each site that tested the model sent.
        missing: Why other sites sent nothing.
        together: The super model with its selector, of a study that has one.
    """
    kind = SuperScore if together else SiteScore
    scores = {site: kind.from_dict(test, f"the test of site {site!r}") for site, test in tests.items()}
    number, study = server.reported_round(), server.study
    values = {site: scores[site].value if site in scores else None for site in server.models}
    known = [value for value in values.values() if value is not None]
    reasons = _shortcomings(server, scores, missing)
    return Results(
        **_description(study),
        status="INCOMPLETE" if reasons else "COMPLETE",
        reasons=tuple(reasons),
        best_round=number,
        model=_chosen(server),
        sites=values,
        mean=float(np.mean(known)) if known else None,
        spread=float(np.std(known)) if known else None,
        pooled=pooled_score([score.as_dict() for score in scores.values()], study.metric),
        tested=Tested(
            run=server.run,
            cases={site: score.num_cases for site, score in scores.items()},
            excluded_cases={site: score.num_excluded for site, score in scores.items()},
            by_label={site: _named(study, score.labels or {}) for site, score in scores.items()},
            validation=server.ledger[number - 1].validation,
        ),
        classes=_class_results(study, scores) if study.task == "classification" else None,
        super_model=_super_results(together, scores) if together else None,
    )


def _class_results(study: Study, scores: Mapping[str, SiteScore]) -> ClassResults:
    return ClassResults(
        also={site: score.also or {} for site, score in scores.items()},
        label_cases={site: _named(study, score.label_cases or {}) for site, score in scores.items()},
    )


def _named(study: Study, by_label: Mapping[str, float]) -> dict[str, float]:
    """Return values by label under the labels' names."""
    names = {"0": "background"} | {str(number): name for number, name in study.labels.items()}
    return {names.get(label, label): value for label, value in by_label.items()}


def _super_results(together: SuperRounds, scores: Mapping[str, SuperScore]) -> SuperResults:
    selectors = {site: score.selector for site, score in scores.items()}
    return SuperResults(
        models={site: score.models for site, score in scores.items()},
        choices={site: score.choices for site, score in scores.items()},
        selector=SelectorResults(
            outputs=tuple(together.server.reported_selector().outputs),
            cases={site: counts.cases for site, counts in selectors.items()},
            slices={site: counts.slices for site, counts in selectors.items()},
        ),
        threshold=together.threshold,
        threshold_without=together.refused,
        by_threshold=_by_threshold(together.thresholds, [score.by_threshold for score in scores.values()]),
    )


def _by_threshold(
    thresholds: Sequence[float], tables: Sequence[Sequence[tuple[float, int]]]
) -> tuple[ThresholdValue, ...]:
    """Return for each threshold the mean over sites of their cases' mean value."""
    found = []
    for number, threshold in enumerate(thresholds):
        means = [table[number][0] / table[number][1] for table in tables if table[number][1]]
        if means:
            found.append(ThresholdValue(threshold, float(np.mean(means))))
    return tuple(found)


def _description(study: Study) -> dict[str, Any]:
    return study.description() | {"version": __version__}


def _chosen(server: ServerRounds) -> str:
    """Return how the reported round was chosen."""
    number = server.reported_round()
    if server.best_round is None:
        return f"last round, {number}: no validation data"
    counts = {record.rank[0] for record in server.ledger if record.rank}
    among = f", among the rounds that {max(counts)} sites validated" if len(counts) > 1 else ""
    return f"best validation, round {number}{among}"


def _shortcomings(server: ServerRounds, scores: Mapping[str, SiteScore], missing: Mapping[str, str]) -> list[str]:
    """Return why a finished run is not complete: sites that missed too many rounds, or the test."""
    allowed = server.study.federation.max_missed_rounds
    reasons = []
    for site in server.models:
        missed = [record.round for record in server.ledger if site in record.missed]
        if len(missed) > allowed:
            last = next(r for r in reversed(server.ledger) if site in r.missed)
            reasons.append(f"site {site} missed rounds {missed} ({_reason(last, site)}); the study allows {allowed}")
        if site not in scores:
            reasons.append(f"site {site} did not test the model ({missing.get(site, 'no answer')})")
    return reasons


def _reason(record: Round, site: str) -> str:
    return record.failed.get(site) or record.refused.get(site) or "no answer in time"


def without_numbers(study: Study | str, status: str, reasons: Sequence[str] = ()) -> Results:
    """Return what is known of a run that has no numbers.

    Args:
        study: The study, or its name where no more is known of it.
        status: FAILED or UNFINISHED.
        reasons: Why.
    """
    if isinstance(study, str):
        known = dict.fromkeys(OF_THE_STUDY) | {"study": study, "recipe": {}, "labels": {}}
    else:
        # Which version an unfinished run was started with is not known.
        known = _description(study) | ({"version": None} if status == UNFINISHED else {})
    nothing = dict.fromkeys(("best_round", "model", "mean", "spread", "pooled"))
    return Results(**known, status=status, reasons=tuple(reasons), sites={}, **nothing)
