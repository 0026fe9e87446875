import json

import pytest

from silofl.base.errors import ConfigError
from silofl.base.files import hold_lock
from silofl.federation.egress_chain import check_chain
from silofl.federation.egress_log import EgressLog, read_spent_epsilon


def record(number, kind="weights", size=16, refused=False, task="train"):
    facts = {"round": number, "task": task, "refused": refused, "name": "a", "kind": kind}
    facts["purpose"] = f"what {kind} are for"
    return facts | ({} if kind == "numbers" else {"bytes": size})


def lines(folder):
    return [json.loads(line) for line in (folder / "egress.jsonl").read_text().splitlines()]


def verdict(folder):
    return check_chain((folder / "egress.jsonl").read_bytes())


def test_cut_line_is_removed_and_chain_goes_on(tmp_path, caplog):
    EgressLog(tmp_path).write([record(1), record(1, "numbers")])
    with (tmp_path / "egress.jsonl").open("a") as stream:
        stream.write('{"number": 3, "round": 2, "ta')
    assert caplog.text == ""
    EgressLog(tmp_path).write([record(2)])
    assert [line["round"] for line in lines(tmp_path)] == [1, 1, 2]
    assert "egress.jsonl ended within a record, as after a kill; it goes on after record 2" in caplog.text
    assert verdict(tmp_path).fault is None and verdict(tmp_path).last.number == 3


@pytest.mark.parametrize("line", ["no record", "[]", '{"number": 3, "hash": "a"}'])
def test_nothing_is_written_after_a_broken_line(tmp_path, line):
    EgressLog(tmp_path).write([record(1)])
    with (tmp_path / "egress.jsonl").open("a") as stream:
        stream.write(f"{line}\n")
    before = (tmp_path / "egress.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="must hold records as they were written"):
        EgressLog(tmp_path)
    assert (tmp_path / "egress.jsonl").read_bytes() == before


def test_two_processes_write_one_chain(tmp_path):
    folder = tmp_path / "run"
    first, second = EgressLog(folder), EgressLog(folder)
    for number, log in enumerate((first, second, first), start=1):
        log.write([record(number)])
    assert [line["number"] for line in lines(folder)] == [1, 2, 3]
    assert verdict(folder).fault is None


def test_folder_is_in_use_while_the_log_lives(tmp_path):
    first, second = EgressLog(tmp_path), EgressLog(tmp_path)
    for log in (first, second):
        log.write([record(1)])
    with pytest.raises(ConfigError, match="is in use"), hold_lock(tmp_path / "lock"):
        pass
    del first, second, log
    with hold_lock(tmp_path / "lock"):
        assert len(lines(tmp_path)) == 2


@pytest.mark.parametrize(
    ("metrics", "is_refused", "spent"),
    [({"epsilon": 2.5}, False, 2.5), ({"epsilon": 2.5}, True, None), ({"loss": 0.5}, False, None), ("x", False, None)],
)
def test_spent_epsilon_is_read_of_answers_that_left(metrics, is_refused, spent):
    assert read_spent_epsilon({"values": {"metrics": metrics}, "refused": is_refused}) == spent
    assert read_spent_epsilon({"refused": False}) is None
