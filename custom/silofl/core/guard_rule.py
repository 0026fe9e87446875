"""The guard's rule: whether a site keeps the federated model or its own, and at which decision bias.

Both have the same freedom: one decision bias, chosen on the same validation units by the same objective. The score of a
unit is its Dice or, of a class, the probability of the true one; n is the number of units:

    p(b)    = the model's probabilities, the foreground's log-odds + b
    J(b)    = mean score - 0.1 b^2 / n
    own     = argmax_b J of the site's own model,  federated = argmax_b J of the federated one
    kept    = federated if its mean score is more than 0.005 above own's, else own
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError

# The biases of the foreground's log-odds that are tried.
BIASES = np.arange(-30, 31) / 10
# The prior is worth a tenth of a unit. With one unit it stops a bias that this unit alone would ask for; a whole unit
# would also hold back what ten units agree on.
PRIOR = 0.1
# What the federated model must gain on the units, and what a round must raise the validation by for training to go on.
# Less matters to no hospital, and the best of 61 points has a little by chance.
LEAST_LEAD = 0.005
# Rounds without such a rise after which a model is trained to its end, where the study has no patience of its own.
PATIENCE = 10


@dataclass(frozen=True)
class GuardChoice:
    """What a site keeps.

    Attributes:
        keeps_own: Whether it is the site's own model.
        own_bias: What is added to the foreground's log-odds of its own model.
        federated_bias: The same of the federated model.
        lead: Mean score of the federated model minus that of the own one.
        num_units: Units that have a score.
    """

    keeps_own: bool
    own_bias: float
    federated_bias: float
    lead: float
    num_units: int

    @property
    def bias(self) -> float:
        """The bias of what is kept."""
        return self.own_bias if self.keeps_own else self.federated_bias


def choose_kept(
    federated: NDArray[np.float64], own: NDArray[np.float64], biases: NDArray[np.float64] = BIASES
) -> GuardChoice:
    """Choose between the federated model and a site's own, and their biases, by the formulas above.

    Args:
        federated: In [0, 1], of each independent validation unit with each bias, shape (biases, N); NaN where a unit
            has none.
        own: The same of the site's own model.
        biases: `BIASES`, or 0 alone where no bias is tried.

    Raises:
        ConfigError: The scores have another shape or range.
    """
    scores = np.stack([federated, own])
    if scores.shape[1] != len(biases) or not np.all(np.isnan(scores) | ((scores >= 0) & (scores <= 1))):
        raise ConfigError(f"scores must be from 0 to 1, of {len(biases)} biases")
    is_unit = np.isfinite(scores).all(axis=(0, 1))
    n = int(is_unit.sum())
    means = scores[..., is_unit].sum(axis=-1) / max(n, 1)
    values = (means - PRIOR * biases**2 / max(n, 1)).round(9)
    # Ties towards the smallest bias.
    theirs, ours = (int(np.lexsort((np.abs(biases), -one))[0]) for one in values)
    lead = float(means[0, theirs] - means[1, ours])
    return GuardChoice(lead <= LEAST_LEAD, float(biases[ours]), float(biases[theirs]), lead, n)


def find_last_rise(scores: Sequence[float | None], patience: int = PATIENCE) -> float | None:
    """Return by how much a model's last rounds raised its best validation; None without a validation before them.

    Args:
        scores: Of each round's model, in their order; None of a round without a validation.
        patience: The number of these last rounds.
    """
    before, known = [one for one in scores[:-patience] if one is not None], [one for one in scores if one is not None]
    return max(known) - max(before) if before else None


def is_finished(rise: float | None) -> bool:
    """Return whether training has ended: its last rounds are known to raise the validation by no more than 0.005.

    Args:
        rise: The largest of these rounds' rises over the best round before them, of the federated model the median of
            the sites' changes; None where it is not known.
    """
    return rise is not None and rise <= LEAST_LEAD
