"""What several hospitals say of one model, in tables and a sentence: each, over all, and how much they differ."""

from silofl.core.intervals import ROUNDING, Estimate
from silofl.data.inventories import explain_withheld
from silofl.inference.evaluation import ALL, MISSING
from silofl.inference.evaluations import (
    ECE,
    SPECIFICITY,
    UNIT_OF,
    Evaluations,
    HospitalEvaluation,
    has_different_classes,
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
    if pooled:
        # Only an interval that is wholly above the guess excludes it.
        return pooled.interval[0] <= level
    values = [site.scores[group].get(name, MISSING).value for site in found.sites.values()]
    best = max((value for value in values if value is not None), default=None)
    return best is not None and best <= level + ROUNDING


def hospital_tables(found: Evaluations) -> dict[str, TextTable]:
    """Return name of a label or class, or empty for all cases -> a row for each hospital, and those over all."""
    # A group of cases has a table only where a hospital says something of it, or withholds it.
    stated: set[str] = set()
    for site in found.sites.values():
        stated.update(site.not_said or {})
        for group, scores in site.scores.items():
            if any(score.value is not None for score in scores.values()):
                stated.add(group)
    groups = [group for group in found.pooled if group not in found.divided or group in stated]
    return {group: _make_table(found, group) for group in groups}


def _make_table(found: Evaluations, group: str) -> TextTable:
    names = list(found.pooled[group])
    counts = ("cases", "patients", "refused") if group == ALL else ()
    rows = []
    for site, evaluation in found.sites.items():
        # Where the patients of cases are not known, how many there are is not known either.
        patients = evaluation.num_units if evaluation.unit == "patient" else "-"
        numbers = (evaluation.num_cases, patients, evaluation.num_refused)[: len(counts)]
        scores = [_format_score(evaluation, group, name) for name in names]
        rows.append((site, *map(str, numbers), *scores))
    over_all = ["over all", *[""] * len(counts)]
    differences = ["I^2, p", *[""] * len(counts)]
    for name, pooled in found.pooled[group].items():
        estimate = Estimate(pooled.value, pooled.interval, pooled.num_sites) if pooled else MISSING
        over_all.append(format_score(estimate, name))
        differences.append(f"{pooled.i_squared:.0%}, {pooled.p_value:.2g}" if pooled else "-")
    titles = [NAMES.get(name) or name_score(name, found.pooled[group]) for name in names]
    return TextTable(("hospital", *counts, *titles), (*rows, tuple(over_all), tuple(differences)))


def _format_score(evaluation: HospitalEvaluation, group: str, name: str) -> str:
    if name in (evaluation.not_said or {}).get(group, ()):
        return NOT_SAID
    estimate = evaluation.scores.get(group, {}).get(name, MISSING)
    text = format_score(estimate, name)
    if name in UNIT_OF and estimate.value is not None:
        text += f" {getattr(evaluation, UNIT_OF[name])}"
    return text


def _find_guess(found: Evaluations) -> list[Words]:
    groups = found.labels
    # Of two answers a guess is right in half of the cases, of n in the n-th part.
    has_two = len(groups) == 1 or any(SPECIFICITY in found.pooled[group] for group in groups)
    level = CHANCE if has_two else 1 / max(len(groups), 1)
    return [{"level": level}] if _is_guess(found, ALL, "balanced_accuracy", level) else []


def _find_model(found: Evaluations) -> list[Words]:
    hospitals = f"{len(found.sites)} hospital{'s' * (len(found.sites) != 1)}"
    quality = f" What these models can do: {found.quality}." if found.quality else ""
    return [{"fingerprint": found.fingerprint[:16], "model": found.model, "hospitals": hospitals, "quality": quality}]


def _find_unchecked(found: Evaluations) -> list[Words]:
    sites = [site for site, evaluation in found.sites.items() if not evaluation.is_checked]
    return [{"sites": ", ".join(sites)}] if sites else []


def _find_withheld(found: Evaluations) -> list[Words]:
    withholding = [(site, evaluation.least) for site, evaluation in found.sites.items() if evaluation.not_said]
    return [{"site": site, "why": explain_withheld(least)} for site, least in withholding]


def _find_different_classes(found: Evaluations) -> list[Words]:
    names = [NAMES.get(name, name) for name in found.pooled[ALL] if has_different_classes(found.sites, name)]
    return [{"names": " and ".join(names)}] if names else []


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
        lambda found: [
            {"group": group, "threshold": threshold} for group, threshold in (found.decision_thresholds or {}).items()
        ],
        "The model calls {group} from a probability of {threshold:.3g} on, chosen on validation data where it was "
        "trained: the sensitivity and specificity of its answers are at that.",
    ),
    Fact(
        "limit",
        "reader",
        lambda found: [{"temperature": found.temperature}] if found.temperature != 1 else [],
        "Probabilities and ECE are after the model's temperature, {temperature:.2f}.",
    ),
    Fact("limit", "hospital", _find_withheld, "{site} withholds the numbers marked so: {why}."),
    Fact(
        "limit",
        "reader",
        _find_different_classes,
        "{names}: a mean over the classes of a hospital's test cases; hospitals have different classes, so that these "
        "values must not be compared or averaged; compare class by class.",
    ),
    Fact(
        "warning",
        "lead",
        lambda found: [{"group": group} for group in found.labels if _is_guess(found, group, "auroc", CHANCE)],
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
