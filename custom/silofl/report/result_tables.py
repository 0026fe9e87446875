"""Tables and sentences of one run's result: by site, by label and by calling."""

from collections.abc import Iterable
from itertools import product

from silofl.core.findings import name_absence
from silofl.federation.results import Results
from silofl.report.tables import MISSING, TextTable, format_count, format_distance, format_number
from silofl.study.sections import RANKED, SEGMENTATION_ONLY
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.metrics import mean_of_known

# No area under a curve of all sites' cases: only a site knows its cases' scores.
POOLED_MEAN = "mean over all cases; of areas under curves over the sites, weighted by their cases"
MOST_LABELS_BESIDE_THE_VALUE = 4
HD95, SURFACE_DICE = "HD95", "surface Dice"
METRIC_NAMES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auroc": "AUROC", "auprc": "AUPRC"}
SURFACE = (
    "HD95 and surface Dice compare the surfaces of truth and prediction: the 95th percentile of their distances, where "
    "low is good; and the share of both that lies within 2 mm, where high is good. Where a file does not state the "
    "size of its voxels, a site's are in pixels (px) of the prepared images, the slices of a volume one pixel apart. "
    "Neither is defined where a label is in truth or prediction alone."
)
CALLINGS = (
    "Each site chose a temperature for its model's probabilities on its validation cases; it changes no answer. ECE is "
    "how far the probability of the answer is from the share of right answers, in the test."
)
THRESHOLDS = (
    "A threshold, of the probability without the temperature, was chosen on validation cases too; sensitivity and "
    "specificity are those in the test. The other numbers of the run are without it. The super model has the sites' "
    "median: where that is far from a site's own threshold, its sensitivity and specificity there are others."
)
Column = list[float | None]
# The federated model has a decision threshold at each hospital, as the other two do; beside it stands the usual 0.5.
MODEL_NAMES = {LOCAL: "alone", SHIFTED: "federated", FEDERATED: "at 0.5", CHOSEN: "kept"}


def name_models(joining: Iterable[Joined]) -> dict[str, str]:
    """Return `MODEL_NAMES`, without the federated model at 0.5 where no site's threshold moves it."""
    is_moved = any(one.tested(FEDERATED) != one.tested(SHIFTED) for one in joining)
    return {model: name for model, name in MODEL_NAMES.items() if is_moved or model != FEDERATED}


def site_table(results: Results) -> TextTable:
    """Return one row a site, then the mean over sites, their spread and the mean over all cases."""
    columns = ("site", results.metric or "value", "test cases", "test patients", "excluded cases", "validation")
    rows = []
    for site, own in results.by_site.items():
        counts = map(format_count, (own.num_cases, own.num_patients, own.num_excluded))
        rows.append((site, format_number(own.value), *counts, format_number(own.validation)))
    summary = _summary_rows(results)
    rows += summary
    more = {name: _append_mean(values) for name, values in _further_columns(results).items()}
    more |= _surface_columns(results)
    extra = list_extra_metrics([results])
    texts = [*more.values(), *(_append_mean(list_extra_values(results, name)) for name in extra)]
    # The mean over sites is the first of the summary's rows; the others have values in the first columns alone.
    filled = [[*column, *[""] * (len(rows) - len(column))] for column in texts]
    columns = (*columns, *more, *extra.values())
    cells = tuple((*row, *(column[i] for column in filled)) for i, row in enumerate(rows))
    return TextTable(columns, cells, num_summary=len(summary))


def list_extra_metrics(runs: Iterable[Results]) -> dict[str, str]:
    """Return ``package==version/name`` of each metric that some runs were tested by -> the head of its column."""
    tests = [scores for run in runs for scores in (run.tested.extra_metrics or {}).values()]
    return {name: name.rpartition("/")[2] for scores in tests for name in scores}


def list_extra_values(results: Results, name: str) -> list[float | None]:
    """Return a package's metric of each site, in the order of the result's sites."""
    scores = [(results.tested.extra_metrics or {}).get(site, {}).get(name) for site in results.sites]
    return [score and score.value for score in scores]


def tested_sites(results: Results) -> str:
    """Return over which sites a mean of tests is: ``sites``, or ``3 of 4 sites``."""
    num_tested = sum(value is not None for value in results.sites.values())
    return "sites" if num_tested == len(results.sites) else f"{num_tested} of {len(results.sites)} sites"


def label_table(results: Results) -> TextTable | None:
    """Return one row a site, one column a label by name, and the mean over sites; None where `site_table` has them.

    Of findings it is one row a finding and site.
    """
    if results.has_findings:
        return _finding_table(results)
    labels = dict(sorted(label_columns(results).items()))
    if len(labels) <= MOST_LABELS_BESIDE_THE_VALUE:
        return None
    columns = [_add_counts(results, name, _append_mean(values)) for name, values in labels.items()]
    rows = zip((*results.sites, "mean over sites"), *columns, strict=True)
    return TextTable(("site", *labels), tuple(rows), num_summary=1)


def _finding_table(results: Results) -> TextTable:
    rows = []
    for name, site in product(results.labels.values(), results.sites):
        own, cases = results.by_site[site], results.classes.label_cases.get(site, {})
        shares = [
            f"{format_number(own.labels.get(key))} of {cases[key]}" if cases.get(key) else MISSING
            for key in (name, name_absence(name))
        ]
        rows.append((name, site, format_number(own.areas.get(name)), *shares))
    area_name = METRIC_NAMES[results.metric if results.metric in RANKED else "auroc"]
    return TextTable(("finding", "site", area_name, "sensitivity", "specificity"), tuple(rows), num_text=2)


def label_sentence(results: Results) -> str:
    """Say what the values by label are."""
    if results.has_findings:
        return (
            "Sensitivity is the share of the test cases with a finding in which it is found, specificity the share of "
            "those without it in which it is not, both at a probability of 0.5."
        )
    if results.classes:
        return "Share of a class's test cases that is right, its recall, and their number; a site without one has none."
    return "Values over the test cases of each label alone; a site without a label has none."


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
        rows.append((site, f"{one.temperature:.2f}", format_number(one.error), format_number(one.error_after), *cells))
    return TextTable(("site", "temperature", "ECE without", "ECE with", *columns), tuple(rows))


def calling_sentence(results: Results) -> str:
    """Explain `calling_table`, and say where a temperature does not help; nothing without any."""
    callings = results.callings
    if not callings:
        return ""
    changed = {site: one for site, one in callings.items() if one.temperature != 1}
    idle = [site for site in callings if site not in changed]
    vain = [site for site, one in changed.items() if not one.helps]
    sentences = [CALLINGS]
    sentences += [f"Too few validation cases, or none answered wrongly, at {', '.join(idle)}."] if idle else []
    sentences += [f"It does not help in the test of {', '.join(vain)}."] if vain else []
    if any(one.thresholds for one in callings.values()):
        sentences.append(THRESHOLDS)
    return " ".join(sentences)


def case_metric(metric: str | None) -> str | None:
    """Return the metric of a mean over single cases, which have an accuracy and no balanced one."""
    return "accuracy" if metric in METRIC_NAMES else metric


def label_columns(results: Results) -> dict[str, Column]:
    """Return label -> value of each site, in the order of the result's sites; nothing of a single label."""
    names = list(dict.fromkeys(name for values in results.tested.by_label.values() for name in values))
    values = {name: [own.labels.get(name) for own in results.by_site.values()] for name in names}
    return values if len(names) > 1 else {}


def metric_columns(results: Results) -> dict[str, Column]:
    """Return metric -> value of each site, in the order of the result's sites, of a classification's other metrics."""
    return {
        key: [own.also.get(key) for own in results.by_site.values()]
        for key in METRIC_NAMES
        if key != results.metric and any(key in own.also for own in results.by_site.values())
    }


def everyone_sentence(results: Results) -> str:
    """State the sites' models' result on the test data of all sites; nothing where it was not measured."""
    everyone = results.everyone
    if everyone is None:
        return ""
    values = f"accuracy {everyone.accuracy:.3f}, balanced accuracy {everyone.balanced_accuracy:.3f}"
    areas = [own.get(results.metric or "") for own in everyone.by_site.values()]
    if results.metric in RANKED and None not in areas:
        values = f"{METRIC_NAMES[results.metric]} {format_number(mean_of_known(areas))}, {values}"
    missing = [site for site in results.sites if site not in everyone.by_site]
    without = f" (none of {', '.join(missing)})" if missing else ""
    return f"on all sites' test data ({everyone.num_cases} cases): {values}, mean over the sites' models{without}"


def empty_cases_sentence(results: Results) -> str:
    """State what is predicted in test cases that hold no label; nothing where each has one."""
    tested = results.tested
    if not tested.empty_cases:
        return ""
    of_sites = [
        f"{site} {(tested.false_positive_cases or {}).get(site, 0)} of {count} "
        f"({format_number((tested.with_truth or {}).get(site))} over the others)"
        for site, count in tested.empty_cases.items()
    ]
    counted = "; each counts as 0 in its site's value" if results.metric == "dice" else ""
    return f"false positives in cases without any label: {', '.join(of_sites)}{counted}"


def missing_labels_sentence(results: Results) -> str:
    """Say whose value is a mean over fewer labels than the others', or not over all findings; else nothing."""
    has_areas = results.has_findings and results.metric in RANKED
    if not has_areas and results.metric not in SEGMENTATION_ONLY["metric"]:
        return ""
    names = [*(results.labels.values() if has_areas else label_columns(results))]
    known = {site: own.areas if has_areas else own.labels for site, own in results.by_site.items()}
    missing = {
        site: [name for name in names if known[site].get(name) is None]
        for site, value in results.sites.items()
        if value is not None
    }
    of_sites = [f"{site} without {' and '.join(names)}" for site, names in missing.items() if names]
    if not of_sites:
        return ""
    what, other = ("some findings alone", "all") if has_areas else ("different labels", "not annotated there")
    why = f"in none of a site's test cases, or {'in ' * has_areas}{other}"
    return f"values are means over {what} and compare sites badly: {', '.join(of_sites)} ({why})"


def _further_columns(results: Results) -> dict[str, Column]:
    """Return the further columns of `site_table`: a classification's other metrics, and a few labels."""
    if not results.sites:
        return {}
    others = {METRIC_NAMES[key]: values for key, values in metric_columns(results).items()}
    known = {name: values for name, values in others.items() if any(value is not None for value in values)}
    labels = label_columns(results)
    is_few = len(labels) <= MOST_LABELS_BESIDE_THE_VALUE and not results.has_findings
    # Of a class it is the recall, whatever the metric.
    what = "recall" if results.classes else results.metric or "value"
    return known | ({f"{what} of {name}": labels[name] for name in labels} if is_few else {})


def _add_counts(results: Results, label: str, texts: list[str]) -> list[str]:
    """Add to each site's recall of a class the number of its test cases; nothing to a segmentation's."""
    if not results.classes:
        return texts
    counts = [results.classes.label_cases.get(site, {}).get(label) for site in results.sites]
    return [f"{text} of {n}" if n else text for text, n in zip(texts, [*counts, None], strict=True)]


def _surface_columns(results: Results) -> dict[str, list[str]]:
    """Return the columns of the surface distances, with their means over sites; nothing where none were measured."""
    if not results.tested.surface:
        return {}
    hd95, dice = surface_texts(results)
    return {HD95: hd95, SURFACE_DICE: dice}


def surface_texts(results: Results) -> tuple[list[str], list[str]]:
    """Return HD95 and surface Dice of each site, in the result's order, then their means; none over mm and pixels."""
    sites = [(results.tested.surface or {}).get(site) for site in results.sites]
    hd95, dice = [one and one.hd95 for one in sites], [one and one.surface_dice for one in sites]
    units = [one and one.unit for one in sites]
    different = {*units} - {None}
    unit = different.pop() if len(different) == 1 else None
    means = (mean_of_known(hd95), mean_of_known(dice)) if unit else (None, None)
    return list(map(format_distance, [*hd95, means[0]], [*units, unit])), list(map(format_number, [*dice, means[1]]))


def surface_sentence(results: Results) -> str:
    """Say what the surface distances are, and of how many cases there are none; nothing where none were measured."""
    surface = results.tested.surface
    if not surface:
        return ""
    without = [f"{site} {one.num_undefined}" for site, one in surface.items() if one.num_undefined]
    counted = f" Cases without a distance, which do not count: {', '.join(without)}." if without else ""
    return f"{SURFACE}{counted}"


def describe_extra_metric(name: str) -> str:
    """Say what the column of a package's metric is."""
    package, _, part = name.rpartition("/")
    return f"{part} is a metric of the package {package}, mean over the cases in which it is defined; it chose nothing."


def extra_metrics_sentence(results: Results) -> str:
    """Say what the metrics of packages are, of how many cases, and where they failed; nothing without any."""
    sentences = []
    for name in list_extra_metrics([results]):
        scores = {site: one[name] for site, one in (results.tested.extra_metrics or {}).items() if name in one}
        counted = [f"{site} {score.num_cases}" for site, score in scores.items() if not score.has_failed]
        failed = [site for site, score in scores.items() if score.has_failed]
        sentences.append(describe_extra_metric(name))
        sentences += [f"Cases: {', '.join(counted)}."] if counted else []
        sentences += [f"It failed at {', '.join(failed)}; the site's own log says how."] if failed else []
    return " ".join(sentences)


def _append_mean(values: Column) -> list[str]:
    return [*map(format_number, values), format_number(mean_of_known(values))]


def _summary_rows(results: Results) -> list[tuple[str, ...]]:
    of, tested = tested_sites(results), results.tested
    name = "mean by test cases" if results.metric in RANKED else "pooled over all cases"
    cases, excluded = (str(sum(counts.values())) for counts in (tested.cases, tested.excluded_cases))
    known = [count for count in (tested.patients or {}).values() if count is not None]
    patients = format_count(sum(known) if known and len(known) == len(tested.cases) else None)
    return [
        (f"mean over {of}", format_number(results.mean), "", "", "", format_number(results.validation_mean)),
        (f"spread over {of} (std)", format_number(results.spread), "", "", "", ""),
        (name, format_number(results.pooled), cases, patients, excluded, ""),
        *_kept_row(results),
    ]


def _kept_row(results: Results) -> list[tuple[str, ...]]:
    """Return the row of what the sites keep; nothing without a choice."""
    if not results.joining:
        return []
    name = f"kept by {len(results.joining)} site{'s' * (len(results.joining) != 1)}, mean"
    return [(name, format_number(results.joining_means[CHOSEN]), "", "", "", "")]
