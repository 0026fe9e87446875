import csv
import logging

import numpy as np
import pytest
import torch

from silofl.errors import DataError
from silofl.federation.message import Message
from silofl.federation.site import SiteRounds
from silofl.federation.state import SiteState
from silofl.models import build_model


def test_a_round_asked_for_again_gives_the_same_answer(play):
    game = play(name="harmofl")
    game.round()
    task = game.server.train_task("east")
    first, again = (game.sites["east"].answer("train", task) for _ in range(2))
    assert all(np.array_equal(first.arrays[name], again.arrays[name]) for name in first.arrays)


def test_a_site_that_lost_its_process_answers_as_if_nothing_had_happened(play):
    game = play(name="harmofl")
    game.round()
    task = game.server.train_task("east")
    here = game.sites["east"].answer("train", task)
    fresh = SiteRounds("east", game.study, game.sites["east"].site).answer("train", task)
    assert all(np.array_equal(here.arrays[name], fresh.arrays[name]) for name in here.arrays)


def test_batchnorm_stays_at_home_from_round_to_round(play):
    game = play(name="fedbn")
    game.round()
    state = SiteState(game.sites["east"].site.state_folder("small", "east") / "run" / "rounds").load(1)
    kept = [name for name in state["home"] if "running_mean" in name]
    other = SiteState(game.sites["west"].site.state_folder("small", "west") / "run" / "rounds").load(1)
    assert kept and not torch.equal(state["home"][kept[0]], other["home"][kept[0]])
    assert state["optimizer"][""]["state"]


def test_only_the_states_that_may_be_asked_for_again_are_kept(tmp_path):
    state = SiteState(tmp_path)
    for number in range(1, 8):
        state.save(number, {"number": number}, best_round=2 if number > 2 else None)
    assert state.rounds() == [2, 6, 7]
    assert state.load(6)["number"] == 6
    assert state.load(5)["number"] == 2
    assert state.load(1) is None


def test_the_test_leaves_a_complete_model_scores_and_pictures_at_the_site(play):
    game = play(name="harmofl", rounds=2).all_rounds()
    best = game.server.reported_round()
    answers = game.evaluate("test", best)
    folder = game.sites["east"].site.state_folder("small", "east") / "run"
    model = build_model(game.study, (1, 32, 32), seed=5)
    model.load_state_dict(torch.load(folder / "supermodel" / "weights" / "east.pt", weights_only=True), strict=True)
    assert model.input_norm.is_fixed
    rows = list(csv.DictReader((folder / "scores.csv").open()))
    assert answers["east"].meta["metrics"]["test"]["num_cases"] == len(rows) == 2
    mean = sum(float(row["value"]) for row in rows) / 2
    np.testing.assert_allclose(answers["east"].meta["metrics"]["test"]["value"], mean)
    pictures = np.load(folder / "pictures.npz")
    assert pictures["images"].shape == pictures["normalized"].shape == (3, 1, 32, 32)
    assert pictures["truths"].shape == pictures["predictions"].shape == (3, 32, 32)
    assert not np.allclose(pictures["images"], pictures["normalized"])


def test_the_answer_to_test_names_no_case(play):
    game = play(rounds=1).all_rounds()
    answer = game.evaluate("test", 1)["east"]
    assert answer.arrays == {} and "test0" not in str(answer.meta)


def test_a_fault_in_the_data_is_told_in_full_at_home_and_without_a_case_to_the_server(play, monkeypatch, caplog):
    game = play(sites=("east",))
    task = game.server.train_task("east")

    def fail(*arguments):
        raise DataError("case 'Jane Doe' must be readable, not truncated; replace the file")

    monkeypatch.setattr("silofl.federation.site.load_site_data", fail)
    with caplog.at_level(logging.ERROR):
        answer = game.sites["east"].answer("train", task)
    assert "Jane Doe" in caplog.text
    assert answer.arrays == {} and "Jane" not in answer.meta["error"] and "own log" in answer.meta["error"]


def test_a_fault_that_nobody_thought_of_is_told_to_the_server_without_its_text(play, monkeypatch, caplog):
    game = play(sites=("east",))
    task = game.server.train_task("east")
    monkeypatch.setattr("silofl.federation.site.train", lambda *a: (_ for _ in ()).throw(MemoryError("/data/Jane Doe")))
    with caplog.at_level(logging.ERROR):
        answer = game.sites["east"].answer("train", task)
    assert answer.meta["error"] == "an unexpected MemoryError; the site's own log has it"
    assert "Jane Doe" in caplog.text and "Traceback" in caplog.text


@pytest.mark.parametrize("run", ["../elsewhere", "a/b", "..", ""])
def test_a_run_id_that_leaves_the_state_folder_is_refused(play, run, caplog):
    game = play(sites=("east",))
    task = game.server.train_task("east")
    answer = game.sites["east"].answer("train", Message(task.arrays, task.meta | {"run": run}))
    assert answer.arrays == {} and "settings have a fault" in answer.meta["error"]
    assert "run id must be" in caplog.text


def test_a_loss_that_is_not_finite_stops_the_round_and_names_site_round_epoch_and_batch(play):
    game = play(sites=("east",))
    task = game.server.train_task("east")
    name = next(name for name in task.arrays if name.endswith("conv.weight"))
    task.arrays[name] = np.full_like(task.arrays[name], np.inf)
    answer = game.sites["east"].answer("train", task)
    assert answer.arrays == {}
    for part in ("site 'east'", "round 1", "epoch 1", "batch 1", "finite"):
        assert part in answer.meta["error"]
    assert not game.sites["east"]._state("run").rounds()


def test_local_training_fixes_its_own_amplitude_after_the_first_round(play):
    game = play(name="local", amplitude_band="full", rounds=2).all_rounds()
    states = [game.sites[site]._state("run").load(2)["home"] for site in ("east", "west")]
    amplitudes = [state["input_norm.running_amplitude"] for state in states]
    assert all(state["input_norm.is_fixed"] for state in states)
    assert not torch.equal(*amplitudes)
