"""How a classification's probabilities are read: made as sure as they are right, and from which on a class is called.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599, section 4.2: one temperature T, which
minimises the negative log-likelihood of validation cases, divides all logits. Of probabilities p that is

    p_k^(1/T) / sum_j p_j^(1/T)        of classes,        p^(1/T) / (p^(1/T) + (1 - p)^(1/T))        of each finding

so that no order of a case's classes changes. Thresholds are of the probabilities as the networks give them.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, log

import numpy as np
from numpy.typing import NDArray

from silofl.core.findings import pack_rows
from silofl.core.intervals import LEAST_UNITS, ROUNDING
from silofl.core.roc import find_operating_point

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.1, 10.0
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class OperatingPoint:
    """How probabilities are read.

    Attributes:
        temperature: Divides the logits; 1 changes nothing.
        thresholds: Number of a class, or finding -> the probability, before the temperature, at and above which a case
            is called so. Without one the most probable class is the answer, and each finding above one half.
    """

    temperature: float = 1.0
    thresholds: Mapping[int, float] = field(default_factory=dict)

    def decide(self, probabilities: NDArray[np.floating], is_multilabel: bool = False) -> NDArray[np.int64]:
        """Return the class, or set of findings, of each row of probabilities before the temperature (N, K)."""
        if is_multilabel:
            halves = np.full(probabilities.shape[1], np.nextafter(0.5, 1))
            for number, threshold in self.thresholds.items():
                halves[number] = threshold
            return pack_rows(probabilities >= halves)
        if self.thresholds:
            ((number, threshold),) = self.thresholds.items()
            return np.where(probabilities[:, number] >= threshold, number, 1 - number).astype(np.int64)
        return np.asarray(probabilities.argmax(axis=1), np.int64)

    def shown_thresholds(self, is_multilabel: bool = False) -> dict[int, float]:
        """Return each threshold as the probability that is shown at it."""
        shown = {}
        for number, threshold in self.thresholds.items():
            pair = np.array([[1 - threshold, threshold]])
            shown[number] = float(temper(pair, self.temperature, is_multilabel)[0, 1])
        return shown


# The most probable class, and findings above one half.
MOST_PROBABLE = OperatingPoint()


def read_at_thresholds(
    values: Mapping[str, float],
    absences: Mapping[str, str],
    sensitivity: Mapping[str, float],
    specificity: Mapping[str, float],
) -> dict[str, float]:
    """Return labels' values with what is called from a threshold at that threshold, or left out where not known.

    Args:
        values: Label -> its recall from one half on.
        absences: Label with a threshold -> the label of all other cases.
        sensitivity: Label -> its own at the threshold.
        specificity: The same.
    """
    at_thresholds: dict[str, float | None] = dict(values)
    # The recall of all other cases is the specificity; an absence is written last, as it may be a label too.
    at_thresholds |= {label: sensitivity.get(label) for label in absences}
    at_thresholds |= {absence: specificity.get(label) for label, absence in absences.items()}
    return {label: value for label, value in at_thresholds.items() if value is not None}


def temper(probabilities: NDArray[np.floating], temperature: float, is_multilabel: bool = False) -> Floats:
    """Return probabilities (N, K) with their logits divided by a temperature."""
    if temperature == 1:
        return probabilities.astype(np.float64)
    powers = _logarithms(probabilities) / temperature
    if is_multilabel:
        return np.exp(powers - np.logaddexp(powers, _logarithms(1 - probabilities) / temperature))
    return np.exp(powers - np.logaddexp.reduce(powers, axis=1, keepdims=True))


def choose_operating_point(
    probabilities: Floats,
    is_true: Bools,
    units: Sequence[Hashable],
    called: Sequence[int],
    is_multilabel: bool = False,
    specificity: float | None = None,
    sensitivity: float | None = None,
) -> OperatingPoint:
    """Choose a temperature, and a threshold of each class that is called, on validation cases.

    Args:
        probabilities: Of each case, shape (N, K).
        is_true: Whether a case is of each class, or has each finding, shape (N, K).
        units: The patient of each case, who counts once in the temperature.
        called: The second of two classes, or all findings.
        is_multilabel: Whether a case has a set of findings.
        specificity: The least that a threshold must keep; None where no threshold is chosen by it.
        sensitivity: The same.
    """
    temperature = find_temperature(probabilities, is_true, units, is_multilabel)
    thresholds = {}
    for number in called:
        threshold = find_threshold(probabilities[:, number], is_true[:, number], specificity, sensitivity)
        if threshold is not None:
            thresholds[number] = threshold
    return OperatingPoint(temperature, thresholds)


def find_temperature(
    probabilities: Floats, is_true: Bools, units: Sequence[Hashable], is_multilabel: bool = False
) -> float:
    """Return the temperature of the least negative log-likelihood; 1 where the cases say nothing of it.

    That is of fewer than 6 patients, and without a wrong answer, where the model may be as sure as it likes.

    Args:
        probabilities: As for `choose_operating_point`.
        is_true: As for `choose_operating_point`.
        units: As for `choose_operating_point`.
        is_multilabel: As for `choose_operating_point`.
    """
    # Imported here: it takes long, and only the end of a classification needs it.
    from scipy.optimize import minimize_scalar

    _, numbers, counts = np.unique(np.array([*map(repr, units)]), return_inverse=True, return_counts=True)
    if is_multilabel:
        answers = probabilities > 0.5
    else:
        answers = probabilities == probabilities.max(axis=1, keepdims=True)
    if len(counts) < LEAST_UNITS or (answers == is_true).all():
        return 1.0
    # Each unit counts once, however many cases it has.
    weights = 1 / (len(counts) * counts[numbers])

    def measure_loss(log_temperature: float) -> float:
        tempered = temper(probabilities, exp(log_temperature), is_multilabel)
        # Of classes only the true one counts; a finding that is not there counts by its absence.
        likely = np.where(is_true, tempered, 1 - tempered if is_multilabel else 1.0)
        return float(-(weights * _logarithms(likely).sum(axis=1)).sum())

    ends = log(LEAST_TEMPERATURE), log(MOST_TEMPERATURE)
    return exp(float(minimize_scalar(measure_loss, bounds=ends, method="bounded").x))


def find_threshold(
    scores: Floats, is_positive: Bools, specificity: float | None = None, sensitivity: float | None = None
) -> float | None:
    """Return the threshold of most sensitivity at a specificity, or of most specificity at a sensitivity.

    It lies halfway between the lowest score that is called positive and the next one below: it is no single case's.

    Args:
        scores: Of each case, shape (N,).
        is_positive: Whether a case is one of the class, shape (N,).
        specificity: The least that is wanted, in [0, 1]; None where the sensitivity is.
        sensitivity: The same.

    Returns:
        None without a positive or a negative case, where no case may be called positive, and where nothing is wanted.
    """
    lowest: float | None = None
    if specificity is not None:
        if point := find_operating_point(scores, is_positive, specificity):
            lowest = point.threshold
    elif sensitivity is not None and is_positive.any() and not is_positive.all():
        ranked = np.sort(scores[is_positive])[::-1]
        lowest = float(ranked[max(ceil(sensitivity * len(ranked) - ROUNDING), 1) - 1])
    if lowest is None:
        return None
    below = float(scores[scores < lowest].max(initial=0.0))
    middle = (lowest + below) / 2
    # Of neighbouring floats the middle is one of them.
    return middle if middle > below else lowest


def _logarithms(values: NDArray[np.floating]) -> Floats:
    # A probability of 0 is one too small for a float.
    return np.log(np.maximum(values.astype(np.float64), np.finfo(np.float64).tiny))
