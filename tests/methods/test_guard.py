"""The guard: its local model is the one of local training, what it does not touch, and what it chooses."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from silofl.algorithms.guard import SHARES, GuardChoice
from silofl.errors import TrainingError
from silofl.federation.egress import Request
from silofl.federation.outcome import finished_results
from silofl.federation.site import SiteRounds
from silofl.inference import SuperModel
from silofl.inference.directory import read_model_folder
from silofl.inference.geometry import decide_labels
from silofl.methods import guard
from silofl.methods.guard import has_own_model, tuning_rounds
from silofl.methods.task import Message
from silofl.models import build_model
from silofl.schema import dump_record
from silofl.settings import parse
from silofl.study import Study
from silofl.training import local_model
from silofl.training.evaluation import score_predictions
from silofl.training.metrics import Score, group_positions

from ..conftest import WINDOWS

pytestmark = pytest.mark.long

SITES = ("east", "north", "west")
CPU = torch.device("cpu")
SHARE = 0.95
ALGORITHMS = {
    "shared": {"name": "fedavg"},
    "batchnorm at home": {"name": "fedbn"},
    "amplitude": {"name": "harmofl"},
    "own models": {"name": "softpull"},
    "fine-tuning": {"name": "finetuning", "extra_rounds": 1},
    "super model": {"name": "fedsm", "model": {"normalization": "instance"}},
    "dropout": {"name": "fedavg", "model": {"dropout": 0.3}},
    "a falling rate": {"name": "fedprox", "training": {"schedule": "poly"}},
    "normalised steps": {"name": "fednova", "training": {"optimizer": "sgd", "momentum": 0.9}},
    "a contrast": {"name": "moon", "model": {"dropout": 0.3}},
    "meta-steps": {"name": "perfedavg", "training": {"local_epochs": 2}, "model": {"dropout": 0.3}},
    "head, then body": {"name": "fedrep", "training": {"local_epochs": 2}},
}
# The longest.
LONG = ("a contrast", "meta-steps", "dropout")


@pytest.fixture(autouse=True)
def without_local_models(site_data):
    """Forget what other runs have trained: the tests share their data, and its cache."""
    for path in (site_data / ".cache").glob("*/local-*.pt"):
        path.unlink()


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(torch.as_tensor(left[name]), torch.as_tensor(right[name])), name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in ALGORITHMS]
)
def test_the_local_model_is_that_of_local_training_and_the_federated_run_is_what_it_would_be_without(play, name):
    options = ALGORITHMS[name]
    guarded, without = play(guard=True, folder="with", **options), play(folder="without", **options)
    alone = play(
        folder="alone", **(options | {"name": "local", "extra_rounds": 0}), rounds=guarded.study.training_rounds
    )
    for game in (guarded, without, alone):
        game.tests = game.finish()
    for site in SITES:
        assert_equal(guarded.models(site), without.models(site))
        number = guarded.study.training_rounds
        local = alone.kept(site, number)["models"]["home"]
        mine = guarded.kept(site, number)["guard"]["local"]["state"]
        assert_equal({f"model/{key}": value for key, value in mine.items()}, local)
    assert guarded.tests.scores == without.tests.scores
    before = [dump_record(record) | {"started_at": "", "seconds": 0, "notes": []} for record in without.server.ledger]
    after = [dump_record(record) | {"started_at": "", "seconds": 0, "notes": []} for record in guarded.server.ledger]
    assert before == after
    assert guarded.server.parts["guard"].choices.keys() == set(SITES)


def stubbed(monkeypatch, **scores):
    """Let every candidate have one score on all units."""

    def found(self, models, part, names, share=0.0):
        cases = list(dict.fromkeys(part.cases))
        return {name: Score.of(dict.fromkeys(cases, scores.get(name, 0.5))) for name in names}

    monkeypatch.setattr(guard.SiteGuard, "_score_candidates", found)
    monkeypatch.setattr(guard, "choose_share", lambda blends, weight: SHARE)
    # Two validation cases a site are too few for any margin.
    monkeypatch.setattr(
        guard, "choose_candidate", lambda units, default: GuardChoice(max(scores, key=scores.get), default, 0.3, 0.1, 2)
    )


@pytest.mark.parametrize("name", ["ditto", "apfl", "pfedme", "perfedavg"])
def test_the_fine_tuned_copy_is_a_candidate_beside_models_that_draw_for_themselves(play, name):
    training = {"optimizer": "sgd", "momentum": 0, "local_epochs": 2}
    game = play(("east", "north"), guard=True, name=name, rounds=10, training=training)
    game.finish()
    assert all("fine_tuned" in choice.validation for choice in game.server.parts["guard"].choices.values())
    assert not any("without a fine-tuned copy" in note for note in game.server.ledger[-1].notes)


def test_the_ledger_names_a_site_that_chose_without_a_fine_tuned_copy(play, monkeypatch):
    tune = guard.SiteGuard._tune

    def failing(self, step):
        if self.work.site == "north":
            raise TrainingError("no memory")
        tune(self, step)

    monkeypatch.setattr(guard.SiteGuard, "_tune", failing)
    game = play(("east", "north"), guard=True, rounds=10)
    # An answer that is lost on the way takes no copy away.
    lost = ("guard_tune", "east")
    game.finish(change=lambda task, site, answer: answer.failed("lost") if (task, site) == lost else answer)
    notes = [note for note in game.server.ledger[-1].notes if "fine-tuned copy:" in note]
    assert notes == ["site 'north' chose without a fine-tuned copy: no memory"]


def state_at_test(game, site):
    (state,) = SuperModel.load(game.folder(site) / "supermodel", "cpu").contents.models.values()
    return state


def test_with_enough_units_a_site_takes_the_best_rounds_of_its_own_and_the_later_of_two_that_are_level(
    play, monkeypatch
):
    monkeypatch.setattr(guard, "LEAST_UNITS", 2)
    monkeypatch.setattr(local_model, "LEAST_UNITS", 2)
    seen = []
    candidates = guard.SiteGuard._build_candidates
    monkeypatch.setattr(guard.SiteGuard, "_build_candidates", lambda self: seen.append(candidates(self)) or seen[-1])
    game = play(("east", "north"), guard=True, name="fedbn", rounds=4)
    game.finish()
    found, kept = seen[0], game.kept("east", 4)["guard"]
    assert_equal(next(iter(found["federated"].models.values())), kept["federated"]["state"])
    assert_equal(next(iter(found["local"].models.values())), kept["local"]["best"]["state"])
    values = [record.validated["east"] for record in game.server.ledger]
    assert kept["federated"]["round"] == max(range(1, 5), key=lambda number: (values[number - 1], number))


@pytest.mark.parametrize("chosen", ["federated", "averaged", "fine_tuned", "local", "blend"])
def test_a_site_writes_the_model_that_it_chose_and_says_no_more_than_that(play, monkeypatch, chosen):
    stubbed(monkeypatch, **{"federated": 0.1, chosen: 0.9})
    game = play(guard=True, name="harmofl", rounds=10, average_last=0.2)
    game.finish()
    assert game.asked[-4:] == ["validate_average", "test", "guard_tune", "guard_choose"]
    answer = game.answers["guard_choose"]["east"]
    assert not answer.arrays and answer.meta.keys() == {"round", "guard"}
    assert not any(message.arrays for task in ("guard_tune", "guard_choose") for message in game.sent[task].values())
    joined = game.server.parts["guard"].choices["east"]
    assert (joined.chosen, joined.default, joined.unit, joined.num_units) == (chosen, "blend", "patient", 2)
    assert joined.verdict == ("keeps its own model" if chosen == "local" else "too few to say")
    model = SuperModel.load(game.folder("east") / "chosen", "cpu")
    # The test of what it keeps, and not that of the federated model.
    assert model.contents.facts["value"] == 0.9 and model.contents.facts["candidate"] == chosen
    assert "surface" not in model.contents.facts
    image = game.sites["east"].data.test.images[:1]
    found = model.predict(image).label_map
    kept = game.kept("east", 10)["guard"]
    if chosen == "blend":
        tested = SuperModel.load(game.folder("east") / "supermodel", "cpu")
        assert model.contents.rule == "mean" and model.contents.models.keys() == {"federated", "local"}
        assert tested.contents.rule == "only"
        share = joined.local_share
        assert share == model.contents.beside_share == SHARE
        prediction = model.predict(image)
        assert prediction.model == "mean of the federated and the local model"
        assert (prediction.beside, prediction.beside_share) == ("local", share)
        federated, local = (model.probabilities(name, image) for name in ("federated", "local"))
        np.testing.assert_array_equal(found, (((1 - share) * federated + share * local)[:, 0] > 0.5).astype(np.uint8))
    else:
        (state,) = model.contents.models.values()
        wanted = {
            "federated": state_at_test(game, "east"),
            "averaged": kept.get("averaged"),
            "fine_tuned": kept["fine_tuned"]["state"],
            "local": kept["local"]["state"],
        }[chosen]
        assert_equal(state, wanted)


@pytest.mark.parametrize("name", ["fedavg", "fedsm"])
def test_every_share_is_scored_as_the_mean_that_answers_with_it(play, monkeypatch, name):
    found = []
    monkeypatch.setattr(guard, "choose_share", lambda blends, weight: found.append(blends) or SHARE)
    game = play(("east", "north"), guard=True, name=name, model={"normalization": "instance"})
    game.finish()
    validation = game.sites["east"].data.validation
    contents = SuperModel.load(game.folder("east") / "chosen", "cpu").contents
    assert contents.beside_share == SHARE and found[0].shape == (len(SHARES), 2)
    for row in (0, 7, len(SHARES) - 1):
        model = SuperModel(replace(contents, beside_share=float(SHARES[row])), CPU)
        rows = group_positions(validation.cases).values()
        labels = np.concatenate([model.predict(validation.images[members]).label_map for members in rows])
        by_case = score_predictions(labels, validation, game.study).by_case
        np.testing.assert_array_equal(found[0][row], list(by_case.values()))


def test_a_false_alarm_counts_against_the_federated_model_beside_a_local_one_that_finds_nothing(play, monkeypatch):
    def scored(self, models, part, names, share=0.0):
        void, *others = dict.fromkeys(part.cases)
        found = {case: 0.8 for case in others}
        silent, alarm = (
            Score.of(found | {void: None}, empty={void: False}),
            Score.of(found | {void: 0}, empty={void: 1}),
        )
        return {name: silent if name == "local" else alarm for name in names}

    units = []
    choose = guard.choose_candidate
    monkeypatch.setattr(guard.SiteGuard, "_score_candidates", scored)
    monkeypatch.setattr(guard, "choose_candidate", lambda found, default: units.append(found) or choose(found, default))
    game = play(("east", "north"), guard=True)
    game.finish()
    np.testing.assert_array_equal(units[0]["local"] - units[0]["federated"], [1, 0])
    joined = game.server.parts["guard"].choices["east"]
    num_cases = len({*game.sites["east"].data.test.cases})
    assert (joined.difference, joined.num_test_units) == (pytest.approx(-1 / num_cases), num_cases)


def test_a_share_that_finds_nothing_where_nothing_is_has_a_score(play, monkeypatch):
    found = []

    def silent(labels, part, study):
        return Score.of(dict.fromkeys(part.cases), empty=dict.fromkeys(part.cases, False))

    monkeypatch.setattr(guard, "score_predictions", silent)
    monkeypatch.setattr(guard, "choose_share", lambda blends, weight: found.append(blends) or SHARE)
    play(("east", "north"), guard=True).finish()
    assert (found[0] == 1).all()


def test_a_local_model_of_few_labelled_windows_counts_less(play, windows_to_choose_by, monkeypatch):
    training = {"loss": "cross_entropy", "batch_size": 4}
    settings = WINDOWS | {"rounds": 1, "training": training, "algorithm": {"name": "fedavg"}}
    weights = []
    monkeypatch.setattr(guard, "choose_share", lambda blends, weight: weights.append(weight) or SHARE)
    study = parse(Study, settings, "study.yaml")
    play(("ann", "bob", "eva"), study=study, data=windows_to_choose_by).finish()
    assert weights == [1.0, 1.0, 0.8]


def test_a_local_model_of_few_label_maps_counts_in_full(play, monkeypatch):
    weights = []
    monkeypatch.setattr(guard, "choose_share", lambda blends, weight: weights.append(weight) or SHARE)
    game = play(guard=True)
    game.finish()
    assert all(len(site.data.training) < 10 for site in game.sites.values()) and weights == [1.0] * 3


@pytest.mark.parametrize(("share", "default"), [(0.0, "federated"), (0.05, "blend"), (1.0, "local")])
def test_a_mean_without_one_of_the_models_is_the_other_one(play, monkeypatch, share, default):
    monkeypatch.setattr(guard, "choose_share", lambda blends, weight: share)
    game = play(("east", "north"), guard=True)
    game.finish()
    joined = game.server.parts["guard"].choices["east"]
    assert (joined.chosen, joined.default, joined.local_share) == (default, default, share)
    model = SuperModel.load(game.folder("east") / "chosen", "cpu")
    assert model.contents.rule == ("mean" if default == "blend" else "only")
    if default != "blend":
        assert joined.validation["blend"] == joined.validation[default]


@pytest.mark.parametrize("answer", ["choice", "ensemble"])
def test_a_super_model_of_several_models_is_mixed_with_the_local_one(play, monkeypatch, answer):
    stubbed(monkeypatch, blend=0.9, federated=0.1)
    game = play(guard=True, name="fedsm", model={"normalization": "instance"}, super_model={"answer": answer})
    game.finish()
    assert {*game.server.parts["guard"].choices["east"].validation} == {"federated", "local", "blend"}
    model = SuperModel.load(game.folder("east") / "chosen", "cpu")
    tested = SuperModel.load(game.folder("east") / "supermodel", "cpu")
    assert (model.contents.rule, model.contents.beside) == ("selector", "local")
    assert {*model.contents.models} == {*tested.contents.models, "local"}
    assert_equal(model.contents.models["local"], game.kept("east", game.study.rounds)["guard"]["local"]["state"])
    image = game.sites["east"].data.test.images[:1]
    share = game.server.parts["guard"].choices["east"].local_share
    assert share == SHARE
    wanted = (1 - share) * tested.answer(image).probabilities + share * model.probabilities("local", image)
    np.testing.assert_allclose(model.answer(image).probabilities, wanted, atol=1e-6)


def test_a_site_called_local_keeps_its_model_in_the_mean(play, monkeypatch):
    monkeypatch.setattr(guard, "LOCAL", "north")
    stubbed(monkeypatch, blend=0.9)
    game = play(guard=True, name="fedsm", model={"normalization": "instance"})
    game.finish()
    contents = SuperModel.load(game.folder("east") / "chosen", "cpu").contents
    assert contents.beside == "north_" and {"north", "north_"} <= {*contents.models}


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_fine_tuned_copy_changes_its_head_first_and_then_all_that_the_network_trains(play, monkeypatch, is_frozen):
    def built(*arguments):
        model = build_model(*arguments)
        model.get_submodule("network.model.0").requires_grad_(not is_frozen)
        return model

    monkeypatch.setattr(guard, "build_model", built)
    game = play(guard=True, name="fedbn", rounds=20)
    game.rounds(20)
    copies = []

    def keep(task, site, answer):
        if task == "guard_tune" and site == "east":
            copies.append(game.kept("east", 20)["guard"])
        return answer

    game.finish(change=keep)
    start = state_at_test(game, "east")
    first, second = (kept["fine_tuned"]["state"] for kept in copies)
    changed = [{n for n in start if not torch.equal(a[n], b[n])} for a, b in ((start, first), (first, second))]
    assert changed[0] == {"network.model.2.conv.weight", "network.model.2.conv.bias"}
    assert "network.model.2.conv.weight" in changed[1] and ("network.model.0.conv.weight" in changed[1]) != is_frozen
    assert tuning_rounds(game.study) == 2


def test_a_run_takes_the_local_model_that_another_run_of_the_same_training_has_left(play, site_data, tmp_path):
    first, second, other = (
        play(guard=True, folder=name, **options)
        for name, options in {
            "first": {"name": "fedavg", "seed": 77},
            "second": {"name": "fedbn", "seed": 77},
            "other": {"name": "fedbn", "seed": 77, "training": {"learning_rate": 0.02}},
        }.items()
    )
    for game in (first, second, other):
        game.finish()
    ours, theirs, others = (game.kept("east", 3)["guard"]["local"] for game in (first, second, other))
    assert (ours.get("is_borrowed"), theirs.get("is_borrowed"), others.get("is_borrowed")) == (None, True, None)
    assert_equal(ours["best"]["state"], theirs["best"]["state"])
    assert_equal(ours["state"], theirs["state"])
    joined = [game.server.parts["guard"].choices["east"] for game in (first, second)]
    assert joined[0].test["local"] == joined[1].test["local"]
    assert joined[0].validation["local"] == joined[1].validation["local"]


@pytest.mark.parametrize("optimizer_state", ["kept", "fresh"])
def test_a_borrowed_local_model_learns_in_the_rounds_that_are_added(play, site_data, optimizer_state):
    options = {"guard": True, "seed": 80, "training": {"optimizer_state": optimizer_state}}
    first, more, straight = (play(folder=name, **options | {"rounds": n}) for name, n in (("a", 2), ("b", 2), ("c", 4)))
    first.finish(), more.finish()
    assert more.kept("east", 2)["guard"]["local"]["is_borrowed"]
    more.ask_for(4)
    more.round()
    more.finish()
    for path in site_data.glob(".cache/*/local-*.pt"):
        path.unlink()
    straight.finish()
    ours, theirs = (game.kept("east", 4)["guard"]["local"] for game in (more, straight))
    assert ours.keys() == theirs.keys() and ours["rounds"] == theirs["rounds"] == 4
    assert_equal(ours["state"], theirs["state"])
    assert_equal(ours["best"]["state"], theirs["best"]["state"])
    assert ours["best"]["round"] == theirs["best"]["round"]
    assert more.server.parts["guard"].choices == straight.server.parts["guard"].choices


def test_a_local_model_that_missed_a_round_is_left_to_nobody(play):
    absent, later = (play(guard=True, folder=name, seed=78, federation={"max_missed_rounds": 1}) for name in "ab")
    absent.round(), absent.round(absent=("west",))
    absent.finish(), later.finish()
    assert "is_borrowed" not in later.kept("west", 3)["guard"]["local"]
    assert later.kept("east", 3)["guard"]["local"]["is_borrowed"]


def test_a_damaged_one_is_trained_anew(play, site_data):
    play(guard=True, folder="a", seed=79).finish()
    for path in site_data.glob(".cache/*/local-*.pt"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    game = play(guard=True, folder="b", seed=79)
    game.finish()
    assert "is_borrowed" not in game.kept("east", 3)["guard"]["local"]


def test_a_site_without_validation_data_trains_no_model_beside_and_makes_no_choice(play, site_data, tmp_path):
    game = play(guard=True)
    part = game.sites["north"].data
    game.sites["north"].__dict__["data"] = replace(part, validation=part.validation.select_rows([]))
    game.finish()
    assert game.server.parts["guard"].choices.keys() == {"east", "west"}
    assert "guard" not in game.kept("north", 3)
    assert game.server.parts["guard"].unchosen == {"north": "it has no validation data"}
    assert "site 'north' made no choice: it has no validation data" in game.server.ledger[-1].notes


def test_the_result_says_of_each_site_without_a_choice_why_it_made_none(play):
    game = play(guard=True)
    part = game.sites["north"].data
    game.sites["north"].__dict__["data"] = replace(part, validation=part.validation.select_rows([]))

    def change(task, site, answer):
        return answer.failed("no memory") if (task, site) in {("test", "west"), ("guard_choose", "east")} else answer

    found = finished_results(game.server, game.finish(change=change))
    assert found.joining is None
    assert found.unchosen == {
        "east": "no memory",
        "north": "it has no validation data",
        "west": "it did not test the model",
    }


def test_a_site_that_is_late_with_its_choice_gave_no_answer(play):
    game = play(("east", "north"), guard=True)

    def change(task, site, answer):
        # From the exchange after the test on.
        game.absent = ("north",) if task == "test" else ()
        return answer

    found = finished_results(game.server, game.finish(change=change))
    assert found.joining.keys() == {"east"} and found.unchosen == {"north": "no answer in time"}


@pytest.mark.parametrize("is_on", [False, True])
def test_a_run_without_the_guard_or_in_which_all_choose_has_nobody_without_a_choice(play, is_on):
    game = play(("east", "north"), guard=is_on)
    assert finished_results(game.server, game.finish()).unchosen is None


@pytest.mark.parametrize(("part", "wanted"), [("validation", (1, "patient", 2)), ("test", (2, "case", 1))])
def test_the_unit_is_that_of_the_test_whose_number_stands_beside_it(play, part, wanted):
    game = play(guard=True)
    data = game.sites["north"].data
    # One patient alone in one part, two in the other.
    game.sites["north"].__dict__["data"] = replace(data, **{part: getattr(data, part).select_rows([0])})
    game.finish()
    joined = game.server.parts["guard"].choices["north"]
    assert (joined.num_units, joined.unit, joined.num_test_units) == wanted


def test_a_site_that_misses_the_test_of_a_run_that_was_asked_for_more_chooses_by_no_model_of_its_earlier_end(play):
    game = play(guard=True, rounds=2)
    game.finish()
    assert game.server.parts["guard"].choices.keys() == set(SITES)
    game.ask_for(4)

    def change(task, site, answer):
        return answer.failed("no memory") if (task, site) == ("test", "west") else answer

    game.finish(change=change)
    assert game.server.parts["guard"].choices.keys() == {"east", "north"}
    assert game.sent["guard_choose"].keys() == {"east", "north"}


def test_training_on_takes_away_the_candidates_of_an_earlier_end(play):
    game = play(("east", "north"), guard=True, name="fedbn", rounds=10, average_last=0.2)
    game.finish()
    assert {"averaged", "fine_tuned", "federated", "local"} == game.kept("east", 10)["guard"].keys()
    game.ask_for(20)
    game.round()
    assert game.kept("east", 11)["guard"].keys() == {"federated", "local"}


def test_a_site_that_came_late_says_since_when_it_trains_its_own_model(play):
    game = play(guard=True, federation={"max_missed_rounds": 1})
    game.round(absent=("west",))
    game.finish()
    joined = game.server.parts["guard"].choices
    assert (joined["west"].local_since, joined["east"].local_since) == (2, 1)


def test_a_run_that_is_taken_up_chooses_the_same(play, tmp_path):
    straight, broken = (play(guard=True, name="fedbn", folder=folder) for folder in ("straight", "broken"))
    broken.rounds(2)
    for site in SITES:
        # A new process at the site, which has its files alone.
        broken.sites[site] = SiteRounds(site, broken.study, broken.settings)
    for game in (straight, broken):
        game.finish()
    assert straight.server.parts["guard"].choices == broken.server.parts["guard"].choices


def test_the_choice_leaves_through_the_gate_and_nothing_beside_it_does(play):
    game = play(guard=True)
    game.finish()
    gate = game.sites["east"].gate
    message, answer = game.sent["guard_choose"]["east"], game.answers["guard_choose"]["east"]
    request = Request.of("guard_choose", message)
    assert gate.refusal(request, answer) is None
    assert gate.refusal(request, Message(meta=answer.meta | {"guard": {"reason": "it has no validation data"}})) is None
    named = answer.meta | {"guard": {"reason": "no scan of Anna Smith"}}
    assert "only the numbers of an answer leave" in gate.refusal(request, Message(meta=named))
    weights = Message({"guard/local": np.zeros(3, np.float32)}, answer.meta)
    assert "UNKNOWN" in gate.refusal(request, weights) or "not unknown" in gate.refusal(request, weights)
    text = answer.meta | {"guard": {"joined": answer.meta["guard"]["joined"] | {"chosen": "anna_smith.png"}}}
    assert "only the numbers of an answer leave" in gate.refusal(request, Message(meta=text))


def test_candidates_answer_one_after_the_other_and_of_their_answers_the_blends_alone_are_held(play, monkeypatch):
    game = play(guard=True)
    game.finish()
    contents = read_model_folder(game.folder("east") / "supermodel")
    (state,) = contents.models.values()
    other = {name: value + 0.01 for name, value in state.items()}
    names = {"federated": state, "averaged": other, "local": other}
    models = {name: SuperModel(replace(contents, models={name: one}), CPU) for name, one in names.items()}
    predict, held, most = guard._predict_probabilities, [], []

    def counted(*arguments):
        most.append(sum(one() is not None for one in held))
        found = predict(*arguments)
        held.append(weakref.ref(found))
        return found

    monkeypatch.setattr(guard, "_predict_probabilities", counted)
    images, shares = np.random.default_rng(0).random((2, 1, 32, 32), np.float32), {"federated": 0.25, "local": 0.75}
    answers = guard._yield_probabilities(models, images, ("a", "b"), 2, shares)
    found = {}
    for name, values in answers:
        found[name] = values.copy()
        del values
    assert list(found) == [*names, "blend"] and most == [0, 1, 1]
    both = replace(
        contents, models={"federated": state, "local": other}, rule="mean", beside="local", beside_share=0.75
    )
    np.testing.assert_array_equal(found["blend"], SuperModel(both, CPU).answer(images).probabilities)


@pytest.mark.parametrize("shape", [(3, 2), (2, 1, 9, 7), (1, 4, 9, 7, 5)])
def test_the_labels_of_a_blend_are_the_same_in_pieces(monkeypatch, shape):
    federated, local = np.random.default_rng(0).random((2, *shape), np.float32)
    whole = decide_labels(federated * np.float32(0.7) + local * np.float32(0.3))
    monkeypatch.setattr(guard, "PIECE", 10)
    np.testing.assert_array_equal(guard._label_blend(federated, local, 0.3), whole)


OWN = {"fedavg": False, "fedbn": True, "adafed": True, "softpull": True, "ditto": True, "perfedavg": True}


def test_who_has_a_model_of_its_own(make_study):
    own = {name: has_own_model(make_study(name=name)) for name in OWN}
    assert own == OWN
    assert not has_own_model(make_study(name="fedsm", model={"normalization": "instance"}))
