import pytest

from silofl.errors import ConfigError
from silofl.schema import dump_record, read_record
from silofl.training.site_score import SiteScore, SuperScore

SCORE = {"value": 0.5, "num_cases": 2, "num_excluded": 1, "labels": {"1": 0.5}}
SUPER = SCORE | {"models": {"global": None, "super": 0.5}, "choices": {"global": 2}, "by_threshold": [[0.5, 1]]}
SUPER |= {"selector": {"cases": {"east": 2}, "slices": {"east": 9}}}


def test_a_score_is_read_and_written_as_the_site_sent_it():
    assert dump_record(read_record(SiteScore, SCORE, "x")) == SCORE
    found = read_record(SuperScore, SUPER, "x")
    assert found.selector.slices == {"east": 9} and found.by_threshold == ((0.5, 1),)


def test_what_a_score_does_not_know_is_refused_by_name():
    with pytest.raises(ConfigError, match="the test of site 'east': by_case must be a known key; it is not"):
        read_record(SiteScore, SCORE | {"by_case": {"Doe^Jane": 0.5}}, "the test of site 'east'")


def test_there_are_no_more_patients_than_cases():
    assert read_record(SiteScore, SCORE | {"num_patients": 2}, "x").num_patients == 2
    with pytest.raises(ConfigError, match="num_patients must be at most num_cases, 2, not 3"):
        read_record(SiteScore, SCORE | {"num_patients": 3}, "x")


@pytest.mark.parametrize("key", ["models", "choices", "selector", "by_threshold"])
def test_the_test_of_a_super_model_has_all_its_parts(key):
    with pytest.raises(ConfigError, match=f"{key} must be given; it is missing"):
        read_record(SuperScore, {name: value for name, value in SUPER.items() if name != key}, "x")
