"""The numbers of an evaluation in tables and sentences, and its page, ``evaluation.html``."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from silofl.core.intervals import Estimate
from silofl.core.roc import find_predictive_values
from silofl.inference import evaluation
from silofl.inference.evaluation import ALL, Evaluation, Subgroup
from silofl_hospital.report.canvas import PageImage
from silofl_hospital.report.metrics import metric_sentence
from silofl_hospital.report.page import (
    Banner,
    Block,
    Heading,
    Items,
    Page,
    PageSection,
    Pairs,
    Picture,
    Table,
    Text,
    Tiles,
    make_items,
    make_section,
    make_table,
)
from silofl_hospital.report.tables import METRIC_NAMES, MISSING, NOT_SAID, UNITS, TextTable, format_number

# Score of a label or class -> how a table names it, in the order of its columns.
GROUP_SCORES = {
    "dice": "Dice",
    "lesion_sensitivity": "components found",
    "false_lesions": "false components a case",
    "size_error": "size error",
    "hd95": "HD95",
    "surface_dice": "surface Dice",
    "recall": "recall",
    "specificity": "specificity",
    "auroc": "AUROC",
    "average_precision": "PR-AUC",
}
FORMS = {"lesion_sensitivity": ".2f", "false_lesions": ".2f", "hd95": ".1f", "size_error": "+.3g"}

RESEARCH = "For research: a research tool and no medical device."
INTERVALS = (
    "In brackets: 95 % confidence interval over {unit}s (Wilson's formula with the variance of the jackknife{auroc}; "
    "Student's for sizes). Not given if all values are equal, except at 0 or 1. With few {unit}s it is too narrow if "
    "the model fails badly for one {unit} in ten."
)
LABELS_NOTE = (
    "All numbers are on the image file's grid. A component is a connected part of the label; it is found if at "
    "least one voxel of it is predicted. False components are predicted ones that touch none. Size error: predicted "
    "minus true size, mean and 95 % limits of agreement. HD95 and surface Dice (within 2 {unit}) are of the cases in "
    "which truth and prediction have the label."
)
CLASSES_NOTE = "Each class against all others; of two classes the second."
MEANS_NOTE = (
    "Balanced accuracy and areas over all cases are means over the classes that have cases in the table. Compare with "
    "data that have other classes only class by class."
)
FINDINGS_NOTE = "Each finding against its absence; sensitivity and specificity are those of the model's answers."
THRESHOLD_NOTE = (
    "The model's threshold was chosen on validation data of the hospitals that trained it; sensitivity and specificity "
    "are those of its answers."
)
CALIBRATION_NOTE = (
    "ECE (0 = perfect): how far the probability of the answer is from the share of right answers, mean over ten bins. "
    "With few cases even a perfectly calibrated model is above 0: the second number is the ECE of such a model with "
    "these probabilities in as many cases, on average and in 95 % of draws."
)
GROUPS_NOTE = (
    "By groups: a number of fewer than {least} {unit}s, or from which one would follow, is withheld. Groups are not "
    "tested against one another: of many intervals some are apart by chance."
)
CONFUSION = "true class (rows), answer (columns)"


def format_estimate(estimate: Estimate, form: str = ".3f") -> str:
    """Return ``0.812 (0.750 to 0.861)``; without brackets where there is no interval, ``-`` without a value."""
    if estimate.value is None:
        return MISSING
    value = format(estimate.value, form)
    if not estimate.interval:
        return value
    low, high = estimate.interval
    return f"{value} ({format(low, form)} to {format(high, form)})"


def format_score(estimate: Estimate, name: str) -> str:
    """Return a score of a label or class, with as many digits as it deserves."""
    return format_estimate(estimate, FORMS.get(name, ".3f"))


def name_score(name: str, others: Collection[str]) -> str:
    """Return how a table names a score of a label or class; beside its specificity a recall is a sensitivity.

    Args:
        others: All scores of the table.
    """
    is_share = name == "recall" and "specificity" in others
    return "sensitivity" if is_share else GROUP_SCORES.get(name, name)


def summary_lines(record: Evaluation) -> list[str]:
    """Return the main numbers as lines: cases, the study's metric, and what else is of all cases."""
    counts = f"{record.num_cases} cases"
    if record.unit != "case":
        counts += f" of {record.num_units} {record.unit}s"
    counts += f" ({', '.join(record.parts)})"
    if record.num_refused:
        several = "" if record.num_refused == 1 else "s"
        counts += f"; {record.num_refused} case{several} refused, as by predict"
    lines = [counts, *(f"{name}: {value}" for name, value in _list_numbers(record))]
    # An empty case has no Dice: a false alarm there is counted by itself.
    if record.num_empty:
        names = " or ".join(record.groups)
        lines.append(f"false alarms in {record.num_false_positive} of {record.num_empty} cases without {names}")
    if record.num_excluded:
        lines.append(f"not counted, as truth and prediction are empty: {record.num_excluded}")
    return lines + _list_predictive_values(record)


def _list_predictive_values(record: Evaluation) -> list[str]:
    """Return the predictive values of each class, or finding, at the prevalence that was asked for."""
    lines: list[str] = []
    if record.prevalence is None:
        return lines
    for name, scores in record.groups.items():
        sensitivity = scores["recall"].value
        specificity = scores["specificity"].value
        if sensitivity is not None and specificity is not None:
            positive, negative = find_predictive_values(sensitivity, specificity, record.prevalence)
            lines.append(
                f"if {record.prevalence:.3g} of the patients have {name}: positive predictive value {positive:.3f}, "
                f"negative {negative:.3f}"
            )
    return lines


def _list_numbers(record: Evaluation) -> list[tuple[str, str]]:
    numbers = dict(record.scores[ALL])
    error = numbers.pop("ece", None)
    calibrated = numbers.pop("ece_calibrated", None)
    named = [(METRIC_NAMES.get(name, name), format_estimate(estimate)) for name, estimate in numbers.items()]
    if error and calibrated:
        # A perfectly calibrated model is above 0 too.
        named.append(("ECE", f"{format_estimate(error)}; if calibrated {format_estimate(calibrated)}"))
    return named


def evaluation_tables(record: Evaluation) -> dict[str, TextTable]:
    """Return the tables by label, or by class with that of the answers, under their headings."""
    tables = {f"By {_name_group(record)}": _group_table(record)}
    if record.confusion:
        rows = tuple((name, *map(str, counts.values())) for name, counts in record.confusion.items())
        tables["Answers"] = TextTable((CONFUSION, *record.confusion), rows)
    return tables | _subgroup_tables(record)


def _subgroup_tables(record: Evaluation) -> dict[str, TextTable]:
    """Return what the cases are divided by -> a row for each group."""
    tables = {}
    for divided_by, groups in (record.subgroups or {}).items():
        names: dict[str, None] = {}
        for scores in groups.values():
            names |= dict.fromkeys((*scores.scores, *scores.withheld))
        rows = [_subgroup_row(group, scores, names) for group, scores in groups.items()]
        columns = (divided_by, "cases", f"{record.unit}s", *(METRIC_NAMES.get(name, name) for name in names))
        tables[f"By {divided_by}"] = TextTable(columns, tuple(rows))
    return tables


def _subgroup_row(group: str, scores: Subgroup, names: Iterable[str]) -> tuple[str, ...]:
    cells = [group]
    for count in (scores.num_cases, scores.num_units):
        cells.append(NOT_SAID if count is None else str(count))
    for name in names:
        # A score of few patients is withheld, and one that nothing gives is missing.
        if name in scores.withheld:
            cells.append(NOT_SAID)
        else:
            cells.append(format_estimate(scores.scores.get(name, evaluation.MISSING)))
    return tuple(cells)


def evaluation_blocks(record: Evaluation) -> list[Block]:
    """Return the numbers, the tables with their headings, and how to read them."""
    blocks: list[Block] = [Items(summary_lines(record))]
    for name, table in evaluation_tables(record).items():
        blocks += [Heading(name), Table(table)]
    return blocks + [Text(note, "note") for note in list_notes(record)]


def _group_table(record: Evaluation) -> TextTable:
    called = record.decision_thresholds or {}
    present = set[str]().union(*record.groups.values())
    names = [name for name in GROUP_SCORES if name in present]
    units = {"size_error": f", {record.size_unit}", "hd95": f", {UNITS.get(record.distance_unit)}"}
    titles = [name_score(name, names) + units.get(name, "") for name in names]
    counts = record.lesions or {group: scores["recall"].num_cases for group, scores in record.groups.items()}
    columns = [_name_group(record), "components" if record.is_segmentation else "cases", *titles]
    if called:
        columns.append("model's threshold")
    rows = []
    for group, scores in record.groups.items():
        cells = [group, str(counts[group])]
        cells += [format_score(scores.get(name, evaluation.MISSING), name) for name in names]
        if called:
            cells.append(format_number(called.get(group)))
        rows.append(tuple(cells))
    return TextTable(tuple(columns), tuple(rows))


def _name_group(record: Evaluation) -> str:
    if record.is_segmentation:
        return "label"
    return "finding" if record.has_findings else "class"


def list_notes(record: Evaluation) -> list[str]:
    """Return how to read the numbers."""
    auroc = "" if record.is_segmentation else ", DeLong's for AUROC"
    notes = [GROUPS_NOTE.format(least=record.least, unit=record.unit)] if record.divided else []
    notes.append(metric_sentence(record.metric, record.has_findings))
    notes.append(INTERVALS.format(unit=record.unit, auroc=auroc))
    if record.is_segmentation:
        return [*notes, LABELS_NOTE.format(unit=record.distance_unit)]
    notes.append(FINDINGS_NOTE if record.has_findings else CLASSES_NOTE)
    if len(record.groups) > 1:
        notes.append(MEANS_NOTE)
    if record.decision_thresholds:
        notes.append(THRESHOLD_NOTE)
    notes.append(CALIBRATION_NOTE)
    # A temperature of 1 changes nothing: none was chosen.
    if record.temperature != 1:
        notes.append(f"The model's temperature, {record.temperature:.2f}, was chosen on validation data.")
    return notes


def alarm_lines(record: Evaluation) -> list[str]:
    """Return what a reader must know before all numbers: what the model never finds."""
    missed: dict[str, int] = {}
    for name, answers in (record.confusion or {}).items():
        if any(answers.values()) and not answers[name]:
            missed[name] = sum(answers.values())
    alarms = []
    for name, scores in record.groups.items():
        if record.has_findings and scores["recall"].value == 0:
            missed[name] = scores["recall"].num_cases
        # Of a label that no case holds a Dice of 0 is of false alarms alone.
        if record.is_segmentation and scores["dice"].value == 0 and (record.lesions or {}).get(name):
            alarms.append(f"{name} is never found: Dice 0 in {scores['dice'].num_cases} cases")
    return [f"no case of {name} is recognised: recall 0 in {count} cases" for name, count in missed.items()] + alarms


def warning_lines(record: Evaluation) -> list[str]:
    """Return what `predict` would warn of, with the number of cases."""
    return [f"{sentence}: {count} of {record.num_cases} cases" for sentence, count in record.warnings.items()]


def make_evaluation_page(
    record: Evaluation,
    site: str,
    cautions: Sequence[str],
    images: Mapping[str, PageImage | None],
    refused: Sequence[str],
) -> Page:
    """Return the page.

    Args:
        site: Name of the folder of the data.
        cautions: What must be known before a number is believed.
        images: ``roc`` and ``worst`` -> the figure, or None.
        refused: Why each case was refused.
    """
    alarms = alarm_lines(record)
    # Where cases are the units, they are counted once.
    counts = {"cases": str(record.num_cases), f"{record.unit}s": str(record.num_units)}
    answers = TextTable(("answered by", "cases"), tuple((name, str(n)) for name, n in record.answers.items()))
    facts = [
        ("model", record.fingerprint[:16]),
        ("study", record.study),
        ("rule", record.rule),
        ("what the models' own test said", record.quality or MISSING),
        *record.versions.items(),
    ]
    sections: list[PageSection] = [
        make_section("results", "Results", "Results", evaluation_blocks(record)),
        make_section(
            "warnings",
            "Warnings",
            "What predict would warn of",
            make_items(warning_lines(record)) or Text("Nothing."),
            [Heading("Refused cases"), make_items(list(refused))] if refused else None,
        ),
        make_section("model", "Model", "The model", make_table(answers), Pairs(facts)),
    ]
    opening: list[Block] = [
        Banner("warning", "RESEARCH", RESEARCH, cautions),
        Tiles([*_list_numbers(record), *counts.items()]),
    ]
    if alarms:
        # Before all numbers, which look well where one class is never found.
        opening.insert(0, Banner("bad", "LOOK FIRST", alarms[0], alarms[1:]))
    if images["roc"]:
        opening.append(Picture(images["roc"], "shrink"))
    if images["worst"]:
        sections.insert(1, make_section("pictures", "Pictures", "Worst cases", Picture(images["worst"], "shrink")))
    return Page(
        title=f"{record.study} at {site}",
        kicker="Evaluation of a trained model on labelled cases",
        subtitle=summary_lines(record)[:1],
        opening=opening,
        sections=sections,
        footer="This page names cases: it stays at the hospital. It holds all it shows and loads nothing.",
        is_wide=True,
    )
