"""Tables of one run's result: by site, by label, and how classes are called."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from silofl.core.findings import name_absence, sort_labels
from silofl.federation.results import Results
from silofl.study.sections import CLASS_MEANS, RANKED
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.metrics import mean_of_known, pool_values
from silofl.training.site_score import SiteScore
from silofl_hospital.report.tables import (
    METRIC_NAMES,
    MISSING,
    TextTable,
    format_count,
    format_distance,
    format_number,
)

# With more labels the table would be wider than a page.
MOST_LABELS_BESIDE_THE_VALUE = 4
HD95, SURFACE_DICE = "HD95", "surface Dice"
Column = list[float | None]
# The federated model has a decision threshold at each hospital, as the other two do; beside it stands the usual 0.5.
MODEL_NAMES = {LOCAL: "local", SHIFTED: "federated", FEDERATED: "at 0.5", CHOSEN: "kept"}


def name_models(joining: Iterable[Joined]) -> dict[str, str]:
    """Return `MODEL_NAMES`, without the federated model at 0.5 where no site's threshold moves it."""
    names = dict(MODEL_NAMES)
    if all(joined.tested(FEDERATED) == joined.tested(SHIFTED) for joined in joining):
        del names[FEDERATED]
    return names


def summarise_seeds(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean over seeds and their standard deviation; None of no seed, and the deviation of one alone."""
    # The deviation of a sample: seeds are drawn from all that could have been.
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return mean_of_known(values), deviation


def mean_and_deviation(values: Sequence[float], forms: tuple[str, str] = (".3f", ".3f")) -> str:
    """Return ``mean ± standard deviation`` over seeds; only the mean of one seed, ``-`` of none."""
    mean, deviation = summarise_seeds(values)
    if mean is None:
        return MISSING
    if deviation is None:
        return format(mean, forms[0])
    return f"{mean:{forms[0]}} ± {deviation:{forms[1]}}"


def site_table(results: Results) -> TextTable:
    """Return one row a site, then the mean over sites, their spread and the mean over all cases."""
    over = f"over {tested_sites(results)}"
    pooled = "mean over all cases, class by class" if results.metric in CLASS_MEANS else "mean over all cases"
    # These rows sum up, in this order: `_count_column` leaves two cells empty to reach the third.
    ends = {f"mean {over}": results.mean, f"spread {over} (std)": results.spread, pooled: results.pooled}
    if results.joining:
        kept = f"kept by {len(results.joining)} {'site' if len(results.joining) == 1 else 'sites'}, mean"
        if has_moved_thresholds(results):
            kept += ", at their thresholds"
        ends[kept] = results.joining_means[CHOSEN]
    tests = list(results.sites.values())
    # A site without a test may have validated, and the other way round.
    validation = []
    for site in results.sites:
        score = results.validation.get(site)
        validation.append(score.value if score else None)
    columns = {
        "site": [*results.sites, *ends],
        name_tested(results): [*map(format_number, (*results.values.values(), *ends.values()))],
        "test cases": _count_column(tests, "num_cases"),
        "test patients": _count_column(tests, "num_patients"),
        "excluded cases": _count_column(tests, "num_excluded"),
        "validation": [*map(format_number, (*validation, results.validation_mean))],
    }
    columns |= _further_columns(results)
    if any(test.surface for test in results.tests.values()):
        columns[HD95], columns[SURFACE_DICE] = surface_texts(results)
    heads = [*columns]
    cells = [*columns.values()]
    # Metrics of two packages may have one name, so they are no keys.
    for name, head in list_extra_metrics([results]).items():
        heads.append(head)
        cells.append(_append_mean(list_extra_values(results, name)))
    return TextTable(tuple(heads), tuple(zip_longest(*cells, fillvalue="")), num_summary=len(ends))


def has_moved_thresholds(results: Results) -> bool:
    """Return whether the run's model, which is tested at the usual threshold, is another at a site's own."""
    return FEDERATED in name_models((results.joining or {}).values())


def name_tested(results: Results) -> str:
    """Return the name of the tested model's values, with its threshold where a site's own moves it."""
    name = results.metric or "value"
    return f"{name} {MODEL_NAMES[FEDERATED]}" if has_moved_thresholds(results) else name


def _count_column(tests: Sequence[SiteScore | None], key: str) -> list[str]:
    """Return a number of each site, and of all as far as each says it, below it in the row of all cases."""
    numbers = [None if test is None or test.is_withheld else getattr(test, key) for test in tests]
    # Sites that withhold their numbers are left out; one that does not know its number makes the sum unknown.
    stated = [getattr(test, key) for test in tests if test and not test.is_withheld]
    total = sum(stated) if stated and None not in stated else None
    return [*map(format_count, numbers), "", "", format_count(total)]


def list_extra_metrics(runs: Iterable[Results]) -> dict[str, str]:
    """Return ``package==version/name`` of each metric that some runs were tested by -> the head of its column."""
    heads = {}
    for run in runs:
        for test in run.tests.values():
            for name in test.extra_metrics or ():
                heads[name] = name.rpartition("/")[2]
    return heads


def list_extra_values(results: Results, name: str) -> list[float | None]:
    """Return a package's metric of each site, in the order of the result's sites."""
    scores = [read_table(test, "extra_metrics").get(name) for test in results.sites.values()]
    return [score and score.value for score in scores]


def tested_sites(results: Results) -> str:
    """Return over which sites a mean of tests is: ``sites``, or ``3 of 4 sites``."""
    # The words are said with every mean: one over fewer sites must not pass for one over all.
    num_tested = sum(value is not None for value in results.values.values())
    return "sites" if num_tested == len(results.sites) else f"{num_tested} of {len(results.sites)} sites"


def label_table(results: Results) -> TextTable | None:
    """Return one row a site, one column a label by name, and the mean over sites; None where `site_table` has them.

    Of findings, and of classes with areas under curves, it is one row a class and site, and one of all sites.
    """
    if results.has_areas:
        return _area_table(results)
    labels = dict(sorted(label_columns(results).items()))
    if len(labels) <= MOST_LABELS_BESIDE_THE_VALUE:
        return None
    columns = [_add_counts(results, name, _append_mean(values)) for name, values in labels.items()]
    rows = zip((*results.sites, "mean over sites"), *columns, strict=True)
    return TextTable(("site", *labels), tuple(rows), num_summary=1)


def _area_table(results: Results) -> TextTable:
    shares = ("sensitivity", "specificity") if results.has_findings else ("recall",)
    rows = []
    for name in results.labels.values():
        # Each share has a label of its own: a finding's absence counts as one.
        keys = (name, name_absence(name))[: len(shares)]
        columns: list[list[tuple[float, int]]] = [[] for _ in (name, *keys)]
        for site, test in results.sites.items():
            cases = read_table(test, "label_cases")
            labels = read_table(test, "labels")
            columns[0].append(_count_share(read_table(test, "areas").get(name), cases.get(name)))
            for column, key in zip(columns[1:], keys, strict=True):
                column.append(_count_share(labels.get(key), cases.get(key)))
            rows.append((name, site, *(_write_share(*column[-1]) for column in columns)))
        # Only a site knows its cases' scores, so that all sites have a weighted mean and no area of their own.
        pooled = [_write_share(pool_values(column), sum(count for _, count in column)) for column in columns]
        rows.append((name, "all sites", *pooled))
    area_name = METRIC_NAMES[results.metric if results.metric in RANKED else "auroc"]
    head = "finding" if results.has_findings else "class"
    return TextTable((head, "site", area_name, *shares), tuple(rows), num_text=2)


def read_table(test: SiteScore | None, key: str) -> Mapping[str, Any]:
    """Return a table of a site's test, as its ``labels``; an empty one without a test."""
    return getattr(test, key, None) or {}


def _count_share(value: float | None, cases: float | None) -> tuple[float, int]:
    # Cases of which nothing is known must not count in the mean of all.
    return (math.nan, 0) if value is None else (value, int(cases or 0))


def _write_share(value: float | None, count: int) -> str:
    return f"{format_number(value)} of {count}" if count else MISSING


def operating_point_table(results: Results) -> TextTable | None:
    """Return one row per site: how its tested model's classes are called; None where none are."""
    if not results.operating_points_by_site:
        return None
    # A site may lack thresholds for classes that others have.
    classes: dict[str, None] = {}
    for operating_point in results.operating_points_by_site.values():
        classes |= dict.fromkeys(operating_point.thresholds)
    heads = ["site", "temperature", "ECE without", "ECE with"]
    for name in classes:
        heads += [f"threshold of {name}", f"sensitivity {name}", f"specificity {name}"]
    rows = []
    for site, operating_point in results.operating_points_by_site.items():
        row = [site, f"{operating_point.temperature:.2f}"]
        row += [
            _write_error(operating_point.error, operating_point.calibrated),
            _write_error(operating_point.error_after, operating_point.calibrated_after),
        ]
        for name in classes:
            for table in (operating_point.thresholds, operating_point.sensitivity, operating_point.specificity):
                row.append(format_number(table.get(name)))
        rows.append(tuple(row))
    return TextTable(tuple(heads), tuple(rows))


def _write_error(error: float | None, by_chance: float | None) -> str:
    # Older results do not have what chance alone brings.
    return format_number(error) + ("" if by_chance is None else f" ({by_chance:.3f})")


def case_metric(metric: str | None) -> str | None:
    """Return the metric of a mean over single cases, which have an accuracy and no balanced one."""
    return "accuracy" if metric in METRIC_NAMES else metric


def label_columns(results: Results) -> dict[str, Column]:
    """Return label -> value of each site, in the order of the results' labels and sites; nothing of a single label."""
    tables = [read_table(test, "labels") for test in results.sites.values()]
    columns: dict[str, Column] = {}
    for name in sort_labels(chain(*tables), {name: name for name in results.labels.values()}):
        columns[name] = [table.get(name) for table in tables]
    # The value of a single label is the site's value itself.
    return columns if len(columns) > 1 else {}


def metric_columns(results: Results) -> dict[str, Column]:
    """Return metric -> value of each site, in the order of the result's sites, of a classification's other metrics."""
    tables = [read_table(test, "also") for test in results.sites.values()]
    columns: dict[str, Column] = {}
    for key in METRIC_NAMES:
        if key != results.metric and any(key in table for table in tables):
            columns[key] = [table.get(key) for table in tables]
    return columns


def _further_columns(results: Results) -> dict[str, list[str]]:
    """Return the further columns of `site_table`: a classification's other metrics, and a few labels."""
    columns = {}
    for key, values in metric_columns(results).items():
        if any(value is not None for value in values):
            columns[METRIC_NAMES[key]] = [*map(format_number, (*values, results.mean_of_sites(values, key)))]
    labels = label_columns(results)
    if len(labels) <= MOST_LABELS_BESIDE_THE_VALUE and not results.has_findings:
        # A class has its recall, whatever the metric.
        measure = "recall" if results.has_classes else results.metric or "value"
        for name, values in labels.items():
            columns[f"{measure} of {name}"] = _append_mean(values)
    return columns


def _add_counts(results: Results, label: str, texts: list[str]) -> list[str]:
    """Add to each site's recall of a class the number of its test cases; nothing to a segmentation's."""
    if not results.has_classes:
        return texts
    counts = [read_table(test, "label_cases").get(label) for test in results.sites.values()]
    # The mean over sites, which comes last, has no number of cases.
    return [f"{text} of {count}" if count else text for text, count in zip(texts, [*counts, None], strict=True)]


def surface_texts(results: Results) -> tuple[list[str], list[str]]:
    """Return HD95 and surface Dice of each site, in the result's order, then their means; none over mm and pixels."""
    surfaces = [test.surface if test else None for test in results.sites.values()]
    hd95 = [surface.hd95 if surface else None for surface in surfaces]
    dice = [surface.surface_dice if surface else None for surface in surfaces]
    units = [surface.unit if surface else None for surface in surfaces]
    different = {*units} - {None}
    # Distances in mm and in pixels have no mean.
    has_one_unit = len(different) == 1
    unit = different.pop() if has_one_unit else None
    hd95.append(mean_of_known(hd95) if has_one_unit else None)
    dice.append(mean_of_known(dice) if has_one_unit else None)
    return list(map(format_distance, hd95, [*units, unit])), list(map(format_number, dice))


def _append_mean(values: Column) -> list[str]:
    return [*map(format_number, values), format_number(mean_of_known(values))]
