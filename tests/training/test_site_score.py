import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record, read_record
from silofl.training.site_score import (
    SiteScore,
    SuperScore,
    have_same_classes,
    mean_of_scores,
    measure_rise,
    pool_scores,
)

SCORE = {"value": 0.5, "num_cases": 2, "num_excluded": 1, "labels": {"1": 0.5}}
SUPER = SCORE | {"models": {"global": None, "super": 0.5}, "choices": {"global": 2}}
SUPER |= {"selector": {"cases": {"east": 2}}}


def test_a_score_is_read_as_the_site_sent_it():
    assert dump_record(read_record(SiteScore, SCORE, "x")) == SCORE
    result = read_record(SuperScore, SUPER, "x")
    assert result.selector.cases == {"east": 2}


def test_unknown_keys_and_too_many_patients_are_refused():
    with pytest.raises(ConfigError, match="the test of site 'east': by_case is not a known key"):
        read_record(SiteScore, SCORE | {"by_case": {"Doe^Jane": 0.5}}, "the test of site 'east'")
    assert read_record(SiteScore, SCORE | {"num_patients": 2}, "x").num_patients == 2
    with pytest.raises(ConfigError, match="num_patients must be at most num_cases, 2, not 3"):
        read_record(SiteScore, SCORE | {"num_patients": 3}, "x")


@pytest.mark.parametrize("key", ["models", "choices", "selector"])
def test_the_test_of_a_super_model_has_all_its_parts(key):
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        read_record(SuperScore, {name: value for name, value in SUPER.items() if name != key}, "x")


def by_areas(areas, cases):
    """Return the score of a site whose metric is the mean of the areas of its classes."""
    value, num_cases = (sum(areas.values()) / len(areas), sum(cases.values())) if areas else (None, 0)
    tables = {"labels": dict.fromkeys(cases, 1.0), "label_cases": cases, "areas": areas, "mean_over": "areas"}
    return SiteScore(value=value, num_cases=num_cases, num_excluded=0, **tables)


def by_recalls(recalls, cases):
    value = sum(recalls.values()) / len(recalls)
    tables = {"labels": recalls, "label_cases": cases, "mean_over": "labels"}
    return SiteScore(value=value, num_cases=sum(cases.values()), num_excluded=0, **tables)


def test_means_over_different_classes_are_pooled_by_class():
    # As skilled in each class: 0.9, 0.8 and 0.6; the sites' values are 0.85 and 0.7, of which nothing is the mean.
    east = by_areas({"0": 0.9, "1": 0.8}, {"0": 30, "1": 10})
    west = by_areas({"0": 0.9, "1": 0.8, "2": 0.6}, {"0": 10, "1": 20, "2": 5})
    assert not have_same_classes([east, west]) and have_same_classes([west, west])
    assert mean_of_scores([east, west]) == pool_scores([east, west]) == pytest.approx((0.9 + 0.8 + 0.6) / 3)
    # class 0: (30 * 0.9 + 10 * 0.5) / 40 = 0.8; class 1: (10 * 0.8 + 30 * 0.4) / 40 = 0.5
    other = by_areas({"0": 0.5, "1": 0.4}, {"0": 10, "1": 30})
    assert pool_scores([east, other]) == pytest.approx((0.8 + 0.5) / 2)
    # Sites with the same classes have a mean.
    assert have_same_classes([east, other]) and mean_of_scores([east, other]) == pytest.approx((0.85 + 0.45) / 2)


def test_a_site_of_one_class_has_no_area():
    east = by_areas({"0": 0.9, "1": 0.8}, {"0": 30, "1": 10})
    lone = by_areas({}, {"0": 3})
    assert mean_of_scores([east, lone]) == pytest.approx(0.85) and mean_of_scores([lone]) is None
    assert pool_scores([]) is None


def test_the_mean_of_balanced_accuracies_is_not_the_pooled_one():
    east = by_recalls({"0": 1.0}, {"0": 3})
    west = by_recalls({"0": 0.0, "1": 0.5}, {"0": 1, "1": 2})
    # class 0: 3 of 4; class 1: 1 of 2
    assert pool_scores([east, west]) == mean_of_scores([east, west]) == (3 / 4 + 1 / 2) / 2
    # a class that counts in no case is no part of it
    assert pool_scores([by_recalls({"0": 1.0, "1": 0.5}, {"0": 3, "1": 0})]) == 1


def test_a_round_rises_by_the_median_class_by_class():
    whole = [SiteScore(value=value, num_cases=1, num_excluded=0) for value in (0.1, 0.5, 0.9)]
    assert measure_rise(whole, whole[::-1]) == 0
    assert measure_rise([whole[1], whole[2]], [whole[0], whole[0]]) == pytest.approx(0.7 - 0.1)
    cases = {"0": 10, "1": 10, "2": 10}
    east = ({"0": 0.8, "1": 0.6}, {"0": 0.7, "1": 0.7, "2": 0.5})
    west = ({"0": 0.9, "1": 0.6}, {"0": 0.6, "1": 0.7, "2": 0.8})
    old, new = ([by_areas(one, {key: cases[key] for key in one}) for one in sites] for sites in (east, west))
    # class 0: 0.75 to 0.75; class 1 stays; class 2 of one site: 0.3 higher
    assert measure_rise(new, old) == pytest.approx(0.3 / 3)


def test_one_of_three_sites_moves_no_common_class():
    old = [by_areas({"0": 0.6, "1": 0.6}, {"0": 9, "1": 9}) for _ in range(2)]
    old.append(by_areas({"0": 0.6, "1": 0.6, "2": 0.6}, {"0": 9, "1": 9, "2": 9}))
    invented = by_areas({"0": 1.0, "1": 1.0, "2": 0.6}, {"0": 10**7, "1": 10**7, "2": 9})
    assert measure_rise([*old[:2], invented], old) == 0
