import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record, read_record
from silofl.inference.evaluation import Calibration
from silofl_desk.report.unseen import UnseenTest


def test_a_threshold_without_its_candidates_is_refused(unseen):
    with pytest.raises(ConfigError, match="by_threshold must be given with a threshold; it is empty"):
        unseen(by_threshold=())


def test_a_record_that_no_page_could_show_is_refused(unseen):
    record = dump_record(unseen())
    first, *others = record["by_threshold"]
    damaged = [
        ("rule must be only, mean, choice, ensemble, not 'best'", {"rule": "best"}),
        (
            "choices must name all models also with the threshold 0",
            {"by_threshold": [first | {"choices": {"x": 1}}, *others]},
        ),
        (
            "specificity must be given with scores of sensitivity",
            {"evaluation": with_sensitivity(record["evaluation"])},
        ),
    ]
    for said, changes in damaged:
        with pytest.raises(ConfigError, match=said):
            read_record(UnseenTest, record | changes, "unseen.json")


def with_sensitivity(evaluation):
    scores = evaluation["scores"] | {"organ": {"sensitivity": {"value": 1.0, "interval": None, "num_cases": 1}}}
    return evaluation | {"scores": scores}


def test_the_test_of_a_left_out_site_is_written_with_the_keys_of_its_rule(unseen, unseen_plain):
    with_selector, without = dump_record(unseen()), dump_record(unseen_plain())
    assert with_selector.keys() - without.keys() == {"choices", "threshold", "by_threshold"}
    assert read_record(UnseenTest, with_selector, "unseen.json") == unseen()


def test_a_record_of_release_0_4_is_read_without_what_it_said_beyond_this_one(unseen_plain):
    record = dump_record(unseen_plain())
    forbidden = {"num_cases": 1, "reasons": {"unlike": 1}}
    older = record["evaluation"] | {"cut": {"organ": {"num_cases": 1, "share": 0.5}}}
    older |= {"withheld": forbidden | {"used": {"": {"dice": {"value": 1.0, "interval": None, "num_cases": 1}}}}}
    found = read_record(UnseenTest, record | {"evaluation": older, "num_seen": 0, "threshold_from": "x"}, "unseen.json")
    assert dump_record(found.evaluation) == record["evaluation"] | {"withheld": forbidden}
    bins = [{"low": 0.5, "num_cases": 2, "confidence": 0.5, "accuracy": 0.5}]
    assert read_record(Calibration, {"bins": bins, "temperature": 2.0, "temperatures": [1.0]}, "x") == Calibration(2.0)
