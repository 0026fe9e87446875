"""What training with differential privacy has spent, in results.json."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Privacy:
    """What differential privacy has spent.

    Attributes:
        epsilon: Site -> the epsilon of all runs of the study.
        delta: The probability with which epsilon need not hold.
        unit: Whom it protects: a patient, or an example.
        noise: Standard deviation of the noise, in multiples of clip.
        clip: Norm to which gradients were clipped.
    """

    epsilon: Mapping[str, float]
    delta: float
    unit: str
    noise: float
    clip: float
