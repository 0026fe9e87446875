import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record, read_record
from silofl_desk.report.unseen import UnseenTest


def test_a_record_that_no_page_could_show_is_refused(unseen):
    with pytest.raises(ConfigError, match="rule must be only, mean, choice, ensemble, not 'best'"):
        read_record(UnseenTest, dump_record(unseen()) | {"rule": "best"}, "unseen.json")


def test_the_test_of_a_left_out_site_is_written(unseen, unseen_plain):
    with_selector, without = dump_record(unseen()), dump_record(unseen_plain())
    assert with_selector.keys() - without.keys() == {"choices", "threshold", "by_threshold"}
    assert read_record(UnseenTest, with_selector, "unseen.json") == unseen()


def test_a_record_of_release_0_4_is_read(unseen_plain):
    record = dump_record(unseen_plain())
    older = record["evaluation"] | {"cut": {"organ": {"num_cases": 1, "share": 0.5}}}
    older |= {"specificity": 0.9, "against": {"fingerprint": "f"}, "calibration": {"temperature": 2.0}}
    older |= {"withheld": {"num_cases": 1, "reasons": {"unlike": 1}, "used": {}}}
    found = read_record(UnseenTest, record | {"evaluation": older, "num_seen": 0, "threshold_from": "x"}, "unseen.json")
    assert dump_record(found.evaluation) == record["evaluation"]
