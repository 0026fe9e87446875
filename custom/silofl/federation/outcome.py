"""The result of a run: made of the sites' test scores, or of the reasons why there are none."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from silofl.base.errors import SiloFLError
from silofl.federation.course import Tests
from silofl.federation.known_sites import (
    NEVER,
    early_end,
    find_absent_sites,
    find_recipe_in_use,
    list_present_sites,
)
from silofl.federation.results import Results
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
    scores, reported, study = tests.scores, server.reported, server.study
    sites = {site: _name_labels(study, scores[site]) if site in scores else None for site in server.sites}
    sites = dict(sorted((sites | dict.fromkeys(find_absent_sites(server))).items()))
    # Means over different classes have no mean.
    known = [one.value for one in sites.values() if one and one.value is not None]
    known = known if have_same_classes(scores.values()) else []
    reasons = _shortcomings(server, tests)
    return Results(
        **describe_study(study, find_recipe_in_use(server)),
        status="INCOMPLETE" if reasons else "COMPLETE",
        reasons=tuple(reasons),
        best_round=reported.one_round,
        model=reported.how,
        sites=sites,
        mean=mean_of_known(known),
        pooled=pool_scores(scores.values()),
        run=server.id,
        ended_early=early_end(server),
        validation=reported.validation,
        **{key: more for part in server.parts.values() for key, more in part.outcome(server, scores).results.items()},
    )


def _name_labels(study: Study, score: SiteScore) -> SiteScore:
    """Return a site's test with labels' names in place of their numbers, and its models where one of them is chosen."""
    names = {"0": "background"} | {str(number): name for number, name in study.labels.items()}

    def named(table: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - None of none
        # A region is named already.
        return None if table is None else {names.get(label, label): value for label, value in table.items()}

    calling, withheld = score.calling, score.withheld
    plain = {part.name: getattr(score, part.name) for part in fields(SiteScore)}
    plain["models"] = score.choices and score.models
    plain |= {key: named(plain[key]) for key in ("labels", "label_cases", "areas")}
    if calling:
        shares = {key: named(getattr(calling, key)) for key in ("thresholds", "sensitivity", "specificity")}
        plain["calling"] = replace(calling, **shares)
    if withheld:
        plain["withheld"] = replace(withheld, names=tuple(names.get(label, label) for label in withheld.names))
    return SiteScore(**plain)


def _shortcomings(server: ServerRounds, tests: Tests) -> list[str]:
    """Return why a finished run is not complete: sites that missed too many rounds, or the test."""
    settings, reasons = server.study.federation, []
    present = sorted([*list_present_sites(server), *find_absent_sites(server)])
    late = {site for record in server.ledger[:1] for site, why in record.failed.items() if why == NEVER}
    allowed, absent = settings.max_missed_rounds, {*settings.named} & (tests.missing.keys() | late) & {*present}
    forgiven = absent if len(absent) <= settings.may_miss else set()
    for site in (one for one in present if one not in forgiven):
        missed = [record.round for record in server.ledger if site in record.missed]
        if len(missed) > allowed:
            last = next(r for r in reversed(server.ledger) if site in r.missed)
            reason = last.failed.get(site, "no answer in time")
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
        run: The run's id; None where it is not known.
        finished: Rounds that had finished.
        what: What stopped it, as a sentence that ends before "after round 2".
    """
    how = f"with continue_run: {run} to go on" if run else "to begin it"
    reason = f"{what} after round {finished} of {study.total_rounds}; submit the job again {how}"
    return unscored_results(study, "FAILED", [reason], run, was_stopped=True)
