"""Tasks that no server of ours would send: an answer or a reason, and a site that does the next sound task as ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silofl.flare.exchange import from_model, to_model
from silofl.parts.answer import plain_text
from silofl.parts.task import Message

from .conftest import EXAMPLES, NASTY, altered

pytestmark = pytest.mark.fuzz
TASKS = ["train"] * 3 + ["validate", "test", "selector", "supermodel", "distance", "", "x" * 500, "é\n", None, 1]
VALUES = [np.nan, np.inf, 1e30, 3e38, -1e30, 0.0]
NAMES = ["", "/", "model", "model/", "model/x", "amplitude/mean", "selector/x", "../x", "x" * 500, "\ud800", 1, None]
OTHERS = [None, 1.0, "x", [1.0], {}, np.array("x"), np.array([None]), np.zeros((0, 3)), np.array(1 + 2j)]
OTHERS += [np.zeros(3, bool)]
SHAPES = [(), (0,), (1,), (3, 1, 1), (10**4, 10**3)]
ALGORITHMS = {
    **dict.fromkeys(("harmofl", "fedsm", "adafed", "moon"), {}),
    "scaffold": {"training": {"optimizer": "sgd", "momentum": 0}},
    "perfedavg": {"training": {"local_epochs": 2}},
}


def altered_arrays(arrays, random):
    """Return a message's arrays, one of them lost, renamed, or of other values, another shape or another type."""
    arrays = {name: np.array(array) for name, array in arrays.items()}
    name = random.choice([*arrays])
    change = random.choice(["lost", "renamed", "all lost", "value", "values", "shape", "type", "other", "more"])
    if change in ("lost", "renamed"):
        array = arrays.pop(name)
        arrays |= {random.choice(NAMES): array} if change == "renamed" else {}
    elif change == "all lost":
        arrays = {}
    elif change == "value":
        arrays[name].flat[random.randrange(arrays[name].size)] = random.choice(VALUES)
    elif change == "values":
        arrays[name] = np.full_like(arrays[name], random.choice(VALUES))
    elif change == "shape":
        arrays[name] = np.zeros(random.choice(SHAPES), np.float32)
    elif change == "type":
        arrays[name] = arrays[name].astype(random.choice(["f2", "f8", "i8", "u1", "c8", "U3", "O", ">f4"]))
    else:
        arrays[name if change == "other" else random.choice(NAMES)] = random.choice(OTHERS)
    return arrays


@pytest.fixture(params=ALGORITHMS)
def sound(request, play):
    """A site after two rounds, its next sound task and the answer to it."""
    game = play(rounds=4, name=request.param, **ALGORITHMS[request.param])
    game.rounds(2)
    task = game.upcoming("train")["east"]
    return game.sites["east"], task, game.sites["east"].answer("train", task)


@settings(max_examples=EXAMPLES // 2)
@given(random=st.randoms(use_true_random=False), name=st.sampled_from(TASKS), kind=st.sampled_from("ambb"))
def test_an_altered_task_is_answered_or_refused_and_leaves_no_trace(sound, random, name, kind):
    site, task, expected = sound
    meta = altered(task.meta, random) if kind != "a" else task.meta
    arrays = altered_arrays(task.arrays, random) if kind != "m" else task.arrays
    if not isinstance(name, str) or (kind == "m" and random.random() < 0.2):
        meta = {key: random.choice(NASTY) for key in meta}
    answer = site.answer(name, Message(arrays, meta))
    if "error" in answer.meta:
        assert answer.arrays == {} and answer.meta.keys() <= {"round", "error", "held"}
        assert answer.meta["error"] == plain_text(answer.meta["error"]) != ""
    assert from_model(to_model(answer, is_difference=True)).meta == answer.meta
    again = site.answer("train", task)
    assert again.meta == expected.meta and again.arrays.keys() == expected.arrays.keys()
    assert all(np.array_equal(again.arrays[name], expected.arrays[name]) for name in expected.arrays)
