"""The guard: its local model is the one of local training, what it does not touch, and what it chooses."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from silofl.base.schema import dump_record
from silofl.base.settings import parse
from silofl.core.baseline_rule import BaselineChoice
from silofl.data.units import find_units_of
from silofl.federation.egress import Request
from silofl.federation.outcome import finished_results
from silofl.federation.site import SiteRounds
from silofl.inference import SuperModel
from silofl.parts import baseline
from silofl.parts.task import Message
from silofl.study import Study
from silofl.training import grid_scores, local_model
from silofl.training.evaluation import score_predictions
from silofl.training.local_model import copy_state
from silofl.training.metrics import Score, average_by_unit, group_positions

from ..conftest import DROPPING, UNET, WINDOWS, assert_alike
from .conftest import SITES, weights_of_a_file

pytestmark = pytest.mark.long

PARTS = ("validation", "test")
CPU = torch.device("cpu")
ALGORITHMS = {
    "shared": {"name": "fedavg"},
    "batchnorm at home": {"name": "fedbn"},
    "amplitude": {"name": "harmofl"},
    "own models": {"name": "softpull"},
    "fine-tuning": {"name": "finetuning", "extra_rounds": 1},
    "super model": {"name": "fedsm", "model": {"normalization": "instance"}},
    "dropout": {"name": "fedavg", "network": DROPPING},
    "a falling rate": {"name": "fedprox", "training": {"schedule": "poly"}},
    "normalised steps": {"name": "fednova", "training": {"optimizer": "sgd", "momentum": 0.9}},
    "a contrast": {"name": "moon", "network": UNET, "model": {"dropout": 0.3}},
    "meta-steps": {"name": "perfedavg", "training": {"local_epochs": 2}, "network": DROPPING},
    "head, then body": {"name": "fedrep", "training": {"local_epochs": 2}},
}
# The longest.
LONG = ("a contrast", "meta-steps", "dropout")


@pytest.fixture(autouse=True)
def without_local_models(site_data):
    """Forget what other runs have trained: the tests share their data, and its cache."""
    for path in (site_data / ".cache").glob("*/local-*.pt"):
        path.unlink()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in ALGORITHMS]
)
def test_the_local_model_is_that_of_local_training(play, name):
    options = ALGORITHMS[name]
    guarded, without = play(baseline_comparison=True, folder="with", **options), play(folder="without", **options)
    alone = play(
        folder="alone", **(options | {"name": "local", "extra_rounds": 0}), rounds=guarded.study.training_rounds
    )
    number = guarded.study.training_rounds
    guarded.rounds(number)
    own = {site: guarded.kept(site, number)["guard"]["local"]["state"] for site in SITES}
    for game in (guarded, without, alone):
        game.tests = game.finish()
    for site, mine in own.items():
        assert_alike(guarded.models(site), without.models(site))
        local = alone.kept(site, number)["models"]["home"]
        assert_alike({f"model/{key}": value for key, value in mine.items()}, local)
    assert guarded.tests.scores == without.tests.scores
    before = [dump_record(record) | {"started_at": "", "seconds": 0, "notes": []} for record in without.server.ledger]
    after = [dump_record(record) | {"started_at": "", "seconds": 0, "notes": []} for record in guarded.server.ledger]
    assert before == after
    assert guarded.server.parts["guard"].choices.keys() == set(SITES)


def stubbed(monkeypatch, keeps_local, local_bias=0.5, federated_bias=-0.3):
    """Let every site make one choice."""
    choice = BaselineChoice(keeps_local, local_bias, federated_bias, 0.4, 0.7, 0.3, 0.6, 2)
    monkeypatch.setattr(baseline, "choose_kept", lambda federated, own, biases: choice)


def label_cases(model, part):
    """Return the label maps of a part, each case answered at once."""
    return np.concatenate([model.predict(part.images[rows]).label_map for rows in group_positions(part.cases).values()])


def load_chosen(game, site="east"):
    return SuperModel.load(game.folder(site) / "chosen", "cpu")


def state_at_test(game, site):
    (state,) = SuperModel.load(game.folder(site) / "supermodel", "cpu").contents.models.values()
    return state


@pytest.fixture(autouse=True)
def trained_to_its_end(monkeypatch):
    """Let every federated model be finished, and the local ones learn in few rounds more."""
    monkeypatch.setattr("silofl.federation.server.measure_last_rise", lambda ledger, patience: 0.0)
    monkeypatch.setattr(local_model, "MOST_ROUNDS", 12)


def judge_by(values, monkeypatch, sites=2):
    """Let the local models' rounds have these validation values, and return their states; sites take turns."""
    states = []

    def judge(model, *others):
        states.append(copy_state(model))
        return None, Score.of({"a": values[min((len(states) - 1) // sites, len(values) - 1)]})

    monkeypatch.setattr(local_model, "evaluate", judge)
    return states


@pytest.mark.parametrize(("values", "best"), [((0.3, 0.2, 0.1), 1), ((0.2, 0.2, 0.2), 5)], ids=["falling", "level"])
def test_the_local_model_is_of_its_best_round(played, monkeypatch, values, best):
    stubbed(monkeypatch, True)
    states = judge_by(values, monkeypatch)
    # Its end is seen two rounds after the federation's, which ends after the third.
    game = played(("east", "north"), baseline_comparison=True, seed=81, federation={"patience": 4})
    kept = game.kept("east", 3)["guard"]["local"]
    (chosen,) = load_chosen(game).contents.models.values()
    assert kept["best"]["round"] == best
    assert_alike(chosen, states[2 * best - 2])
    assert_alike(kept["state"], states[-2])


@pytest.mark.parametrize(
    ("values", "rounds", "is_finished"),
    [
        ([0.2, 0.3, 0.3, 0.4, 0.4, 0.4, 0.404], 7, True),
        # It rises for ever: at most twelve rounds.
        ([0.01 * number for number in range(1, 20)], 12, False),
    ],
)
def test_the_local_model_goes_on_after_the_federation(play, monkeypatch, values, rounds, is_finished):
    judge_by(values, monkeypatch, sites=len(SITES))
    game = play(baseline_comparison=True, seed=82, federation={"patience": 3})
    game.finish()
    joined = game.server.parts["guard"].choices
    for site in SITES:
        assert (joined[site].local_rounds, "own" in joined[site].unfinished) == (rounds, not is_finished)
        assert list(game.kept(site, 3)["guard"]["local"]["values"].values()) == values[:rounds]
    assert game.asked.count("guard_train") == rounds - 3
    assert game.server.ledger[-1].round == 3


@pytest.mark.parametrize(("values", "is_finished"), [([0.5] * 20, True), ([0.5] * 8 + [0.6], False)])
def test_with_a_falling_rate_the_local_model_is_trained_anew(play, monkeypatch, values, is_finished):
    judge_by(values, monkeypatch, sites=1)
    game = play(
        ("east", "north"), baseline_comparison=True, seed=83, training={"schedule": "poly"}, federation={"min_sites": 1}
    )
    rates = []
    make = local_model.learning_rate
    monkeypatch.setattr(local_model, "learning_rate", lambda *asked: rates.append(asked) or make(*asked))
    game.finish()
    assert [asked[2:] for asked in rates[-12::2]] == [(number, 6) for number in range(1, 7)]
    joined = game.server.parts["guard"].choices
    assert ("own" in joined["east"].unfinished) == (not is_finished)
    assert joined["east"].local_rounds == (3 if is_finished else 6)


def test_a_killed_site_goes_on_training_its_own_model(play, monkeypatch):
    judge_by([0.01 * number for number in range(1, 99)], monkeypatch, sites=1)
    game = play(baseline_comparison=True, seed=84, federation={"patience": 3})

    def change(task, site, answer):
        if task == "guard_train":
            # A new process at the site, which has its files alone.
            game.sites["east"] = SiteRounds("east", game.study, game.settings)
        return answer.failed("no memory") if (task, site) == ("guard_train", "west") else answer

    results = finished_results(game.server, game.finish(change=change))
    assert results.status == "COMPLETE"
    # The first round of it was trained, and its answer lost.
    assert {site: one.local_rounds for site, one in results.joining.items()} == {"east": 12, "north": 12, "west": 4}
    assert all(one.verdict == "not trained to the end" for one in results.joining.values())


def test_a_federated_model_that_still_rises_gives_no_verdict(play, monkeypatch):
    judge_by([0.5], monkeypatch)
    game = play(("east", "north"), baseline_comparison=True, federation={"patience": 2})
    monkeypatch.setattr("silofl.federation.server.measure_last_rise", lambda ledger, patience: 0.2)
    game.finish()
    # More rounds of the own model would not give one either.
    assert "guard_train" not in game.asked
    one = game.server.parts["guard"].choices["east"]
    assert (one.verdict, one.unfinished) == ("not trained to the end", ("federated",))
    assert one.said == "federated not trained to the end"


@pytest.mark.parametrize(("keeps_local", "bias", "name"), [(False, 0.4, "federated"), (True, 0.5, "local")])
def test_a_site_writes_the_chosen_model_with_its_bias(played, monkeypatch, keeps_local, bias, name):
    stubbed(monkeypatch, keeps_local, federated_bias=0.4)
    game = played(baseline_comparison=True, name="harmofl")
    assert game.asked[-1] == "guard_choose" and "guard_train" in game.asked
    answer = game.answers["guard_choose"]["east"]
    assert not answer.arrays and answer.meta.keys() == {"round", "guard", "min_partners", "shares_models"}
    assert not any(message.arrays for message in game.sent["guard_choose"].values())
    joined = game.server.parts["guard"].choices["east"]
    assert (joined.chosen, joined.bias, joined.local_bias) == (name, bias, 0.5)
    assert (joined.unit, joined.num_units) == ("patient", 2)
    model = load_chosen(game)
    contents, data = model.contents, game.sites["east"].data
    assert (contents.bias, contents.facts["candidate"]) == (bias, name)
    assert (game.folder("east") / "own").is_dir() is not keeps_local
    assert contents.rule == "only" and "surface" not in contents.facts
    # The test of what it keeps, and not that of the federated model.
    score = score_predictions(label_cases(model, data.test), data.test, game.study)
    assert contents.facts["value"] == pytest.approx(score.value, abs=1e-3)
    assert joined.test["chosen"] == round(contents.facts["value"], 3)
    assert contents.facts["data"]["east"]["training"]["cases"] == len({*data.training.cases})
    assert SuperModel.load(game.folder("east") / "supermodel", "cpu").contents.bias == 0
    local = game.kept("east", game.study.rounds)["guard"]["local"]["best"]["state"]
    assert_alike(next(iter(contents.models.values())), local if name == "local" else state_at_test(game, "east"))


def test_alone_is_the_own_model_with_its_bias(played, monkeypatch):
    stubbed(monkeypatch, True)
    game = played(("east", "north"), baseline_comparison=True)
    joined, part = game.server.parts["guard"].choices["east"], game.sites["east"].data.test
    assert joined.test.keys() == {"federated", "federated_calibrated", "local", "local_uncalibrated", "chosen"}
    assert joined.test["local"] == joined.test["chosen"]
    contents = load_chosen(game).contents
    labels = {bias: label_cases(SuperModel(replace(contents, bias=bias), CPU), part) for bias in (0.5, 0.0)}
    scores = {bias: score_predictions(found, part, game.study) for bias, found in labels.items()}
    assert joined.test["local_uncalibrated"] == pytest.approx(scores[0.0].value, abs=1e-3)
    # What it keeps is its own model, and the difference is that of the federated one all the same.
    federated = SuperModel.load(game.folder("east") / "supermodel", "cpu").contents
    theirs = score_predictions(label_cases(SuperModel(replace(federated, bias=-0.3), CPU), part), part, game.study)
    found = [theirs.compared[case] - value for case, value in scores[0.5].compared.items()]
    assert joined.difference == pytest.approx(np.mean(found), abs=1e-3) and joined.difference != 0
    assert joined.by_unit["federated_calibrated"] - joined.by_unit["local"] == pytest.approx(joined.difference)
    with np.load(game.folder("east") / "pictures.npz") as shown:
        pictures = dict(shown.items())
    assert pictures["own"].shape == pictures["predictions"].shape
    rows = group_positions(part.cases)[str(pictures["cases"][0])]
    row = max(rows, key=lambda i: np.count_nonzero(part.targets[i]))
    plane = labels[0.5][row] if part.slices[row] is None else labels[0.5][row].T
    np.testing.assert_array_equal(pictures["own"][0], plane)


def test_the_own_model_says_nothing_of_the_federation(played, monkeypatch):
    stubbed(monkeypatch, True)
    game = played(("east", "north"), baseline_comparison=True, name="fedsm", model={"normalization": "instance"})
    data_profiles = {site: game.sites[site].data.data_profile for site in ("east", "north")}
    contents = load_chosen(game).contents
    assert contents.data_profile == data_profiles["east"] != data_profiles["east"] | data_profiles["north"]
    assert "validation" not in contents.facts and contents.facts["candidate"] == "local"
    # Its own rounds, those after the federation's too.
    own = game.server.parts["guard"].choices["east"]
    assert (contents.facts["rounds"], contents.facts["reported_round"]) == (own.local_rounds, own.local_best_round)


def test_an_empty_validation_case_chooses_no_threshold(make_study):
    cases = [f"c{number}" for number in range(7)]
    truth = np.zeros((7, 4, 8), np.uint8)
    truth[:6, :2] = 1
    probabilities = np.where(truth, 0.95, 0.05)
    # An eighth of each lesion is less sure, and the model sees something in the image without one.
    probabilities[:6, 1, :2] = 0.85
    probabilities[6, 0, 0] = 0.9

    class Site(baseline.SiteBaseline):
        def __init__(self):
            part = SimpleNamespace(cases=cases, targets=truth, annotated=None)
            self.work = SimpleNamespace(study=make_study(), data=SimpleNamespace(validation=part))

        def _yield_answers(self, name, part):
            yield part, probabilities[:, None].astype(np.float32)

    choice = Site()._choose(SimpleNamespace(unit_of=dict(zip(cases, cases, strict=True))))
    # A bias of -2.2 silences the seventh image and loses an eighth of the others: (6 * 28 / 30 + 1) / 7 = 0.94 of all
    # seven instead of 6 / 7.
    assert (choice.local_bias, choice.own, choice.num_units) == (0.0, 1.0, 6)


def test_a_class_is_scored_by_unit_without_a_bias(played, windows_to_choose_by, monkeypatch):
    training = {"loss": "cross_entropy", "batch_size": 4}
    settings = WINDOWS | {"rounds": 1, "training": training, "algorithm": {"name": "fedavg"}}
    found, choose = [], baseline.choose_kept
    monkeypatch.setattr(baseline, "choose_kept", lambda *scores: found.append(scores[0]) or choose(*scores))
    game = played(("ann", "bob", "eva"), study=parse(Study, settings, "study.yaml"), data=windows_to_choose_by)
    data, model = game.sites["ann"].data, SuperModel.load(game.folder("ann") / "supermodel", "cpu")
    part, (name,) = data.validation, model.contents.models
    wanted = model.probabilities(name, np.asarray(part.images))[np.arange(len(part)), np.asarray(part.targets)]
    by_case = {case: wanted[rows].mean() for case, rows in group_positions(part.cases).items()}
    # Two windows are a recording, in each part.
    unit_of, tested = (find_units_of(data, one).unit_of for one in PARTS)
    num_units, num_tested = (len({*one.values()}) for one in (unit_of, tested))
    assert num_units <= (len(unit_of) + 1) // 2 and found[0].shape == (1, num_units)
    np.testing.assert_allclose(found[0][0], average_by_unit(by_case, unit_of), rtol=1e-6)
    choices = game.server.parts["guard"].choices
    one = choices["ann"]
    assert (one.unit, one.num_units, one.num_test_units) == ("recording", num_units, num_tested)
    assert choices.keys() == {"ann", "bob", "eva"} and all(one.bias == one.local_bias == 0 for one in choices.values())


def test_a_run_takes_another_runs_local_model_unless_damaged(play, site_data):
    first, second, other = (
        play(baseline_comparison=True, folder=name, **options)
        for name, options in {
            "first": {"name": "fedavg", "seed": 77},
            "second": {"name": "fedbn", "seed": 77},
            "other": {"name": "fedbn", "seed": 77, "training": {"learning_rate": 0.02}},
        }.items()
    )
    for game in (first, second, other):
        game.finish()
    ours, theirs, others = (game.kept("east", 3)["guard"]["local"] for game in (first, second, other))
    assert [game.asked.count("guard_train") > 1 for game in (first, second, other)] == [True, False, True]
    assert others["rounds"] >= 3
    assert_alike(ours["best"]["state"], theirs["best"]["state"])
    assert_alike(ours["state"], theirs["state"])
    joined = [game.server.parts["guard"].choices["east"] for game in (first, second)]
    assert joined[0].test["local"] == joined[1].test["local"]
    assert joined[0].validation["local"] == joined[1].validation["local"]
    for path in site_data.glob(".cache/*/local-*.pt"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    anew = play(baseline_comparison=True, folder="damaged", seed=77)
    anew.finish()
    assert anew.asked.count("guard_train") > 1


@pytest.mark.parametrize("optimizer_state", ["kept", "fresh"])
def test_a_borrowed_local_model_learns_in_added_rounds(play, site_data, optimizer_state):
    options = {"baseline_comparison": True, "seed": 80, "training": {"optimizer_state": optimizer_state}}
    first, more, straight = (play(folder=name, **options | {"rounds": n}) for name, n in (("a", 2), ("b", 2), ("c", 4)))
    first.finish(), more.finish()
    assert more.asked.count("guard_train") == 1
    more.ask_for(4)
    more.round()
    more.finish()
    for path in site_data.glob(".cache/*/local-*.pt"):
        path.unlink()
    straight.finish()
    ours, theirs = (game.kept("east", 4)["guard"]["local"] for game in (more, straight))
    assert ours.keys() == theirs.keys() and ours["rounds"] == theirs["rounds"] >= 4
    assert_alike(ours["state"], theirs["state"])
    assert_alike(ours["best"]["state"], theirs["best"]["state"])
    assert ours["best"]["round"] == theirs["best"]["round"]
    assert more.server.parts["guard"].choices == straight.server.parts["guard"].choices


def test_a_local_model_that_missed_a_round_stays(play):
    absent, later = (
        play(baseline_comparison=True, folder=name, seed=78, federation={"max_missed_rounds": 1}) for name in "ab"
    )
    absent.round(absent=("west",))
    absent.finish(), later.finish()
    assert "values" not in later.kept("west", 1)["guard"]["local"]
    assert later.kept("east", 1)["guard"]["local"]["last"] >= 3


@pytest.mark.parametrize("options", [{"name": "fedavg"}, {"name": "fedsm", "model": {"normalization": "instance"}}])
@pytest.mark.parametrize("is_lost", [False, True], ids=["late", "lost"])
def test_a_late_local_model_begins_as_in_local_training(play, make_study, options, is_lost):
    given = options.get("model", {}) | {"weights": "weights.pt", "weights_sha256": "0" * 64}
    options = options | {"model": given, "federation": {"max_missed_rounds": 1}}
    guarded, alone = (make_study(**options | extra) for extra in ({"baseline_comparison": True}, {"name": "local"}))
    arrays = weights_of_a_file(guarded)
    games = [play(study=study, pretrained=arrays, folder=study.algorithm.name) for study in (guarded, alone)]
    for game in games:
        game.round(absent=() if is_lost else ("east",))
        if is_lost:
            shutil.rmtree(game.folder("east") / "rounds")
        game.rounds(2)
    for number in (2, 3):
        mine = games[0].kept("east", number)["guard"]["local"]["state"]
        home = games[1].kept("east", number)["models"]["home"]
        assert_alike({f"model/{key}": value for key, value in mine.items()}, home)
    # A site that has its local model is not sent the file again.
    sent = {site: message.of("guard") for site, message in games[0].sent["train"].items()}
    assert not any(sent.values())


def test_a_local_model_is_validated_once_trained(play, monkeypatch):
    values = iter((0.9, 0.1, 0.1))
    game = play(("east", "north"), baseline_comparison=True, federation={"max_missed_rounds": 1})
    monkeypatch.setattr(local_model, "evaluate", lambda *_: (None, Score.of({"a": next(values)})))
    game.round(absent=("north",))
    game.rounds(2, absent=("east",))
    # One round of its own has been validated.
    assert game.kept("north", 3)["guard"]["local"]["best"]["round"] == 2
    assert list(values) == [0.1, 0.1]


def test_late_validation_data_need_the_files_weights(play, make_study):
    study = make_study(baseline_comparison=True, model={"weights": "weights.pt", "weights_sha256": "0" * 64})
    game = play(study=study, pretrained=weights_of_a_file(study))
    data = game.sites["east"].data
    game.sites["east"].__dict__["data"] = replace(data, validation=data.validation.select_rows([]))
    game.round()
    game.sites["east"].__dict__["data"] = data
    game.finish()
    assert game.server.parts["guard"].unchosen == {"east": "it has trained no model alone"}


def test_the_result_says_why_a_site_made_no_choice(play):
    game = play(baseline_comparison=True)
    part = game.sites["north"].data
    game.sites["north"].__dict__["data"] = replace(part, validation=part.validation.select_rows([]))

    def change(task, site, answer):
        return answer.failed("no memory") if (task, site) in {("test", "west"), ("guard_choose", "east")} else answer

    found = finished_results(game.server, game.finish(change=change))
    assert found.joining is None and "guard" not in game.kept("north", 3)
    reasons = {"east": "no memory", "north": "it has no validation data"}
    assert game.server.ledger[-1].notes[-2:] == [
        f"site {site!r} made no choice: {why}" for site, why in reasons.items()
    ]


def test_a_site_that_misses_the_test_makes_no_choice(played):
    game = played(baseline_comparison=True, rounds=2)
    assert game.server.parts["guard"].choices.keys() == set(SITES)
    game.ask_for(4)

    def change(task, site, answer):
        return answer.failed("no memory") if (task, site) == ("test", "west") else answer

    game.finish(change=change)
    assert game.server.parts["guard"].choices.keys() == {"east", "north"}
    assert game.sent["guard_choose"].keys() == {"east", "north"}


def test_only_the_choice_leaves_through_the_gate(played):
    game = played(baseline_comparison=True)
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


@pytest.mark.parametrize(("shape", "bias"), [((2, 1, 9, 7), 0.7), ((1, 4, 9, 7, 5), 0.7), ((3, 2), 0.0)])
def test_the_labels_of_a_model_are_the_same_in_pieces(monkeypatch, shape, bias):
    found = np.random.default_rng(0).random(shape, np.float32)
    if shape[1] == 1:
        wanted = np.log(found / (1 - found))[:, 0] + bias > 0
    else:
        foreground = found[:, 1:]
        is_found = np.log(foreground.max(axis=1) / found[:, 0]) + bias > 0
        wanted = np.where(is_found, foreground.argmax(axis=1) + 1, 0)
    monkeypatch.setattr(grid_scores, "PIECE", 10)
    np.testing.assert_array_equal(baseline._decide(found, bias), wanted)


def test_a_hospital_without_any_label_has_false_alarms_and_no_difference(played, site_data, tmp_path):
    data = shutil.copytree(site_data, tmp_path / "healthy", ignore=shutil.ignore_patterns(".*"))
    for path in (data / "north").rglob("*.npz"):
        with np.load(path) as arrays:
            content = dict(arrays.items())
        content["labels"] = np.zeros_like(content["labels"])
        np.savez(path, **content)
    game = played(("east", "north"), baseline_comparison=True, name="fedavg", data=data)
    joined = game.server.parts["guard"].choices["north"]
    assert (joined.num_test_units, joined.num_units, joined.difference, joined.by_unit) == (0, 0, None, None)
    assert all(value in (None, 0) for value in joined.test.values())
