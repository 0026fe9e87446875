import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record, read_record
from silofl_desk.report.unseen import UnseenTest


def test_a_threshold_without_its_candidates_is_refused(unseen):
    with pytest.raises(ConfigError, match="by_threshold must be given with a threshold; it is empty"):
        unseen(by_threshold=())


def test_the_test_of_a_left_out_site_is_written_with_the_keys_of_its_rule(unseen, unseen_plain):
    with_selector, without = dump_record(unseen()), dump_record(unseen_plain())
    assert with_selector.keys() - without.keys() == {"choices", "threshold", "threshold_from", "by_threshold"}
    assert read_record(UnseenTest, with_selector, "unseen.json") == unseen()


def test_the_best_in_hindsight_is_the_largest_of_equals(unseen):
    found = unseen()
    assert found.best_in_hindsight.threshold == 1.0
    lowest, used, highest = found.by_threshold
    assert unseen(by_threshold=(lowest, used, type(used)(1.0, 0.6, {}))).best_in_hindsight.threshold == 1.0
    assert unseen(by_threshold=(type(used)(0.0, None, {}),)).best_in_hindsight is None
