import numpy as np
import pytest

from silofl.core.products import multiply_updates
from silofl.federation.outlying_updates import (
    find_opposed,
    find_outlying_updates,
    find_outweighing,
    join_outliers,
)


def updates(**arrays):
    return multiply_updates({site: {"w": np.float32(array)} for site, array in arrays.items()})


def find(products, min_sites=3):
    alike = dict.fromkeys(products.sites, 1.0)
    return find_outlying_updates(products, alike, alike, min_sites)


def test_reversed_update_is_named_and_no_honest_one():
    # It is so long, and counts for so much, that the mean is turned round too: by it the others would look opposed.
    products = updates(a=[1, 0.1], b=[1, 0.2], c=[1, 0], d=[-30, -3])
    shares = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0}
    assert find_opposed(products, shares, 3).keys() == {"d"}
    assert find(products).keys() == {"d"}


def test_cosine_is_to_the_weighted_mean_direction():
    products = updates(a=[1, 0], b=[0, 1], c=[-1, -1])
    # Of c: directions (1, 0) with 3 and (0, 1) with 1 have the mean (3, 1): -(3 + 1) / (sqrt(2) * sqrt(10)).
    found = find_opposed(products, {"a": 3.0, "b": 1.0, "c": 0.1}, 3)
    assert found == {"c": pytest.approx(-4 / np.sqrt(20))}


def test_two_of_eight_alike_do_not_hide_each_other():
    # Honest updates share a little of the first axis. The cosine of x to each is -0.5 * 0.3 / sqrt(1.25 * 1.09);
    # six times that, -0.771, and 1 for y are above 0; without y the others have a sum of length sqrt(6 + 30 * 0.0826).
    honest = {name: [0.3, *np.eye(7)[number]] for number, name in enumerate("abcdef")}
    turned = [-0.5, *np.eye(7)[6]]
    products = updates(**honest, x=turned, y=turned)
    found = find_opposed(products, dict.fromkeys(products.sites, 1.0), 3)
    assert found == {name: pytest.approx(-0.771 / 2.912, rel=0.01) for name in "xy"}


def test_of_two_sites_nobody_is_opposed_or_long():
    products = updates(a=[1, 0], b=[-9, 0])
    assert find(products) == {} and find(products, min_sites=2) == {"a": {"cosine": -1}, "b": {"length": 9}}
    assert find(updates(a=[1, 0]), min_sites=1) == {} == find(updates(), min_sites=1)


def test_thrice_the_others_median_by_step_is_named():
    assert find(updates(a=[1, 0.1], b=[1, 0], c=[3, 0])) == {}
    products = updates(a=[1, 0], b=[1, 0], c=[4, 0])
    assert find(products) == {"c": {"length": 4}}
    # Four times as long after four times as many steps.
    assert find_outlying_updates(products, {"a": 1, "b": 1, "c": 4}, dict.fromkeys("abc", 1.0), 3) == {}


def test_statistics_are_compared_by_themselves_and_their_direction_says_nothing():
    means = {"a": 1, "b": -1, "c": 40}
    given = {site: {"w": np.float32([1, 0]), "mean": np.float32(mean)} for site, mean in means.items()}
    assert find(multiply_updates(given, buffers={"mean"})) == {"c": {"buffers": 40}}


def test_examples_are_named_from_three_times_the_others_median_on():
    assert find_outweighing({"a": 10, "b": 10, "c": 29}, 3) == {}
    assert find_outweighing({"a": 10, "b": 10, "c": 30}, 3) == {"c": 3}
    assert find_outweighing({"a": 10, "c": 10**7}, 3) == {} == find_outweighing({}, 3)


def test_several_comparisons_are_joined_by_site_with_three_digits():
    several = [{"west": {"cosine": -0.12345}}, {}, {"west": {"examples": 1234.0}, "east": {"length": 4.0}}]
    joined = [*join_outliers(several).items()]
    assert joined == [("east", {"length": 4.0}), ("west", {"cosine": -0.123, "examples": 1230.0})]
