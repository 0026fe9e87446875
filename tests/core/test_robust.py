import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.core.presets import algorithm_names, find_recipe
from silofl.core.products import multiply_updates
from silofl.core.recipe import PRESET_NAMES
from silofl.core.robust import Robust, bound_updates, clip_scales, krum_scores, take_median, trim_mean

SHARES = dict.fromkeys("abcde", 1)


def numbers(*values):
    return {site: {"w": np.float32([value])} for site, value in zip("abcde", values, strict=False)}


def bound(updates, buffers=(), shares=SHARES, **rule):
    return bound_updates(Robust(**rule), updates, shares, buffers)


def test_the_median_ignores_one_wild_site():
    updates = {"a": {"w": np.float32([1, 9])}, "b": {"w": np.float32([2, 8])}, "c": {"w": np.float32([1e9, -1e9])}}
    assert take_median(updates)["w"].tolist() == [2, 8]
    # Of four numbers the mean of the two in the middle.
    assert take_median(numbers(1, 2, 4, 100))["w"].tolist() == [3]


def test_the_trimmed_mean_leaves_out_both_ends_alike():
    # 2, 3 and 7 of 1, 2, 3, 7 and 1000
    assert trim_mean(numbers(1, 1000, 3, 7, 2), 1)["w"].tolist() == [4]
    assert trim_mean(numbers(1, 1000, 3, 7, 2), 2)["w"].tolist() == [3]
    # Of two numbers none can be left out at both ends.
    assert trim_mean(numbers(1, 3), 1)["w"].tolist() == [2]


def test_an_array_that_one_site_keeps_is_the_others():
    updates = numbers(1, 2, 9) | {"d": {"v": np.float32([5])}}
    assert take_median(updates)["w"].tolist() == [2]
    bounded, _ = bound(updates, rule="median")
    assert bounded["d"].keys() == {"v"} and bounded["a"].keys() == {"w"}


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "clipped", "multi_krum"])
@pytest.mark.parametrize("senders", ["e", "de", "cde"])
def test_an_array_that_most_sites_keep_is_nobodys_to_move(rule, senders):
    """As BatchNorm's statistics of which hospitals excluded theirs: e attacks, and c and d move by 1 and 2."""
    updates = numbers(1, 2, 3, 4, 5)
    for site in senders:
        updates[site]["mean"] = np.float32([{"c": 1, "d": 2, "e": 1e6}[site]])
    bounded, _ = bound(updates, {"mean"}, rule=rule)
    mean = np.mean([bounded[site]["mean"] for site in senders if "mean" in bounded[site]] or [0.0])
    assert 0 <= mean <= {"e": 0, "de": 2, "cde": 4}[senders]


def test_equal_updates_stay_as_they_are_by_every_rule():
    updates = {site: {"w": np.float32([0.1, -0.3]), "mean": np.float32([7])} for site in "abcde"}
    for rule in ("median", "trimmed_mean", "clipped", "multi_krum"):
        for arrays in bound(updates, {"mean"}, rule=rule)[0].values():
            np.testing.assert_array_equal(arrays["w"], np.float32([0.1, -0.3]))
            assert arrays["mean"].tolist() == [7] and arrays["w"].dtype == np.float32


def test_a_pull_is_bounded_by_the_factor_times_the_median():
    # The median of 1, 2, 3, 4 and 100 is 3; twice that is 6.
    lengths = dict(zip("abcde", (1, 2, 3, 4, 100), strict=True))
    assert clip_scales(lengths, 2) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 0.06}
    # Most stand still: one that moves alone moves nothing.
    assert clip_scales({"a": 0.0, "b": 0.0, "c": 5.0}, 2) == {"a": 1, "b": 1, "c": 0}


def test_a_far_update_is_brought_near_the_median_one():
    # The median is 3, and the distances from it are 2, 1, 0, 1 and 97, whose median is 1; twice that is 2.
    updates = numbers(1, 2, 3, 4, 100)
    bounded, _ = bound(updates, rule="clipped", factor=2)
    assert [float(arrays["w"][0]) for arrays in bounded.values()] == [1, 2, 3, 4, 5]
    # Of models of the sites' own there is no median: of the lengths 3 is half of twice their median.
    local, _ = bound_updates(Robust(rule="clipped", factor=2), updates, SHARES, (), has_median=False)
    assert [arrays["w"].tolist() for arrays in local.values()] == [[1], [2], [3], [3], [3]]


def test_an_update_pulls_by_its_length_and_its_sites_weight():
    # 1, 2 and 3 examples by step lie 2, 0 and 6 from the median of 2, and pull by 2, 0 and 6 * 3 = 18; with the median
    # pull, 2, c counts 2 + 6 * 2 / 18.
    bounded, _ = bound(numbers(0, 2, 8), shares={"a": 1, "b": 2, "c": 3}, rule="clipped", factor=1)
    assert [arrays["w"].tolist() for arrays in bounded.values()] == [[0], [2], [pytest.approx(2 + 2 / 3)]]


def test_parameters_cannot_hide_behind_long_buffers():
    updates = {site: arrays | {"mean": np.float32([1000])} for site, arrays in numbers(0, 1, -50).items()}
    bounded, _ = bound(updates, {"mean"}, rule="clipped", factor=1)
    # The median is 0, and the median distance 1.
    assert bounded["c"] == {"w": np.float32([-1]), "mean": np.float32([1000])}
    wild = {
        site: arrays | {"mean": np.float32([mean])}
        for site, arrays, mean in zip("abc", updates.values(), (0, 1, 9), strict=True)
    }
    assert bound(wild, {"mean"}, rule="clipped", factor=2)[0]["c"]["mean"].tolist() == [3]


def test_krum_sums_the_squared_distances_to_the_nearest_others():
    updates = numbers(0, 1, 3, 4, 10)
    products = multiply_updates(updates)
    # 5 - 1 - 2 = 2 nearest: of 0 those at 1 and 3; of 1 at 0 and 3; of 3 at 4 and 1; of 4 at 3 and 1; of 10 at 4 and 3.
    scores = krum_scores(products.distances(products.parameters), 1)
    assert scores.tolist() == [1 + 9, 1 + 4, 1 + 4, 1 + 9, 36 + 49]
    # All but 10: (0 + 1 + 3 + 4) / 4; 85 is 85 / 7.5 times the others' median (5 + 10) / 2.
    bounded, left_out = bound(updates, rule="multi_krum")
    assert {site: arrays["w"].tolist() for site, arrays in bounded.items()} == dict.fromkeys("abcde", [2])
    assert left_out == {"e": pytest.approx(85 / 7.5)}


def test_examples_count_up_to_the_factor_or_not_at_all():
    examples = {"a": 10, "b": 20, "c": 1000}
    # The others' median of b is 505, of c 15.
    assert Robust(rule="clipped", factor=2).count(examples, 3) == {"a": 10, "b": 20, "c": 30}
    assert Robust(rule="clipped").count(examples, 4) == examples
    assert Robust(rule="median").count(examples, 3) == {"a": 1, "b": 1, "c": 1}


def test_a_rule_is_chosen_by_name_or_with_constants():
    chosen = find_recipe("fedavg", "recommended", {"robust": {"rule": "trimmed_mean", "attackers": 2}}).robust
    assert (chosen.rule, chosen.attackers) == ("trimmed_mean", 2)
    for none in ("none", None):
        assert find_recipe("fedavg", "recommended", {"robust": none}).robust is None


def test_without_a_rule_a_study_keeps_its_digests_choices():
    without, chosen = (find_recipe("fedavg", "recommended", one).choices() for one in ({}, {"robust": "median"}))
    assert "robust" not in str(without) and chosen["constants"]["robust"]["rule"] == "median"


def test_no_preset_has_a_rule():
    assert all(find_recipe(name, preset, {}).robust is None for name in algorithm_names() for preset in PRESET_NAMES)


@pytest.mark.parametrize(
    ("algorithm", "robust", "message"),
    [
        ("adafed", "median", r"robust must be clipped where each site listens .* not median; or choose mixing: shared"),
        ("fedsm", "median", r"robust must be clipped with a selector, .* not median"),
        ("local", "median", r"robust must be none where no model is mixed in training, not median"),
        ("fednova", "clipped", r"robust must be none with fednova, .* not clipped; choose another algorithm"),
        ("fedavg", "krum", r"algorithm.robust.rule must be .*multi_krum.* not 'krum'"),
        ("fedavg", {"rule": "median", "factor": 3}, r"robust.factor does nothing without robust.rule: clipped"),
        ("fedavg", {"attackers": 2}, r"attackers does nothing without robust.rule: trimmed_mean or multi_krum"),
        ("fedavg", True, r"algorithm.robust must hold constants, rule, factor, attackers, not True"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(algorithm, robust, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe(algorithm, "recommended", {"robust": robust})
