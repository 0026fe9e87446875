from dataclasses import replace

import pytest

from silofl.federation.cautions import ONE_CLASS, SWINGS, list_cautions, list_new_cautions
from silofl.federation.ledger import Round
from silofl.training.site_score import SiteScore


def score(value, recalls=None):
    """Return a site's validation; of a classification with each class's recall."""
    more = {}
    if recalls is not None:
        also = {"accuracy": value, "balanced_accuracy": value}
        more = {"labels": recalls, "label_cases": dict.fromkeys(recalls, 5), "also": also}
    return SiteScore(value=value, num_cases=10, num_excluded=0, **more)


def rounds_of(*validations):
    """Return a ledger with each round's validation by site, and the newest round, which is not validated yet."""
    ledger = [Round(number, validation=one) for number, one in enumerate(validations, start=1)]
    return [*ledger, Round(len(ledger) + 1)]


def said_after(*validations):
    """Return the line's round -> the cautions that it has, of the rounds that have any."""
    ledger = rounds_of(*validations)
    found = {number: list_new_cautions(ledger[:number]) for number in range(1, len(ledger) + 1)}
    return {number: sentences for number, sentences in found.items() if sentences}


@pytest.mark.parametrize(
    ("values", "rounds"),
    [
        # falls by 0.49 and comes back by as much, which the fourth round's line can say
        ((0.69, 0.20, 0.69), [4]),
        # said once, however often it swings
        ((0.69, 0.20, 0.69, 0.20, 0.69), [4]),
        # in steps: 0.8 to 0.5, then from 0.5 to 0.75
        ((0.8, 0.65, 0.5, 0.6, 0.75), [6]),
        # falls and stays; rises alone; or moves by 0.2 and no more
        ((0.8, 0.3, 0.3, 0.4), []),
        ((0.0, 0.3, 0.9), []),
        ((0.75, 0.55, 0.75), []),
    ],
)
def test_a_validation_that_falls_and_comes_back_is_said_once(values, rounds):
    assert said_after(*({"north": score(value)} for value in values)) == dict.fromkeys(rounds, [SWINGS])


def test_site_opposed_in_most_rounds_is_warned_of():
    away, sites = {"west": {"cosine": -0.3}}, ["north", "west"]
    ledger = [Round(number, answered=sites, outliers=away if number < 4 else None) for number in range(1, 6)]
    (caution,) = list_cautions(ledger)
    assert caution.startswith("west: in 3 of 5 rounds its update points away from the mean of the others'")
    # Not in most rounds, nor in a run too short to tell; and what is long is no matter of this sentence.
    assert list_cautions([*ledger, replace(ledger[-1], round=6)]) == [] == list_cautions(ledger[:2])
    long = {"west": {"length": 4.0}}
    assert list_cautions([replace(record, outliers=long) for record in ledger]) == []


@pytest.mark.parametrize(
    ("later", "is_kept"),
    [
        # three rounds that keep what was reached, or rise from it
        ((0.69, 0.7, 0.72), False),
        ((0.7, 0.55, 0.9, 1.0), False),
        # the round that shows it may be the last; two say too little; a further fall, also from a higher value
        ((), True),
        ((0.7, 0.7), True),
        ((0.7, 0.3, 0.7, 0.7, 0.7), True),
        ((0.9, 0.65, 0.9), True),
    ],
)
def test_swing_answered_later_is_not_reported(later, is_kept):
    ledger = rounds_of(*({"north": score(value)} for value in (0.69, 0.20, 0.69, *later)))[:-1]
    assert list_cautions(ledger) == [f"round 3: {SWINGS}"] * is_kept


def test_it_is_the_mean_over_the_sites_that_swings():
    # 0.5 in every round
    first, second = {"north": score(0.9), "south": score(0.1)}, {"north": score(0.1), "south": score(0.9)}
    assert said_after(first, second, first, second) == {}


ONE, BOTH = {"0": 1.0, "1": 0.0}, {"0": 0.9, "1": 0.1}


@pytest.mark.parametrize(
    ("recalls", "rounds"),
    [
        # rounds 3, 4 and 5, of which the sixth's line is the first to know
        ([ONE, ONE, ONE, ONE, ONE, ONE, ONE], [6]),
        # the first rounds do not count, and not fewer than three in a row
        ([ONE, ONE, ONE, ONE, BOTH], []),
        ([BOTH, BOTH, ONE, ONE, BOTH, ONE, ONE], []),
        # the other class is as constant
        ([BOTH, BOTH, ONE, {"0": 0.0, "1": 1.0}, ONE], [6]),
        # a site with cases of one class alone
        ([{"0": 1.0}] * 6, []),
    ],
)
def test_one_class_model_is_named_with_sites_once(recalls, rounds):
    validations = [{"north": score(0.5, one), "south": score(0.5, BOTH)} for one in recalls]
    assert said_after(*validations) == dict.fromkeys(rounds, [ONE_CLASS.format("north", 3)])


@pytest.mark.parametrize(
    ("later", "is_kept"),
    [([BOTH] * 3, False), ([ONE, *[BOTH] * 3], False), ([BOTH] * 2, True), ([BOTH, BOTH, ONE], True)],
)
def test_model_learning_other_class_later_is_not_reported(later, is_kept):
    recalls = [BOTH, BOTH, ONE, ONE, ONE, *later]
    ledger = rounds_of(*({"north": score(0.5, one), "south": score(0.5, BOTH)} for one in recalls))[:-1]
    assert list_cautions(ledger) == [f"round 5: {ONE_CLASS.format('north', 3)}"] * is_kept
    # The line of the sixth round has said it when it was so.
    assert list_new_cautions(ledger[:6]) == [ONE_CLASS.format("north", 3)]


def test_labels_of_masks_are_no_classes():
    masks = SiteScore(value=0.5, num_cases=4, num_excluded=0, labels=ONE)
    assert said_after(*[{"north": masks}] * 6) == {}
