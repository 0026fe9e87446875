"""When a model is trained to its end: its last rounds did not raise its validation by more than 0.005.

One rule ends a run's training and a site's own, and decides whether a verdict may be given.
"""

from collections.abc import Sequence

from silofl.core.intervals import ROUNDING

# What a round must raise the validation by for training to go on. Less matters to no hospital.
LEAST_RISE = 0.005
# Rounds without such a rise after which a model is trained to its end, where the study has no patience of its own.
PATIENCE = 10


def measure_own_rise(scores: Sequence[float | None], patience: int = PATIENCE) -> float | None:
    """Return by how much a model's last rounds raised its best validation; None without a validation before them.

    Args:
        scores: Of each round's model, in their order; None of a round without a validation.
        patience: The number of these last rounds.
    """
    before = [score for score in scores[:-patience] if score is not None]
    if not before:
        return None
    return max(score for score in scores if score is not None) - max(before)


def is_finished(rise: float | None) -> bool:
    """Return whether training has ended: its last rounds are known to raise the validation by no more than 0.005.

    Args:
        rise: The largest of these rounds' rises over the best round before them, of the federated model the median of
            the sites' changes; None where it is not known.
    """
    # Scores have three decimals: 0.805 - 0.8 is 0.005, but for the last digits.
    return rise is not None and rise <= LEAST_RISE + ROUNDING
