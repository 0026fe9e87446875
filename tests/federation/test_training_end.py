"""When training ends, and which round is reported: both by the median of the sites' changes."""

import pytest

from silofl.core.training_end import is_finished
from silofl.federation.ledger import (
    Round,
    find_best_round,
    find_last_rise,
    measure_last_rise,
    measure_rise_after,
)
from silofl.training.site_score import SiteScore
from tests.conftest import mark_best


def make_ledger(*rounds):
    """Return rounds with a validation of sites a, b, c ...; None of a site that is absent."""
    ledger = []
    for number, values in enumerate(rounds, start=1):
        present = {site: value for site, value in zip("abcde", values, strict=False) if value is not None}
        scores = {site: SiteScore(value=value, num_cases=4, num_excluded=0) for site, value in present.items()}
        ledger.append(Round(number, answered=[*present], validation=scores))
    return mark_best(ledger)


@pytest.mark.parametrize(
    "lies",
    [
        # 1.0 in one round that is worse for all others, or better for them
        (0.5, 0.6, 1.0, 0.6),
        (0.5, 1.0, 0.5, 0.6),
        # always, or falling while all others rise
        (1.0, 1.0, 1.0, 1.0),
        (0.9, 0.6, 0.3, 0.0),
    ],
)
def test_the_lies_of_one_site_of_five_choose_no_round(lies):
    # Four honest sites are best in round 2: + .1, then - .05, - .02.
    honest = (0.40, 0.50, 0.45, 0.48)
    rounds = [(lie, value, value + 0.01, value + 0.02, value + 0.03) for lie, value in zip(lies, honest, strict=True)]
    ledger = make_ledger(*rounds)
    assert find_best_round(ledger) == 2
    assert find_last_rise(ledger) == 2


@pytest.mark.parametrize(
    ("values", "last"),
    [
        ([], None),
        ([None, None], None),
        ([0.3], 1),
        # .0049 is no rise, and .0051 is one
        ([0.3, 0.3049, 0.3049], 1),
        ([0.3, 0.3051, 0.3], 2),
        # a slow rise is none of a single round, but counts over the best round before: .006 over round 1
        ([0.3, 0.303, 0.306, 0.306], 2),
        ([0.3, 0.5, 0.4, 0.45, 0.504], 2),
        # rounds that nobody validated raise nothing
        ([None, 0.3, None, None], 2),
    ],
)
def test_last_rise_is_the_last_clearly_better_round(values, last):
    ledger = make_ledger(*((value,) for value in values))
    assert find_last_rise(ledger) == last
    if last:
        rises = [is_finished(measure_rise_after(ledger, number)) for number in range(len(ledger) + 1)]
        assert rises.index(True) == last


def test_training_does_not_end_before_newcomers_had_rounds():
    # c comes in round 4: no earlier round is known to suit it.
    ledger = make_ledger((0.5, 0.5), (0.5, 0.5), (0.5, 0.5), (0.5, 0.5, 0.1), (0.5, 0.5, 0.1), (0.5, 0.5, 0.1))
    assert measure_last_rise(ledger, 3) is None
    assert measure_last_rise(ledger, 2) == 0
    assert find_last_rise(ledger) == 4


def test_median_of_1_ends_in_any_round():
    assert measure_last_rise(make_ledger((0.2, 0.8), (1.0, 1.0)), 10) == 0
    # of 1.0 and .9 it is .95
    assert measure_last_rise(make_ledger((0.2, 0.8), (1.0, 0.9)), 10) is None
