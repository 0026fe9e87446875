"""The numbers of a score that may leave a site: none is of fewer patients than it allows, `min_patients` of site.yaml.

What stays is said to be withheld, and is never 0 or absent. What leaves is rounded: with all its digits the mean Dice
of a model that answers the label everywhere would tell the true size in each patient.
"""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from silofl.core.findings import name_absence
from silofl.core.small_cells import find_small_cells
from silofl.study import Study
from silofl.study.sections import CLASS_MEANS
from silofl.training.metrics import Label, Score, mean_of_known

EMPTY = "cases without a label"
SURFACE = "surface distances"
DECIMALS = 3
# Keys of differences, of their errors, and of numbers without a scale: their three digits are the first that count.
SIGNIFICANT = {"difference", "standard_error", "low", "high", "p_below", "drift", "temperature"}
# Below such a key stand names of the study's, as of a region, which may be any.
TABLES = {"labels", "models", "thresholds"}
OF_EMPTY = ("num_empty", "num_false_positive", "value_with_truth")
# Of a super model's test, in place of what is withheld: its keys are needed.
NOTHING: dict[str, Any] = {"models": {}, "choices": {}, "selector": {"cases": {}}}

Patients = Mapping[str, str | None]


def suppress_small_cells(
    numbers: Mapping[str, Any], score: Score, patient_of: Patients, least: int, study: Study
) -> dict[str, Any]:
    """Return the numbers of a score, `Score.numbers` with others beside them, that may leave.

    Args:
        numbers: `silofl.training.site_score.SiteScore` as plain values.
        score: What they are of.
        patient_of: Case -> its patient; None where nobody knows, who counts for nothing.
        least: Patients that each number must be of.
    """
    if not least:
        return dict(numbers)
    if has_few(score.by_case, patient_of, least):
        return _withhold_all(numbers, least)
    few = {str(label) for label in find_small_labels(score, patient_of, least, study)}
    kept, few = _withhold_measures(numbers, few, least)
    if not few:
        return kept
    kept.pop("operating_point", None)
    kept |= {name: _without(kept[name], few) for name in ("labels", "label_cases", "areas") if name in kept}
    if EMPTY in few:
        kept = _without(kept, OF_EMPTY)
    if "also" in kept:
        # Means over the classes, the withheld ones among them.
        kept["also"] = _without(kept["also"], CLASS_MEANS)
    if table := kept.get("mean_over"):
        # The mean of the classes that may be told; models' values count the withheld classes too.
        kept["value"] = mean_of_known(kept[table].values())
        if "models" in kept:
            kept["models"] = dict.fromkeys(kept["models"])
    if kept["value"] is None:
        return _withhold_all(numbers, least)
    return kept | {"withheld": {"least": least, "names": sorted(few)}}


def round_scores(value: Any, key: str = "") -> Any:  # noqa: ANN401 - the plain values of an answer
    """Round the numbers of an answer: scores to 3 decimals, differences, errors and losses to 3 significant digits.

    Args:
        value: Plain values.
        key: Under which they stand.
    """
    if isinstance(value, Mapping):
        return {name: round_scores(inner, key if key in TABLES else name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [round_scores(inner, key) for inner in value]
    # The epsilon of differential privacy is no score.
    if not isinstance(value, float) or not isfinite(value) or key == "epsilon":
        return value
    if key == "thresholds":
        return round_threshold(value)
    if key in SIGNIFICANT or key.startswith("loss"):
        return round_significant(value)
    return round(value, DECIMALS)


def round_significant(value: float) -> float:
    """Round to 3 significant digits."""
    return float(f"{value:.3g}")


def round_threshold(value: float) -> float:
    """Round a probability to 3 significant digits of it or of its complement: 0 and 1 would call all cases, or none."""
    return round_significant(value) if value <= 0.5 else 1 - round_significant(1 - value)


def find_small_labels(score: Score, patient_of: Patients, least: int, study: Study) -> set[Label]:
    """Return the labels, classes or findings that are withheld: of too few patients, or from which few would follow."""
    small = _find_small(score, patient_of, least, study)
    if study.task != "segmentation":
        return small
    # A case has the mean of its labels: the few that lack one would follow from the mean over all and those of labels.
    for label, cases in score.labels_by_case.items():
        lacking = score.by_case.keys() - cases.keys()
        if cases and lacking and has_few(lacking, patient_of, least):
            small.add(label)
    return small


def _find_small(score: Score, patient_of: Patients, least: int, study: Study) -> set[Label]:
    """Return the labels, classes or findings of too few patients, and those from which they would follow."""
    counts = {label: _count_patients(cases, patient_of) for label, cases in score.labels_by_case.items() if cases}
    is_partition = study.task == "classification"
    few = find_small_cells(counts, least, is_partition)
    if score.is_multilabel:
        # A finding's cases follow from all cases and those of its absence, and the other way round.
        for number, name in study.labels.items():
            pair: set[Label] = {number, name_absence(name)}
            if few & pair:
                few |= pair
        return few
    if is_partition or not score.empty:
        return few
    # Of cases with and without a label either group may be the small one.
    for cases in (score.empty, score.by_case.keys() - score.empty.keys()):
        if cases and has_few(cases, patient_of, least):
            few.add(EMPTY)
    return few


def is_withheld(score: Score, patient_of: Patients, least: int, study: Study) -> bool:
    """Return whether a score, or one of its labels, is of too few patients."""
    if least <= 0:
        return False
    return has_few(score.by_case, patient_of, least) or bool(_find_small(score, patient_of, least, study))


def has_few(cases: Collection[str], patient_of: Patients, least: int) -> bool:
    """Return whether some cases are of too few patients."""
    return _count_patients(cases, patient_of) < least


def _count_patients(cases: Collection[str], patient_of: Patients) -> int:
    return len({patient_of.get(case) for case in cases} - {None})


def _withhold_measures(numbers: Mapping[str, Any], few: set[str], least: int) -> tuple[dict[str, Any], set[str]]:
    """Leave out surface distances and packages' metrics of too few cases; their names join the withheld ones."""
    kept = dict(numbers)
    extra = numbers.get("extra_metrics", {})
    small = {name for name, score in extra.items() if 0 < score["num_cases"] < least}
    if small:
        kept["extra_metrics"] = _without(extra, small)
    if 0 < (numbers.get("surface") or {}).get("num_cases", 0) < least:
        small.add(SURFACE)
        kept.pop("surface")
    return kept, few | small


def _withhold_all(numbers: Mapping[str, Any], least: int) -> dict[str, Any]:
    nothing = {"value": None, "num_cases": 0, "num_excluded": 0, "withheld": {"least": least}}
    return nothing | NOTHING if "choices" in numbers else nothing


def _without(table: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in keys}
