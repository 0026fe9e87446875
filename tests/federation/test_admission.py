"""Whatever one site of three answers costs its own answer: the others go on, and the run has its result."""

import json

import numpy as np
import pytest

from silofl.federation.course import Course, separate_failures
from silofl.federation.run_folder import RunFolder
from silofl.federation.server import ServerRounds
from silofl.parts.task import Message
from silofl.setup.software import read_software

SCORE = {"value": 0.5, "num_cases": 2, "num_excluded": 0, "labels": {"1": 0.5}}
LONG = 10**7


def meta(**changes):
    return lambda answer: Message(answer.arrays, answer.meta | changes)


def without(key):
    return lambda answer: Message(answer.arrays, {name: one for name, one in answer.meta.items() if name != key})


def metrics(**changes):
    return lambda answer: Message(answer.arrays, answer.meta | {"metrics": answer.meta["metrics"] | changes})


def validation(**changes):
    return metrics(validation=SCORE | changes)


def arrays(change):
    return lambda answer: Message({name: change(array) for name, array in answer.arrays.items()}, answer.meta)


def endless():
    value = []
    value.append(value)
    return value


NUMBERS = {
    "no examples": meta(num_examples=0),
    "examples unsaid": without("num_examples"),
    "10^5000 examples": meta(num_examples=10**5000),
    "another round": meta(round=1),
    "image of three channels": meta(image_shape=[3, 32, 32]),
    "an unknown key of 10 MB": lambda answer: Message(answer.arrays, answer.meta | {"k" * LONG: 1}),
    "a part that expects nothing": meta(model={"holds": 1}),
    "an object": meta(steps=object()),
    "metrics without end": lambda answer: Message(answer.arrays, answer.meta | {"metrics": endless()}),
    "a patient's name for a version": meta(software=read_software().model_dump() | {"torch": "Jane Doe"}),
    "no loss": meta(metrics={}),
    "NaN loss": metrics(loss=float("nan")),
    "loss of 1e300": metrics(loss=1e300),
    "a NaN Dice": validation(value=float("nan")),
    "a label that is praise for the model card": validation(labels={"approved for <b>diagnosis</b>": 0.9}),
    "cases without a Dice": validation(value=None),
    "a label's Dice of 2": validation(labels={"1": 2.0}),
    "a value of a model that nobody trains": validation(models={"Doe^Jane": 0.5}),
}
ARRAYS = {
    "no arrays": lambda answer: Message({}, answer.meta),
    "one more array": lambda answer: Message(answer.arrays | {"model/extra": np.zeros(1, np.float32)}, answer.meta),
    "a number for a name": lambda answer: Message(answer.arrays | {7: np.zeros(1)}, answer.meta),
    "a shape that is broadcast": arrays(lambda array: np.zeros((1,) * array.ndim, np.float32)),
    "infinity": arrays(lambda array: np.full_like(array, -np.inf)),
    # Upwards, so that no variance falls below 0.
    "x1000": arrays(lambda array: 1000 * np.abs(array)),
    "objects that look like numbers": arrays(lambda array: array.astype(object)),
    "half precision": arrays(lambda array: array.astype(np.float16)),
}
# What the reason says beside the site.
SENTENCES = {
    "no examples": "num_examples must be greater than or equal to 1, not 0",
    "examples unsaid": "lacks its num_examples",
    "NaN loss": "metrics.loss must be a finite number, not nan",
    "no loss": "lacks its loss",
    "a NaN Dice": "metrics.validation.value must be a finite number, not nan",
    "one more array": "sent 'model/extra', which was not asked for",
    "a shape that is broadcast": "'model/network",
    "infinity": "'model/network",
}
RECORDED = {}


@pytest.fixture
def recorded(play):
    """What the three honest sites answer, by task and round; their run is carried out once for all tests."""
    if not RECORDED:
        game, answers = play(rounds=2), {}

        def keep(task, site, answer):
            answers.setdefault((task, answer.meta["round"]), {})[site] = answer
            return answer

        game.finish(change=keep)
        RECORDED.update(study=game.study, answers=answers)
    return RECORDED


def carried_out(recorded, folder, spoil, task="train", number=2):
    """Carry out the recorded run with one answer of one site changed; returns the ledger and the result."""
    study = recorded["study"]
    server, kept = ServerRounds.start(study, "run", ["east", "north", "west"]), RunFolder(folder, study)

    def ask(asked, messages):
        key = asked, messages["west"].meta["round"]
        if asked == "test":
            # Another round may be the best without the spoilt validation; which one does not matter here.
            meta = {"round": key[1]}
            tests = next(found for (name, _), found in recorded["answers"].items() if name == "test")
            answers = {site: Message(one.arrays, one.meta | meta) for site, one in tests.items()}
        else:
            answers = dict(recorded["answers"][key])
        if key == (task, number):
            answers["west"] = spoil(answers["west"])
        return separate_failures(answers)

    kept.finish(server, Course(server, ask, lambda: kept.save(server)).run())
    assert all(np.isfinite(array).all() for array in server.parts["model"].common.values())
    return server.ledger, json.loads((folder / "results.json").read_text())


def is_bounded_line(reason):
    return 0 < len(reason) <= 500 and reason.isprintable()


@pytest.mark.parametrize("name", [*NUMBERS, *ARRAYS])
def test_unreadable_answer_is_refused_and_others_go_on(recorded, tmp_path, name):
    ledger, results = carried_out(recorded, tmp_path / "run", (NUMBERS | ARRAYS)[name])
    assert list(ledger[1].failed) == ledger[1].missed == ["west"]
    assert "site 'west'" in ledger[1].failed["west"] and SENTENCES.get(name, "") in ledger[1].failed["west"]
    assert is_bounded_line(ledger[1].failed["west"])
    assert [record.answered for record in ledger] == [["east", "north", "west"], ["east", "north"]]
    assert results["status"] == "INCOMPLETE" and results["sites"].keys() == {"east", "north", "west"}
    assert ledger[1].failed["west"] in results["reasons"][0] and len(results["reasons"]) == 1


@pytest.mark.parametrize("score", [None, "good", SCORE | {"labels": {"2": 0.9}}, SCORE | {"value": 99}])
def test_unreadable_test_is_missing_and_others_count(recorded, tmp_path, score):
    best = next(number for task, number in recorded["answers"] if task == "test")
    ledger, results = carried_out(recorded, tmp_path / "run", metrics(test=score), "test", best)
    assert results["status"] == "INCOMPLETE" and "site west did not test the model" in results["reasons"][0]
    assert results["sites"]["west"] is None and None not in (results["sites"]["east"], results["sites"]["north"])


def test_an_honest_run_is_complete(recorded, tmp_path):
    ledger, results = carried_out(recorded, tmp_path / "run", lambda answer: answer)
    assert results["status"] == "COMPLETE" and [record.failed for record in ledger] == [{}, {}]


def of_west(spoil):
    return lambda task, site, answer: spoil(answer) if site == "west" else answer


def test_thousandfold_update_passes_without_a_bound(play):
    game = play(federation={"max_update_ratio": None})
    record = game.round(change=of_west(ARRAYS["x1000"]))
    assert record.failed == {} and record.answered == ["east", "north", "west"]


def test_claimed_steps_do_not_shorten_an_update(play):
    claims = meta(num_examples=10**7, steps=5 * 10**6)
    # 1000 a weight, where honest ones change by some hundredths.
    record = play().round(change=of_west(lambda answer: claims(arrays(lambda array: array + 1000)(answer))))
    assert list(record.failed) == ["west"]


def test_one_site_cannot_set_image_size_for_all(play):
    # 'east' comes first by its name
    game = play(name="harmofl", preset="paper")
    record = game.round(change=lambda task, site, one: meta(image_shape=[1, 8, 8])(one) if site == "east" else one)
    assert game.server.image_shape == (1, 32, 32)
    assert record.failed == {} and record.answered == ["east", "north", "west"]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_negative_variance_costs_only_its_site(play, precision):
    def refused(by):
        def lower(answer):
            variances = {name: np.full_like(one, -by) for name, one in answer.arrays.items() if "running_var" in name}
            return Message(answer.arrays | variances, answer.meta)

        federation = {"precision": precision, "min_sites": 1}
        game = play(("east", "west"), str(by), model={"normalization": "batch"}, federation=federation)
        return game.round(change=of_west(lower)).failed

    # Every variance begins at 1, so a change of -1 makes it 0 and one of -1.5 makes it -0.5.
    assert refused(1) == {}
    (reason,) = refused(1.5).values()
    assert "site 'west'" in reason and "has a value below -1" in reason
