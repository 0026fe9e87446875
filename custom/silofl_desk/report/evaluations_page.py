"""What several hospitals say of one model, in tables and a sentence: each, over all, and how much they differ."""

from collections.abc import Iterator

from silofl.core.heterogeneity import PooledEstimate
from silofl.core.intervals import ROUNDING, Estimate
from silofl.data.inventories import explain_withheld
from silofl.inference.evaluations import (
    ALL,
    ECE,
    MISSING,
    SPECIFICITY,
    UNIT_OF,
    Evaluations,
    HospitalEvaluation,
    has_unlike_classes,
)
from silofl_hospital.report.evaluation_page import RESEARCH, format_score, name_score
from silofl_hospital.report.page import Block, Heading, PageSection, Table, Text, make_section
from silofl_hospital.report.tables import METRIC_NAMES, NOT_SAID, TextTable

NAMES = METRIC_NAMES | {
    "dice": "Dice",
    "dice_with_background": "Dice with background",
    "ece": "ECE",
    "ece_calibrated": "ECE if calibrated",
}
# The area under the ROC curve of a guess.
CHANCE = 0.5
CALIBRATED_NOTE = (
    "ECE: calibration error, 0 = perfect. ECE if calibrated: the ECE of a perfectly calibrated model with the same "
    "probabilities in as many cases. Both depend on the number of cases, so there is no mean over hospitals."
)
NOTE = (
    "In brackets: at a hospital the 95 % interval over its patients (size error: limits of agreement); over all the "
    "interval of the random-effects mean (DerSimonian and Laird) of the hospitals with an interval. I^2: share of the "
    "differences between hospitals that chance does not explain (Higgins and Thompson; 0 % = none). p: of Cochran's "
    "Q; small = the hospitals differ. With few hospitals both are rough."
)


def evaluations_section(found: Evaluations | None) -> PageSection | None:
    """Return the section on the hospitals' evaluations; None of a run that trains."""
    if found is None:
        return None
    tables: list[Block] = []
    for heading, table in hospital_tables(found).items():
        tables += [Heading(heading), Table(table)] if heading else [Table(table)]
    sentences: list[Block] = [Text(sentence) for sentence in _list_sentences(found)]
    closing = [*(Text(note, "note") for note in _list_notes(found)), Text(RESEARCH)]
    return make_section("hospitals", "Hospitals", "What hospitals say", sentences, tables, closing)


def list_chance(found: Evaluations) -> list[str]:
    """Return a sentence for each class, or finding, that the model tells no better than a guess, and for all."""
    groups = found.labels
    has_two = len(groups) == 1 or any(SPECIFICITY in found.pooled[group] for group in groups)
    level = CHANCE if has_two else 1 / max(len(groups), 1)
    said = [
        f"the model may recognise {group} no better than chance: its AUROC over all hospitals may be {CHANCE:g}"
        for group in groups
        if _is_guess(found, group, "auroc", CHANCE)
    ]
    if _is_guess(found, ALL, "balanced_accuracy", level):
        said.append(f"the model may be no better than chance: its balanced accuracy may be {level:.3g}, as of a guess")
    return said


def _is_guess(found: Evaluations, group: str, name: str, level: float) -> bool:
    """Return whether a score over all hospitals may be a guess's; without such a score, whether each one's is."""
    pooled = found.pooled[group].get(name)
    known = [one.scores[group].get(name, MISSING).value for one in found.sites.values()]
    best = max((value for value in known if value is not None), default=None)
    return pooled.interval[0] <= level if pooled else best is not None and best <= level + ROUNDING


def hospital_tables(found: Evaluations) -> dict[str, TextTable]:
    """Return name of a label or class, or empty for all cases -> a row for each hospital, and those over all."""
    # Of a group of cases only where a hospital says something of it, or withholds it.
    said = {
        group
        for one in found.sites.values()
        for group, scores in one.scores.items()
        if group in (one.not_said or {}) or any(score.value is not None for score in scores.values())
    }
    return {group: _make_table(found, group) for group in found.pooled if group not in found.divided or group in said}


def _make_table(found: Evaluations, group: str) -> TextTable:
    names = list(found.pooled[group])
    counts = ("cases", "patients", "refused") if group == ALL else ()
    titles = [_make_title(name, found, group) for name in names]
    # Of cases whose patients are not known, how many patients there are is not known either.
    said = {
        site: (one.num_cases, one.num_units if one.unit == "patient" else "-", one.num_refused)[: len(counts)]
        for site, one in found.sites.items()
    }
    rows = [
        (site, *map(str, said[site]), *(_format_score(one, group, name) for name in names))
        for site, one in found.sites.items()
    ]
    pooled, blank = [found.pooled[group][name] for name in names], [""] * len(counts)
    rows.append(("over all", *blank, *map(_format_pooled, pooled, names)))
    rows.append(("I^2, p", *blank, *(f"{one.i_squared:.0%}, {one.p_value:.2g}" if one else "-" for one in pooled)))
    return TextTable(("hospital", *counts, *titles), tuple(rows))


def _make_title(name: str, found: Evaluations, group: str) -> str:
    return NAMES.get(name) or name_score(name, found.pooled[group])


def _list_notes(found: Evaluations) -> list[str]:
    """Return how to read the numbers."""
    return [CALIBRATED_NOTE, NOTE] if ECE in found.pooled[ALL] else [NOTE]


def _format_score(one: HospitalEvaluation, group: str, name: str) -> str:
    estimate = one.scores.get(group, {}).get(name, MISSING)
    if name in (one.not_said or {}).get(group, ()):
        return NOT_SAID
    unit = f" {getattr(one, UNIT_OF[name])}" if name in UNIT_OF and estimate.value is not None else ""
    return format_score(estimate, name) + unit


def _format_pooled(one: PooledEstimate | None, name: str) -> str:
    return format_score(Estimate(one.value, one.interval, one.num_sites) if one else MISSING, name)


def _list_sentences(found: Evaluations) -> Iterator[str]:
    """Say which model was tested, and of the study's metric what hospitals have in common and how they differ."""
    yield (
        f"Model {found.fingerprint[:16]} of study {found.model}, tested on the own test cases of {len(found.sites)} "
        f"hospital{'s' * (len(found.sites) != 1)}; nothing was trained."
    )
    if unchecked := [site for site, one in found.sites.items() if not one.is_checked]:
        yield (
            f"No record of the images that the model learnt from is at {', '.join(unchecked)}: right for a hospital "
            "that took no part in the training; of another nobody has checked that its test images are not among them."
        )
    if found.quality:
        yield f"What these models can do: {found.quality}."
    for group, threshold in (found.called_from or {}).items():
        yield (
            f"The model calls {group} from a probability of {threshold:.3g} on, chosen on validation data where it was "
            "trained: the sensitivity and specificity of its answers are at that."
        )
    if found.temperature != 1:
        yield f"Probabilities and ECE are after the model's temperature, {found.temperature:.2f}."
    for group in found.pooled:
        some = {site: one.scores[group] for site, one in found.sites.items() if group not in (one.not_said or {})}
        silent = [site for site, scores in some.items() if all(one.value is None for one in scores.values())]
        if silent and group in found.labels:
            yield (
                f"No score of {group} at {', '.join(silent)}: it is in none of the test cases there, or nobody drew "
                "it; the numbers over all cases are of the other labels."
            )
    for site, one in found.sites.items():
        if one.not_said:
            yield f"{site} withholds the numbers marked so: {explain_withheld(one.least)}."
    unlike = [NAMES.get(name, name) for name in found.pooled[ALL] if has_unlike_classes(found.sites, name)]
    if unlike:
        yield (
            f"{' and '.join(unlike)}: a mean over the classes of a hospital's test cases; hospitals have different "
            "classes, so that these values must not be compared or averaged; compare class by class."
        )
    name, one = next(iter(found.pooled[ALL].items()))
    metric = NAMES.get(name, name)
    if one is None and metric in unlike:
        return
    if one is None:
        yield f"Whether hospitals differ in {metric} is not known: fewer than 2 have an interval."
        return
    values = [scores.value for site in found.sites.values() if (scores := site.scores[ALL][name]).value is not None]
    share = f"{one.i_squared:.0%}"
    spread = (
        "alone may explain that difference" if share == "0%" else f"does not explain {share} of that difference (I^2)"
    )
    yield (
        f"{metric} is {_format_pooled(one, name)} over {one.num_sites} hospitals, and {min(values):.3f} to "
        f"{max(values):.3f} at single ones. Chance {spread}; Cochran's Q is {one.q:.2f}, p {one.p_value:.2g} (small = "
        f"the hospitals differ). The standard deviation between hospitals is about {one.tau:.3f}."
    )
