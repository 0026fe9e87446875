from collections import Counter

import numpy as np
import pytest

from silofl.core.products import multiply_updates
from silofl.federation.unlike import (
    describe_unlike,
    find_opposed,
    find_opposed_scores,
    find_outweighing,
    find_standing_out,
    find_unlike_updates,
    join_unlike,
)
from silofl.training.site_score import SiteScore


def updates(**arrays):
    return multiply_updates({site: {"w": np.float32(array)} for site, array in arrays.items()})


def scores(values, cases=100, **more):
    return {site: SiteScore(value=value, num_cases=cases, num_excluded=0, **more) for site, value in values.items()}


def find(products, min_sites=3):
    alike = dict.fromkeys(products.sites, 1.0)
    return find_unlike_updates(products, alike, alike, min_sites)


def test_an_update_that_is_turned_round_is_named_and_no_honest_one_with_it():
    # It is so long, and counts for so much, that the mean is turned round too: by it the others would look opposed.
    products = updates(a=[1, 0.1], b=[1, 0.2], c=[1, 0], d=[-30, -3])
    shares = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0}
    assert find_opposed(products, shares, 3).keys() == {"d"}
    assert find(products).keys() == {"d"}


def test_the_cosine_is_that_to_the_weighted_mean_of_the_others_directions():
    products = updates(a=[1, 0], b=[0, 1], c=[-1, -1])
    # Of c: directions (1, 0) with 3 and (0, 1) with 1 have the mean (3, 1): -(3 + 1) / (sqrt(2) * sqrt(10)).
    found = find_opposed(products, {"a": 3.0, "b": 1.0, "c": 0.1}, 3)
    assert found == {"c": pytest.approx(-4 / np.sqrt(20))}


def test_of_two_sites_nobody_knows_which_is_opposed_or_too_long():
    products = updates(a=[1, 0], b=[-9, 0])
    assert find(products) == {} and find(products, min_sites=2) == {"a": {"cosine": -1}, "b": {"length": 9}}
    assert find(updates(a=[1, 0]), min_sites=1) == {} == find(updates(), min_sites=1)


def test_an_update_is_said_to_stand_out_only_beyond_what_the_others_differ_by():
    # The others' have the mean 0.8 and the deviation 0.1: -0.9 lies 1.7 / (0.1 * sqrt(1 + 1/3)) = 14.7 off, with p
    # 0.0023 of 2 degrees of freedom.
    off = {"a": 0.9, "b": 0.8, "c": 0.7, "d": -0.9}
    assert find_standing_out(off, 4 * 0.0024) == {"d": -0.9} and find_standing_out(off, 4 * 0.0022) == {}
    # Others that are far from agreeing themselves; of three sites nobody knows; 0 is away from nobody.
    assert find_standing_out(off | {"a": -0.5}, 0.025) == {}
    assert find_standing_out({"a": 0.9, "b": 0.9, "d": -0.9}, 0.025) == {}
    assert find_standing_out(off | {"d": 0.0, "b": 0.9, "c": 0.9}, 0.025) == {}
    products = updates(a=[1, 0.1], b=[1, 0.2], c=[1, 0], d=[-30, -3])
    assert find(products)["d"].keys() >= {"cosine", "opposed"}


def test_where_all_sites_draw_alike_one_stands_out_in_half_of_the_rounds_of_at_most_one_run_in_twenty():
    """As of few cases per site, which pull in few directions, each site its own way in every round."""
    rng, rounds, named = np.random.default_rng(0), 6, {True: 0, False: 0}
    for _ in range(200):
        num_sites = int(rng.integers(4, 7))
        common, own = rng.normal(size=8), rng.normal(size=(num_sites, 8))
        counts = {True: Counter(), False: Counter()}
        for _ in range(rounds):
            drawn = 0.2 * common + own + 0.5 * rng.normal(size=own.shape)
            sent = {f"s{site}": update for site, update in enumerate(drawn - 0.8 * drawn.mean(axis=0))}
            for site, what in find(updates(**sent)).items():
                counts[True].update([site] * ("opposed" in what))
                counts[False].update([site] * ("cosine" in what))
        for key, found in counts.items():
            named[key] += any(2 * number >= rounds for number in found.values())
    assert named[True] <= 10 and named[False] > 100


def test_a_site_that_has_not_moved_is_opposed_to_nobody():
    assert find(updates(a=[0, 0], b=[1, 0], c=[1, 0])) == {}
    assert find(updates(a=[0, 0], b=[0, 0], c=[0, 0])) == {}


def test_what_is_above_three_times_the_others_median_by_step_is_named():
    assert find(updates(a=[1, 0.1], b=[1, 0], c=[3, 0])) == {}
    products = updates(a=[1, 0], b=[1, 0], c=[4, 0])
    assert find(products) == {"c": {"length": 4}}
    # Four times as long after four times as many steps.
    assert find_unlike_updates(products, {"a": 1, "b": 1, "c": 4}, dict.fromkeys("abc", 1.0), 3) == {}


def test_statistics_are_compared_by_themselves_and_their_direction_says_nothing():
    means = {"a": 1, "b": -1, "c": 40}
    given = {site: {"w": np.float32([1, 0]), "mean": np.float32(mean)} for site, mean in means.items()}
    assert find(multiply_updates(given, buffers={"mean"})) == {"c": {"buffers": 40}}


@pytest.mark.parametrize(
    ("west", "expected"),
    [
        # The others change by 0.1, 0.2 and 0.1; a fall of at least 0.1 is named.
        ((1.0, 0.5), {"west": {"validation": -0.5}}),
        ((0.4, 0.31), {}),
        # against two of three, but not beyond all of them; with them, however far
        ((0.0, 0.0), {}),
        ((0.1, 1.0), {}),
    ],
)
def test_a_validation_score_that_moves_against_all_others_is_named(west, expected):
    old = scores({"a": 0.3, "b": 0.3, "c": 0.4, "west": west[0]})
    new = scores({"a": 0.4, "b": 0.5, "c": 0.5, "west": west[1]})
    assert find_opposed_scores(new, old, 3) == expected
    # Turned round the others fall, and it rises.
    assert find_opposed_scores(old, new, 3).keys() == expected.keys()
    # Of two nobody knows who is against whom.
    assert find_opposed_scores(scores({"a": 0.9, "west": 0.1}), scores({"a": 0.1, "west": 0.9}), 1) == {}
    assert find_opposed_scores(new, {}, 3) == {}


@pytest.mark.parametrize(("changed", "is_named"), [(1, False), (2, False), (3, True)])
def test_a_score_of_six_cases_must_move_by_more_than_two_of_them_can_make(changed, is_named):
    old = scores({"a": 0.5, "b": 0.5, "west": 4 / 6}, cases=6)
    new = scores({"a": 0.5, "b": 0.5, "west": (4 - changed) / 6}, cases=6)
    assert find_opposed_scores(new, old, 3).keys() == ({"west"} if is_named else set())
    assert find_opposed_scores(old, new, 3).keys() == ({"west"} if is_named else set())


@pytest.mark.parametrize(("mean_over", "limit"), [("labels", 2 / (2 * 5)), ("areas", 2 / 5)])
def test_in_a_mean_over_classes_a_case_of_the_smallest_class_moves_the_score_most(mean_over, limit):
    classes = {"mean_over": mean_over, "labels": {"0": 0.5, "1": 0.5}, "label_cases": {"0": 95, "1": 5}}
    old = scores({"a": 0.5, "b": 0.5, "west": 0.9}, **classes)
    for move, is_named in ((limit - 0.01, False), (limit + 0.01, True)):
        new = scores({"a": 0.5, "b": 0.5, "west": 0.9 - move}, **classes)
        assert find_opposed_scores(new, old, 3).keys() == ({"west"} if is_named else set())


def test_examples_are_named_from_three_times_the_others_median_on():
    assert find_outweighing({"a": 10, "b": 10, "c": 29}, 3) == {}
    assert find_outweighing({"a": 10, "b": 10, "c": 30}, 3) == {"c": 3}
    assert find_outweighing({"a": 10, "c": 10**7}, 3) == {} == find_outweighing({}, 3)


def test_several_comparisons_are_joined_by_site_with_three_digits():
    several = [{"west": {"cosine": -0.12345}}, {}, {"west": {"examples": 1234.0}, "east": {"length": 4.0}}]
    joined = [*join_unlike(several).items()]
    assert joined == [("east", {"length": 4.0}), ("west", {"cosine": -0.123, "examples": 1230.0})]


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("cosine", "site 'west' sent an update that points away from the mean of the others' (cosine 4.2)"),
        ("opposed", "site 'west' sent an update that points away from the mean of the others' more than these differ"),
        ("buffers", "site 'west' sent a change of BatchNorm's running buffers 4.2 times as long by step"),
        ("amplitude", "site 'west' sent its amplitude that is 4.2 times the others' median"),
    ],
)
def test_what_is_unlike_is_said_in_one_sentence(what, sentence):
    assert describe_unlike("west", what, 4.2).startswith(sentence)
