"""The mean and the deviation of a number over the cases of hospitals, and the range that a new case should lie in."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError
from silofl.core.outliers import BEYOND, compare_to_others

# Means and variances, both of shape (n,).
Moments = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Spread:
    """The mean and the deviation of a number over some cases.

    Attributes:
        mean: The mean.
        deviation: The standard deviation of a sample.
        num_cases: How many they are; 0 where that is not known, as of an older version.

    Raises:
        ConfigError: The deviation, or the number of cases, is below 0.
    """

    mean: float
    deviation: float
    num_cases: int = field(default=0, metadata={"is_optional": True})

    def __post_init__(self) -> None:
        """Refuse what is below 0."""
        # Not `< 0`, which NaN is not.
        if not (self.deviation >= 0 and self.num_cases >= 0):
            raise ConfigError(
                f"a deviation and a number of cases must be 0 or more, not {self.deviation:g} and {self.num_cases}"
            )

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[np.floating]) -> "Spread":
        """Measure it of some numbers, at least one."""
        numbers = np.asarray(values, np.float64)
        deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
        return cls(float(numbers.mean()), deviation, len(numbers))

    def range(self, share: float) -> tuple[float, float]:
        """Return the range that a share of new cases lies below, and as many above, of a bell curve.

        The deviation is that of few cases, which Student's t allows for.
        """
        if self.num_cases > 1:
            # Imported here: it takes a third of a second.
            from scipy.special import stdtrit

            deviations = float(stdtrit(self.num_cases - 1, 1 - share))
        else:
            deviations = NormalDist().inv_cdf(1 - share)
        return self.mean - deviations * self.deviation, self.mean + deviations * self.deviation


def count_digits_apart(
    value: float, edge: float, digits: int = 3, show: Callable[[float, int], str] = "{:.{}g}".format
) -> int:
    """Return how many digits, at least so many, show that a value is another number than the edge that it is beyond.

    Args:
        show: Puts a number into words, with so many digits.
    """
    return next((more for more in range(digits, digits + 6) if show(value, more) != show(edge, more)), digits)


def pool_spreads(spreads: Collection[Spread]) -> Spread:
    """Return the spread to be expected of cases of one more hospital, whose mean is another; of one, of its new cases.

    The variance within hospitals is the mean of theirs; the variance between them is that of their means, and once more
    a share of it, because the mean over K hospitals is itself uncertain: ``W + (1 + 1 / K) B``. So is the mean over n
    cases of the only hospital: ``(1 + 1 / n) W``.

    Args:
        spreads: Each hospital's, at least one.
    """
    means = np.array([spread.mean for spread in spreads])
    deviations = np.array([spread.deviation for spread in spreads])
    within = np.mean(deviations**2)
    counts = [spread.num_cases for spread in spreads]
    is_known = min(counts) > 0
    between = 0.0
    if len(means) > 1:
        between = means.var(ddof=1) * (1 + 1 / len(means))
    elif is_known:
        between = within / counts[0]
    # Each hospital's mean takes one from what the deviations come from.
    num_cases = sum(counts) - len(counts) + 1 if is_known else 0
    return Spread(float(means.mean()), float(np.sqrt(within + between)), num_cases)


def bound_moments(moments: Mapping[str, Moments]) -> dict[str, Moments]:
    """Bound how far each hospital's numbers reach: at most 3 times as far as the others' median.

    They reach ``sqrt(sum of variance + (mean - middle)^2)``; the middle is the median of all hospitals' means.

    Args:
        moments: Hospital -> means and variances of the same numbers.

    Returns:
        What counts of the hospitals whose numbers reach further.
    """
    middle = np.median([means for means, _ in moments.values()], axis=0)
    reaches = {}
    for site, (means, variances) in moments.items():
        reaches[site] = float(np.sqrt((variances + np.square(means - middle)).sum()))
    bounded = {}
    for site, ratio in compare_to_others(reaches).items():
        if ratio > BEYOND:
            means, variances = moments[site]
            scale = BEYOND / ratio
            bounded[site] = middle + scale * (means - middle), scale**2 * variances
    return bounded
