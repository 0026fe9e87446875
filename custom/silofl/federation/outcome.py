"""The result of a run: made of the sites' test scores, or of the reasons why there are none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from silofl import __version__
from silofl.core.recipe import Recipe
from silofl.errors import ConfigError, SiloFLError
from silofl.federation.course import Tests
from silofl.federation.known_sites import early_end, find_departed_sites, find_recipe_in_use, list_present_sites
from silofl.federation.results import OF_THE_STUDY, UNFINISHED, ClassResults, Results, Status, Tested
from silofl.federation.server import ServerRounds
from silofl.parts.answer import plain_text
from silofl.parts.load import describe_kept
from silofl.study import Study
from silofl.study.sections import RANKED
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import CallingScore, SiteScore, WithheldNumbers, have_same_classes, pool_scores

N = TypeVar("N", int, float)


def finished_results(server: ServerRounds, tests: Tests) -> Results:
    """Return a finished run's result: one value a site, their mean, and the mean over all cases together.

    Args:
        server: The run after its last round.
        tests: The sites' test scores.
    """
    scores, reported, study = tests.scores, server.reported, server.study
    values = {site: scores[site].value if site in scores else None for site in server.sites}
    # Means over different classes have no mean.
    known = [one for one in values.values() if one is not None] if have_same_classes(scores.values()) else []
    reasons = _shortcomings(server, tests)
    # A test that is withheld whole has no number of cases either.
    said = {site: score for site, score in scores.items() if not (score.withheld and score.value is None)}
    return Results(
        **_describe_study(study, find_recipe_in_use(server)),
        status="INCOMPLETE" if reasons else "COMPLETE",
        reasons=tuple(reasons),
        best_round=reported.one_round,
        model=reported.how,
        sites=values,
        mean=mean_of_known(known),
        spread=float(np.std(known)) if known else None,
        pooled=pool_scores(scores.values()),
        run=server.id,
        ended_early=early_end(server),
        left=find_departed_sites(server) or None,
        tested=Tested(
            cases={site: score.num_cases for site, score in said.items()},
            patients={site: score.num_patients for site, score in said.items()},
            excluded_cases={site: score.num_excluded for site, score in said.items()},
            by_label={site: _name_labels(study, score.labels or {}) for site, score in scores.items()},
            validation=reported.validation,
            surface={site: score.surface for site, score in scores.items() if score.surface} or None,
            extra_metrics={site: score.extra_metrics for site, score in scores.items() if score.extra_metrics} or None,
            withheld={site: _name_withheld(study, one) for site, score in scores.items() if (one := score.withheld)}
            or None,
            **_empty_case_results(scores),
        ),
        classes=_class_results(study, scores) if study.task != "segmentation" else None,
        **{key: more for part in server.parts.values() for key, more in part.outcome(server, scores).results.items()},
    )


def _name_withheld(study: Study, one: WithheldNumbers) -> WithheldNumbers:
    return replace(one, names=tuple(_name_labels(study, dict.fromkeys(one.names, 0))))


def _empty_case_results(scores: Mapping[str, SiteScore]) -> dict[str, Any]:
    some = {site: score for site, score in scores.items() if score.num_empty}
    if not some:
        return {}
    return {
        "empty_cases": {site: score.num_empty for site, score in some.items()},
        "false_positive_cases": {site: score.num_false_positive or 0 for site, score in some.items()},
        "with_truth": {site: score.value_with_truth for site, score in some.items()},
    }


def _class_results(study: Study, scores: Mapping[str, SiteScore]) -> ClassResults:
    areas = {site: _name_labels(study, score.areas or {}) for site, score in scores.items()}
    return ClassResults(
        also={site: score.also or {} for site, score in scores.items()},
        label_cases={site: _name_labels(study, score.label_cases or {}) for site, score in scores.items()},
        areas=areas if study.is_multilabel else None,
        class_areas=areas if not study.is_multilabel and study.metric in RANKED else None,
        callings={site: _name_calling(study, score.calling) for site, score in scores.items() if score.calling} or None,
    )


def _name_calling(study: Study, calling: CallingScore) -> CallingScore:
    return replace(
        calling,
        thresholds=_name_labels(study, calling.thresholds),
        sensitivity=_name_labels(study, calling.sensitivity),
        specificity=_name_labels(study, calling.specificity),
    )


def _name_labels(study: Study, by_label: Mapping[str, N]) -> dict[str, N]:
    names = {"0": "background"} | {str(number): name for number, name in study.labels.items()}
    # A region is named already.
    return {names.get(label, label): value for label, value in by_label.items()}


def _describe_study(study: Study, recipe: Recipe | None = None) -> dict[str, Any]:
    """Return what results say of a study, and of its recipe as the run carried it out."""
    try:
        kept = describe_kept(study)
    except ConfigError:
        # The file of a part is broken: that is why the run has failed, which must have a result all the same.
        kept = []
    recipe = recipe or study.recipe
    described = recipe.as_dict() | {"questions": recipe.questions(kept, study.training.frozen)}
    return study.description() | {"version": __version__, "recipe": described}


def _shortcomings(server: ServerRounds, tests: Tests) -> list[str]:
    """Return why a finished run is not complete: sites that missed too many rounds, or the test."""
    allowed = server.study.federation.max_missed_rounds
    reasons = []
    for site in list_present_sites(server):
        missed = [record.round for record in server.ledger if site in record.missed]
        if len(missed) > allowed:
            last = next(r for r in reversed(server.ledger) if site in r.missed)
            reason = last.failed.get(site) or last.refused.get(site) or "no answer in time"
            reasons.append(f"site {site} missed rounds {missed} ({reason}); the study allows {allowed}")
        if server.study.asks_alone and site in tests.missing:
            reasons.append(f"site {site} did not answer ({tests.missing[site]})")
        elif site not in tests.scores and not server.study.asks_alone:
            reasons.append(f"site {site} did not test the model ({tests.missing.get(site, 'no answer')})")
    return reasons + list(dict.fromkeys(server.losses))


def describe_failure(error: Exception) -> str:
    """Return why a run failed, for its result: a fault that is known, or the kind of one that is not."""
    if isinstance(error, (SiloFLError, OSError)):
        return str(error)
    return plain_text(f"an unexpected {type(error).__name__}, which the server's log has in full: {error}")


def stopped_results(study: Study, run: str | None, finished: int, what: str) -> Results:
    """Return the result of a run that is stopped from outside, with how to go on.

    Args:
        study: The study.
        run: The run's id; None where it is not known, as no round has finished.
        finished: Rounds that had finished.
        what: What stopped it, as a sentence that ends before "after round 2".
    """
    how = f"with continue_run: {run} to go on" if finished else "to begin it"
    reason = f"{what} after round {finished} of {study.total_rounds}; submit the job again {how}"
    return unscored_results(study, "FAILED", [reason], run, was_stopped=True)


def unscored_results(
    study: Study | str, status: Status, reasons: Sequence[str] = (), run: str | None = None, was_stopped: bool = False
) -> Results:
    """Return the result of a run without scores.

    Args:
        study: The study, or its name where no more is known of it.
        status: FAILED or UNFINISHED.
        reasons: Why.
        run: The run's id.
        was_stopped: Whether it was stopped from outside.
    """
    if isinstance(study, str):
        known: dict[str, Any] = dict.fromkeys(OF_THE_STUDY) | {"study": study, "recipe": {}, "labels": {}}
    else:
        # Which version an unfinished run was started with is not known.
        known = _describe_study(study) | ({"version": None} if status == UNFINISHED else {})
    nothing: dict[str, Any] = dict.fromkeys(("best_round", "model", "mean", "spread", "pooled"))
    return Results(
        **known, status=status, reasons=tuple(reasons), sites={}, run=run, was_stopped=was_stopped, **nothing
    )
