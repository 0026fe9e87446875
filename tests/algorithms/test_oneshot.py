"""One-shot learning: each site's model leaves once, and the mean of all models' probabilities answers."""

import numpy as np
import pytest
import torch

from silofl.base.errors import DataError
from silofl.core.presets import find_recipe
from silofl.federation.checkpoint import checkpoint, restore_run
from silofl.federation.egress import Gate, Request
from silofl.inference import SuperModel
from silofl.inference.directory import read_model_folder
from silofl.models.nearest import measure_features
from silofl.models.networks import build_plain_model
from silofl.parts.task import COLLECT, TRAIN, Message
from silofl.setup.site import Site
from silofl.training.losses import make_loss
from silofl_desk.studies.traffic import count_traffic

from ..conftest import assert_alike
from .conftest import COUNTS, SGD

SITES = tuple(COUNTS)


def study_of(epochs=1, answer="mean", rounds=1, **options):
    """Return the settings of a run whose sites send their models once."""
    training = SGD | {"local_epochs": epochs}
    return options | {"name": "oneshot", "rounds": rounds, "training": training, "hand_over": {"answer": answer}}


@pytest.fixture
def oneshot(play):
    def start(folder="oneshot", **options):
        return play(folder=folder, **study_of(**options))

    return start


def plain(game, site, rounds, epochs):
    """Return a site's model after each of its epochs, trained alone by the formula w = w - eta g."""
    model, found = build_plain_model(game.study, game.study.seed).train(), []
    loss = make_loss(game.study)
    for number in range(1, rounds + 1):
        for batches in game.epochs(site, number)[:epochs]:
            for inputs, targets in batches:
                model.zero_grad()
                loss(model(inputs), targets).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.05 * parameter.grad
            found.append({name: value.clone() for name, value in model.state_dict().items()})
    return found


def received(game, site):
    return game.server.parts["hand_over"].received[site]


def contents_of(game):
    return game.server.parts["hand_over"].outcome(game.server, {}).make_contents()


def super_model_of(game):
    return SuperModel(contents_of(game), torch.device("cpu"))


def assert_close(arrays, state):
    assert arrays.keys() == {name for name, value in state.items() if value.is_floating_point()}
    for name, array in arrays.items():
        np.testing.assert_allclose(array, state[name], rtol=1e-4, atol=1e-5, err_msg=name)


# --- what is sent


def test_a_site_sends_its_model_of_the_epoch_that_validates_best_and_the_last_of_equals(oneshot, monkeypatch):
    game = oneshot(epochs=2, rounds=2)
    by_site = {"east": [0.1, 0.2, 0.3, 0.1], "north": [0.4, 0.4, 0.4, 0.1], "west": [0.1, 0.2, 0.1, 0.4]}
    # the sites take turns in each round
    values = [value for begin in (0, 2) for site in SITES for value in by_site[site][begin : begin + 2]]
    monkeypatch.setattr("silofl.algorithms.oneshot.value_or_none", lambda score: values.pop(0))
    game.rounds(2)
    for site, best in {"east": 2, "north": 2, "west": 3}.items():
        assert_close(received(game, site), plain(game, site, 2, 2)[best])


def test_without_validation_data_it_sends_the_last_epoch(oneshot, monkeypatch):
    game = oneshot(epochs=2)
    monkeypatch.setattr("silofl.algorithms.oneshot.value_or_none", lambda score: None)
    game.round()
    assert_close(received(game, "east"), plain(game, "east", 1, 2)[1])


def test_a_model_leaves_once_with_the_answer_to_the_last_training(oneshot):
    game = oneshot(rounds=3)
    size = sum(array.nbytes for array in game.server.parts["hand_over"].shapes.values())
    game.finish()
    # nothing else but the test comes back or goes there
    assert game.asked == ["train"] * 3 + ["validate", "test_all_models"]
    sent = [record.bytes_from for record in game.server.ledger]
    assert sent == [dict.fromkeys(SITES, 0)] * 2 + [dict.fromkeys(SITES, size)]
    assert [record.bytes_to for record in game.server.ledger] == [dict.fromkeys(SITES, 0)] * 3
    assert game.sent["test_all_models"]["east"].num_bytes == 3 * size


def test_the_estimate_counts_one_model_up_and_all_models_down(oneshot):
    game = oneshot(rounds=2)
    size = sum(array.nbytes for array in game.server.parts["hand_over"].shapes.values())
    traffic = count_traffic(game.study, 3, (1, 32, 32))
    assert (traffic.bytes_from, traffic.bytes_to) == ([0, size], [0, 0])
    assert (traffic.finish_bytes_from, traffic.finish_bytes_to) == (0, 3 * size)


def test_a_site_may_keep_its_model(make_study, finished, tmp_path):
    game, site = finished(**study_of()), Site(data="d", state_dir=str(tmp_path))
    message, request = game.answers[TRAIN]["east"], Request(TRAIN, "run", 1)
    assert Gate.of(game.study, site).refusal(request, message) is None
    gate = Gate.of(game.study, site.model_copy(update={"may_leave": ["weights", "batchnorm"]}))
    assert "not site_model" in gate.refusal(request, message)
    # nor does it leave before the last round
    longer = Gate.of(make_study(**study_of(rounds=2)), site)
    assert "only arrays leave that a task asks for" in longer.refusal(request, message)


@pytest.mark.parametrize(
    ("answer", "name", "reason"),
    [("mean", "network", "west"), ("choice", "image_features/scatter", "must send all of the moments of its images'")],
)
def test_half_a_model_and_a_part_of_the_moments_are_refused(oneshot, answer, name, reason):
    def halved(task, site, answer):
        if site == "west":
            del answer.arrays[next(one for one in answer.arrays if name in one)]
        return answer

    record = oneshot(answer=answer).round(change=halved)
    assert record.answered == ["east", "north"] and reason in record.refused["west"]


# --- sites that are away, and runs that go on


def test_a_site_that_missed_the_last_round_is_asked_once_more(oneshot):
    game = oneshot(rounds=2)
    game.round()
    game.round(absent=("north",))
    assert list(game.server.parts["hand_over"].received) == ["east", "west"]
    game.finish()
    assert list(game.sent[COLLECT]) == ["north"]
    assert_close(received(game, "north"), game.kept("north", 1)["hand_over"]["model"])


def test_a_site_that_never_trained_is_not_asked_and_the_others_answer(oneshot):
    game = oneshot()
    game.finish(absent=("north",))
    assert COLLECT not in game.asked
    assert contents_of(game).sites == ("east", "west")


def test_a_model_that_does_not_come_in_the_end_either_is_said(oneshot):
    game = oneshot(rounds=2)
    game.round()
    game.round(absent=("north",))

    def refuse(task, site, answer):
        return answer.failed("it may not leave") if task == COLLECT else answer

    game.finish(change=refuse)
    assert "site 'north' sent no model, and the others answer without it: it may not leave" in game.warnings
    assert contents_of(game).sites == ("east", "west")


def test_a_run_that_patience_ends_early_asks_all_sites_in_the_end(oneshot):
    game = oneshot(rounds=6, federation={"patience": 1})
    still = {"value": 0.5, "num_cases": 2, "num_excluded": 0}

    def same(task, site, answer):
        if answer.meta.get("metrics", {}).get("validation"):
            answer.meta["metrics"]["validation"] = still
        return answer

    game.finish(change=same)
    assert game.server.finished_rounds < 6
    assert list(game.sent[COLLECT]) == list(game.server.parts["hand_over"].received) == [*SITES]


def test_a_resumed_run_has_the_models_and_the_selector_and_asks_nobody_again(oneshot):
    game = oneshot(answer="choice")
    game.round()
    before, selector = {site: received(game, site) for site in SITES}, contents_of(game).selector
    game.resume()
    assert all(torch.equal(contents_of(game).selector[name], value) for name, value in selector.items())
    tests = game.finish()
    assert COLLECT not in game.asked and tests.scores.keys() == set(SITES)
    for site, arrays in before.items():
        assert_alike(received(game, site), arrays)


def test_a_run_goes_on_to_the_very_same_models(oneshot):
    whole, halved = oneshot(folder="whole", rounds=3), oneshot(folder="halved", rounds=3)
    halved.goes_on_as(whole)
    for site in SITES:
        assert_alike(received(whole, site), received(halved, site))


def test_a_run_that_goes_on_for_more_rounds_asks_a_site_that_misses_its_last_one_anew(oneshot):
    game, longer = oneshot(), oneshot(rounds=2)
    game.round()
    longer.server = restore_run(longer.study, checkpoint(game.server))
    longer.round(absent=("west",))
    assert list(longer.server.parts["hand_over"].received) == ["east", "north"]
    longer.finish()
    assert list(longer.sent[COLLECT]) == ["west"]
    assert_close(received(longer, "west"), longer.kept("west", 1)["hand_over"]["model"])


# --- how all models answer


def test_the_super_model_answers_with_the_mean_of_the_models_probabilities(finished):
    game = finished(**study_of())
    model = super_model_of(game)
    # a case of no site
    case = np.random.default_rng(7).normal(size=(3, 1, 32, 32)).astype(np.float32)
    probabilities = []
    for site in SITES:
        network = build_plain_model(game.study, game.study.seed)
        state = {name: torch.from_numpy(array) for name, array in received(game, site).items()}
        network.load_state_dict(state, strict=False)
        with torch.no_grad():
            probabilities.append(network.eval()(torch.from_numpy(case)).sigmoid().numpy())
    mean = (probabilities[0] + probabilities[1] + probabilities[2]) / 3
    answer = model.answer(case)
    np.testing.assert_allclose(answer.probabilities, mean, rtol=1e-5, atol=1e-6)
    assert not np.allclose(probabilities[0], mean, atol=1e-4)
    assert answer.weights == pytest.approx(dict.fromkeys(SITES, 1 / 3))
    np.testing.assert_array_equal(model.predict(case).label_map, mean[:, 0] > 0.5)


def test_every_site_tests_and_keeps_the_same_super_model(finished):
    game = finished(**study_of())
    wanted = contents_of(game).models
    for site in SITES:
        contents = read_model_folder(game.folder(site) / "supermodel")
        assert contents.rule == "mean" and contents.sites == SITES
        assert all(torch.equal(contents.models[s][n], v) for s, state in wanted.items() for n, v in state.items())
        part = game.sites[site].data.test
        model, truth = SuperModel(contents, torch.device("cpu")), np.asarray(part.targets)
        found = np.stack([model.predict(np.asarray(image)[None]).label_map[0] for image in part.images])
        dice = [2 * (f & t).sum() / (f.sum() + t.sum()) for f, t in zip(found > 0, truth > 0, strict=True)]
        assert game.tests.scores[site].value == pytest.approx(np.mean(dice))


# --- a selector among the models


def moments_of(game, site):
    """Return count, mean and scatter of a site's features, by the formulas."""
    features = measure_features(torch.from_numpy(np.array(game.sites[site].data.training.images))).numpy()
    deviations = features - features.mean(axis=0)
    return len(features), features.mean(axis=0), sum(np.outer(row, row) for row in deviations)


def test_sites_send_the_moments_of_their_images_with_the_model_and_nothing_before(oneshot):
    game = oneshot(rounds=2, answer="choice")
    game.round()
    assert not any(answer.arrays for answer in game.answers[TRAIN].values())
    game.round()
    for site in SITES:
        arrays = game.answers[TRAIN][site].of("image_features")
        for name, wanted in zip(("count", "mean", "scatter"), moments_of(game, site), strict=True):
            np.testing.assert_allclose(arrays[name], wanted, rtol=1e-9, atol=1e-12)


def test_the_model_of_the_nearest_site_answers(finished):
    game = finished(**study_of(answer="choice"))
    model, scores = super_model_of(game), game.tests.scores
    assert model.contents.rule == "selector" and model.contents.outputs == SITES
    for site in SITES:
        # each site's images have a brightness of their own
        for image in np.asarray(game.sites[site].data.test.images):
            answer = model.answer(image[None])
            assert answer.model == site and answer.weights == {site: 1.0} and not answer.is_fallback
            np.testing.assert_array_equal(answer.probabilities, model.probabilities(site, image[None]))
        assert scores[site].choices == scores[site].selector.cases == {site: 2}
        assert scores[site].value == scores[site].models[site] == scores[site].models["super"]
    found = game.server.parts["hand_over"].outcome(game.server, scores).results["super_model"]
    assert found.outputs == SITES and found.threshold is None


def test_an_ensemble_weighs_all_models_by_the_selectors_scores(finished):
    game = finished(**study_of(answer="ensemble"))
    model = super_model_of(game)
    case = np.array(game.sites["north"].data.test.images)[:1]
    features = torch.from_numpy(model.selector.network.features(torch.from_numpy(case)).numpy())
    scores = torch.softmax(model.selector.network.head(features), dim=1)[0].numpy(force=True)
    answer = model.answer(case)
    assert answer.weights == pytest.approx(dict(zip(SITES, scores, strict=True)), abs=1e-6)
    mean = sum(answer.weights[site] * model.probabilities(site, case) for site in SITES)
    np.testing.assert_allclose(answer.probabilities, mean, rtol=1e-5, atol=1e-6)


def test_sites_keep_the_selector_that_the_server_has(finished):
    game = finished(**study_of(answer="choice"))
    wanted = contents_of(game).selector
    for site in SITES:
        contents = read_model_folder(game.folder(site) / "supermodel")
        assert (contents.rule, contents.outputs, contents.threshold) == ("selector", SITES, None)
        assert contents.selector.keys() == wanted.keys()
        assert all(torch.equal(contents.selector[name], value) for name, value in wanted.items())


def test_a_site_with_few_patients_tells_nothing_of_its_images_and_is_never_chosen(oneshot):
    game = oneshot(answer="choice", min_patients=4)
    game.finish()
    part = game.server.parts["hand_over"]
    # west trains with three
    assert part.outputs == ("east", "north") and list(part.received) == [*SITES]
    said = "site 'west' has a model that no selector chooses: fewer than 4 patients in training"
    assert said in [*game.warnings, *game.server.ledger[-1].notes]
    assert super_model_of(game).answer(np.asarray(game.sites["west"].data.test.images)[:1]).model in ("east", "north")


def test_where_fewer_than_two_sites_tell_of_their_images_the_mean_answers(oneshot):
    game = oneshot(answer="choice", min_patients=5)
    tests = game.finish()
    assert contents_of(game).rule == "mean" and contents_of(game).selector is None
    assert game.server.parts["hand_over"].outcome(game.server, tests.scores).results == {}
    assert read_model_folder(game.folder("west") / "supermodel").rule == "mean"


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", 1e15), ("mean", -1e15), ("mean", 1e7), ("scatter", 1e15), ("scatter", -1)],
)
def test_moments_of_no_images_cost_their_own_site_its_answer_and_not_the_selector_of_all(oneshot, name, value):
    game = oneshot(answer="choice")

    def change(task, site, answer):
        if site != "west" or f"image_features/{name}" not in answer.arrays:
            return answer
        array = answer.arrays[f"image_features/{name}"]
        return Message(answer.arrays | {f"image_features/{name}": np.full_like(array, value)}, answer.meta)

    assert list(game.round(change=change).refused) == ["west"]
    assert game.server.parts["hand_over"].outputs == ("east", "north")


def test_a_gate_lets_the_moments_out_of_enough_patients_alone(finished, tmp_path):
    game = finished(**study_of(answer="choice"))
    message, request = game.answers[TRAIN]["west"], Request(TRAIN, "run", 1)
    own = Site(data="d", state_dir=str(tmp_path), min_patients=3)
    assert Gate.of(game.study, own).refusal(request, message) is None
    few = Gate.of(game.study, own.model_copy(update={"min_patients": 4}))
    assert "image_features" in few.refusal(request, message)
    listed = Gate.of(game.study, own.model_copy(update={"may_leave": ["site_model"]}))
    assert "image_features" in listed.refusal(request, message)


def test_the_estimate_counts_the_moments_and_the_selector(finished):
    game = finished(**study_of(answer="choice"))
    traffic = count_traffic(game.study, 3, (1, 32, 32))
    assert traffic.bytes_from[0] == game.answers[TRAIN]["east"].num_bytes
    assert traffic.finish_bytes_to == game.sent["test_all_models"]["east"].num_bytes


def test_small_images_are_refused_for_a_selector():
    recipe = find_recipe("oneshot", "recommended", {"hand_over": {"answer": "choice"}})
    with pytest.raises(DataError, match="at least 16 pixels along each axis for hand_over.answer .*, not 15 x 40"):
        recipe.option("hand_over").check(None, (1, 15, 40))
    recipe.option("hand_over").check(None, (1, 16, 16))
