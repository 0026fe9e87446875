"""The learning rate of a round, a function of the round's number alone, so that a resumed run goes on as it was."""

import math

from silofl.base.errors import ConfigError

POWER = 0.9


def learning_rate(kind: str, start: float, round: int, rounds: int) -> float:
    """Return the base optimiser's learning rate in a round, the same in all its steps.

    Args:
        kind: ``constant``; ``poly``, ``start * (1 - (r - 1) / R)^0.9`` (DeepLab, arXiv:1606.00915); or ``cosine``,
            ``start * (1 + cos(pi (r - 1) / R)) / 2``.
        start: The rate of the first round, above 0.
        round: r, from 1.
        rounds: R, the planned number of rounds; the last round's rate is still above 0.

    Raises:
        ConfigError: The round is not among the planned ones.
    """
    if not 1 <= round <= rounds:
        raise ConfigError(f"round must be from 1 to {rounds}, not {round}")
    # Rounds count from 1: the first one has the full rate, and the last one a rate above 0.
    share = (round - 1) / rounds
    factors: dict[str, float] = {
        "constant": 1.0,
        "poly": (1 - share) ** POWER,
        "cosine": (1 + math.cos(math.pi * share)) / 2,
    }
    return start * factors[kind]
