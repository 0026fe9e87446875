import pytest

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record, read_record
from silofl.inference.unseen import UnseenTest


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": {"north": 0.5}}, "models must hold 'ensemble' with a selector, not only .'north'."),
        ({"models": {"ensemble": 0.5}}, "models must hold 'global' with a selector, not only .'ensemble'."),
        ({"by_threshold": []}, "by_threshold must be given with a threshold; it is empty"),
        (
            {"by_threshold": [{"threshold": None, "value": 0.5, "num_counted": 4, "choices": {"global": 4}}]},
            "each row of by_threshold must have a threshold",
        ),
    ],
)
def test_the_test_of_a_left_out_site_without_what_its_tables_show_is_refused(unseen, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        unseen(**changes)


def test_the_test_of_a_left_out_site_is_written_with_the_keys_of_its_rule(unseen, unseen_plain):
    with_selector, without = dump_record(unseen()), dump_record(unseen_plain())
    assert with_selector.keys() - without.keys() == {
        "answer",
        "threshold",
        "threshold_from",
        "choices",
        "by_threshold",
        "best_in_hindsight",
    }
    with pytest.raises(ConfigError, match="unseen.json: choices must be given; it is missing"):
        read_record(UnseenTest, {key: value for key, value in with_selector.items() if key != "choices"}, "unseen.json")
