import io
import json
import threading

import pytest
from rich.console import Console

from silofl.base.schema import dump_record
from silofl.base.settings import parse
from silofl.federation import steps
from silofl.federation.ledger import Round
from silofl.federation.run_folder import PHASE
from silofl.federation.steps import StepFile
from silofl.study import Study
from silofl_desk.studies.runs import progress
from silofl_desk.studies.runs.progress import RoundLines, repeat_in_background
from tests.conftest import score

STUDY = {"name": "x", "task": "segmentation", "labels": {1: "a"}, "rounds": 4, "algorithm": {"name": "fedavg"}}


def record(number, seconds, **changes):
    base = {"asked": ["a", "b"], "answered": ["a", "b"], "metrics": {"a": {"loss": 0.5}, "b": {"loss": 1.0}}}
    return Round(number, seconds=seconds, **(base | changes))


def lines_of(run, *ledgers):
    console = Console(record=True, width=300, file=io.StringIO())
    lines = RoundLines(parse(Study, STUDY, "study.yaml"), run, console)
    for ledger in ledgers:
        (run / "ledger.json").write_text(json.dumps(dump_record(ledger)))
        lines.print_new_rounds()
        lines.print_new_rounds()
    return console.export_text().splitlines()


def test_every_finished_round_gets_one_line_but_not_again_after_a_resume(tmp_path):
    first = record(1, 30.0, validation={"a": score(0.25), "b": score(0.75)})
    second = record(2, 5.0, answered=["a"], failed={"b": "[/red] [red]"})
    lines = lines_of(tmp_path, [first], [first, second])
    assert [line.split()[:2] for line in lines] == [["round", "1/4"], ["round", "2/4"]]
    # A site's reason in brackets is printed as it is.
    assert "validation dice 0.5000 (round 1)" in lines[1] and lines[1].endswith("failed: b ([/red] [red])")
    (line,) = lines_of(tmp_path, [first, second, record(3, 2.0)])
    assert line.startswith("round   3/4")


@pytest.fixture
def lines(tmp_path):
    console = Console(record=True, width=300, file=io.StringIO())
    found = RoundLines(parse(Study, STUDY, "study.yaml"), tmp_path, console)
    found.text = lambda: console.export_text().splitlines()
    return found


def test_a_long_round_is_never_silent_and_shows_its_steps(lines, tmp_path, monkeypatch):
    lines.print_phase()
    (tmp_path / PHASE).write_text("train 2 1")
    lines.print_phase()
    assert lines.text() == []
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    lines.print_phase()
    (line,) = lines.text()
    assert line.startswith("training round 2 of 4: ") and line.endswith(" s so far")
    monkeypatch.setattr(steps, "EVERY_S", -1.0)
    north = tmp_path / "sites" / "north" / "run-1"
    north.mkdir(parents=True)
    StepFile(north).write(12, 300)
    lines.print_phase()
    assert lines.text()[0].endswith(" s so far, step 12 of 300 at north")


def test_an_action_is_repeated_until_the_block_ends_and_its_error_is_not_lost():
    called = threading.Event()
    with repeat_in_background(called.set, 0.001):
        assert called.wait(10)
    failed = threading.Event()

    def fail():
        failed.set()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), repeat_in_background(fail, 0.001):
        assert failed.wait(10)
