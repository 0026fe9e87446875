import io
import json

from rich.console import Console

from silofl.federation.ledger import Round
from silofl.schema import dump_record
from silofl.settings import parse
from silofl.studies.progress import RoundLines
from silofl.study import Study
from silofl.training.site_score import SiteScore

STUDY = {"name": "x", "task": "segmentation", "labels": {1: "a"}, "rounds": 4, "algorithm": {"name": "fedavg"}}


def record(number, seconds, **changes):
    base = {"asked": ["a", "b"], "answered": ["a", "b"], "metrics": {"a": {"loss": 0.5}, "b": {"loss": 1.0}}}
    return Round(number, seconds=seconds, **(base | changes))


def score(value):
    return SiteScore(value=value, num_cases=1, num_excluded=0)


def lines_of(run, *ledgers):
    console = Console(record=True, width=300, file=io.StringIO())
    lines = RoundLines(parse(Study, STUDY, "study.yaml"), run, console)
    for ledger in ledgers:
        (run / "ledger.json").write_text(json.dumps(dump_record(ledger)))
        lines.print_new_rounds()
        lines.print_new_rounds()
    return console.export_text().splitlines()


def test_every_finished_round_gets_one_line(tmp_path):
    first = record(1, 30.0, validation={"a": score(0.25), "b": score(0.75)})
    lines = lines_of(tmp_path, [first], [first, record(2, 5.0)])
    assert [line.split()[:2] for line in lines] == [["round", "1/4"], ["round", "2/4"]]
    assert "validation dice 0.5000 (round 1)" in lines[1]


def test_a_sites_reason_in_brackets_is_printed_as_it_is(tmp_path):
    (line,) = lines_of(tmp_path, [record(1, 2.0, answered=["a"], failed={"b": "[/red] [red]"})])
    assert line.endswith("failed: b ([/red] [red])")


def test_rounds_from_before_a_resume_are_not_shown_again(tmp_path):
    (tmp_path / "ledger.json").write_text(json.dumps(dump_record([record(1, 2.0)])))
    (line,) = lines_of(tmp_path, [record(1, 2.0), record(2, 2.0)])
    assert line.startswith("round   2/4")
