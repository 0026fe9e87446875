"""What passes between a running controller and its study lead: numbers of rounds, once each."""

import pytest

from silofl.files import write_json
from silofl.flare.lead import Progress, answer_progress


@pytest.mark.parametrize("sizes", [(0, 1, 3), (2, 2), (0,)])
def test_a_lead_comes_to_know_the_whole_ledger_whenever_it_asks(tmp_path, sizes):
    answer, progress = answer_progress("run-1", tmp_path), Progress(None, [])
    for size in sizes:
        # A round's validation comes with the next one.
        ledger = [{"round": i + 1, "validation": i + 1 < size} for i in range(size)]
        write_json(tmp_path / "ledger.json", ledger)
        progress.take(answer("", {"rounds": len(progress.ledger)}, None))
        assert (progress.run, progress.ledger) == ("run-1", ledger)


@pytest.mark.parametrize("data", [None, [], {"rounds": "2"}, {"rounds": -5}, {"rounds": True}, {"rounds": 10**30}])
def test_no_question_of_a_lead_breaks_the_controller(tmp_path, data):
    write_json(tmp_path / "ledger.json", [{"round": 1}])
    assert answer_progress("run-1", tmp_path)("", data, None)["run"] == "run-1"


def test_a_run_without_a_finished_round_has_an_empty_ledger(tmp_path):
    assert answer_progress("run-1", tmp_path)("", {"rounds": 0}, None) == {"run": "run-1", "first": 0, "ledger": []}
