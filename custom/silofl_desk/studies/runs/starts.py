"""What joining gives over several starts of the training."""

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from silofl.core.gain import FAMILY_LEVEL, Effect, Key, MeanEffect, describe_mean, holm


def measure_starts(sites: Mapping[str, Sequence[Effect]]) -> dict[str, MeanEffect]:
    """Return site -> what joining gives it over several starts of the training.

    The variance is that between test units, the mean of the starts' squared errors, plus that between starts divided by
    their number. Of the latter the larger one of the site's own and the mean over all sites counts, since two starts
    may be alike by chance; its freedom is that of all sites' starts.

    Args:
        sites: Site -> its starts; of one alone nothing is said.
    """
    repeated = {site: starts for site, starts in sites.items() if len(starts) > 1}
    variances = {site: _variance_of_differences(starts) for site, starts in repeated.items()}
    shared = sum(variances.values()) / max(len(variances), 1)
    freedom = sum(len(starts) - 1 for starts in repeated.values())
    effects = {}
    for site, starts in repeated.items():
        between = max(variances[site], shared) / len(starts)
        # Every start is tested on the same units: their luck is shared, and averaging starts does not lessen it.
        within = float(np.mean([start.standard_error**2 for start in starts]))
        units = min(start.num_units for start in starts) - 1
        mean = float(np.mean(_list_differences(starts)))
        effects[site] = describe_mean(mean, [(within, units), (between, freedom)])
    return effects


def _list_differences(starts: Sequence[Effect]) -> list[float]:
    return [start.difference for start in starts]


def _variance_of_differences(starts: Sequence[Effect]) -> float:
    return float(np.var(_list_differences(starts), ddof=1))


def find_gains(effects: Mapping[Key, MeanEffect]) -> list[Key]:
    """Return the sites that gain, after Holm's correction over all sites of all rows of a comparison.

    Where nobody gains, one is named in at most 5 % of comparisons. `bench/gain.py` measures it, and the exception: a
    federated model that fails on few units and is better on all others.

    Args:
        effects: Row and site, or the site of a single row -> what joining gives it over several starts.
    """
    corrected = holm({key: effect.p_value for key, effect in effects.items()})
    return [key for key, effect in effects.items() if effect.difference > 0 and corrected[key] <= FAMILY_LEVEL]


def measure_mean_of_starts(sites: Mapping[str, Sequence[Effect]]) -> MeanEffect | None:
    """Return what joining gives the mean hospital, as `measure_starts` does; None where no site has several starts.

    The error of a start's mean over the sites holds their test units and, as if each site had its own luck, what one
    start changes at them; what it changes at all of them at once is the starts' own variance.

    Args:
        sites: As for `measure_starts`; all with the same starts.
    """
    repeated = [starts for starts in sites.values() if len(starts) > 1]
    if not repeated:
        return None
    luck = sum(map(_variance_of_differences, repeated))
    means = []
    # The loop goes over the starts, each with the effects of all sites.
    for of_start in zip(*repeated, strict=True):
        difference = float(np.mean(_list_differences(of_start)))
        error = sqrt(luck + sum(effect.standard_error**2 for effect in of_start)) / len(repeated)
        means.append(Effect(difference, error, sum(effect.num_units for effect in of_start)))
    return measure_starts({"": means})[""]
