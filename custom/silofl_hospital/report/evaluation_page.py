"""The numbers of an evaluation in tables and sentences, and its page, ``evaluation.html``."""

from collections.abc import Collection, Mapping, Sequence

from silofl.core.intervals import Estimate
from silofl.core.roc import AreaDifference
from silofl.inference import evaluation
from silofl.inference.evaluation import ALL, Evaluation
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
    "lesion_sensitivity": "lesions found",
    "false_lesions": "false lesions a case",
    "size_error": "size error",
    "hd95": "HD95",
    "surface_dice": "surface Dice",
    "recall": "recall",
    "specificity": "specificity",
    "auroc": "AUROC",
    "average_precision": "PR-AUC",
    "sensitivity": "sensitivity at {:g} specificity",
    "threshold": "threshold",
}
FORMS = {"lesion_sensitivity": ".2f", "false_lesions": ".2f", "hd95": ".1f", "size_error": "+.3g"}
DIFFERENCE = "+z.3f"
# Of a p-value that is corrected for all comparisons.
LEVEL = 0.05

RESEARCH = "For research: a research tool and no medical device."
INTERVALS = (
    "In brackets: 95 % confidence interval over {unit}s (Wilson's formula with the variance of the jackknife{auroc}; "
    "Student's for sizes). Not given if all values are equal, except at 0 or 1. With few {unit}s it is too narrow if "
    "the model fails badly for one {unit} in ten."
)
LABELS_NOTE = (
    "All numbers are on the image file's grid. A lesion is a connected component of the label; it is found if at "
    "least one voxel of it is predicted. False lesions are predicted components that touch none. Size error: predicted "
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
    "The threshold gives the highest sensitivity at a specificity of at least {:g}. It was chosen on these very "
    "cases: expect a little less on others."
)
CALLED_NOTE = (
    "The model's threshold was chosen on validation data of the hospitals that trained it; sensitivity and specificity "
    "are those of its answers."
)
CALIBRATION_NOTE = (
    "ECE (0 = perfect): how far the probability of the answer is from the share of right answers, mean over ten bins. "
    "With few cases even a perfectly calibrated model is above 0: the second number is the ECE of such a model with "
    "these probabilities in as many cases, on average and in 95 % of draws."
)
GROUPS_NOTE = (
    "By groups: a number of fewer than {least} {unit}s, or from which one would follow, is withheld. Groups are "
    "compared by a permutation test over {unit}s, corrected for all {tests} comparisons (Holm). With few "
    "{unit}s only large differences are found."
)
CONFUSION = "true class (rows), answer (columns)"


def format_estimate(estimate: Estimate | AreaDifference, form: str = ".3f") -> str:
    """Return ``0.812 (0.750 to 0.861)``; without brackets where there is no interval, ``-`` without a value."""
    value = estimate.value if isinstance(estimate, Estimate) else estimate.difference
    if value is None:
        return MISSING
    ends = [format(end, form) for end in estimate.interval or ()]
    return format(value, form) + (f" ({' to '.join(ends)})" if ends else "")


def format_score(estimate: Estimate, name: str) -> str:
    """Return a score of a label or class, with as many digits as it deserves."""
    return format_estimate(estimate, FORMS.get(name, ".3f"))


def name_score(name: str, others: Collection[str], specificity: float | None) -> str:
    """Return how a table names a score of a label or class; beside its specificity a recall is a sensitivity.

    Args:
        others: All scores of the table.
        specificity: For which the sensitivity is.
    """
    is_share = name == "recall" and "specificity" in others
    if is_share or name not in GROUP_SCORES:
        return "sensitivity" if is_share else name
    return GROUP_SCORES[name].format(specificity)


def summary_lines(record: Evaluation) -> list[str]:
    """Return the main numbers as lines: cases, the study's metric, and what else is of all cases."""
    units = "" if record.unit == "case" else f" of {record.num_units} {record.unit}s"
    counts = f"{record.num_cases} cases{units} ({', '.join(record.parts)})"
    several = "s" * (record.num_refused != 1)
    refused = f"; {record.num_refused} case{several} refused, as by predict" if record.num_refused else ""
    lines = [f"{counts}{refused}", *(f"{name}: {value}" for name, value in _list_numbers(record))]
    if record.num_empty:
        lines.append(f"cases without any label: {record.num_empty}, with a false alarm in {record.num_false_positive}")
    if record.num_excluded:
        lines.append(f"not counted, as truth and prediction are empty: {record.num_excluded}")
    return [*lines, *_list_withheld(record), *comparison_lines(record)]


def _list_withheld(record: Evaluation) -> list[str]:
    """Say how many answers the study's rule forbids to use, and why; nothing where it states none."""
    found = record.withheld
    if found is None:
        return []
    reasons = "; ".join(f"{reason} ({count})" for reason, count in found.reasons.items())
    line = f"not to be used, by the study's rule: {found.num_cases} of {record.num_cases} answers"
    return [f"{line}: {reasons}" if reasons else line]


def comparison_lines(record: Evaluation) -> list[str]:
    """Return what the model has beyond the other one; nothing where there is no other."""
    found = record.against
    if found is None:
        return []
    metric = METRIC_NAMES.get(record.metric, record.metric)
    lines = [f"against model {found.fingerprint[:16]}, on the {found.num_cases} cases that both answered:"]
    if found.difference.value is not None:
        lines.append(f"{metric} {format_estimate(found.difference, DIFFERENCE)}: {judge_release(found.difference)}")
    for name, one in found.aurocs.items():
        said = "" if one.p_value is None else f", p {one.p_value:.2g} (DeLong)"
        lines.append(f"AUROC of {name} {format_estimate(one, DIFFERENCE)}{said}")
    return lines


def judge_release(difference: Estimate) -> str:
    """Return whether a model may take another one's place, by its metric minus the other's."""
    if difference.interval is None or difference.interval[0] <= 0:
        is_worse = difference.interval is not None and difference.interval[1] < 0
        return f"{'worse than the other' if is_worse else 'not better beyond chance'}, so that the other stays in use"
    return "better beyond chance, so that it may take the other's place"


def _list_numbers(record: Evaluation) -> list[tuple[str, str]]:
    numbers = dict(record.scores[ALL])
    error, calibrated = numbers.pop("ece", None), numbers.pop("ece_calibrated", None)
    named = [(METRIC_NAMES.get(name, name), format_estimate(one)) for name, one in numbers.items()]
    if error and calibrated:
        named.append(("ECE", _format_error(error, calibrated)))
    return named


def _format_error(error: Estimate, calibrated: Estimate) -> str:
    """Return a calibration error beside that of a perfectly calibrated model."""
    return f"{format_estimate(error)}; if calibrated {format_estimate(calibrated)}"


def evaluation_tables(record: Evaluation) -> dict[str, TextTable]:
    """Return the tables by label, or by class with that of the answers, under their headings."""
    found = {f"By {_name_group(record)}": _group_table(record)}
    if record.confusion:
        rows = tuple((name, *map(str, counts.values())) for name, counts in record.confusion.items())
        found["Answers"] = TextTable((CONFUSION, *record.confusion), rows)
    return found | _subgroup_tables(record)


def _subgroup_tables(record: Evaluation) -> dict[str, TextTable]:
    """Return what the cases are divided by -> a row for each group."""
    found = {}
    for by, groups in (record.subgroups or {}).items():
        names = list(dict.fromkeys(name for one in groups.values() for name in (*one.scores, *one.withheld)))
        rows = [
            (group, *(NOT_SAID if count is None else str(count) for count in (one.num_cases, one.num_units)))
            + tuple(
                NOT_SAID if name in one.withheld else format_estimate(one.scores.get(name, evaluation.MISSING))
                for name in names
            )
            for group, one in groups.items()
        ]
        columns = (by, "cases", f"{record.unit}s", *(METRIC_NAMES.get(name, name) for name in names))
        found[f"By {by}"] = TextTable(columns, tuple(rows))
    return found


def difference_lines(record: Evaluation) -> list[str]:
    """Return a sentence for each group that differs from the others beyond chance."""
    return [
        f"{name} is {'lower' if (one.differences[name].value or 0) < 0 else 'higher'} for {by} {group} than for the "
        f"others: {format_estimate(one.differences[name], DIFFERENCE)}, p {p_value:.2g} (corrected)"
        for by, group, one in record.divided
        for name, p_value in one.p_values.items()
        if p_value < LEVEL
    ]


def evaluation_blocks(record: Evaluation) -> list[Block]:
    """Return the numbers, the tables with their headings, and how to read them."""
    tables = [block for name, table in evaluation_tables(record).items() for block in (Heading(name), Table(table))]
    return [Items(summary_lines(record)), *tables, *(Text(note, "note") for note in list_notes(record))]


def _group_table(record: Evaluation) -> TextTable:
    known, called = {name for one in record.groups.values() for name in one}, record.called_from or {}
    names = [name for name in GROUP_SCORES if name in known]
    units = {"size_error": f", {record.size_unit}", "hd95": f", {UNITS.get(record.distance_unit)}"}
    titles = [name_score(name, names, record.specificity) + units.get(name, "") for name in names]
    counts = record.lesions or {group: one["recall"].num_cases for group, one in record.groups.items()}
    rows = [
        (
            group,
            str(counts[group]),
            *(format_score(one.get(name, evaluation.MISSING), name) for name in names),
            *([format_number(called.get(group))] if called else []),
        )
        for group, one in record.groups.items()
    ]
    columns = (_name_group(record), "lesions" if record.is_segmentation else "cases", *titles)
    return TextTable((*columns, *["model's threshold"] * bool(called)), tuple(rows))


def _name_group(record: Evaluation) -> str:
    return "label" if record.is_segmentation else "finding" if record.has_findings else "class"


def list_notes(record: Evaluation) -> list[str]:
    """Return how to read the numbers."""
    auroc, num_tests = (
        "" if record.is_segmentation else ", DeLong's for AUROC",
        sum(len(o.p_values) for *_, o in record.divided),
    )
    groups = [GROUPS_NOTE.format(least=record.least, unit=record.unit, tests=num_tests)] if record.divided else []
    notes = groups + [
        metric_sentence(record.metric, record.has_findings),
        INTERVALS.format(unit=record.unit, auroc=auroc),
    ]
    if record.is_segmentation:
        return [*notes, LABELS_NOTE.format(unit=record.distance_unit)]
    notes += [FINDINGS_NOTE if record.has_findings else CLASSES_NOTE, THRESHOLD_NOTE.format(record.specificity)]
    notes += [MEANS_NOTE] if len(record.groups) > 1 else []
    notes += [CALLED_NOTE] if record.called_from else []
    return [*notes, *_list_calibration_notes(record)]


def _list_calibration_notes(record: Evaluation) -> list[str]:
    """Say what the error is, and whether the model's temperature brings it down here."""
    found = record.calibration
    if found is None or found.error_before is None or found.calibrated_before is None:
        return [CALIBRATION_NOTE]
    error, calibrated = record.scores[ALL]["ece"], record.scores[ALL]["ece_calibrated"]
    if error.value is None or found.error_before.value is None:
        return [CALIBRATION_NOTE]
    end = "" if error.value < found.error_before.value else " Here it does not help."
    before, after = _format_error(found.error_before, found.calibrated_before), _format_error(error, calibrated)
    said = f"The model's temperature, {found.temperature:.2f}, was chosen on validation data; it takes the ECE from "
    return [CALIBRATION_NOTE, f"{said}{before} to {after}.{end}"]


def alarm_lines(record: Evaluation) -> list[str]:
    """Return what a reader must know before all numbers: answers not to be used, and what the model never finds."""
    found = _list_withheld(record) if record.withheld and record.withheld.num_cases else []
    findings, confusion = record.groups if record.has_findings else {}, record.confusion or {}
    never = [(name, sum(row.values())) for name, row in confusion.items() if any(row.values()) and not row[name]]
    never += [(name, one["recall"].num_cases) for name, one in findings.items() if one["recall"].value == 0]
    found += [f"no case of {name} is recognised: recall 0 in {number} cases" for name, number in never]
    labels = [(name, one["dice"]) for name, one in record.groups.items() if record.is_segmentation]
    found += difference_lines(record)
    return found + [f"{name} is never found: Dice 0 in {one.num_cases} cases" for name, one in labels if one.value == 0]


def warning_lines(record: Evaluation) -> list[str]:
    """Return what `predict` would warn of, with the number of cases."""
    return [f"{sentence}: {count} of {record.num_cases} cases" for sentence, count in record.warnings.items()]


def make_evaluation_page(
    record: Evaluation,
    site: str,
    doubts: Sequence[str],
    images: Mapping[str, PageImage | None],
    refused: Sequence[str],
    worst: str = "",
) -> Page:
    """Return the page.

    Args:
        site: Name of the folder of the data.
        doubts: What must be known before a number is believed.
        images: ``roc`` and ``worst`` -> the figure, or None.
        refused: Why each case was refused.
        worst: Names the worst case, as a sentence; empty where all are right.
    """
    alarms = alarm_lines(record)
    first, *rest = [*alarms, *([worst] if worst else [])] or [""]
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
        make_section(
            "results",
            "Results",
            "Results",
            evaluation_blocks(record),
        ),
        make_section(
            "warnings",
            "Warnings",
            "What predict would warn of",
            make_items(warning_lines(record)) or Text("Nothing."),
            [Heading("Refused cases"), make_items(list(refused))] if refused else None,
        ),
        make_section("model", "Model", "The model", make_table(answers), Pairs(facts)),
    ]
    if images["worst"]:
        sections.insert(1, make_section("pictures", "Pictures", "Worst cases", Picture(images["worst"], "shrink")))
    return Page(
        title=f"{record.study} at {site}",
        kicker="Evaluation of a trained model on labelled cases",
        subtitle=summary_lines(record)[:1],
        opening=[
            *([Banner("bad" if alarms else "warning", "LOOK FIRST", first, rest)] if first else []),
            Banner("warning", "RESEARCH", RESEARCH, doubts),
            Tiles([*_list_numbers(record), *counts.items()]),
            *([Picture(images["roc"], "shrink")] if images["roc"] else []),
        ],
        sections=sections,
        footer="This page names cases: it stays at the hospital. It holds all it shows and loads nothing.",
        is_wide=True,
    )
