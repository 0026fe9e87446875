"""The numbers that clinics ask for, over the cases that a model answered."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from silofl.inference.evaluated_cases import EvaluatedCase, LabelMeasures, SiteCases
from silofl.inference.evaluation import (
    ALL,
    MISSING,
    Evaluation,
    Scores,
    list_compared_classes,
)
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
    contents, unit_of = model.contents, site.units.unit_of
    study, score = contents.study, Score.merged({case.case: case.score for case in cases})
    if study.task == "segmentation":
        found = _measure_maps(site, cases, score, study)
    else:
        rows = read_class_rows(cases, unit_of)
        # All areas are of the probabilities that `predict` shows.
        score = replace(score, probabilities_by_case=rows.shown_by_case)
        found = _measure_classes(rows, score, unit_of, study)
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
        warnings=_count_cases(case.warnings for case in cases),
        versions=read_versions(),
        **found,
    )


def _count_cases(sentences: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return the head of each sentence -> how many cases have one or more with it."""
    # What is unlike in a case may be several measures, a sentence each.
    return dict(Counter(head for one in sentences for head in dict.fromkeys(text.partition(":")[0] for text in one)))


def _measure_maps(site: SiteCases, cases: Sequence[EvaluatedCase], score: Score, study: Study) -> dict[str, Any]:
    units = {"distance_unit": "mm", "size_unit": "ml"} if site.has_sizes else {}
    empty = {"num_empty": len(score.empty), "num_false_positive": sum(score.empty.values())} if score.empty else {}
    value = measure_value(score, site.units.unit_of, {})
    found = {"scores": {ALL: {study.metric: value}} | measure_labels(cases, site.units.unit_of, study)}
    measures = {study.labels.get(key, key): list_measures(cases, key) for key in list_drawn_labels(cases)}
    found |= {"lesions": {name: sum(one.lesions.num_true for one in known) for name, known in measures.items()}}
    return found | {"distance_unit": "pixels", "size_unit": "pixels"} | units | empty


def read_class_rows(cases: Sequence[EvaluatedCase], unit_of: Mapping[str, str]) -> "ClassRows":
    """Return the cases of a classification as `predict` reads them."""
    score = Score.merged({case.case: case.score for case in cases})
    return ClassRows(score, unit_of, {case.case: case.calling for case in cases})


def _measure_classes(rows: "ClassRows", score: Score, unit_of: Mapping[str, str], study: Study) -> dict[str, Any]:
    classes = rows.measure_classes(study)
    thresholds = rows.callings[0].shown_thresholds(rows.is_multilabel)
    # One for all models.
    called_from = {
        study.labels[label]: thresholds[label] for label in list_compared_classes(study) if label in thresholds
    }
    found: dict[str, Any] = {"called_from": called_from or None}
    # Findings are not answered one instead of another.
    found |= {} if score.is_multilabel else {"confusion": rows.count_answers(study)}
    also = measure_also(score, unit_of)
    if len(study.labels) == 2 and not score.is_multilabel and "auroc" in also:
        # Each class's is the other's.
        also["auroc"] = classes[study.labels[max(study.labels)]]["auroc"]
    error = Estimate(rows.measure_error(rows.shown), None, len(rows.shown))
    of_all = {study.metric: measure_value(score, unit_of, also)} | also
    of_all |= {"ece": error, "ece_calibrated": rows.measure_calibrated(rows.shown)}
    return found | {"scores": {ALL: of_all} | classes, "temperature": rows.callings[0].temperature}


def measure_value(score: Score, unit_of: Mapping[str, str], also: Mapping[str, Estimate]) -> Estimate:
    """Return the study's metric over all cases; without an interval where it is none that this file knows.

    Args:
        score: Of all cases.
        unit_of: Case -> its unit.
        also: Of `measure_also`.
    """
    if score.metric in also:
        return also[score.metric]
    if score.metric.startswith("dice"):
        return Sample([unit_of[case] for case in score.by_case]).mean(np.array([*score.by_case.values()]))
    # As an AUROC of cases of one class.
    value = value_or_none(score)
    return Estimate(value, None, 0 if value is None else score.num_cases)


def measure_also(score: Score, unit_of: Mapping[str, str]) -> dict[str, Estimate]:
    """Return accuracy, balanced accuracy, and areas under curves, of a classification; nothing of a segmentation.

    Balanced accuracy and areas are means over the classes that there are. Of several findings a case has a row each.
    """
    if not score.also:
        return {}
    rows = [(label, case, right) for label, cases in score.labels_by_case.items() for case, right in cases.items()]
    labels, right = np.array([label for label, *_ in rows]), np.array([one for *_, one in rows])

    def recall(chosen: Rows) -> float:
        found = labels[chosen]
        return float(np.mean([right[chosen][found == label].mean() for label in np.unique(found)]))

    kinds = [labels == label for label in np.unique(labels)]
    balanced = Sample([unit_of[case] for _, case, _ in rows]).estimate(recall, *kinds)
    accuracy = Sample([unit_of[case] for case in score.by_case]).mean(np.array([*score.by_case.values()]))
    found = {"accuracy": accuracy, "balanced_accuracy": balanced}
    found |= {name: ClassRows(score, unit_of).measure_mean_area(name) for name in RANKED if name in score.also}
    return {name: replace(one, num_cases=len(score.by_case)) for name, one in found.items()}


def list_drawn_labels(cases: Sequence[EvaluatedCase]) -> list[int | str]:
    """Return the labels, or regions, that label maps show."""
    return list(dict.fromkeys(key for case in cases for key in case.labels))


def list_measures(cases: Sequence[EvaluatedCase], key: int | str) -> list[LabelMeasures]:
    """Return what is measured of a label in the cases whose label maps show it."""
    return [case.labels[key] for case in cases if key in case.labels]


def measure_labels(cases: Sequence[EvaluatedCase], unit_of: Mapping[str, str], study: Study) -> Scores:
    """Return the scores of each label, or region, by its name, over the cases whose label maps show it."""
    sample = Sample([unit_of[case.case] for case in cases])
    return {study.labels.get(key, key): _score_label(key, cases, sample) for key in list_drawn_labels(cases)}


def _score_label(key: int | str, cases: Sequence[EvaluatedCase], sample: Sample) -> dict[str, Estimate]:
    known = [case.labels.get(key) for case in cases]

    def collect(find: Any) -> Floats:  # noqa: ANN401 - from measures to a number or None
        values = [None if one is None else find(one) for one in known]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    dice = np.array([case.score.labels_by_case.get(key, {}).get(case.case, np.nan) for case in cases])
    true, found = collect(lambda one: one.lesions.num_true), collect(lambda one: one.lesions.num_found)
    has_any = [one for one in list_measures(cases, key) if one.predicted or one.true]
    dice_mean, error = sample.mean(dice), measure_agreement([o.predicted for o in has_any], [o.true for o in has_any])
    limits = None if error is None or error.low is None or error.high is None else (error.low, error.high)
    return {
        "dice": dice_mean,
        "lesion_sensitivity": sample.ratio(np.nan_to_num(found), np.nan_to_num(true)),
        "false_lesions": sample.mean(collect(lambda one: one.lesions.num_false), SIZE),
        "size_error": MISSING if error is None else Estimate(error.bias, limits, max(dice_mean.num_cases, 1)),
        "hd95": sample.mean(collect(lambda one: one.distances and one.distances[0]), SIZE),
        "surface_dice": sample.mean(collect(lambda one: one.distances and one.distances[1])),
    }


class ClassRows:
    """The cases of a classification: of each its true class, or findings, and its mean probabilities.

    Args:
        score: Of all cases, with their probabilities.
        unit_of: Case -> its unit.
        callings: Case -> how its probabilities are read; without one as the networks give them.
    """

    def __init__(
        self, score: Score, unit_of: Mapping[str, str], callings: Mapping[str, OperatingPoint] | None = None
    ) -> None:
        rows = [
            (label, case, row) for label, cases in score.probabilities_by_case.items() for case, row in cases.items()
        ]
        self.truth, self.probabilities = np.array([label for label, *_ in rows]), np.array([row for *_, row in rows])
        self.cases, self.is_multilabel = [case for _, case, _ in rows], score.is_multilabel
        self.callings = [(callings or {}).get(case, MOST_PROBABLE) for case in self.cases]
        # Each case as `predict` reads it alone.
        alone = [*zip(self.callings, self.probabilities[:, None], strict=True)]
        self.shown = np.concatenate([temper(row, one.temperature, self.is_multilabel) for one, row in alone])
        said = np.concatenate([one.decide(row, self.is_multilabel) for one, row in alone])
        # Whether each class, or finding, is there, and is answered: shape (cases, count).
        self.is_true, self.is_answered = self._spread(self.truth), self._spread(said)
        self.units = [unit_of[case] for _, case, _ in rows]
        self.sample = Sample(self.units)

    def decide(self, calling: OperatingPoint) -> NDArray[np.bool_]:
        """Return whether each class, or finding, is answered, shape (cases, count)."""
        return self._spread(calling.decide(self.probabilities, self.is_multilabel))

    @property
    def shown_by_case(self) -> dict[Label, dict[str, Probabilities]]:
        """True class, or set of findings -> case -> its probabilities as they are shown."""
        found: dict[Label, dict[str, Probabilities]] = {}
        for label, case, row in zip(self.truth.tolist(), self.cases, self.shown.tolist(), strict=True):
            found.setdefault(label, {})[case] = tuple(row)
        return found

    def _spread(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        count = self.probabilities.shape[1]
        return unpack_findings(labels, count) if self.is_multilabel else labels[:, None] == np.arange(count)

    def draw_rocs(self, study: Study) -> dict[str, tuple[list[float], list[float]]]:
        """Return the ROC curve of each class with both kinds of cases: shares called wrongly, and rightly."""
        from sklearn.metrics import roc_curve

        pairs = {
            study.labels[label]: (self.is_true[:, label], self.shown[:, label])
            for label in list_compared_classes(study)
        }
        known = {name: roc_curve(*pair)[:2] for name, pair in pairs.items() if 0 < pair[0].sum() < len(pair[0])}
        return {name: (wrong.tolist(), right.tolist()) for name, (wrong, right) in known.items()}

    def measure_classes(self, study: Study) -> Scores:
        """Return the scores of each class against all others by its name; of two classes the second's alone."""
        return {study.labels[label]: self._measure_class(label) for label in list_compared_classes(study)}

    def _measure_class(self, label: int) -> dict[str, Estimate]:
        scores, is_positive = self.shown[:, label], self.is_true[:, label]
        kinds = is_positive, ~is_positive
        is_answered = self.is_answered[:, label].astype(np.float64)
        is_spared = self.sample.mean(np.where(is_positive, np.nan, 1 - is_answered))
        is_called = self.is_multilabel or label in self.callings[0].shown_thresholds(self.is_multilabel)
        area = measure_auroc(scores, is_positive, self.units)
        return {
            "recall": self.sample.mean(np.where(is_positive, is_answered, np.nan)),
            **({"specificity": is_spared} if is_called else {}),
            "auroc": Estimate(area.value, area.interval, len(scores)) if area else MISSING,
            "average_precision": self.sample.estimate(lambda rows: self._find_area("auprc", label, rows), *kinds),
        }

    def measure_mean_area(self, metric: str) -> Estimate:
        """Return the mean over the classes, or findings, with cases and others, of the area under a curve.

        Args:
            metric: ``auroc``, or ``auprc``, the average precision.
        """
        present = [label for label, kind in enumerate(self.is_true.T) if 0 < kind.sum() < len(kind)]
        kinds = [kind for label in present for kind in (self.is_true[:, label], ~self.is_true[:, label])]
        return self.sample.estimate(
            lambda rows: float(np.mean([self._find_area(metric, label, rows) for label in present])), *kinds
        )

    def _find_area(self, metric: str, label: int, rows: Rows) -> float:
        """Return the area under the curve of a class in some cases; NaN of cases of one kind."""
        # Imported here because it takes a second, which no segmentation needs.
        from sklearn.metrics import average_precision_score, roc_auc_score

        truth, measure = self.is_true[rows, label], {"auroc": roc_auc_score, "auprc": average_precision_score}[metric]
        return float(measure(truth, self.shown[rows, label])) if 0 < truth.sum() < len(truth) else np.nan

    def count_answers(self, study: Study) -> dict[str, dict[str, int]]:
        """Return true class -> answered class -> cases, by their names."""
        counts = self.is_true.T.astype(int) @ self.is_answered
        return {
            name: {other: int(counts[label, said]) for said, other in sorted(study.labels.items())}
            for label, name in sorted(study.labels.items())
        }

    def measure_error(self, probabilities: Floats) -> float:
        """Return the expected calibration error of the cases' most probable answers."""
        return expected_calibration_error(*self._list_answers(probabilities))

    def measure_calibrated(self, probabilities: Floats) -> Estimate:
        """Return what that error is of a perfectly calibrated model with these probabilities."""
        # Of several findings a case has an answer each.
        return replace(calibrated_error(self._list_answers(probabilities)[0]), num_cases=len(probabilities))

    def _list_answers(self, probabilities: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        # Of the most probable answers: a threshold asks for others on purpose.
        confidences = np.maximum(probabilities, 1 - probabilities) if self.is_multilabel else probabilities.max(axis=1)
        return confidences.ravel(), self._is_right.ravel()

    @cached_property
    def _is_right(self) -> NDArray[np.bool_]:
        said = self.decide(MOST_PROBABLE)
        return said == self.is_true if self.is_multilabel else (said & self.is_true).any(axis=1)
