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
from silofl_desk.report.facts import Fact, Words, list_sentences
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
    sentences: list[Block] = [Text(sentence) for sentence in list_sentences(EVALUATION_FACTS, found, "limit")]
    notes = [Text(note, "note") for note in list_sentences(EVALUATION_FACTS, found, "note")]
    return make_section("hospitals", "Hospitals", "What hospitals say", sentences, tables, notes, Text(RESEARCH))


def list_chance(found: Evaluations) -> list[str]:
    """Return a sentence for each class, or finding, that the model tells no better than a guess, and for all."""
    return list_sentences(EVALUATION_FACTS, found, "warning")


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


def _format_score(one: HospitalEvaluation, group: str, name: str) -> str:
    estimate = one.scores.get(group, {}).get(name, MISSING)
    if name in (one.not_said or {}).get(group, ()):
        return NOT_SAID
    unit = f" {getattr(one, UNIT_OF[name])}" if name in UNIT_OF and estimate.value is not None else ""
    return format_score(estimate, name) + unit


def _format_pooled(one: PooledEstimate | None, name: str) -> str:
    return format_score(Estimate(one.value, one.interval, one.num_sites) if one else MISSING, name)


def _find_guessed_groups(found: Evaluations) -> list[Words]:
    return [{"group": group} for group in found.labels if _is_guess(found, group, "auroc", CHANCE)]


def _find_guess(found: Evaluations) -> list[Words]:
    groups = found.labels
    has_two = len(groups) == 1 or any(SPECIFICITY in found.pooled[group] for group in groups)
    level = CHANCE if has_two else 1 / max(len(groups), 1)
    return [{"level": level}] if _is_guess(found, ALL, "balanced_accuracy", level) else []


def _find_model(found: Evaluations) -> list[Words]:
    hospitals = f"{len(found.sites)} hospital{'s' * (len(found.sites) != 1)}"
    quality = f" What these models can do: {found.quality}." if found.quality else ""
    return [{"fingerprint": found.fingerprint[:16], "model": found.model, "hospitals": hospitals, "quality": quality}]


def _find_unchecked(found: Evaluations) -> list[Words]:
    sites = [site for site, one in found.sites.items() if not one.is_checked]
    return [{"sites": ", ".join(sites)}] if sites else []


def _find_thresholds(found: Evaluations) -> list[Words]:
    return [{"group": group, "threshold": threshold} for group, threshold in (found.called_from or {}).items()]


def _find_absent_labels(found: Evaluations) -> Iterator[Words]:
    for group in found.labels:
        said = {site: one.scores[group] for site, one in found.sites.items() if group not in (one.not_said or {})}
        sites = [site for site, scores in said.items() if all(one.value is None for one in scores.values())]
        if sites:
            yield {"group": group, "sites": ", ".join(sites)}


def _find_withheld(found: Evaluations) -> list[Words]:
    return [{"site": site, "why": explain_withheld(one.least)} for site, one in found.sites.items() if one.not_said]


def _find_unlike(found: Evaluations) -> list[Words]:
    names = [NAMES.get(name, name) for name in found.pooled[ALL] if has_unlike_classes(found.sites, name)]
    return [{"names": " and ".join(names)}] if names else []


def _find_spread(found: Evaluations) -> list[Words]:
    """Return what hospitals have in common and how they differ, in the study's metric."""
    name, one = next(iter(found.pooled[ALL].items()))
    if one is None:
        return []
    values = [scores.value for site in found.sites.values() if (scores := site.scores[ALL][name]).value is not None]
    words = {"metric": NAMES.get(name, name), "value": _format_pooled(one, name), "number": one.num_sites}
    words |= {"low": min(values), "high": max(values), "share": f"{one.i_squared:.0%}", "p": one.p_value}
    return [words | {"tau": one.tau}]


EVALUATION_FACTS: tuple[Fact[Evaluations], ...] = (
    Fact(
        "limit",
        "reader",
        _find_model,
        "Model {fingerprint} of study {model}, tested on the own test cases of {hospitals}; nothing was "
        "trained.{quality}",
    ),
    Fact(
        "limit",
        "hospital",
        _find_unchecked,
        "No record of the images that the model learnt from is at {sites}: right for a hospital that took no part in "
        "the training; of another nobody has checked that its test images are not among them.",
    ),
    Fact(
        "limit",
        "reader",
        _find_thresholds,
        "The model calls {group} from a probability of {threshold:.3g} on, chosen on validation data where it was "
        "trained: the sensitivity and specificity of its answers are at that.",
    ),
    Fact(
        "limit",
        "reader",
        lambda found: [{"temperature": found.temperature}] if found.temperature != 1 else [],
        "Probabilities and ECE are after the model's temperature, {temperature:.2f}.",
    ),
    Fact(
        "limit",
        "hospital",
        _find_absent_labels,
        "No score of {group} at {sites}: it is in none of the test cases there, or nobody drew it; the numbers over "
        "all cases are of the other labels.",
    ),
    Fact("limit", "hospital", _find_withheld, "{site} withholds the numbers marked so: {why}."),
    Fact(
        "limit",
        "reader",
        _find_unlike,
        "{names}: a mean over the classes of a hospital's test cases; hospitals have different classes, so that these "
        "values must not be compared or averaged; compare class by class.",
    ),
    Fact(
        "limit",
        "reader",
        _find_spread,
        "{metric} is {value} over {number} hospitals, and {low:.3f} to {high:.3f} at single ones. Chance does not "
        "explain {share} of that difference (I^2; 0 % = chance alone may explain it); p of Cochran's Q is {p:.2g} "
        "(small = the hospitals differ). The standard deviation between hospitals is about {tau:.3f}.",
    ),
    Fact(
        "warning",
        "lead",
        _find_guessed_groups,
        f"the model may recognise {{group}} no better than chance: its AUROC over all hospitals may be {CHANCE:g}",
    ),
    Fact(
        "warning",
        "lead",
        _find_guess,
        "the model may be no better than chance: its balanced accuracy may be {level:.3g}, as of a guess",
    ),
    Fact("note", "reader", lambda found: ECE in found.pooled[ALL], CALIBRATED_NOTE),
    Fact("note", "reader", lambda found: True, NOTE),
)
