"""The rule of the baseline comparison: whether a site keeps the federated model or its own, and at which decision bias.

Both have the same freedom: one decision bias, chosen on the same validation units by the same objective. The score of a
unit is its Dice or, of a class, the probability of the true one; n is the number of units:

    p(b)    = the model's probabilities, the foreground's log-odds + b
    J(b)    = mean score - 0.3 b^2 / n
    own     = argmax_b J of the site's own model,  federated = argmax_b J of the federated one
    kept    = federated if its mean score is more than 0.005 above own's, of a class also more than the standard error
              of the mean difference, else own

A case without any label in truth decides nothing: it scores 1 where nothing is drawn and 0 otherwise, so that one such
case outweighs many others. Of too few units the own model is kept, without a bias.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

# The biases of the foreground's log-odds that are tried.
BIASES = np.arange(-30, 31) / 10
# The prior is worth a third of a unit. A weaker one lets two or three units ask for a bias that harms others.
PRIOR = 0.3
# Units that a choice needs: fewer are wrong too often (`bench/baseline.py`). Five patients of one class are likely
# enough to prefer a model that knows only this class.
LEAST_TO_CHOOSE, LEAST_OF_CLASSES = 2, 6
# What the federated model must gain on the units. Less matters to no hospital, and the best of 61 points has a little
# by chance.
LEAST_LEAD = 0.005


@dataclass(frozen=True)
class BaselineChoice:
    """What a site keeps.

    Attributes:
        keeps_local: Whether it is the site's own model.
        local_bias: What is added to the foreground's log-odds of its own model.
        federated_bias: The same of the federated model.
        own: Mean score of its own model with its bias; 0 without units, like the others.
        federated: The same of the federated model.
        local_at_zero: The same of its own model without a bias.
        federated_at_zero: The same of the federated model.
        num_units: Units that have a score.
    """

    keeps_local: bool
    local_bias: float
    federated_bias: float
    own: float
    federated: float
    local_at_zero: float
    federated_at_zero: float
    num_units: int

    @property
    def lead(self) -> float:
        """Mean score of the federated model minus that of the own one."""
        return self.federated - self.own

    @property
    def bias(self) -> float:
        """The bias of what is kept."""
        return self.local_bias if self.keeps_local else self.federated_bias


def choose_kept(
    federated: NDArray[np.float64], own: NDArray[np.float64], biases: NDArray[np.float64] = BIASES
) -> BaselineChoice:
    """Choose between the federated model and a site's own, and their biases, by the formulas above.

    Args:
        federated: In [0, 1], of each independent validation unit with each bias, shape (biases, N); NaN where a unit
            has none, as without any label in truth.
        own: The same of the site's own model.
        biases: `BIASES`, or 0 alone where no bias is tried.
    """
    scores = np.stack([federated, own])
    is_unit = np.isfinite(scores).all(axis=(0, 1))
    n = int(is_unit.sum())
    means = scores[..., is_unit].sum(axis=-1) / max(n, 1)
    values = (means - PRIOR * biases**2 / max(n, 1)).round(9)
    # The biases lie symmetrically around 0.
    zero = len(biases) // 2
    least = LEAST_TO_CHOOSE if len(biases) > 1 else LEAST_OF_CLASSES
    theirs = ours = zero
    if n >= least:
        # Ties towards the smallest bias.
        theirs, ours = (int(np.lexsort((np.abs(biases), -value))[0]) for value in values)
    needed_lead = LEAST_LEAD
    if len(biases) == 1 and n >= least:
        differences = scores[0, 0, is_unit] - scores[1, 0, is_unit]
        needed_lead = max(LEAST_LEAD, float(differences.std(ddof=1)) / sqrt(n))
    keeps_local = n < least or means[0, theirs] - means[1, ours] <= needed_lead
    return BaselineChoice(
        keeps_local=bool(keeps_local),
        local_bias=float(biases[ours]),
        federated_bias=float(biases[theirs]),
        own=float(means[1, ours]),
        federated=float(means[0, theirs]),
        local_at_zero=float(means[1, zero]),
        federated_at_zero=float(means[0, zero]),
        num_units=n,
    )
