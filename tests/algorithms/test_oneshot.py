"""One-shot learning: each site's model leaves once, and the mean of all models' probabilities answers."""

import numpy as np
import pytest
import torch

from silofl.core.presets import find_recipe
from silofl.errors import ConfigError, DataError
from silofl.federation.checkpoint import checkpoint, restore_run
from silofl.federation.egress import Gate, Request
from silofl.federation.model_files import describe_missing_part
from silofl.inference import SuperModel
from silofl.inference.directory import read_model_folder
from silofl.models.nearest import measure_features
from silofl.models.networks import build_plain_model
from silofl.parts.task import COLLECT, TRAIN, Message
from silofl.site import Site
from silofl.studies.traffic import count_traffic
from silofl.training.losses import make_loss

SITES = ("east", "north", "west")
SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2, "learning_rate": 0.05}
BATCH = {"normalization": "batch"}


@pytest.fixture
def oneshot(play):
    """Begin a run whose sites send their models once."""

    def start(folder="oneshot", epochs=1, answer="mean", **options):
        training = SGD | {"local_epochs": epochs}
        return play(folder=folder, name="oneshot", training=training, hand_over={"answer": answer}, **options)

    return start


@pytest.fixture
def measured(monkeypatch):
    """Let a site's validations after its epochs have given values, in their order."""

    def give(*values):
        left = [value for _ in SITES for value in values]
        monkeypatch.setattr("silofl.algorithms.oneshot.value_or_none", lambda score: left.pop(0))

    return give


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


def assert_close(arrays, state):
    assert arrays.keys() == {name for name, value in state.items() if value.is_floating_point()}
    for name, array in arrays.items():
        np.testing.assert_allclose(array, state[name], rtol=1e-4, atol=1e-5, err_msg=name)


# --- what is sent


@pytest.mark.parametrize(("values", "best"), [((0.2, 0.7, 0.5), 1), ((0.2, 0.7, 0.9), 2), ((0.4, 0.4, 0.3), 0)])
def test_a_site_sends_its_model_of_the_epoch_that_validates_best_and_the_first_of_equals(
    oneshot, measured, values, best
):
    game = oneshot(epochs=3, rounds=1, model=BATCH)
    measured(*values)
    game.round()
    for site in SITES:
        assert_close(received(game, site), plain(game, site, 1, 3)[best])


def test_of_several_rounds_too_it_sends_the_best_epoch_of_all(oneshot, monkeypatch):
    game = oneshot(epochs=2, rounds=2)
    by_site = {"east": [0.1, 0.2, 0.3, 0.1], "north": [0.4, 0.3, 0.2, 0.1], "west": [0.1, 0.2, 0.1, 0.4]}
    # the sites take turns in each round
    values = [value for begin in (0, 2) for site in SITES for value in by_site[site][begin : begin + 2]]
    monkeypatch.setattr("silofl.algorithms.oneshot.value_or_none", lambda score: values.pop(0))
    game.rounds(2)
    for site, best in {"east": 2, "north": 0, "west": 3}.items():
        assert_close(received(game, site), plain(game, site, 2, 2)[best])


def test_without_validation_data_it_sends_the_last_epoch(oneshot, measured):
    game = oneshot(epochs=2, rounds=1)
    measured(None, None)
    game.round()
    assert_close(received(game, "east"), plain(game, "east", 1, 2)[1])


def test_training_is_that_of_local_bit_for_bit(oneshot, play):
    game = oneshot(epochs=2, rounds=2, model=BATCH)
    local = play(folder="local", name="local", training=SGD | {"local_epochs": 2}, rounds=2, model=BATCH)
    game.rounds(2)
    local.rounds(2)
    for site in SITES:
        ours, theirs = (one.kept(site, 2)["models"]["home"] for one in (game, local))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


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
    size = game.server.parts["hand_over"].end_bytes
    traffic = count_traffic(game.study, 3, (1, 32, 32))
    assert (traffic.bytes_from, traffic.bytes_to) == ([0, size], [0, 0])
    assert (traffic.finish_bytes_from, traffic.finish_bytes_to) == (0, 3 * size)


def test_a_site_may_keep_its_model(oneshot, tmp_path):
    game = oneshot(rounds=1)
    game.round()
    message, request = game.answers[TRAIN]["east"], Request(TRAIN, "run", 1)
    assert Gate.of(game.study, Site(data="d", state_dir=str(tmp_path))).refusal(request, message) is None
    gate = Gate.of(game.study, Site(data="d", state_dir=str(tmp_path), may_leave=["weights", "batchnorm"]))
    assert "not site_model" in gate.refusal(request, message)
    # nor does it leave before the last round
    longer = Gate.of(oneshot(rounds=2, folder="longer").study, Site(data="d", state_dir=str(tmp_path)))
    assert "only arrays leave that a task asks for" in longer.refusal(request, message)


def test_half_a_model_is_refused(oneshot):
    game = oneshot(rounds=1)

    def halved(task, site, answer):
        if site == "west":
            answer.arrays.pop(next(iter(answer.arrays)))
        return answer

    record = game.round(change=halved)
    assert record.answered == ["east", "north"] and "west" in record.refused


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
    game = oneshot(rounds=1)
    game.finish(absent=("north",))
    assert COLLECT not in game.asked
    assert game.server.parts["hand_over"].contents(game.server).sites == ("east", "west")


def test_a_model_that_does_not_come_in_the_end_either_is_said(oneshot):
    game = oneshot(rounds=2)
    game.round()
    game.round(absent=("north",))

    def refuse(task, site, answer):
        return answer.failed("it may not leave") if task == COLLECT else answer

    game.finish(change=refuse)
    assert "site 'north' sent no model, and the others answer without it: it may not leave" in game.warnings
    assert game.server.parts["hand_over"].contents(game.server).sites == ("east", "west")


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


def test_a_resumed_run_has_the_models_and_asks_nobody_again(oneshot):
    game = oneshot(rounds=1)
    game.round()
    before = {site: received(game, site) for site in SITES}
    game.resume()
    tests = game.finish()
    assert COLLECT not in game.asked and tests.scores.keys() == set(SITES)
    for site, arrays in before.items():
        assert all(np.array_equal(received(game, site)[name], array) for name, array in arrays.items())


def test_a_run_goes_on_to_the_very_same_models(oneshot):
    whole, halved = oneshot(folder="whole", rounds=3), oneshot(folder="halved", rounds=3)
    halved.goes_on_as(whole)
    for site in SITES:
        assert all(np.array_equal(received(whole, site)[name], a) for name, a in received(halved, site).items())


def test_a_run_that_goes_on_for_more_rounds_asks_a_site_that_misses_its_last_one_anew(oneshot):
    game, longer = oneshot(rounds=1), oneshot(rounds=2)
    game.round()
    longer.server = restore_run(longer.study, checkpoint(game.server))
    longer.round(absent=("west",))
    assert list(longer.server.parts["hand_over"].received) == ["east", "north"]
    longer.finish()
    assert list(longer.sent[COLLECT]) == ["west"]
    assert_close(received(longer, "west"), longer.kept("west", 1)["hand_over"]["model"])


# --- how all models answer


def test_the_super_model_answers_with_the_mean_of_the_models_probabilities(oneshot):
    game = oneshot(rounds=1)
    game.finish()
    model = SuperModel(game.server.parts["hand_over"].contents(game.server), torch.device("cpu"))
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


def test_every_site_tests_and_keeps_the_same_super_model(oneshot):
    game = oneshot(rounds=1)
    tests = game.finish()
    wanted = game.server.parts["hand_over"].contents(game.server).models
    for site in SITES:
        contents = read_model_folder(game.folder(site) / "supermodel")
        assert contents.rule == "mean" and contents.sites == SITES
        assert all(torch.equal(contents.models[s][n], v) for s, state in wanted.items() for n, v in state.items())
        part = game.sites[site].data.test
        model, truth = SuperModel(contents, torch.device("cpu")), np.asarray(part.targets)
        found = np.stack([model.predict(np.asarray(image)[None]).label_map[0] for image in part.images])
        dice = [2 * (f & t).sum() / (f.sum() + t.sum()) for f, t in zip(found > 0, truth > 0, strict=True)]
        assert tests.scores[site].value == pytest.approx(np.mean(dice))


def test_what_people_read_says_that_a_model_leaves(oneshot):
    recipe = oneshot(rounds=1).study.recipe
    questions = recipe.questions()
    assert questions["What stays at home?"].endswith("then it leaves once; the data never do.")
    assert questions["Who listens to whom?"] == "Nobody: each site trains alone."
    assert "together in `supermodel/`" in describe_missing_part(recipe.as_dict())


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"stays_home": "nothing"}, "stays_home must be everything where each model leaves once"),
        ({"input": "harmofl"}, "input must be none where each site trains alone"),
        ({"mixing": "softpull"}, "mixing must be shared, and a site have one model"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 where a site sends its model of its best epoch, not 2"),
        ({"average_last": 0.5}, "average_last must be 0 where a site sends its model of its best epoch, not 0.5"),
    ],
)
def test_what_does_not_go_together_is_refused(oneshot, algorithm, sentence):
    with pytest.raises(ConfigError, match=sentence):
        oneshot(rounds=2, **algorithm)


# --- a selector among the models


def selector_of(game):
    return SuperModel(game.server.parts["hand_over"].contents(game.server), torch.device("cpu"))


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


def test_the_model_of_the_nearest_site_answers(oneshot):
    game = oneshot(rounds=1, answer="choice")
    tests = game.finish()
    model = selector_of(game)
    assert model.contents.rule == "selector" and model.contents.outputs == SITES
    for site in SITES:
        # each site's images have a brightness of their own
        for image in np.asarray(game.sites[site].data.test.images):
            answer = model.answer(image[None])
            assert answer.model == site and answer.weights == {site: 1.0} and not answer.is_fallback
            np.testing.assert_array_equal(answer.probabilities, model.probabilities(site, image[None]))
        assert tests.scores[site].choices == {site: 2}
        assert tests.scores[site].selector.cases == {site: 2}
        assert tests.scores[site].value == tests.scores[site].models[site] == tests.scores[site].models["super"]
    found = game.server.parts["hand_over"].results(game.server, tests.scores)["super_model"]
    assert found.selector.outputs == SITES and found.threshold is None


def test_an_ensemble_weighs_all_models_by_the_selectors_scores(oneshot):
    game = oneshot(rounds=1, answer="ensemble")
    game.finish()
    model = selector_of(game)
    case = np.array(game.sites["north"].data.test.images)[:1]
    features = torch.from_numpy(model.selector.network.features(torch.from_numpy(case)).numpy())
    scores = torch.softmax(model.selector.network.head(features), dim=1)[0].numpy(force=True)
    answer = model.answer(case)
    assert answer.weights == pytest.approx(dict(zip(SITES, scores, strict=True)), abs=1e-6)
    mean = sum(answer.weights[site] * model.probabilities(site, case) for site in SITES)
    np.testing.assert_allclose(answer.probabilities, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("answer", ["choice", "ensemble"])
def test_sites_keep_the_selector_that_the_server_has(oneshot, answer):
    game = oneshot(rounds=1, answer=answer)
    game.finish()
    wanted = game.server.parts["hand_over"].contents(game.server).selector
    for site in SITES:
        contents = read_model_folder(game.folder(site) / "supermodel")
        assert (contents.rule, contents.outputs, contents.threshold) == ("selector", SITES, None)
        assert contents.selector.keys() == wanted.keys()
        assert all(torch.equal(contents.selector[name], value) for name, value in wanted.items())


def test_a_site_with_few_patients_tells_nothing_of_its_images_and_is_never_chosen(oneshot):
    game = oneshot(rounds=1, answer="choice", min_patients=4)
    game.finish()
    part = game.server.parts["hand_over"]
    # west trains with three
    assert part.outputs == ("east", "north") and list(part.received) == [*SITES]
    said = "site 'west' has a model that no selector chooses: fewer than 4 patients in training"
    assert said in [*game.warnings, *game.server.ledger[-1].notes]
    assert selector_of(game).answer(np.asarray(game.sites["west"].data.test.images)[:1]).model in ("east", "north")


def test_where_fewer_than_two_sites_tell_of_their_images_the_mean_answers(oneshot):
    game = oneshot(rounds=1, answer="choice", min_patients=5)
    tests = game.finish()
    contents = game.server.parts["hand_over"].contents(game.server)
    assert contents.rule == "mean" and contents.selector is None
    assert game.server.parts["hand_over"].results(game.server, tests.scores) == {}
    assert read_model_folder(game.folder("west") / "supermodel").rule == "mean"


def test_a_part_of_the_moments_is_refused(oneshot):
    game = oneshot(rounds=1, answer="choice")

    def without_scatter(task, site, answer):
        if site == "west":
            del answer.arrays["image_features/scatter"]
        return answer

    record = game.round(change=without_scatter)
    assert "must send all of the moments of its images' features" in record.refused["west"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", 1e15), ("mean", -1e15), ("mean", 1e7), ("scatter", 1e15), ("scatter", -1)],
)
def test_moments_of_no_images_cost_their_own_site_its_answer_and_not_the_selector_of_all(oneshot, name, value):
    game = oneshot(rounds=1, answer="choice")

    def change(task, site, answer):
        if site != "west" or f"image_features/{name}" not in answer.arrays:
            return answer
        array = answer.arrays[f"image_features/{name}"]
        return Message(answer.arrays | {f"image_features/{name}": np.full_like(array, value)}, answer.meta)

    tests = game.finish(change=change)
    assert list(game.server.ledger[0].refused) == ["west"]
    assert {"east", "north"} <= tests.scores.keys() and game.server.parts["hand_over"].outputs == ("east", "north")


def test_a_gate_lets_the_moments_out_of_enough_patients_alone(oneshot, tmp_path):
    game = oneshot(rounds=1, answer="choice")
    game.round()
    message, request = game.answers[TRAIN]["west"], Request(TRAIN, "run", 1)
    own = Site(data="d", state_dir=str(tmp_path), min_patients=3)
    assert Gate.of(game.study, own).refusal(request, message) is None
    few = Gate.of(game.study, own.model_copy(update={"min_patients": 4}))
    assert "image_features" in few.refusal(request, message)
    listed = Gate.of(game.study, own.model_copy(update={"may_leave": ["site_model"]}))
    assert "image_features" in listed.refusal(request, message)


def test_a_resumed_run_has_the_same_selector(oneshot):
    game = oneshot(rounds=1, answer="choice")
    game.round()
    before = game.server.parts["hand_over"].contents(game.server).selector
    game.resume()
    after = game.server.parts["hand_over"].contents(game.server).selector
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_estimate_counts_the_moments_and_the_selector(oneshot):
    game = oneshot(rounds=1, answer="choice")
    game.finish()
    traffic = count_traffic(game.study, 3, (1, 32, 32))
    assert traffic.bytes_from[0] == game.answers[TRAIN]["east"].num_bytes
    assert traffic.finish_bytes_to == game.sent["test_all_models"]["east"].num_bytes


def test_small_images_are_refused_for_a_selector():
    recipe = find_recipe("oneshot", "recommended", {"hand_over": {"answer": "choice"}})
    with pytest.raises(DataError, match="at least 16 pixels along each axis for hand_over.answer .*, not 15 x 40"):
        recipe.ingredient("hand_over").check_data((1, 15, 40), ())
    recipe.ingredient("hand_over").check_data((1, 16, 16), ())
