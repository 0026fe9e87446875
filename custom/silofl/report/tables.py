"""Tables of text for the terminal and the pages, and those of one run's result, by site and by label."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from silofl.core.findings import name_absence
from silofl.errors import escape_markdown, make_printable
from silofl.federation.results import Results
from silofl.study.sections import CLASS_MEANS, RANKED, SEGMENTATION_ONLY
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.metrics import mean_of_known, pool_values
from silofl.training.site_score import SiteScore

MISSING, NOT_SAID = "-", "withheld"
# The column of `site_table`.
VALIDATION = 5
# No area under a curve of all sites' cases: only a site knows its cases' scores.
POOLED_MEAN = "mean over all cases; of means over classes class by class, weighted by a site's cases of the class"
MARK_STYLES = {"*": "bold", "=": "underline", "": ""}
MOST_LABELS_BESIDE_THE_VALUE = 4
HD95, SURFACE_DICE = "HD95", "surface Dice"
UNITS = {"mm": "mm", "pixels": "px"}
METRIC_NAMES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auroc": "AUROC", "auprc": "AUPRC"}
SURFACE = (
    "HD95 and surface Dice compare the surfaces of truth and prediction: the 95th percentile of their distances, "
    "where low is good; and the share of both surfaces that lies within 2 mm, where high is good. If a file does not "
    "state the size of its voxels, the site's distances are in pixels (px) of the prepared images, with slices one "
    "pixel apart. Both are undefined if a label is only in truth or only in prediction."
)
CALLINGS = (
    "Each site chose a temperature for its model's probabilities on its validation cases; it changes no answer. ECE "
    "(expected calibration error): how far the probability of the answer is from the share of right answers in the "
    "test; 0 is perfect. In brackets: what a perfectly calibrated model with the same probabilities would show by "
    "chance in as many cases."
)
THRESHOLDS = (
    "The threshold of the probability (before the temperature) was chosen on validation cases too; sensitivity and "
    "specificity are of the test. The other numbers of the run do not use it. The super model uses the median of the "
    "sites' thresholds: its sensitivity and specificity differ at a site whose own threshold is far from it."
)
AREAS = "All sites: mean weighted by the number of cases, as only a site knows its cases' scores."
UNLIKE_CLASSES = "sites have test cases of different classes: balanced accuracy and areas have no mean over sites"
Column = list[float | None]
# The federated model has a decision threshold at each hospital, as the other two do; beside it stands the usual 0.5.
MODEL_NAMES = {LOCAL: "alone", SHIFTED: "federated", FEDERATED: "at 0.5", CHOSEN: "kept"}


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Attributes:
        columns: Names of the columns.
        rows: One tuple of cells a row.
        num_text: Leading columns that hold words; the others hold numbers.
        num_summary: Last rows that sum up the others.
        best_cells: (row, column) of the cells that are marked as the best.
        level_cells: (row, column) of the cells that are marked as level with the best.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text: int = 1
    num_summary: int = 0
    best_cells: frozenset[tuple[int, int]] = frozenset()
    level_cells: frozenset[tuple[int, int]] = frozenset()


def name_models(joining: Iterable[Joined]) -> dict[str, str]:
    """Return `MODEL_NAMES`, without the federated model at 0.5 where no site's threshold moves it."""
    is_moved = any(one.tested(FEDERATED) != one.tested(SHIFTED) for one in joining)
    return {model: name for model, name in MODEL_NAMES.items() if is_moved or model != FEDERATED}


def format_number(value: float | None) -> str:
    """Return a value with three decimals, ``-`` where there is none."""
    return MISSING if value is None else f"{value:.3f}"


def format_distance(value: float | None, unit: str | None) -> str:
    """Return a distance with one decimal and its unit, ``-`` where there is none."""
    return MISSING if value is None else f"{value:.1f} {UNITS[unit]}"


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return ``mean ± standard deviation`` over seeds; only the mean of one seed, ``-`` of none."""
    if not values:
        return MISSING
    text = f"{np.mean(values):.3f}"
    return f"{text} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else text


def describe_round(results: Results) -> str:
    """Return which round a run reports, ``-`` where it is none."""
    return "each site's own" if results.own_models else format_count(results.best_round)


def format_count(value: int | None) -> str:
    """Return a whole number, ``-`` where there is none."""
    return MISSING if value is None else str(value)


def format_duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_bytes(size: float) -> str:
    """Return a number of bytes in the decimal unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def site_table(results: Results) -> TextTable:
    """Return one row a site, then the mean over sites, their spread and the mean over all cases."""
    columns = ("site", results.metric or "value", "test cases", "test patients", "excluded cases", "validation")
    rows = []
    for site, one in results.sites.items():
        is_known, validation = one is not None and not one.is_withheld, results.validation.get(site)
        counts = (one.num_cases, one.num_patients, one.num_excluded) if is_known else (None, None, None)
        values = one and one.value, validation and validation.value
        rows.append((site, format_number(values[0]), *map(format_count, counts), format_number(values[1])))
    summary = _summary_rows(results)
    rows += summary
    means = {METRIC_NAMES[key]: results.mean_of_sites(values, key) for key, values in metric_columns(results).items()}
    more = {
        name: [*map(format_number, values), format_number(means.get(name, mean_of_known(values)))]
        for name, values in _further_columns(results).items()
    }
    more |= _surface_columns(results)
    extra = list_extra_metrics([results])
    texts = [*more.values(), *(_append_mean(list_extra_values(results, name)) for name in extra)]
    # The mean over sites is the first of the summary's rows; the others have values in the first columns alone.
    filled = [[*column, *[""] * (len(rows) - len(column))] for column in texts]
    columns = (*columns, *more, *extra.values())
    cells = [(*row, *(column[i] for column in filled)) for i, row in enumerate(rows)]
    return TextTable(columns, tuple(_say_withheld(results, row) for row in cells), num_summary=len(summary))


def _say_withheld(results: Results, row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a site's row of `site_table`, in which what the site withholds is said to be so."""
    test, validation = results.sites.get(row[0]), results.validation.get(row[0])
    of_test, of_validation = test and test.withheld, validation and validation.withheld
    is_hidden = [
        bool(of_validation and not of_validation.names) if i == VALIDATION else of_test for i in range(len(row))
    ]
    return tuple(NOT_SAID if cell == MISSING and hidden else cell for cell, hidden in zip(row, is_hidden, strict=True))


def drop_equal_columns(table: TextTable) -> tuple[TextTable, str]:
    """Return a table without the columns of words in which all of several rows are equal, and what these rows share.

    Args:
        table: Without marked cells; its first column stays.
    """
    columns = list(zip(*table.rows, strict=True))
    equal = {i for i in range(1, table.num_text) if len(table.rows) > 1 and len(set(columns[i])) == 1}
    kept = [i for i in range(len(table.columns)) if i not in equal]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    shared = ", ".join(f"{table.columns[i]} {columns[i][0]}" for i in sorted(equal))
    names = tuple(table.columns[i] for i in kept)
    return replace(table, columns=names, rows=rows, num_text=table.num_text - len(equal)), shared


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
            labels, areas, cases = (_read_table(one, key) for key in ("labels", "areas", "label_cases"))
            values = (areas.get(name), *map(labels.get, keys))
            counts = [0 if v is None else cases.get(key, 0) for key, v in zip((name, *keys), values, strict=True)]
            found.append([*zip(values, counts, strict=True)])
            rows.append((name, site, *_write_shares(found[-1])))
        pooled = [(pool_values(column), sum(count for _, count in column)) for column in zip(*found, strict=True)]
        rows.append((name, "all sites", *_write_shares(pooled)))
    area_name = METRIC_NAMES[results.metric if results.metric in RANKED else "auroc"]
    kind = "finding" if results.has_findings else "class"
    return TextTable((kind, "site", area_name, *shares), tuple(rows), num_text=2)


def _read_table(one: SiteScore | None, key: str) -> Mapping[str, float]:
    """Return a table of a site's test, as its ``labels``; an empty one without a test."""
    return getattr(one, key, None) or {}


def _write_shares(shares: Sequence[tuple[float | None, int]]) -> list[str]:
    return [f"{format_number(value)} of {count}" if count else MISSING for value, count in shares]


def label_sentence(results: Results) -> str:
    """Say what the values by label are."""
    if results.has_findings:
        return (
            "Sensitivity: share of the test cases with a finding in which it is found. Specificity: share of the "
            "cases without it in which it is not found. Both at a probability of 0.5. "
        ) + AREAS
    if results.has_areas:
        return "Recall is the share of a class's test cases that is right. " + AREAS
    if results.has_classes:
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
        pairs = (one.error, one.calibrated), (one.error_after, one.calibrated_after)
        # Older results do not have what chance alone brings.
        errors = [format_number(e) + ("" if chance is None else f" ({chance:.3f})") for e, chance in pairs]
        rows.append((site, f"{one.temperature:.2f}", *errors, *cells))
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
    tables = [_read_table(one, "labels") for one in results.sites.values()]
    values = {name: [table.get(name) for table in tables] for name in dict.fromkeys(chain(*tables))}
    return values if len(values) > 1 else {}


def metric_columns(results: Results) -> dict[str, Column]:
    """Return metric -> value of each site, in the order of the result's sites, of a classification's other metrics."""
    tables = [_read_table(one, "also") for one in results.sites.values()]
    keys = [key for key in METRIC_NAMES if key != results.metric and any(key in table for table in tables)]
    return {key: [table.get(key) for table in tables] for key in keys}


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
    without = f" (without {', '.join(missing)})" if missing else ""
    return f"on all sites' test data ({everyone.num_cases} cases): {values}, mean over the sites' models{without}"


def empty_cases_sentence(results: Results) -> str:
    """State what is predicted in test cases that hold no label; nothing where each has one."""
    of_sites = [
        f"{site} {one.num_false_positive or 0} of {one.num_empty} "
        f"({format_number(one.value_with_truth)} over the others)"
        for site, one in results.tests.items()
        if one.num_empty
    ]
    if not of_sites:
        return ""
    counted = "; each counts as 0 in its site's value" if results.metric == "dice" else ""
    return f"false positives in cases without any label: {', '.join(of_sites)}{counted}"


def missing_labels_sentence(results: Results) -> str:
    """Say whose value is a mean over fewer labels than the others', or not over all classes; else nothing."""
    is_area, is_over_classes = results.metric in RANKED, results.metric in CLASS_MEANS
    if not is_over_classes and results.metric not in SEGMENTATION_ONLY["metric"]:
        is_refused = results.mean_of_sites([0.0], "balanced_accuracy") is None
        return UNLIKE_CLASSES if is_refused else ""
    known = {site: _read_table(one, "areas" if is_area else "labels") for site, one in results.sites.items()}
    names = results.labels.values() if results.has_findings and is_area else dict.fromkeys(chain(*known.values()))
    missing = {
        site: [name for name in names if known[site].get(name) is None]
        for site, value in results.values.items()
        if value is not None
    }
    of_sites = [f"{site} without {' and '.join(names)}" for site, names in missing.items() if names]
    if not of_sites or (not is_over_classes and len(names) < 2):
        return ""
    kind = "findings" if results.has_findings else "classes"
    what, other = (f"some {kind} alone", "all") if is_over_classes else ("different labels", "not annotated there")
    why = f"in none of a site's test cases, or {'in ' * is_over_classes}{other}"
    is_refused = is_over_classes and results.mean is None
    end = "; they have no mean over sites, and are pooled class by class" if is_refused else ""
    return f"values are means over {what} and compare sites badly: {', '.join(of_sites)} ({why}){end}"


def print_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines uncut and without markup, each as one."""
    for line in lines:
        console.print(Text(make_printable(line)), soft_wrap=True)


def print_table(table: TextTable, console: Console) -> None:
    """Print a table at its full width, because a cropped number reads as another number."""
    console.print(rich_table(table, console), soft_wrap=True)


def rich_table(table: TextTable, console: Console) -> Table:
    """Return a table for the terminal, at its full width."""
    rich = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for i, name in enumerate(table.columns):
        rich.add_column(Text(make_printable(name)), justify="left" if i < table.num_text else "right", no_wrap=True)
    for i, row in enumerate(table.rows):
        if table.num_summary and i == len(table.rows) - table.num_summary:
            rich.add_section()
        marked = [_marked_text(cell, table, i, j) for j, cell in enumerate(row)]
        rich.add_row(*marked)
    # Measured on a wide console: on its own, rich cuts a table to the terminal's width.
    rich.width = Measurement.get(console, console.options.update(width=10_000), rich).maximum
    return rich


def markdown_table(table: TextTable, notes: Sequence[str], above: Sequence[str] = ()) -> str:
    """Return a table in Markdown, the best cells bold, those level with them underlined, its notes as a list below.

    Args:
        table: The table.
        notes: Sentences below it.
        above: Sentences that a reader must know before the numbers.
    """
    lines = [tuple(map(escape_markdown, table.columns)), ("---",) * len(table.columns)]
    for i, row in enumerate(table.rows):
        lines.append(tuple(_emphasise(escape_markdown(cell), table, (i, j)) for j, cell in enumerate(row)))
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    before, after = (
        "".join(f"- {escape_markdown(sentence)}\n" for sentence in sentences) for sentences in (above, notes)
    )
    return f"{before}\n{text}\n\n{after}" if above else f"{text}\n\n{after}"


def _further_columns(results: Results) -> dict[str, Column]:
    """Return the further columns of `site_table`: a classification's other metrics, and a few labels."""
    if not results.sites:
        return {}
    others = {METRIC_NAMES[key]: values for key, values in metric_columns(results).items()}
    known = {name: values for name, values in others.items() if any(value is not None for value in values)}
    labels = label_columns(results)
    is_few = len(labels) <= MOST_LABELS_BESIDE_THE_VALUE and not results.has_findings
    # Of a class it is the recall, whatever the metric.
    what = "recall" if results.has_classes else results.metric or "value"
    return known | ({f"{what} of {name}": labels[name] for name in labels} if is_few else {})


def _add_counts(results: Results, label: str, texts: list[str]) -> list[str]:
    """Add to each site's recall of a class the number of its test cases; nothing to a segmentation's."""
    if not results.has_classes:
        return texts
    counts = [_read_table(one, "label_cases").get(label) for one in results.sites.values()]
    return [f"{text} of {n}" if n else text for text, n in zip(texts, [*counts, None], strict=True)]


def _surface_columns(results: Results) -> dict[str, list[str]]:
    """Return the columns of the surface distances, with their means over sites; nothing where none were measured."""
    if not any(one.surface for one in results.tests.values()):
        return {}
    hd95, dice = surface_texts(results)
    return {HD95: hd95, SURFACE_DICE: dice}


def surface_texts(results: Results) -> tuple[list[str], list[str]]:
    """Return HD95 and surface Dice of each site, in the result's order, then their means; none over mm and pixels."""
    sites = [one and one.surface for one in results.sites.values()]
    hd95, dice = [one and one.hd95 for one in sites], [one and one.surface_dice for one in sites]
    units = [one and one.unit for one in sites]
    different = {*units} - {None}
    unit = different.pop() if len(different) == 1 else None
    means = (mean_of_known(hd95), mean_of_known(dice)) if unit else (None, None)
    return list(map(format_distance, [*hd95, means[0]], [*units, unit])), list(map(format_number, [*dice, means[1]]))


def surface_sentence(results: Results) -> str:
    """Say what the surface distances are, and of how many cases there are none; nothing where none were measured."""
    surface = {site: one.surface for site, one in results.tests.items() if one.surface}
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
        scores = {
            site: one.extra_metrics[name] for site, one in results.tests.items() if name in (one.extra_metrics or ())
        }
        counted = [f"{site} {score.num_cases}" for site, score in scores.items() if not score.has_failed]
        failed = [site for site, score in scores.items() if score.has_failed]
        sentences.append(describe_extra_metric(name))
        sentences += [f"Cases: {', '.join(counted)}."] if counted else []
        sentences += [f"It failed at {', '.join(failed)}; the site's own log says how."] if failed else []
    return " ".join(sentences)


def _append_mean(values: Column) -> list[str]:
    return [*map(format_number, values), format_number(mean_of_known(values))]


def _summary_rows(results: Results) -> list[tuple[str, ...]]:
    of, tests = tested_sites(results), [one for one in results.tests.values() if not one.is_withheld]
    name = "mean over all cases, class by class" if results.metric in CLASS_MEANS else "mean over all cases"
    cases, excluded = str(sum(one.num_cases for one in tests)), str(sum(one.num_excluded for one in tests))
    known = [one.num_patients for one in tests if one.num_patients is not None]
    patients = format_count(sum(known) if known and len(known) == len(tests) else None)
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


def _marked_text(cell: str, table: TextTable, row: int, column: int) -> Text:
    # A sign besides the style, for terminals without bold letters.
    mark = "*" if (row, column) in table.best_cells else "=" if (row, column) in table.level_cells else ""
    return Text(f"{make_printable(cell)} {mark}".rstrip(), style=MARK_STYLES[mark])


def _emphasise(cell: str, table: TextTable, place: tuple[int, int]) -> str:
    if place in table.best_cells:
        return f"**{cell}**"
    return f"<ins>{cell}</ins>" if place in table.level_cells else cell
