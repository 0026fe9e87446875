import errno
import json
import logging
from functools import partial

import numpy as np
import pytest
import yaml

from silofl.base.errors import DataError
from silofl.base.settings import load_settings
from silofl.federation.site import SiteRounds
from silofl.federation.state import SiteState
from silofl.parts.task import Message
from silofl.parts.work import Work
from silofl.setup.site import Site

from ..conftest import assert_alike


@pytest.fixture
def begun(play):
    """A run of one site, and its first task."""
    game = play(("east",))
    return game, game.upcoming("train")["east"]


def test_repeated_round_gives_the_same_answer(play):
    game = play(("east",), name="harmofl")
    game.round()
    task, anew = game.upcoming("train")["east"], SiteRounds("east", game.study, game.settings)
    first, again, other = (site.answer("train", task) for site in (game.sites["east"], game.sites["east"], anew))
    assert first.arrays
    assert_alike(first.arrays, again.arrays)
    assert_alike(first.arrays, other.arrays)
    # A new process says what it runs, too.
    assert first.meta == again.meta == {key: other.meta[key] for key in other.meta if key != "software"}


def test_half_written_files_are_deleted_at_next_task(play):
    game = play(("east",), rounds=1)
    game.round()
    left = [game.folder("east") / name for name in (".pictures.npz.1.tmp", "rounds/.round_0001.pt.1.tmp")]
    for path in left:
        path.write_bytes(b"half")
    game.finish()
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("round", True, "a task: round must be a valid integer, not True"),
        ("round", 0, "a task must be of one of the study's 3 rounds, not of round 0"),
        ("round", 4, "a task must be of one of the study's 3 rounds, not of round 4"),
        ("best_round", "1", "a task: best_round must be a valid integer, not '1'"),
        ("held", -1, "a task: held must be greater than or equal to 0, not -1"),
        ("step", None, "a task: step must be a valid integer, not None"),
        ("run", 7, "a task: run must be a text, not 7"),
    ],
)
def test_invalid_task_is_refused_and_leaves_no_file(begun, key, value, sentence):
    game, task = begun
    answer = game.sites["east"].answer("train", Message(task.arrays, task.meta | {key: value}))
    assert answer.arrays == {} and answer.meta["error"] == sentence
    assert not (game.folder("east") / "rounds").exists()


def test_odd_task_is_one_log_line_and_not_echoed(play, caplog):
    task = Message(meta={"run": "run", "round": "1\n2026-01-01 INFO all is right"})
    with caplog.at_level(logging.WARNING):
        answer = play(("east",)).sites["east"].answer("x\x1b[2J", task)
    (record,) = caplog.records
    assert record.getMessage().startswith("x [2J of round 1 2026-01-01 INFO all is right failed: a task: ")
    assert answer.meta.keys() == {"round", "error"} and answer.meta["round"] is None


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (DataError("case 'Jane Doe' must be readable"), "the site's data have a fault; the site's own log names it"),
        (MemoryError("/data/Jane Doe"), "an unexpected MemoryError; the site's own log has it"),
        (
            OSError(errno.ENOSPC, "no room", "/data/Jane Doe"),
            "the site's system said 'No space left on device'; the site's own log names the file",
        ),
    ],
)
def test_fault_is_full_at_home_and_textless_to_server(begun, monkeypatch, caplog, fault, reason):
    def fail(*arguments):
        raise fault

    game, task = begun
    monkeypatch.setattr("silofl.parts.work.Training.run", fail)
    with caplog.at_level(logging.ERROR):
        answer = game.sites["east"].answer("train", task)
    assert answer.arrays == {} and answer.meta == {"round": 1, "error": reason}
    assert "Jane Doe" in caplog.text and ("Traceback" in caplog.text) == isinstance(fault, MemoryError)


@pytest.mark.parametrize("run", ["../elsewhere", "a/b", "..", ""])
def test_a_run_id_that_leaves_the_state_folder_is_refused(begun, run, caplog):
    game, task = begun
    answer = game.sites["east"].answer("train", Message(task.arrays, task.meta | {"run": run}))
    assert answer.arrays == {} and "settings have a fault" in answer.meta["error"]
    assert "run id" in caplog.text


def test_site_says_which_older_state_it_has(play, caplog):
    game = play(("east",))
    game.rounds(2)
    task = game.upcoming("train")["east"]
    (game.folder("east") / "rounds" / "round_0002.pt").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        answer = game.sites["east"].answer("train", task)
    assert answer.arrays == {} and answer.meta == {
        "round": 3,
        "held": 1,
        "error": "site 'east' must hold its state of round 2, not of 1; its own log says more",
    }
    assert "round_0002.pt is damaged" in caplog.text


def test_own_refusal_is_in_record_and_log(begun, caplog):
    game, task = begun
    may_leave = game.settings.model_copy(update={"may_leave": ("weights",)})
    with caplog.at_level(logging.ERROR):
        left = SiteRounds("east", game.study, may_leave).answer("train", task)
    reason = left.meta["error"]
    assert "lets only weights leave, not batchnorm" in reason
    assert f"train of round 1 is refused: {reason}" in caplog.text
    records = [json.loads(line) for line in (game.folder("east") / "egress.jsonl").read_text().splitlines()]
    assert {record["name"] for record in records} == {*task.arrays, "numbers"}
    assert {(record["task"], record["refused"], record["reason"]) for record in records} == {("train", True, reason)}


def test_site_refuses_unasked_arrays_without_any_filter(begun, monkeypatch):
    (game, task), answer = begun, Work.answer
    monkeypatch.setattr(Work, "answer", lambda work: answer(work) | Message({"model/image": np.zeros(9)}))
    left = game.sites["east"].answer("train", task)
    assert left.arrays == {} and "not unknown; the answer held 1 such arrays" in left.meta["error"]


def test_an_amplitude_of_too_few_patients_is_not_even_learnt(play):
    game = play(("east",), name="harmofl", min_patients=1000)
    reason = game.sites["east"].answer("train", game.upcoming("train")["east"]).meta["error"]
    assert "has fewer than 1000 patients in training" in reason


# --- the hospital's own switch


PAUSED = "study 'small' is paused by the hospital until it ends the pause"


@pytest.fixture
def switched(play, tmp_path):
    """Begin a run in which the site east has a site.yaml of its own; returns the run and a function that writes it."""

    def start(*sites, **options):
        game, path = play(("east", *sites), **options), tmp_path / "site.yaml"

        def write(**changes):
            path.write_text(yaml.safe_dump(game.settings.model_dump(mode="json", exclude_none=True) | changes))

        write()
        game.sites["east"] = SiteRounds("east", game.study, game.settings, partial(load_settings, Site, path))
        return game, write

    return start


def test_paused_site_misses_only_the_pause(switched):
    game, write = switched("west", rounds=4, name="fedbn")
    game.round()
    write(paused=["other", "small"])
    first, second = game.round(), game.round()
    assert first.failed == second.failed == {"east": PAUSED}
    assert first.answered == second.answered == ["west"]
    # Nothing was trained: what stays at home is that of round 1.
    assert SiteState(game.folder("east") / "rounds", "run", "east").rounds() == [1]
    write(paused=["other"])
    assert game.round().answered == ["east", "west"]
    assert game.kept("east", 4)["models"] and "east" in game.finish().scores


def test_what_was_trained_when_the_pause_began_does_not_leave(switched, monkeypatch):
    game, write = switched()
    task, answer = game.upcoming("train")["east"], Work.answer

    def paused_meanwhile(work):
        write(paused=["small"])
        return answer(work)

    monkeypatch.setattr(Work, "answer", paused_meanwhile)
    left = game.sites["east"].answer("train", task)
    assert left.arrays == {} and left.meta == {"round": 1, "error": PAUSED}


@pytest.mark.parametrize("content", [None, "", "data: [", "paused: small"])
def test_unreadable_settings_pause_and_only_own_log_says_why(switched, tmp_path, caplog, content):
    game, write = switched("west")
    path = tmp_path / "site.yaml"
    path.unlink() if content is None else path.write_text(content)
    reason = "study 'small' is paused at the site, whose settings cannot be read; its own log names the fault"
    assert game.round().failed == {"east": reason}
    assert "the study is paused until the settings are right: " in caplog.text and "site.yaml" in caplog.text
    write()
    assert game.round().failed == {}


def test_task_with_array_of_text_is_refused_by_name(play):
    game = play(rounds=1)
    task = game.upcoming("train")["east"]
    text = Message({**task.arrays, "model/note": np.array(["a", "b"])}, task.meta)
    assert "the task's array 'model/note' holds no numbers" in game.sites["east"].answer("train", text).meta["error"]
