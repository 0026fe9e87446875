"""The numbers that clinics ask for, over the cases that a model answered."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.core.calibration import calibrated_error, expected_calibration_error
from silofl.core.findings import unpack_findings
from silofl.core.intervals import SIZE, Estimate, Rows, Sample
from silofl.core.lesions import measure_agreement
from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint, temper
from silofl.core.roc import measure_auroc
from silofl.inference.directory import read_versions
from silofl.inference.evaluated_cases import EvaluatedCase, SiteCases, merge_scores
from silofl.inference.evaluation import ALL, MISSING, Evaluation, Scores, list_compared_classes
from silofl.inference.super_model import SuperModel
from silofl.study import Study
from silofl.study.sections import RANKED
from silofl.training.metrics import Label, Probabilities, Score, value_or_none

Floats = NDArray[np.float64]


def measure_evaluation(
    model: SuperModel, fingerprint: str, site: SiteCases, cases: Sequence[EvaluatedCase]
) -> Evaluation:
    """Return all numbers of a model's evaluation.

    Args:
        site: The cases that it was given.
        cases: Those that it answered, at least one.
    """
    study = model.contents.study
    unit_of = site.units.unit_of
    score = merge_scores(cases)
    if study.task == "segmentation":
        measured = _measure_maps(site, cases, score, study)
    else:
        rows = read_class_rows(cases, unit_of)
        # All areas are of the probabilities that `predict` shows.
        shown = replace(score, probabilities_by_case=rows.group_shown())
        measured = _measure_classes(rows, shown, unit_of, study)
    warnings: Counter[str] = Counter()
    for case in cases:
        # Several measures of a case may be unlike, a sentence each: it counts once.
        warnings.update([*dict.fromkeys(sentence.partition(":")[0] for sentence in case.warnings)])
    return Evaluation(
        fingerprint=fingerprint,
        study=study.name,
        task=study.task,
        metric=study.metric,
        rule=model.rule,
        quality=model.quality,
        parts=tuple(site.parts),
        num_cases=len(cases),
        num_refused=site.num_cases - len(cases),
        unit=site.units.name,
        num_units=len({unit_of[case.case] for case in cases}),
        num_excluded=score.num_excluded,
        answers=dict(Counter(case.model for case in cases)),
        warnings=dict(warnings),
        versions=read_versions(),
        **measured,
    )


def _measure_maps(site: SiteCases, cases: Sequence[EvaluatedCase], score: Score, study: Study) -> dict[str, Any]:
    unit_of = site.units.unit_of
    has_sizes = site.has_sizes
    lesions = {}
    for key in list_drawn_labels(cases):
        name = study.name_label(key)
        lesions[name] = 0
        for case in cases:
            if key in case.labels:
                lesions[name] += case.labels[key].lesions.num_true
    measured = {
        "scores": {ALL: {study.metric: measure_value(score, unit_of, {})}, **measure_labels(cases, unit_of, study)},
        "lesions": lesions,
        "distance_unit": "mm" if has_sizes else "pixels",
        "size_unit": "ml" if has_sizes else "pixels",
    }
    if score.empty:
        measured |= {"num_empty": len(score.empty), "num_false_positive": sum(score.empty.values())}
    return measured


def read_class_rows(cases: Sequence[EvaluatedCase], unit_of: Mapping[str, str]) -> "ClassRows":
    """Return the cases of a classification, at least one, as `predict` reads them."""
    return ClassRows(merge_scores(cases), unit_of, {case.case: case.operating_point for case in cases})


def _measure_classes(rows: "ClassRows", score: Score, unit_of: Mapping[str, str], study: Study) -> dict[str, Any]:
    classes = rows.measure_classes(study)
    decision_thresholds = {}
    # Where models have thresholds of their own, model.json has them.
    point = rows.points[0] if len({*map(repr, rows.points)}) == 1 else MOST_PROBABLE
    for label, threshold in sorted(point.shown_thresholds(rows.is_multilabel).items()):
        decision_thresholds[study.labels[label]] = threshold
    also = measure_also(score, unit_of)
    if len(study.labels) == 2 and not score.is_multilabel and "auroc" in also:
        # Of two classes each one's area is the other's: DeLong's interval of the second stands for both.
        also["auroc"] = classes[study.labels[max(study.labels)]]["auroc"]
    of_all = {study.metric: measure_value(score, unit_of, also)} | also
    of_all["ece"] = Estimate(rows.measure_error(rows.shown), None, len(rows.shown))
    of_all["ece_calibrated"] = rows.measure_calibrated(rows.shown)
    measured: dict[str, Any] = {
        "scores": {ALL: of_all, **classes},
        "decision_thresholds": decision_thresholds or None,
        "temperature": point.temperature,
    }
    # A case may have several findings: none is answered instead of another.
    if not score.is_multilabel:
        measured["confusion"] = rows.count_answers(study)
    return measured


def measure_value(score: Score, unit_of: Mapping[str, str], also: Mapping[str, Estimate]) -> Estimate:
    """Return the study's metric over all cases; without an interval where it is none that this file knows.

    Args:
        also: What `measure_also` returns of the same score.
    """
    if score.metric in also:
        return also[score.metric]
    if score.metric.startswith("dice"):
        return measure_mean(score.by_case, unit_of)
    # Without a value is for example the AUROC of cases of one class.
    value = value_or_none(score)
    return Estimate(value, None, 0 if value is None else score.num_cases)


def measure_mean(values: Mapping[str, float], unit_of: Mapping[str, str]) -> Estimate:
    """Return the mean over cases of a value in [0, 1], with its interval over units."""
    return Sample([unit_of[case] for case in values]).mean(np.array([*values.values()]))


def measure_also(score: Score, unit_of: Mapping[str, str]) -> dict[str, Estimate]:
    """Return accuracy, balanced accuracy, and areas under curves, of a classification; nothing of a segmentation.

    Balanced accuracy and areas are means over the classes that there are. Of several findings a case has a row each.
    """
    also = score.also
    if not also:
        return {}
    labels, units, shares = [], [], []
    for label, cases in score.labels_by_case.items():
        for case, share in cases.items():
            labels.append(label)
            units.append(unit_of[case])
            shares.append(share)
    label_of = np.array(labels)
    is_right = np.array(shares)

    def mean_recall(rows: Rows) -> float:
        present = np.unique(label_of[rows])
        return float(np.mean([is_right[rows][label_of[rows] == label].mean() for label in present]))

    kinds = [label_of == label for label in np.unique(label_of)]
    measured = {
        "accuracy": measure_mean(score.by_case, unit_of),
        "balanced_accuracy": Sample(units).estimate(mean_recall, *kinds),
    }
    for name in RANKED:
        if name in also:
            measured[name] = ClassRows(score, unit_of).measure_mean_area(name)
    # Rows are counted there: a case with several findings has several.
    return {name: replace(estimate, num_cases=len(score.by_case)) for name, estimate in measured.items()}


def list_drawn_labels(cases: Sequence[EvaluatedCase]) -> list[int | str]:
    """Return the labels, or regions, that label maps show."""
    labels: dict[int | str, None] = {}
    for case in cases:
        labels |= dict.fromkeys(case.labels)
    return [*labels]


def measure_labels(cases: Sequence[EvaluatedCase], unit_of: Mapping[str, str], study: Study) -> Scores:
    """Return the scores of each label, or region, by its name, over the cases whose label maps show it."""
    sample = Sample([unit_of[case.case] for case in cases])
    return {study.name_label(key): _score_label(key, cases, sample) for key in list_drawn_labels(cases)}


def _score_label(key: int | str, cases: Sequence[EvaluatedCase], sample: Sample) -> dict[str, Estimate]:
    # A value that a case lacks stays NaN, which no mean counts.
    dice, num_true, num_found, num_false, hd95, surface_dice = np.full((6, len(cases)), np.nan)
    predicted_sizes, true_sizes = [], []
    for row, case in enumerate(cases):
        dice[row] = case.score.labels_by_case.get(key, {}).get(case.case, np.nan)
        measures = case.labels.get(key)
        if measures is None:
            continue
        num_true[row] = measures.lesions.num_true
        num_found[row] = measures.lesions.num_found
        num_false[row] = measures.lesions.num_false
        if measures.distances is not None:
            hd95[row], surface_dice[row] = measures.distances
        # That nothing is predicted where nothing is says nothing about how well sizes agree.
        if measures.predicted or measures.true:
            predicted_sizes.append(measures.predicted)
            true_sizes.append(measures.true)
    mean_dice = sample.mean(dice)
    error = measure_agreement(predicted_sizes, true_sizes)
    size_error = MISSING
    if error is not None:
        limits = None if error.low is None or error.high is None else (error.low, error.high)
        size_error = Estimate(error.bias, limits, max(mean_dice.num_cases, 1))
    return {
        "dice": mean_dice,
        "lesion_sensitivity": sample.ratio(np.nan_to_num(num_found), np.nan_to_num(num_true)),
        "false_lesions": sample.mean(num_false, SIZE),
        "size_error": size_error,
        "hd95": sample.mean(hd95, SIZE),
        "surface_dice": sample.mean(surface_dice),
    }


def _has_both_kinds(truth: NDArray[np.bool_]) -> bool:
    """Return whether some cases are of a class, or have a finding, and others not: else nothing is ranked."""
    return bool(0 < truth.sum() < len(truth))


class ClassRows:
    """The cases of a classification: of each its true class, or findings, and its mean probabilities.

    Args:
        score: Of all cases, with their probabilities.
        unit_of: Case -> its unit.
        point_of: Case -> how its probabilities are read; all as the networks give them where it is empty.

    Attributes:
        points: How the probabilities of each case are read.
        shown: The probabilities as `predict` shows them, shape (cases, count).
        is_true: Whether each class, or finding, is there, shape (cases, count).
        is_answered: Whether each class, or finding, is answered, shape (cases, count).
    """

    def __init__(
        self, score: Score, unit_of: Mapping[str, str], point_of: Mapping[str, OperatingPoint] | None = None
    ) -> None:
        self.is_multilabel = score.is_multilabel
        self.cases: list[str] = []
        truth, rows = [], []
        for label, chances_by_case in score.probabilities_by_case.items():
            for case, chances in chances_by_case.items():
                truth.append(label)
                self.cases.append(case)
                rows.append(chances)
        self.truth = np.array(truth)
        self.probabilities = np.array(rows)
        self.points = [(point_of or {}).get(case, MOST_PROBABLE) for case in self.cases]
        self.shown: NDArray[np.float64] = np.empty(self.probabilities.shape)
        self.is_true = self._unpack(self.truth)
        self.is_answered = np.empty(self.probabilities.shape, np.bool_)
        for row, point in enumerate(self.points):
            of_case = self.probabilities[[row]]
            self.shown[row] = temper(of_case, point.temperature, self.is_multilabel)
            self.is_answered[row] = self._unpack(point.decide(of_case, self.is_multilabel))
        self.units = [unit_of[case] for case in self.cases]
        self.sample = Sample(self.units)

    def decide(self, operating_point: OperatingPoint) -> NDArray[np.bool_]:
        """Return whether each class, or finding, is answered, shape (cases, count)."""
        return self._unpack(operating_point.decide(self.probabilities, self.is_multilabel))

    def group_shown(self) -> dict[Label, dict[str, Probabilities]]:
        """Return true class, or set of findings -> case -> its probabilities as they are shown."""
        shown: dict[Label, dict[str, Probabilities]] = {}
        for label, case, chances in zip(self.truth.tolist(), self.cases, self.shown.tolist(), strict=True):
            shown.setdefault(label, {})[case] = tuple(chances)
        return shown

    def _unpack(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        count = self.probabilities.shape[1]
        return unpack_findings(labels, count) if self.is_multilabel else labels[:, None] == np.arange(count)

    def draw_rocs(self, study: Study) -> dict[str, tuple[list[float], list[float]]]:
        """Return the ROC curve of each class with both kinds of cases: shares called wrongly, and rightly."""
        # It is imported here because it takes a second, which no segmentation needs.
        from sklearn.metrics import roc_curve

        curves = {}
        for label in list_compared_classes(study):
            if _has_both_kinds(self.is_true[:, label]):
                wrong, right, _ = roc_curve(self.is_true[:, label], self.shown[:, label])
                curves[study.labels[label]] = (wrong.tolist(), right.tolist())
        return curves

    def measure_classes(self, study: Study) -> Scores:
        """Return the scores of each class against all others by its name; of two classes the second's alone."""
        return {study.labels[label]: self._measure_class(label) for label in list_compared_classes(study)}

    def _measure_class(self, label: int) -> dict[str, Estimate]:
        is_positive = self.is_true[:, label]
        is_answered = self.is_answered[:, label].astype(np.float64)
        scores = {
            "recall": self.sample.mean(np.where(is_positive, is_answered, np.nan)),
            "specificity": self.sample.mean(np.where(is_positive, np.nan, 1 - is_answered)),
        }
        area = measure_auroc(self.shown[:, label], is_positive, self.units)
        # DeLong's interval needs no resampling; average precision has none of its own.
        scores["auroc"] = Estimate(area.value, area.interval, len(is_positive)) if area else MISSING
        scores["average_precision"] = self.sample.estimate(
            lambda rows: self._find_area("auprc", label, rows), is_positive, ~is_positive
        )
        return scores

    def measure_mean_area(self, metric: str) -> Estimate:
        """Return the mean over the classes, or findings, with cases and others, of the area under a curve.

        Args:
            metric: ``auroc``, or ``auprc``, the average precision.
        """
        present = [label for label in range(self.is_true.shape[1]) if _has_both_kinds(self.is_true[:, label])]
        kinds = []
        for label in present:
            kinds += [self.is_true[:, label], ~self.is_true[:, label]]
        return self.sample.estimate(
            lambda rows: float(np.mean([self._find_area(metric, label, rows) for label in present])), *kinds
        )

    def _find_area(self, metric: str, label: int, rows: Rows) -> float:
        # These are imported here because it takes a second, which no segmentation needs.
        from sklearn.metrics import average_precision_score, roc_auc_score

        truth = self.is_true[rows, label]
        if not _has_both_kinds(truth):
            return np.nan
        measure = {"auroc": roc_auc_score, "auprc": average_precision_score}[metric]
        return float(measure(truth, self.shown[rows, label]))

    def count_answers(self, study: Study) -> dict[str, dict[str, int]]:
        """Return true class -> answered class -> cases, by their names."""
        # Row i and column j count the cases of class i that are answered as class j.
        counts = self.is_true.T.astype(int) @ self.is_answered
        names = [name for _, name in sorted(study.labels.items())]
        return {name: dict(zip(names, row, strict=True)) for name, row in zip(names, counts.tolist(), strict=True)}

    def measure_error(self, probabilities: Floats) -> float:
        """Return the expected calibration error of the cases' most probable answers."""
        return expected_calibration_error(self._list_confidences(probabilities), self._is_right.ravel())

    def measure_calibrated(self, probabilities: Floats) -> Estimate:
        """Return what that error is of a perfectly calibrated model with these probabilities."""
        # Of several findings a case has an answer each, and is one case.
        return replace(calibrated_error(self._list_confidences(probabilities)), num_cases=len(probabilities))

    def _list_confidences(self, probabilities: Floats) -> Floats:
        # Those of the most probable answers: a threshold asks for others on purpose.
        if self.is_multilabel:
            return np.maximum(probabilities, 1 - probabilities).ravel()
        highest: Floats = probabilities.max(axis=1)
        return highest

    @cached_property
    def _is_right(self) -> NDArray[np.bool_]:
        answers = self.decide(MOST_PROBABLE)
        if self.is_multilabel:
            return np.asarray(answers == self.is_true)
        return np.asarray((answers & self.is_true).any(axis=1))
