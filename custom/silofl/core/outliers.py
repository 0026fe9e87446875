"""Compare each site's number with the other sites', which one site alone cannot move far."""

from collections.abc import Mapping, Sequence

import numpy as np

# Times the others' median from which on a number is unlike theirs.
BEYOND = 3.0
# One odd site is expected among so many.
SITES_BY_ODD_ONE = 4
Range = tuple[float, float]


def medians_of_others(values: Mapping[str, float]) -> dict[str, float]:
    """Return site -> the median of the other sites' numbers; of at least two sites."""
    medians = {}
    for site in values:
        others = [value for name, value in values.items() if name != site]
        medians[site] = float(np.median(others))
    return medians


def compare_to_others(values: Mapping[str, float]) -> dict[str, float]:
    """Return site -> how many times the median of the other sites' its number is, where that median is above 0."""
    medians = medians_of_others(values) if len(values) > 1 else {}
    return {site: values[site] / median for site, median in medians.items() if median > 0}


def count_hidden(sites: int) -> int:
    """Return how many others may be odd together with a site and do not count beside it: 1 of 8 sites, 2 of 12."""
    return max(0, sites // SITES_BY_ODD_ONE - 1)


def find_edges(others: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest number of all sites but one, without those on either side that may be odd."""
    hidden = count_hidden(len(others) + 1)
    ordered = sorted(others)
    return ordered[hidden], ordered[-1 - hidden]


def find_far_ranges(ranges: Mapping[str, Range], min_sites: int) -> dict[str, Range]:
    """Return site -> the others' range, of sites whose range lies more than 3 times its width beyond it.

    Args:
        ranges: Site -> its least and its largest number.
        min_sites: With fewer sites nobody knows who is far from whom.
    """
    far: dict[str, Range] = {}
    if len(ranges) < max(min_sites, 2):
        return far
    for site, (low, high) in ranges.items():
        others = [limits for name, limits in ranges.items() if name != site]
        least, _ = find_edges([lower for lower, _ in others])
        _, most = find_edges([upper for _, upper in others])
        room = BEYOND * (most - least)
        if low < least - room or high > most + room:
            far[site] = least, most
    return far


def cap_claims(claims: Mapping[str, int], most: float) -> dict[str, float]:
    """Return what counts of numbers that nobody can check: at most so many times the median of the others'.

    Args:
        claims: Site -> the number that it says.
        most: Times the median; a site alone is believed.
    """
    if len(claims) < 2:
        return dict(claims)
    return {site: min(claims[site], most * median) for site, median in medians_of_others(claims).items()}
