"""Tables of one run's result: by site, by label, and how classes are called."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest

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
    NOT_SAID,
    TextTable,
    format_count,
    format_distance,
    format_number,
)

# The column of `site_table`.
VALIDATION = 5
MOST_LABELS_BESIDE_THE_VALUE = 4
HD95, SURFACE_DICE = "HD95", "surface Dice"
Column = list[float | None]
# The federated model has a decision threshold at each hospital, as the other two do; beside it stands the usual 0.5.
MODEL_NAMES = {LOCAL: "alone", SHIFTED: "federated", FEDERATED: "at 0.5", CHOSEN: "kept"}


def name_models(joining: Iterable[Joined]) -> dict[str, str]:
    """Return `MODEL_NAMES`, without the federated model at 0.5 where no site's threshold moves it."""
    is_moved = any(one.tested(FEDERATED) != one.tested(SHIFTED) for one in joining)
    return {model: name for model, name in MODEL_NAMES.items() if is_moved or model != FEDERATED}


def summarise_seeds(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean over seeds and their standard deviation; None of no seed, and the deviation of one alone."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return mean_of_known(values), deviation


def mean_and_deviation(values: Sequence[float], forms: tuple[str, str] = (".3f", ".3f")) -> str:
    """Return ``mean ± standard deviation`` over seeds; only the mean of one seed, ``-`` of none."""
    known = [(number, form) for number, form in zip(summarise_seeds(values), forms, strict=True) if number is not None]
    return " ± ".join(format(number, form) for number, form in known) or MISSING


def site_table(results: Results) -> TextTable:
    """Return one row a site, then the mean over sites, their spread and the mean over all cases."""
    of, tests = tested_sites(results), list(results.sites.values())
    name = "mean over all cases, class by class" if results.metric in CLASS_MEANS else "mean over all cases"
    ends = {f"mean over {of}": results.mean, f"spread over {of} (std)": results.spread, name: results.pooled}
    if results.joining:
        several = "s" * (len(results.joining) != 1)
        own = ", at their thresholds" * has_moved_thresholds(results)
        ends[f"kept by {len(results.joining)} site{several}, mean{own}"] = results.joining_means[CHOSEN]
    validation = [one and one.value for one in map(results.validation.get, results.sites)]
    has_surface = any(one.surface for one in results.tests.values())
    columns = [
        ("site", [*results.sites, *ends]),
        (name_tested(results), [*map(format_number, (*results.values.values(), *ends.values()))]),
        ("test cases", _count_column(tests, "num_cases")),
        ("test patients", _count_column(tests, "num_patients")),
        ("excluded cases", _count_column(tests, "num_excluded")),
        ("validation", [*map(format_number, (*validation, results.validation_mean))]),
        *_further_columns(results),
        *(zip((HD95, SURFACE_DICE), surface_texts(results), strict=True) if has_surface else ()),
        *((head, _append_mean(list_extra_values(results, key))) for key, head in list_extra_metrics([results]).items()),
    ]
    rows = zip_longest(*(cells for _, cells in columns), fillvalue="")
    return TextTable(
        tuple(head for head, _ in columns), tuple(_say_withheld(results, row) for row in rows), num_summary=len(ends)
    )


def has_moved_thresholds(results: Results) -> bool:
    """Return whether the run's model, which is tested at the usual threshold, is another at a site's own."""
    return FEDERATED in name_models((results.joining or {}).values())


def name_tested(results: Results) -> str:
    """Return the name of the tested model's values, with its threshold where a site's own moves it."""
    return (results.metric or "value") + f" {MODEL_NAMES[FEDERATED]}" * has_moved_thresholds(results)


def _count_column(tests: Sequence[SiteScore | None], key: str) -> list[str]:
    """Return a number of each site, and of all as far as each says it, below it in the row of all cases."""
    numbers = [None if one is None or one.is_withheld else getattr(one, key) for one in tests]
    said = [number for one, number in zip(tests, numbers, strict=True) if one and not one.is_withheld]
    return [*map(format_count, numbers), "", "", format_count(sum(said) if said and None not in said else None)]


def _say_withheld(results: Results, row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a site's row of `site_table`, in which what the site withholds is said to be so."""
    test, validation = results.sites.get(row[0]), results.validation.get(row[0])
    of_test, of_validation = test and test.withheld, validation and validation.withheld
    is_hidden = [
        bool(of_validation and not of_validation.names) if i == VALIDATION else of_test for i in range(len(row))
    ]
    return tuple(NOT_SAID if cell == MISSING and hidden else cell for cell, hidden in zip(row, is_hidden, strict=True))


def list_extra_metrics(runs: Iterable[Results]) -> dict[str, str]:
    """Return ``package==version/name`` of each metric that some runs were tested by -> the head of its column."""
    tests = [one for run in runs for one in run.tests.values()]
    return {name: name.rpartition("/")[2] for one in tests for name in one.extra_metrics or ()}


def list_extra_values(results: Results, name: str) -> list[float | None]:
    """Return a package's metric of each site, in the order of the result's sites."""
    scores = [(one and one.extra_metrics or {}).get(name) for one in results.sites.values()]
    return [score and score.value for score in scores]


def tested_sites(results: Results) -> str:
    """Return over which sites a mean of tests is: ``sites``, or ``3 of 4 sites``."""
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
    rows, shares = [], ("sensitivity", "specificity") if results.has_findings else ("recall",)
    for name in results.labels.values():
        keys, found = (name, name_absence(name))[: len(shares)], []
        for site, one in results.sites.items():
            labels, areas, cases = (read_table(one, key) for key in ("labels", "areas", "label_cases"))
            values = (areas.get(name), *map(labels.get, keys))
            counts = [0 if v is None else cases.get(key, 0) for key, v in zip((name, *keys), values, strict=True)]
            found.append([*zip(values, counts, strict=True)])
            rows.append((name, site, *_write_shares(found[-1])))
        pooled = [(pool_values(column), sum(count for _, count in column)) for column in zip(*found, strict=True)]
        rows.append((name, "all sites", *_write_shares(pooled)))
    area_name = METRIC_NAMES[results.metric if results.metric in RANKED else "auroc"]
    kind = "finding" if results.has_findings else "class"
    return TextTable((kind, "site", area_name, *shares), tuple(rows), num_text=2)


def read_table(one: SiteScore | None, key: str) -> Mapping[str, float]:
    """Return a table of a site's test, as its ``labels``; an empty one without a test."""
    return getattr(one, key, None) or {}


def _write_shares(shares: Sequence[tuple[float | None, int]]) -> list[str]:
    return [f"{format_number(value)} of {count}" if count else MISSING for value, count in shares]


def calling_table(results: Results) -> TextTable | None:
    """Return one row per site: how its tested model's classes are called; None where none are."""
    if not results.callings:
        return None
    called = list(dict.fromkeys(name for one in results.callings.values() for name in one.thresholds))
    columns = [f"{what} {name}" for name in called for what in ("threshold of", "sensitivity", "specificity")]
    rows = []
    for site, one in results.callings.items():
        tables = (one.thresholds, one.sensitivity, one.specificity)
        cells = [format_number(table.get(name)) for name in called for table in tables]
        pairs = (one.error, one.calibrated), (one.error_after, one.calibrated_after)
        # Older results do not have what chance alone brings.
        errors = [format_number(e) + ("" if chance is None else f" ({chance:.3f})") for e, chance in pairs]
        rows.append((site, f"{one.temperature:.2f}", *errors, *cells))
    return TextTable(("site", "temperature", "ECE without", "ECE with", *columns), tuple(rows))


def case_metric(metric: str | None) -> str | None:
    """Return the metric of a mean over single cases, which have an accuracy and no balanced one."""
    return "accuracy" if metric in METRIC_NAMES else metric


def label_columns(results: Results) -> dict[str, Column]:
    """Return label -> value of each site, in the order of the results' labels and sites; nothing of a single label."""
    tables = [read_table(one, "labels") for one in results.sites.values()]
    names = sort_labels(chain(*tables), {name: name for name in results.labels.values()})
    values = {name: [table.get(name) for table in tables] for name in names}
    return values if len(values) > 1 else {}


def metric_columns(results: Results) -> dict[str, Column]:
    """Return metric -> value of each site, in the order of the result's sites, of a classification's other metrics."""
    tables = [read_table(one, "also") for one in results.sites.values()]
    keys = [key for key in METRIC_NAMES if key != results.metric and any(key in table for table in tables)]
    return {key: [table.get(key) for table in tables] for key in keys}


def _further_columns(results: Results) -> list[tuple[str, list[str]]]:
    """Return the further columns of `site_table`: a classification's other metrics, and a few labels."""
    found = [
        (METRIC_NAMES[key], [*map(format_number, (*values, results.mean_of_sites(values, key)))])
        for key, values in metric_columns(results).items()
        if {*values} - {None}
    ]
    labels = label_columns(results)
    is_few = len(labels) <= MOST_LABELS_BESIDE_THE_VALUE and not results.has_findings
    # Of a class it is the recall, whatever the metric.
    what = "recall" if results.has_classes else results.metric or "value"
    return found + ([(f"{what} of {name}", _append_mean(labels[name])) for name in labels] if is_few else [])


def _add_counts(results: Results, label: str, texts: list[str]) -> list[str]:
    """Add to each site's recall of a class the number of its test cases; nothing to a segmentation's."""
    if not results.has_classes:
        return texts
    counts = [read_table(one, "label_cases").get(label) for one in results.sites.values()]
    return [f"{text} of {n}" if n else text for text, n in zip(texts, [*counts, None], strict=True)]


def surface_texts(results: Results) -> tuple[list[str], list[str]]:
    """Return HD95 and surface Dice of each site, in the result's order, then their means; none over mm and pixels."""
    sites = [one and one.surface for one in results.sites.values()]
    hd95, dice = [one and one.hd95 for one in sites], [one and one.surface_dice for one in sites]
    units = [one and one.unit for one in sites]
    different = {*units} - {None}
    unit = different.pop() if len(different) == 1 else None
    means = (mean_of_known(hd95), mean_of_known(dice)) if unit else (None, None)
    return list(map(format_distance, [*hd95, means[0]], [*units, unit])), list(map(format_number, [*dice, means[1]]))


def _append_mean(values: Column) -> list[str]:
    return [*map(format_number, values), format_number(mean_of_known(values))]
