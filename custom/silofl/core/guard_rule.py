"""The guard's rule: how much of the federated model a site keeps beside its own, and at which decision bias.

Own and pooled model have the same freedom: one decision bias, chosen on the same validation units by the same
objective. The score of a unit is its Dice or, of a class, the probability of the true one; p_F and p_L are the
federated and the local model's probabilities, n is the number of units:

    p(s, b)    = (1 - s) p_F + s p_L, then the foreground's log-odds + b
    J(s, b; c) = mean score - 0.1 ((s - c)^2 + b^2) / n
    own        = argmax_b J(1, b; 1),  pooled = argmax_(s, b) J(s, b; 0.75)
    kept       = pooled if its mean score is more than 0.005 above own's, else own
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.errors import ConfigError

# The local model's shares, and the biases of the foreground's log-odds, that are tried.
SHARES = np.arange(11) / 10
BIASES = np.arange(-30, 31) / 10
# The share of the local model where the units do not tell. It leans to the site's own model, of which the site knows
# more: it has learnt from images like these.
CENTRE = 0.75
# The prior is worth a tenth of a unit. With one unit it stops a share or bias that this unit alone would ask for; a
# whole unit would also hold back what ten units agree on.
PRIOR = 0.1
# What pooling must gain on the units. Less matters to no hospital, and the best of 671 points has a little by chance;
# the site then keeps its own model, which is one model and no federation's.
LEAST_LEAD = 0.005


@dataclass(frozen=True)
class GuardChoice:
    """What a site keeps.

    Attributes:
        share: The local model's share in it; 1 where the site keeps its own model.
        bias: What is added to the foreground's log-odds of it.
        own_bias: The same of the site's own model.
        federated_bias: The same of the federated model alone.
        lead: Mean score of the pooled model minus that of the own one.
        num_units: Units that have a score.
    """

    share: float
    bias: float
    own_bias: float
    federated_bias: float
    lead: float
    num_units: int


def choose_kept(scores: NDArray[np.float64], biases: NDArray[np.float64] = BIASES) -> GuardChoice:
    """Choose between a site's own model and the pooled one, and their biases, by the formulas above.

    Args:
        scores: In [0, 1], of each independent validation unit with each of `SHARES` and each bias, shape
            (shares, biases, N); NaN where a unit has none.
        biases: `BIASES`, or 0 alone where no bias is tried.

    Raises:
        ConfigError: The scores have another shape or range.
    """
    if scores.shape[:2] != (len(SHARES), len(biases)) or not np.all(np.isnan(scores) | ((scores >= 0) & (scores <= 1))):
        raise ConfigError(f"scores must be from 0 to 1, of {len(SHARES)} shares and {len(biases)} biases")
    is_unit = np.isfinite(scores).all(axis=(0, 1))
    n = int(is_unit.sum())
    means = scores[..., is_unit].sum(axis=-1) / max(n, 1)

    def find_best(shares: slice, centre: float) -> tuple[int, int]:
        distances = ((SHARES[shares, None] - centre) ** 2 + biases**2).round(9)
        value = (means[shares] - PRIOR * distances / max(n, 1)).round(9)
        # Ties towards the prior; of two points as far from it, the one with more of the own model.
        own = np.broadcast_to(-SHARES[shares, None], value.shape)
        best = np.lexsort((own.ravel(), distances.ravel(), -value.ravel()))[0]
        share, bias = np.unravel_index(best, value.shape)
        return int(share) + (shares.start or 0), int(bias)

    last = len(SHARES) - 1
    federated, own, pooled = find_best(slice(0, 1), 0), find_best(slice(last, None), 1), find_best(slice(None), CENTRE)
    lead = float(means[pooled] - means[own])
    share, bias = pooled if lead > LEAST_LEAD else own
    own_bias, federated_bias = float(biases[own[1]]), float(biases[federated[1]])
    return GuardChoice(float(SHARES[share]), float(biases[bias]), own_bias, federated_bias, lead, n)
