"""The mean of the last rounds' models, against one taken by hand from what the server and the sites held."""

import numpy as np
import pytest
import torch

from silofl.base.files import load_state, save_state
from silofl.federation.checkpoint import FORMAT, checkpoint, restore_run
from silofl.parts.average import Mean
from silofl.parts.task import TEST

from ..conftest import assert_alike
from .conftest import SITES

pytestmark = pytest.mark.long

HALF = {"average_last": 0.5, "rounds": 4}
ALGORITHMS = {
    "shared": {"name": "fedavg"},
    "batchnorm at home": {"name": "fedbn"},
    "amplitude": {"name": "harmofl"},
    "own models": {"name": "softpull"},
    "head at home": {"name": "fedper"},
    "alone": {"name": "local"},
    "personal beside shared": {"name": "ditto"},
    "own from round 4 on": {"name": "adafed", "statistics": {"rounds": 3}},
}


def validating(value_of):
    """Return a change by which every validation gives the value of its task and site, or none."""

    def change(task, site, answer):
        metrics = answer.meta.get("metrics", {})
        if metrics.pop("validation", None) and (value := value_of(task == "validate_average", site)) is not None:
            metrics["validation"] = {"value": value, "num_cases": 2, "num_excluded": 0}
        return answer

    return change


def scored(value):
    """Return a change that gives the means one validation, and all rounds' models 0.5."""
    return validating(lambda is_of_mean, site: value if is_of_mean else 0.5)


@pytest.mark.parametrize("rounds", [1, 4, 7, 8])
def test_the_mean_is_that_of_the_reference(vectors, rounds):
    known = vectors("baselines/swa_and_schedule")
    mean = Mean()
    for model in known["models"][:rounds][-((rounds + 3) // 4) :]:
        mean = mean.with_model({"w": model})
    np.testing.assert_allclose(mean.arrays["w"], known[f"swa_{rounds}"], rtol=1e-12)


@pytest.mark.parametrize(
    ("rounds", "share", "averaged"), [(4, 0.5, [3, 4]), (8, 0.25, [7, 8]), (30, 0.1, [28, 29, 30])]
)
def test_the_last_rounds_are_averaged_and_never_a_single_one(make_study, rounds, share, averaged):
    assert list(make_study(rounds=rounds, average_last=share).closing_rounds) == averaged
    assert not make_study(rounds=rounds).closing_rounds


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_site_tests_the_mean_of_the_models_that_it_validated(play, name):
    game = play(**HALF, **ALGORITHMS[name])
    held = {site: [] for site in SITES}
    for number in range(1, 5):
        game.round()
        for site in SITES:
            # What it has at home, and what the server will send it over that.
            home = {n: t.numpy() for n, t in game.kept(site, number)["models"]["home"].items()}
            held[site].append(home | game.models(site))
    tests = game.finish(change=scored(0.9))
    assert game.asked[-2:] == ["validate_average", "test"]
    assert tests.scores.keys() == set(SITES)
    for site in SITES:
        model = torch.load(game.folder(site) / "supermodel" / "weights" / f"{site}.pt", weights_only=True)
        for key, tensor in model.items():
            values = [models[f"{game.study.recipe.roles[-1]}/{key}"] for models in held[site][2:]]
            wanted = np.mean(values, axis=0, dtype=np.float64) if tensor.is_floating_point() else values[-1]
            np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-6, atol=1e-7, err_msg=f"{site} {key}")


@pytest.mark.parametrize(("value", "is_reported"), [(0.9, True), (0.5, False), (0.1, False)])
def test_the_mean_is_reported_only_where_it_is_better_on_validation(play, value, is_reported):
    game = play(**HALF, name="fedbn")
    game.finish(change=scored(value))
    reported = game.server.reported
    assert (reported.how == "best validation, mean of the models of rounds 3 to 4") == is_reported
    assert reported.round == 4 and reported.is_mean == is_reported
    # No model says that it is of the last round.
    assert game.server.reported.facts["reported_round"] == (None if is_reported else 4)
    assert reported.validation["east"].value == (0.9 if is_reported else 0.5)
    means = game.server.parts["average"].means["model"][""].model()
    is_mean = all(np.array_equal(array, means[name]) for name, array in reported.parts["model"].common.items())
    assert is_mean == is_reported
    what = "is reported" if is_reported else "is not better than round 4, which is reported"
    how = "(the sites' median change decides)"
    sentence = f"the mean of the models of rounds 3 to 4, validation {value:.4f} against 0.5000 {how}, {what}"
    assert game.warnings == game.server.ledger[-1].notes == [sentence]


def test_the_mean_is_compared_on_the_sites_that_validated_both(play):
    # East is hard, and does not validate the mean: without it the mean is worse, however it looks with it.
    hard = {"east": (0.2, None)}
    game = play(**HALF, name="fedbn")
    game.finish(change=validating(lambda is_of_mean, site: hard.get(site, (0.8, 0.7))[is_of_mean]))
    # of all sites the rounds' mean is 0.6
    said = "validation 0.7000 against 0.8000 on the sites that validated both, is not better than round 4, which is"
    assert game.warnings == [f"the mean of the models of rounds 3 to 4, {said} reported"]


def test_the_sites_median_decides_and_no_single_site(play):
    worse = {"east": (0.5, 0.1)}
    game = play(**HALF, name="fedbn")
    game.finish(change=validating(lambda is_of_mean, site: worse.get(site, (0.5, 0.6))[is_of_mean]))
    # (0.1 + 0.6 + 0.6) / 3; two of three sites are better by it
    said = "validation 0.4333 against 0.5000 (the sites' median change decides), is reported"
    assert f"the mean of the models of rounds 3 to 4, {said}" in game.warnings


def test_training_goes_on_from_the_rounds_own_models(play):
    with_mean, without = play(**HALF, name="fedbn", folder="with"), play(rounds=4, name="fedbn", folder="without")
    with_mean.rounds(4), without.rounds(4)
    assert_alike(with_mean.models("east"), without.models("east"))
    assert [r.validated for r in with_mean.server.ledger] == [r.validated for r in without.server.ledger]


@pytest.mark.parametrize("name", ["batchnorm at home", "own models"])
def test_a_run_that_is_taken_up_in_the_last_rounds_has_the_same_mean(play, tmp_path, name):
    straight, broken = (play(folder=folder, **HALF, **ALGORITHMS[name]) for folder in ("straight", "broken"))
    for number in range(3):
        broken.round()
        save_state(tmp_path / f"{number}.pt", FORMAT, {"run": "run"}, checkpoint(broken.server))
        broken.server = restore_run(broken.study, load_state(tmp_path / f"{number}.pt", FORMAT, {"run": "run"}))
    tests = [game.finish(change=scored(0.9)) for game in (straight, broken)]
    assert tests[0].scores == tests[1].scores
    assert_alike(*(torch.load(game.folder("east") / "supermodel/weights/east.pt") for game in (straight, broken)))


def test_what_was_decided_is_not_asked_again_after_a_restart(play, tmp_path):
    game = play(**HALF, name="fedbn")
    game.finish(change=scored(0.9))
    save_state(tmp_path / "end.pt", FORMAT, {"run": "run"}, checkpoint(game.server))
    again = restore_run(game.study, load_state(tmp_path / "end.pt", FORMAT, {"run": "run"}))
    assert again.reported.how == game.server.reported.how
    assert again.reported.validation == game.server.reported.validation
    game.server, game.asked = again, []
    game.finish()
    assert game.asked == [TEST]


@pytest.mark.parametrize(
    ("name", "rounds"), [("shared", 5), ("batchnorm at home", 5), ("batchnorm at home", 8), ("own models", 5)]
)
def test_a_complete_run_that_is_asked_for_more_rounds_has_the_mean_of_the_run_of_so_many(play, name, rounds):
    straight = play(folder="straight", **HALF | {"rounds": rounds}, **ALGORITHMS[name])
    more = play(folder="more", **HALF, **ALGORITHMS[name])
    more.finish(change=scored(0.8))
    assert more.server.reported.how == "best validation, mean of the models of rounds 3 to 4"
    more.ask_for(rounds)
    more.round(change=scored(0.8))
    assert more.server.reported.how == "best validation, round 4, by the sites' median change"
    tests = [game.finish(change=scored(0.9)) for game in (straight, more)]
    first = {5: 3, 8: 5}[rounds]
    assert more.server.reported.how == f"best validation, mean of the models of rounds {first} to {rounds}"
    assert tests[0].scores == tests[1].scores
    for site in SITES:
        assert_alike(*(torch.load(game.folder(site) / f"supermodel/weights/{site}.pt") for game in (straight, more)))


def test_a_site_that_misses_the_first_averaged_round_after_a_continuation_forgets_the_mean_of_before(play):
    straight, more = (play(folder=f, rounds=n, average_last=0.5, name="fedbn") for f, n in (("a", 8), ("b", 4)))
    more.finish()
    more.ask_for(8)
    straight.rounds(4)
    for game in (straight, more):
        game.round(absent=("north",))
        game.rounds(3)
    ours, theirs = (game.kept("north", 8)["average"] for game in (straight, more))
    assert ours["count"] == theirs["count"] == 3
    assert_alike(ours["home"], theirs["home"])


def test_a_site_that_was_absent_tests_the_mean_too(play):
    game = play(**HALF, name="fedbn", federation={"max_missed_rounds": 2})
    game.rounds(2)
    game.round(absent=("north",))
    tests = game.finish(change=scored(0.9))
    assert tests.scores.keys() == set(SITES)


def test_a_site_that_never_trained_validates_no_mean(play):
    game = play(**HALF, name="fedbn", federation={"max_missed_rounds": 4})

    def change(task, site, answer):
        # North is back after the last round.
        game.absent = ("north",) if task == "train" and answer.meta["round"] < 4 else ()
        return scored(0.9)(task, site, answer)

    tests = game.finish(absent=("north",), change=change)
    assert "must have trained in a round" in game.answers["validate_average"]["north"].meta["error"]
    assert tests.missing.keys() == {"north"} and tests.scores.keys() == {"east", "west"}


def test_the_super_model_is_made_of_means(play):
    options = {"name": "fedsm", "model": {"normalization": "instance"}}
    game = play(**HALF, **options)
    game.finish(change=scored(0.9))
    assert game.asked[-3:] == ["validate_average", "assemble", "test_super_model"]
    means = game.server.parts["average"].means
    for file, mean in {"global": means["global"][""], "east": means["personal"]["east"]}.items():
        stored = torch.load(game.folder("west") / "supermodel" / "weights" / f"{file}.pt", weights_only=True)
        for name, array in mean.model().items():
            np.testing.assert_array_equal(stored[name].numpy(), array)
