"""What several hospitals say of one model, in tables and a sentence: each, over all, and how much they differ."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from silofl.core.heterogeneity import PooledEstimate
from silofl.core.intervals import Estimate
from silofl.inference.evaluations import ALL, FILE, MISSING, UNIT_OF, Evaluations, HospitalEvaluation
from silofl.report.evaluation_page import RESEARCH, format_estimate
from silofl.report.page import Block, Heading, PageSection, Table, Text, make_section
from silofl.report.tables import METRIC_NAMES, TextTable, print_lines, print_table
from silofl.schema import read_file

NAMES = METRIC_NAMES | {
    "dice": "Dice",
    "dice_with_background": "Dice with background",
    "lesion_sensitivity": "lesions found",
    "false_lesions": "false lesions a case",
    "size_error": "size error",
    "hd95": "HD95",
    "surface_dice": "surface Dice",
    "average_precision": "PR-AUC",
    "sensitivity": "sensitivity at {specificity:g} specificity",
    "ece": "ECE",
}
DIGITS = {"lesion_sensitivity": 2, "false_lesions": 2, "size_error": 1, "hd95": 1}
NOTE = (
    "In brackets: at a hospital the 95 % interval over its patients (of a size error the limits of agreement); over "
    "all that of the random-effects mean (DerSimonian and Laird) of the hospitals with an interval, which takes 6 "
    "patients. I^2 is the share of the spread between hospitals that their few patients do not explain (Higgins and "
    "Thompson), p that of Cochran's Q; of few hospitals both are rough."
)


def print_evaluations(run: Path, console: Console) -> None:
    """Print the tables of a run that evaluates a model; nothing of another run."""
    found = read_file(Evaluations, run / FILE)
    for heading, table in evaluation_tables(found).items() if found else ():
        print_lines(["", heading] if heading else [""], console)
        print_table(table, console)
    if found:
        print_lines(["", *_list_sentences(found), RESEARCH], console)


def evaluations_section(found: Evaluations | None) -> PageSection | None:
    """Return the section on the hospitals' evaluations; None of a run that trains."""
    if found is None:
        return None
    tables: list[Block] = []
    for heading, table in evaluation_tables(found).items():
        tables += [Heading(heading), Table(table)] if heading else [Table(table)]
    sentences: list[Block] = [Text(sentence) for sentence in _list_sentences(found)]
    closing = [Text(NOTE, "note"), Text(RESEARCH)]
    return make_section("hospitals", "Hospitals", "What hospitals say", sentences, tables, closing)


def evaluation_tables(found: Evaluations) -> dict[str, TextTable]:
    """Return name of a label or class, or empty for all cases -> a row for each hospital, and those over all."""
    return {group: _make_table(found, group) for group in found.pooled}


def _make_table(found: Evaluations, group: str) -> TextTable:
    names = list(found.pooled[group])
    counts = ("cases", "patients", "refused") if group == ALL else ()
    titles = [NAMES.get(name, name).format(specificity=found.specificity) for name in names]
    rows = [
        (site, *(_list_counts(one) if counts else ()), *(_format_score(one, group, name) for name in names))
        for site, one in found.sites.items()
    ]
    pooled, blank = [found.pooled[group][name] for name in names], [""] * len(counts)
    rows.append(("over all", *blank, *map(_format_pooled, pooled, names)))
    rows.append(("I^2, p", *blank, *map(_format_spread, pooled)))
    return TextTable(("hospital", *counts, *titles), tuple(rows))


def _list_counts(one: HospitalEvaluation) -> tuple[str, str, str]:
    # Of cases whose patients are not known, how many patients there are is not known either.
    return str(one.num_cases), str(one.num_units) if one.unit == "patient" else "-", str(one.num_refused)


def _format_score(one: HospitalEvaluation, group: str, name: str) -> str:
    estimate = one.scores.get(group, {}).get(name, MISSING)
    unit = f" {getattr(one, UNIT_OF[name])}" if name in UNIT_OF and estimate.value is not None else ""
    return format_estimate(estimate, DIGITS.get(name, 3)) + unit


def _format_pooled(one: PooledEstimate | None, name: str) -> str:
    return format_estimate(Estimate(one.value, one.interval, one.num_sites) if one else MISSING, DIGITS.get(name, 3))


def _format_spread(one: PooledEstimate | None) -> str:
    return f"{one.i_squared:.0%}, {one.p_value:.2g}" if one else "-"


def _list_sentences(found: Evaluations) -> Iterator[str]:
    """Say which model was tested, and of the study's metric what hospitals have in common and how they differ."""
    yield (
        f"Model {found.fingerprint[:16]} of study {found.model}, tested on the own test cases of {len(found.sites)} "
        f"hospital{'s' * (len(found.sites) != 1)}; nothing was trained."
    )
    name, one = next(iter(found.pooled[ALL].items()))
    metric = NAMES.get(name, name)
    if one is None:
        yield f"Whether hospitals differ in {metric} is not known: fewer than 2 have an interval."
        return
    values = [scores.value for site in found.sites.values() if (scores := site.scores[ALL][name]).value is not None]
    yield (
        f"{metric} is {_format_pooled(one, name)} over {one.num_sites} hospitals, and {min(values):.3f} to "
        f"{max(values):.3f} at single ones. Their few patients do not explain {one.i_squared:.0%} of that spread (I^2; "
        f"Cochran's Q {one.q:.2f}, p {one.p_value:.2g}); between hospitals the deviation is about {one.tau:.3f}."
    )
