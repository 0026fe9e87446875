"""One number of several hospitals, and whether they differ by more than their few patients explain.

The random-effects mean of DerSimonian and Laird, Meta-analysis in Clinical Trials, Controlled Clinical Trials 1986;
Cochran's Q, The Combination of Estimates from Different Experiments, Biometrics 1954; and I^2 of Higgins and Thompson,
Quantifying Heterogeneity in a Meta-analysis, Statistics in Medicine 2002.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from silofl.core.intervals import Estimate, Interval
from silofl.core.roc import NORMAL_95


@dataclass(frozen=True)
class PooledEstimate:
    """A number over hospitals.

    Attributes:
        value: The random-effects mean: what to expect of a hospital like these, on average.
        interval: Its 95 % interval.
        num_sites: Hospitals that count: those with an interval.
        q: Cochran's Q.
        p_value: Of so large a Q where hospitals do not differ.
        i_squared: Share of the spread that is of the hospitals, and not of their few patients.
        tau: Standard deviation between hospitals.
    """

    value: float
    interval: Interval
    num_sites: int
    q: float
    p_value: float
    i_squared: float
    tau: float


def pool_estimates(estimates: Mapping[str, Estimate]) -> PooledEstimate | None:
    """Return the mean over hospitals and how much they differ; None where fewer than two have an interval.

    With the value y_i and variance v_i of hospital i of k, w_i = 1 / v_i, and m = sum w y / sum w:

        Q = sum w (y - m)^2,  I^2 = max(0, (Q - (k - 1)) / Q)
        tau^2 = max(0, (Q - (k - 1)) / (sum w - sum w^2 / sum w))

    and the mean has the weights 1 / (v_i + tau^2). A variance is taken from the interval, as of a normal distribution.

    Args:
        estimates: Hospital -> its estimate.
    """
    # Imported here: it takes long, and only a comparison of hospitals needs it.
    from scipy.stats import chi2

    rows = [(one.value, *one.interval) for one in estimates.values() if one.value is not None and one.interval]
    if len(rows) < 2:
        return None
    values, lows, highs = np.array(rows).T
    variances = ((highs - lows) / (2 * NORMAL_95)) ** 2
    weights = 1 / variances
    excess = len(values) - 1
    q = float(weights @ (values - weights @ values / weights.sum()) ** 2)
    # As sum w - sum w^2 / sum w, without a difference of numbers that are alike where one interval is narrow.
    spread = float(weights @ (weights.sum() - weights) / weights.sum())
    tau_squared = max(0.0, (q - excess) / spread)
    weights = 1 / (variances + tau_squared)
    mean = float(weights @ values / weights.sum())
    margin = NORMAL_95 / sqrt(weights.sum())
    return PooledEstimate(
        value=mean,
        interval=(mean - margin, mean + margin),
        num_sites=len(values),
        q=q,
        p_value=float(chi2.sf(q, excess)),
        i_squared=max(0.0, (q - excess) / q) if q else 0.0,
        tau=sqrt(tau_squared),
    )
