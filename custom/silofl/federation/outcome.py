"""The result of a run: made of the sites' test scores, or of the reasons why there are none."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from silofl.base.errors import SiloFLError
from silofl.federation.course import Tests
from silofl.federation.results import Results
from silofl.federation.roster import NEVER
from silofl.federation.server import ServerRounds
from silofl.federation.unscored import describe_study, unscored_results
from silofl.parts.answer import plain_text
from silofl.study import Study
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import SiteScore, have_same_classes, pool_scores


def finished_results(server: ServerRounds, tests: Tests) -> Results:
    """Return a finished run's result: one value a site, their mean, and the mean over all cases together.

    Args:
        server: The run after its last round.
        tests: The sites' test scores.
    """
    scores = tests.scores
    study = server.study
    sites: dict[str, SiteScore | None] = {}
    for site in sorted({*server.sites, *server.find_absent_sites()}):
        sites[site] = _name_labels(study, scores[site]) if site in scores else None
    values: list[float | None] = []
    # Means over different classes have no mean.
    if have_same_classes(scores.values()):
        values = [score.value for score in sites.values() if score]
    of_parts: dict[str, Any] = {}
    for part in server.parts.values():
        of_parts |= part.outcome(server, scores).results
    reasons = _list_shortcomings(server, tests)
    reported = server.reported
    return Results(
        **describe_study(study, server.find_recipe_in_use()),
        status="INCOMPLETE" if reasons else "COMPLETE",
        reasons=tuple(reasons),
        best_round=reported.one_round,
        model=reported.how,
        sites=sites,
        mean=mean_of_known(values),
        pooled=pool_scores(scores.values()),
        run=server.id,
        ended_early=server.early_end(),
        validation=reported.validation,
        **of_parts,
    )


def _name_labels(study: Study, score: SiteScore) -> SiteScore:
    """Return a site's test with labels' names in place of their numbers, and its models where one of them is chosen."""
    names = {"0": "background"} | {str(number): name for number, name in study.labels.items()}

    def named(table: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - None of none
        # A region is named already.
        return None if table is None else {names.get(label, label): value for label, value in table.items()}

    # Not `replace`: a super model's score becomes one of a site, without what it has besides.
    plain = {field.name: getattr(score, field.name) for field in fields(SiteScore)}
    plain["models"] = score.choices and score.models
    for key in ("labels", "label_cases", "areas"):
        plain[key] = named(plain[key])
    if score.operating_point:
        plain["operating_point"] = replace(
            score.operating_point,
            thresholds=named(score.operating_point.thresholds),
            sensitivity=named(score.operating_point.sensitivity),
            specificity=named(score.operating_point.specificity),
        )
    if score.withheld:
        shown = tuple(names.get(label, label) for label in score.withheld.names)
        plain["withheld"] = replace(score.withheld, names=shown)
    return SiteScore(**plain)


def _list_shortcomings(server: ServerRounds, tests: Tests) -> list[str]:
    """Return why a finished run is not complete: sites that missed too many rounds, or the test."""
    settings = server.study.federation
    reasons = []
    for site in _list_obliged(server, tests):
        missed = [record for record in server.ledger if site in record.missed]
        if len(missed) > settings.max_missed_rounds:
            reason = missed[-1].failed.get(site, "no answer in time")
            reasons.append(
                f"site {site} missed rounds {[record.round for record in missed]} ({reason}); the study "
                f"allows {settings.max_missed_rounds}"
            )
        if server.study.asks_alone:
            if site in tests.missing:
                reasons.append(f"site {site} did not answer ({tests.missing[site]})")
        elif site not in tests.scores:
            reasons.append(f"site {site} did not test the model ({tests.missing.get(site, 'no answer')})")
    # Several exchanges may say the same loss.
    return reasons + list(dict.fromkeys(server.losses))


def _list_obliged(server: ServerRounds, tests: Tests) -> list[str]:
    """Return the sites that a complete run needs: all, unless few enough of those named are absent."""
    settings = server.study.federation
    present = sorted([*server.list_present_sites(), *server.find_absent_sites()])
    absent = {*tests.missing}
    if server.ledger:
        absent |= {site for site, reason in server.ledger[0].failed.items() if reason == NEVER}
    absent &= {*settings.named} & {*present}
    if len(absent) > settings.may_miss:
        return present
    return [site for site in present if site not in absent]


def describe_failure(error: Exception) -> str:
    """Return why a run failed, for its result: a fault that is known, or the kind of one that is not."""
    if isinstance(error, (SiloFLError, OSError)):
        return str(error)
    return plain_text(f"an unexpected {type(error).__name__}, which the server's log has in full: {error}")


def stopped_results(study: Study, run: str | None, finished: int, what: str) -> Results:
    """Return the result of a run that is stopped from outside, with how to go on.

    Args:
        run: The run's id; None where it is not known.
        finished: Rounds that had finished.
        what: What stopped it, as a sentence that ends before "after round 2".
    """
    how = f"with continue_run: {run} to go on" if run else "to begin it"
    reason = f"{what} after round {finished} of {study.total_rounds}; submit the job again {how}"
    return unscored_results(study, "FAILED", [reason], run, was_stopped=True)
