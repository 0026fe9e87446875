"""The guard: which of its candidate models a site keeps, and by how much one must lead on its own validation units.

A site with few units cannot trust the best of several means, and a few units do not show a candidate's rare failures.
So the default is left only where a lower confidence bound of the paired lead is above 0 (Student's t, with Bonferroni's
correction for the number of candidates), taken as if there were one unit more, on which the candidate fails outright
and the default does not; or where without that unit it is above a tenth, which failures on a tenth of the units would
not take back, and a sign test says so too, which right or wrong answers need. The bounds hold for all candidates at
once, so that choosing the best of them is allowed for without setting units aside; a cross-fitted choice with the same
unit errs in the simulation at up to 7 % of the sites.

The default is the blend, the mean of the federated and the local model's probabilities, with the local one's share that
does best on the same units; where the local model is the better one on them, the largest that is no more than a
standard error worse, so that a site parts with its own model only for what it sees to gain. Where the share is 0 the
default is the federated model, where it is 1 the local one. A plain mean would be as bad where one of both has learnt
nothing, with units too few to leave it; and one that has learnt from a few labels is far surer than it is right.

Measured by `bench/guard.py` with five candidates, 1 to 200 units and true differences from -0.7 to 0.7: the default is
left for a candidate that is no better at no more than 0.6 % of sites where scores are Dice, 2.6 % where candidates fail
on 2 to 10 % of the units and are better on all others (54 % without the additional unit), and 2.3 % where scores are
right or wrong. The right or wrong answers of one rival can be enumerated: 4.92 % at the level of 5 %, 1.23 % at 1.25 %.
That is the rate of leaving the blend. The blend itself is below a federated model that is at least as good as the local
one at some such sites: with the default, 24 % end below it, by 0.034 in the mean; and 15 % end below a local model that
is at least as good as the federated one, by 0.016. At up to 4.2 % the share is 1 although the federated model is
better.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, stdtrit

from silofl.errors import ConfigError

# In bench/guard.py, where units are too few to tell, the blend is at most 0.05 below local training, federated 0.70.
DEFAULT = "blend"
# The rate, at most, at which a default may be left that is at least as good as every other candidate.
ERROR_RATE = 0.05
# The level at which nothing is left of the federated model: at 5 % up to 9 % of the sites in bench/guard.py had nothing
# of a federated model that is better, since what their own fails on is rare, and now 4.2 %.
ALONE = 0.0125
# What failing outright on a tenth of the units costs, at most.
RARE = 0.1
# The local model's shares in the blend that are tried.
SHARES = np.linspace(0, 1, 21).round(3)
# On fewer units the best share is a draw.
LEAST_UNITS = 3
# A model that has learnt from fewer labels counts less. By bench/few_labels.py, on deals that no other table uses.
LEAST_LABELS = 10
# Sharper shares gain little in bench/guard.py, and give up what two models gain that err in different places.
SHARPNESS = 2


@dataclass(frozen=True)
class GuardChoice:
    """What a site chose.

    Attributes:
        chosen: The candidate that it keeps.
        default: The candidate that it keeps without evidence against it.
        lead: Mean paired difference of chosen minus default over the units, 0 where the default is kept.
        margin: What the lead had to exceed, at most 1; where the default is kept, for the candidate with the largest.
        num_units: Units in which both that candidate and the default have a score.
    """

    chosen: str
    default: str
    lead: float
    margin: float
    num_units: int


def choose_candidate(scores: Mapping[str, NDArray[np.float64]], default: str = DEFAULT) -> GuardChoice:
    """Choose the candidate with the largest lead of those whose lead exceeds their margin, or else the default.

    Args:
        scores: Candidate -> score in [0, 1] of each independent validation unit, shape (N,), the same units in the
            same order; NaN where a unit has none. Of equal leads that of the earlier candidate counts.
        default: The candidate that is left only beyond the margin.

    Raises:
        ConfigError: The default is no candidate, or scores have another shape or range.
    """
    _check_scores(scores, default)
    others = [name for name in scores if name != default]
    if not others:
        return GuardChoice(default, default, 0.0, 1.0, int(np.isfinite(scores[default]).sum()))
    differences = np.stack([np.subtract(scores[name], scores[default]) for name in others])
    leads, margins = leads_and_margins(differences, ERROR_RATE / len(others))
    best = max(range(len(others)), key=lambda i: (leads[i] > margins[i], leads[i]))
    is_left = bool(leads[best] > margins[best])
    num_units = int(np.isfinite(differences[best]).sum())
    chosen, lead = (others[best], float(leads[best])) if is_left else (default, 0.0)
    return GuardChoice(chosen, default, lead, float(margins[best]), num_units)


def weigh_local(num_labels: int, least: int = LEAST_LABELS) -> float:
    """Return what the local model's odds count beside the federated one's: below the least in proportion, else 1."""
    return min(1.0, num_labels / least)


def choose_share(blends: NDArray[np.float64], weight: float = 1.0) -> NDArray[np.float64]:
    """Return the local model's share in the blend, shape (...), one of `SHARES` but with few units that by odds.

    Where the federated model is at least as good on the units, the share with the best mean, of equal ones the nearest
    to the one by odds. Where the local model is the better one, the largest whose mean is no more than a standard error
    of their paired difference below the best (the one-standard-error rule; Breiman et al., Classification and
    Regression Trees, 1984). 1, which leaves nothing of the federated model, only where the local one leads by a sign
    test and Student's bound, without a unit that it loses outright: where it fails unseen, a mean of which it has 0.95
    fails too.

    Args:
        blends: The blend's score in [0, 1] of each unit with each of `SHARES`, shape (21, ..., N): the first is the
            federated model's, the last the local one's. A unit with a NaN does not count.
        weight: Of the local model's odds, above 0, as of `weigh_local`.
    """
    scores = np.where(np.isfinite(blends).all(axis=0), blends, np.nan)
    counts = np.isfinite(scores[0]).sum(axis=-1)
    means = np.nansum(scores, axis=-1) / np.maximum(counts, 1)
    lead, margin = _leads_and_seen_margins(scores[-1] - scores[0], ALONE)
    means[-1] = np.where(lead > margin, means[-1], -1.0)
    by_odds = share_by_odds(blends, weight)
    distances = np.abs(np.expand_dims(SHARES, tuple(range(1, means.ndim))) - by_odds)
    best = np.argmax(means.round(9) - 1e-10 * distances, axis=0)
    behind = np.take_along_axis(scores, best[None, ..., None], axis=0) - scores
    is_as_good = (means >= 0) & np.less_equal(*_means_and_errors(behind))
    largest = len(SHARES) - 1 - np.argmax(is_as_good[::-1], axis=0)
    return np.where(counts < LEAST_UNITS, by_odds, SHARES[np.where(lead > 0, largest, best)])


def share_by_odds(blends: NDArray[np.float64], weight: float = 1.0) -> NDArray[np.float64]:
    """Return the local model's share by how well both do alone, in thousandths: ``w b ** 2 / (a ** 2 + w b ** 2)``.

    a and b are the federated and the local model's odds ``s / (1 - s)`` of their means s over the units and one more in
    which both have a half.

    Args:
        blends: As in `choose_share`.
        weight: w, as in `choose_share`.
    """
    are_whole = np.isfinite(blends).all(axis=0)
    means = (np.where(are_whole, blends[[0, -1]], 0).sum(axis=-1) + 0.5) / (are_whole.sum(axis=-1) + 1)
    theirs, ours = (means / (1 - means)) ** SHARPNESS
    return np.round(weight * ours / (weight * ours + theirs), 3)


def leads_and_margins(differences: NDArray[np.float64], level: float) -> tuple[NDArray, NDArray]:
    """Return the mean of each row, and what it must exceed to be a lead: ``(1 + t s sqrt(n + 1)) / n``, at most 1.

    t is Student's quantile of 1 - level with n degrees of freedom; s is the standard deviation of the n differences
    and of one of -1 beside them. A mean above it is a lower bound above 0 of the mean of these n + 1. Where so many of
    the differences are above 0 that a sign test at the level says so, ``RARE + t s / sqrt(n)`` is enough, of the n
    differences alone.

    Args:
        differences: Paired differences in [-1, 1], shape (..., N); NaN is no unit.
        level: The rate, at most, at which a mean may exceed it where the true one is 0.
    """
    counts = np.isfinite(differences).sum(axis=-1)
    sums, squares = np.nansum(differences, axis=-1), np.nansum(differences**2, axis=-1)
    # Without any unit the lead is 0 and the margin 1.
    units = np.maximum(counts, 1)
    # Of all differences -1 it is 0, which rounding may miss from below.
    deviation = np.sqrt(np.maximum(squares + 1 - (sums - 1) ** 2 / (units + 1), 0) / units)
    margins = (1 + stdtrit(units, 1 - level) * deviation * np.sqrt(units + 1)) / units
    leads, seen = _leads_and_seen_margins(differences, level)
    return leads, np.minimum(np.minimum(margins, RARE + seen), 1.0)


def _leads_and_seen_margins(differences: NDArray[np.float64], level: float) -> tuple[NDArray, NDArray]:
    """Return the mean of each row, and what it must exceed by the units alone: ``t s / sqrt(n)``.

    That is 1 where a sign test is not sure, as of fewer than seven units at 1.25 %.
    """
    leads, errors = _means_and_errors(differences)
    # Of one unit no sign test is sure, whatever its error.
    freedom = np.maximum(np.isfinite(differences).sum(axis=-1) - 1, 1)
    won, lost = (differences > 0).sum(axis=-1), (differences < 0).sum(axis=-1)
    is_sure = bdtr(lost, won + lost, 0.5) <= level
    return leads, np.where(is_sure, stdtrit(freedom, 1 - level) * errors, 1.0)


def _means_and_errors(differences: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
    """Return the mean of each row, 0 without any unit, and its standard error."""
    units = np.maximum(np.isfinite(differences).sum(axis=-1), 1)
    means = np.nansum(differences, axis=-1) / units
    variances = np.maximum(np.nansum(differences**2, axis=-1) / units - means**2, 0)
    return means, np.sqrt(variances / np.maximum(units - 1, 1))


def _check_scores(scores: Mapping[str, NDArray[np.float64]], default: str) -> None:
    if default not in scores:
        raise ConfigError(f"the default must be one of the candidates {sorted(scores)}, not {default!r}")
    shape = (len(scores[default]),)
    for name, values in scores.items():
        if np.shape(values) != shape:
            raise ConfigError(
                f"the scores of {name!r} must have shape {shape}, as {default!r}'s, not {np.shape(values)}"
            )
        if not np.all(np.isnan(values) | ((np.asarray(values) >= 0) & (np.asarray(values) <= 1))):
            raise ConfigError(f"the scores of {name!r} must be from 0 to 1, or NaN where a unit has none")
