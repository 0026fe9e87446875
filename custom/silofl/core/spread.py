"""The mean and the deviation of a number over the cases of hospitals, and the range that a new case should lie in."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.errors import ConfigError


@dataclass(frozen=True)
class Spread:
    """The mean and the deviation of a number over some cases.

    Attributes:
        mean: The mean.
        deviation: The standard deviation.

    Raises:
        ConfigError: The deviation is below 0.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        """Refuse a deviation below 0."""
        if not self.deviation >= 0:
            raise ConfigError(f"a deviation must be 0 or more, not {self.deviation:g}")

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[np.floating]) -> "Spread":
        """Measure it of some numbers, at least one."""
        numbers = np.asarray(values, np.float64)
        return cls(float(numbers.mean()), float(numbers.std()))

    def range(self, deviations: float) -> tuple[float, float]:
        """Return the range of so many deviations to either side."""
        return self.mean - deviations * self.deviation, self.mean + deviations * self.deviation


def pool_spreads(spreads: Collection[Spread]) -> Spread:
    """Return the spread to be expected of cases of one more hospital, whose mean is another.

    The variance within hospitals is the mean of theirs; the variance between them is that of their means, and once more
    a share of it, because the mean over K hospitals is itself uncertain: ``W + (1 + 1 / K) B``.

    Args:
        spreads: Each hospital's, at least one.
    """
    means, deviations = (np.array([getattr(one, key) for one in spreads]) for key in ("mean", "deviation"))
    between = means.var(ddof=1) * (1 + 1 / len(means)) if len(means) > 1 else 0.0
    return Spread(float(means.mean()), float(np.sqrt(np.mean(deviations**2) + between)))
