"""All numbers of runs as one tidy table, ``results.csv``, one a row; those of each round are in ``metrics.csv``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from silofl.federation.results import Results, SiteResult
from silofl.inference.unseen import UnseenTest
from silofl.report.run_records import RunRecords
from silofl.study.sections import RANKED, SEGMENTATION_ONLY
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.site_score import SurfaceScore


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One number of a result.

    Attributes:
        method: Name of the row of the comparison that the run belongs to; of a single run its algorithm.
        run: The run's id.
        algorithm: The algorithm's name.
        seed: Of the study.
        site: Whose data the number is of.
        model: ``federated`` is the model that the run tests, ``federated_calibrated`` the same with a decision
            threshold of the site, ``alone`` the one that the site trained by itself, and ``kept`` what it chose. A
            super model also has ``global``, ``ensemble``, ``super`` and its sites' names.
        part: ``validation``, ``test``, or ``unseen``: all data of a site that took no part in the training.
        metric: The study's metric; another one of a classification, of the surfaces or of a package; or ``gain``, the
            mean paired difference of kept and alone.
        label: Name of the label that the number is of; empty where it is of all labels.
        value: The number; empty where the site has none.
        low: Lower end of a gain's 95 % interval.
        high: Its upper end.
        cases: Cases that count in the number, where they are known.
        verdict: What the gain says.
    """

    method: str
    run: str | None
    algorithm: str | None
    seed: int | None
    site: str
    model: str = FEDERATED
    part: str = "test"
    metric: str
    label: str = ""
    value: float | None
    low: float | None = None
    high: float | None = None
    cases: int | None = None
    verdict: str = ""


def list_result_rows(runs: Mapping[str, Sequence[RunRecords]]) -> list[ResultRow]:
    """Return the rows of several runs; a run without numbers has none.

    Args:
        runs: Name of the method -> its runs.
    """
    return [row for method, of_method in runs.items() for run in of_method for row in _list_run_rows(method, run)]


def _list_run_rows(method: str, run: RunRecords) -> Iterator[ResultRow]:
    results = run.results
    row = partial(ResultRow, method=method, run=results.run, algorithm=results.algorithm, seed=results.seed)
    for site, own in results.by_site.items():
        of_site = partial(row, site=site, metric=str(results.metric))
        yield from _tested_rows(results, own, of_site)
        if site in (results.joining or {}):
            yield from _joined_rows(
                results.joining[site], partial(of_site, cases=_count_of_models(results.metric, own.num_cases))
            )
        yield from _surface_rows((results.tested.surface or {}).get(site), of_site)
        for name, score in (results.tested.extra_metrics or {}).get(site, {}).items():
            yield of_site(metric=name, value=score.value, cases=score.num_cases)
        if own.validation is not None:
            yield of_site(part="validation", value=own.validation, cases=results.tested.validation[site].num_cases)
    if run.unseen:
        yield from _unseen_rows(run.unseen, row)


def _tested_rows(results: Results, own: SiteResult, row: partial[ResultRow]) -> Iterable[ResultRow]:
    """Yield the test of the run's models at one site: of all labels, of each, and by other metrics."""
    yield row(value=own.value, cases=own.num_cases)
    # Of a class it is the recall, whatever the metric.
    of_label = partial(row, metric="recall") if results.classes else row
    yield from (of_label(label=label, value=value) for label, value in own.labels.items())
    of_area = partial(row, metric=results.metric if results.metric in RANKED else "auroc")
    yield from (of_area(label=label, value=value) for label, value in own.areas.items())
    also = {name: value for name, value in own.also.items() if name != results.metric}
    yield from (row(metric=name, value=value, cases=own.num_cases) for name, value in also.items())
    cases = _count_of_models(results.metric, own.num_cases)
    yield from (row(model=model, value=value, cases=cases) for model, value in own.models.items())


def _joined_rows(one: Joined, row: partial[ResultRow]) -> Iterable[ResultRow]:
    names = {LOCAL: "alone", SHIFTED: SHIFTED, CHOSEN: "kept"}
    for model, name in names.items():
        yield row(model=name, value=one.tested(model))
    cases = one.num_test_units if one.unit == "case" else None
    gain = partial(row, model=names[CHOSEN], metric="gain", value=one.difference, cases=cases)
    yield gain(low=one.low, high=one.high, verdict=one.verdict)


def _count_of_models(metric: str | None, cases: int | None) -> int | None:
    """Return how many cases count for models beside the tested one; unknown where each leaves out other empty ones."""
    return None if metric in SEGMENTATION_ONLY["metric"] else cases


def _surface_rows(surface: SurfaceScore | None, row: partial[ResultRow]) -> Iterable[ResultRow]:
    if surface:
        yield row(metric=f"hd95_{surface.unit}", value=surface.hd95, cases=surface.num_cases)
        yield row(metric="surface_dice", value=surface.surface_dice, cases=surface.num_cases)


def _unseen_rows(unseen: UnseenTest, row: partial[ResultRow]) -> Iterable[ResultRow]:
    at_site = partial(row, site=unseen.site, part="unseen", metric=unseen.metric, cases=unseen.num_counted)
    yield at_site(value=unseen.value)
    cases = _count_of_models(unseen.metric, unseen.num_counted)
    yield from (at_site(model=model, value=value, cases=cases) for model, value in unseen.models.items())
