from contextlib import nullcontext

import numpy as np
import pytest
import torch

from silofl.base.files import load_tensors
from silofl.core.array_file import keep_in_files
from silofl.models import build_plain_model, networks
from silofl.models.names import batchnorm_names
from silofl.parts.load import list_outbound_payloads
from silofl.parts.model import mix_models
from silofl.parts.task import TRAIN, Exchange, Message
from silofl.parts.tensors import to_tensors

from ..conftest import UNET, assert_alike
from .conftest import SITES, lose_state, weights_of_a_file

pytestmark = pytest.mark.long

INSTANCE = {"normalization": "instance"}
NAME = "model/network.model.2.conv.weight"


# --- mixing


def test_a_withheld_array_is_mixed_over_the_others(play):
    game = play(sites=("east", "west"))
    start = game.models("east")
    name, other = list(start)[:2]

    def withhold(task, site, answer):
        withheld = {NAME, name} if site == "west" else {NAME}
        return Message({key: one for key, one in answer.arrays.items() if key not in withheld}, answer.meta)

    record = game.round(change=withhold)
    assert record.answered == ["east", "west"] and record.notes == [
        f"site 'east' keeps back 1 arrays by its policy: {NAME}",
        f"site 'west' keeps back 2 arrays by its policy: {', '.join(sorted([NAME, name]))}",
    ]
    east, west = (game.answers["train"][site].arrays for site in ("east", "west"))
    np.testing.assert_array_equal(game.models("west")[NAME], start[NAME])
    np.testing.assert_array_equal(game.models("west")[name], start[name] + east[name])
    mixed = start[other] + (5 * east[other] + 3 * west[other]) / 8
    np.testing.assert_allclose(game.models("west")[other], mixed, rtol=1e-5, atol=1e-7)


def test_each_array_is_mixed_over_the_sites_that_sent_it():
    started = {site: {"w": np.zeros(1), "b": np.full(1, 8.0)} for site in "abc"}
    changes = {"a": {"w": np.array([1.0]), "b": np.array([-6.0])}, "b": {"w": np.array([5.0])}, "c": {}}
    weights = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
    mixed = mix_models(started, changes, weights)
    # w by a and b: (0.5 * 1 + 0.25 * 5) / 0.75, (0.25 * 1 + 0.5 * 5) / 0.75; c listens to neither and keeps its own
    np.testing.assert_allclose([mixed[site]["w"][0] for site in "abc"], [1.75 / 0.75, 2.75 / 0.75, 0])
    # b by a alone
    np.testing.assert_allclose([mixed[site]["b"][0] for site in "abc"], [2, 2, 8])


@pytest.mark.parametrize(
    "options",
    [
        {"name": "softpull", "server_lr": 0.5},
        {"name": "scaffold", "training": {"optimizer": "sgd", "momentum": 0.0}},
        {"name": "fedavg", "federation": {"precision": "float16"}},
    ],
    ids=["softpull", "scaffold", "float16"],
)
def test_arrays_in_files_give_the_weights_of_those_in_memory(play, tmp_path, options):
    models = []
    for folder, keep in (("memory", nullcontext()), ("files", keep_in_files(tmp_path))):
        game = play(folder=folder, rounds=2, **options)
        with keep:
            game.round()
            game.round()
            models.append({site: {name: array.copy() for name, array in game.models(site).items()} for site in SITES})
    for site in SITES:
        assert_alike(*(found[site] for found in models))


# --- BatchNorm that sites' filters take out


def excluding(*sites):
    """Return a change by which sites' filters take BatchNorm out of every answer."""

    def change(task, site, answer):
        if site not in sites:
            return answer
        return Message({name: array for name, array in answer.arrays.items() if ".adn.N." not in name}, answer.meta)

    return change


EVERYONE = excluding(*SITES)


def homes(game, number):
    """Return BatchNorm's arrays that each site keeps at home after a round."""
    kept = {site: game.kept(site, number)["models"]["home"] for site in game.sites}
    return {f"{site} {n}": array for site, home in kept.items() for n, array in home.items() if ".adn.N." in n}


def test_fedavg_without_anybodys_batchnorm_is_fedbn(play):
    ours, fedbn = play(), play(folder="fedbn", name="fedbn")
    ours.rounds(1, change=EVERYONE)
    ours.resume()
    ours.rounds(2, change=EVERYONE)
    fedbn.rounds(3)
    assert_alike({name: ours.models("east")[name] for name in fedbn.models("east")}, fedbn.models("east"))
    assert_alike(homes(ours, 3), homes(fedbn, 3))
    assert [one.validated for one in ours.server.ledger] == [one.validated for one in fedbn.server.ledger]
    # From the second round on it travels no more, either way.
    assert ours.sent["train"]["east"].arrays.keys() == fedbn.sent["train"]["east"].arrays.keys()
    said = "BatchNorm excluded at east, north, west: each site goes on with its own from here on, as in FedBN"
    assert [one.notes[-1:] for one in ours.server.ledger] == [[said], [], []] and ours.warnings[-1] == said
    assert ours.server.find_recipe_in_use().stays == "batchnorm" != ours.study.recipe.stays
    tests = [game.finish(change=EVERYONE).scores for game in (ours, fedbn)]
    assert tests[0] == tests[1]
    # There is no model for everybody, and the sites have whole ones.
    part = ours.server.parts["model"]
    assert part.outcome(ours.server, {}).make_contents() is None
    assert not [name for name in part.outcome(ours.server, {}).models[""] if ".adn.N." in name]
    model = load_tensors(ours.folder("east") / "supermodel" / "weights" / "east.pt")
    norm = next(name for name in model if ".adn.N." in name)
    own = ours.kept("east", ours.server.reported.round)["models"]["home"][f"model/{norm}"]
    np.testing.assert_array_equal(model[norm].numpy(), own.numpy())


def test_batchnorm_that_some_exclude_is_the_others_mean(play):
    game = play()
    start = game.models("east")
    record = game.round(change=excluding("north"))
    name = next(name for name in start if ".adn.N." in name)
    sent = {site: answer.arrays.get(name) for site, answer in game.answers["train"].items()}
    # 5 training images at east and 3 at west; north has none of a say
    expected = start[name] + (5 * sent["east"] + 3 * sent["west"]) / 8
    np.testing.assert_allclose(game.models("north")[name], expected, rtol=1e-5, atol=1e-7)
    assert game.server.find_recipe_in_use().stays == "nothing" and not record.outliers
    kept_back, excluded = record.notes
    assert kept_back.startswith("site 'north' keeps back 8 arrays by its policy: ")
    assert excluded == "BatchNorm excluded at north: what some sites still send is mixed over these"
    game.round(change=excluding("north"))
    assert name in game.sent["train"]["north"].arrays and game.server.ledger[-1].notes == []


# --- what stays at home


def test_what_stays_home_goes_on_from_what_was_kept(play):
    game = play(name="fedbn")
    game.rounds(2)
    sent = game.answers["train"]["east"].arrays
    assert sent and not [name for name in sent if ".adn.N." in name]
    home, received = game.kept("east", 1)["models"]["home"], game.sent["train"]["east"].of("model")
    # A step of training away from both: BatchNorm's counter has gone on, and nothing of the shared model is kept.
    counter = next(name for name in home if name.endswith("num_batches_tracked"))
    assert game.kept("east", 2)["models"]["home"][counter] == 2 * home[counter] > 0
    assert not {f"model/{name}" for name in received} & home.keys()


# --- own models


@pytest.mark.parametrize(("self_weight", "others", "is_noted"), [(0.2, 0.4, True), (0.4, 0.3, False)])
def test_lambda_below_one_over_k_holds_with_a_note(play, self_weight, others, is_noted):
    game = play(name="softpull", softpull={"self_weight": self_weight})
    first = game.round()
    assert first.weights["east"] == pytest.approx({"east": self_weight, "north": others, "west": others})
    assert len(first.notes) == is_noted and first.notes == game.warnings
    assert not is_noted or "softpull.self_weight 0.2 is below 1/3" in first.notes[0]
    # At least 1 over the sites that answered.
    second = game.round(absent=("north",))
    assert second.weights["east"] == {"east": 0.5, "west": 0.5} and second.notes == []


def test_an_absent_site_keeps_its_own_model(play):
    game = play(name="softpull")
    game.round()
    before = game.models("north")
    record = game.round(absent=("north",))
    assert_alike(game.models("north"), before)
    # 0.7 of the own model, 0.3 of the only other site that answered
    assert record.weights["east"] == pytest.approx({"east": 0.7, "west": 0.3})
    assert_alike(game.upcoming("train")["north"].arrays, before)


def test_a_model_nobody_else_changed_does_not_travel_back(play):
    game = play(name="softpull", softpull={"self_weight": 1.0})
    game.round()
    assert game.sent["train"]["east"].arrays
    task = game.upcoming("train")["east"]
    assert task.arrays == {} and task.meta["held"] == 1
    assert game.round().answered == ["east", "north", "west"]


def test_a_site_that_lost_its_model_gets_it_back(play):
    game = play(name="softpull", softpull={"self_weight": 1.0})
    game.round()
    before = game.models("east")
    lose_state(game, "east")
    record = game.round()
    assert game.asked == ["train", "train", "train"] and game.sent["train"].keys() == {"east"}
    assert_alike(game.sent["train"]["east"].arrays, before)
    assert record.answered == ["east", "north", "west"] and record.failed == {}
    assert game.upcoming("train")["east"].arrays == {}


def test_a_late_site_gets_the_mean_of_the_others_models(play):
    game = play(name="softpull", sites=("east", "west"))
    game.round()
    east, west = game.models("east"), game.models("west")
    game.server.join("north")
    np.testing.assert_allclose(game.models("north")[NAME], (east[NAME] + west[NAME]) / 2, rtol=1e-6)
    assert list(game.server.parts["model"].own) == ["east", "north", "west"]
    assert_alike(game.models("east"), east)


def test_fine_tuning_goes_on_alone_from_the_shared_model(play):
    game = play(name="finetuning", rounds=1, extra_rounds=2)
    game.round()
    assert_alike(game.models("east"), game.models("west"))
    record = game.round()
    assert record.weights["east"] == {"east": 1.0, "north": 0.0, "west": 0.0}
    assert not np.array_equal(game.models("east")[NAME], game.models("west")[NAME])
    # The shared model of round 1 had to travel; a site's own one stays where it is.
    assert game.sent["train"]["east"].arrays and game.upcoming("train")["east"].arrays == {}


# --- a network that has tensors under several names

DYNUNET = {
    "network": "monai.networks.nets.DynUNet",
    "arguments": {
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 16],
    },
    "normalization": "instance",
}


@pytest.mark.parametrize("name", ["fedavg", "softpull"])
def test_a_written_model_has_all_names(play, name):
    game = play(name=name, network=DYNUNET, rounds=2)
    game.rounds(2)
    model = build_plain_model(game.study, 0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert sum(array.size for array in game.answers["train"]["east"].arrays.values()) == parameters
    home = game.kept("east", 2)["models"]["home"]
    assert sum(value.numel() for value in home.values()) == (parameters if name == "softpull" else 0)
    for arrays in game.server.parts["model"].outcome(game.server, {}).models.values():
        assert arrays.keys() == model.state_dict().keys()
        model.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})


# --- from a pretrained model


def test_what_stays_home_of_a_pretrained_model_travels_once(play, make_study):
    study = make_study(rounds=3, name="fedbn", start_from_pretrained=True, seed=1)
    pretrained = weights_of_a_file(make_study(), 0.25)
    game = play(study=study, pretrained=pretrained)
    assert_alike(game.upcoming("train")["east"].of("model"), pretrained)
    game.round(absent=("north",))
    tasks, home = game.upcoming("train"), batchnorm_names(build_plain_model(study, 0)) & pretrained.keys()
    assert home and not home & tasks["east"].of("model").keys()
    # A site that has not trained yet still needs it, and one that has lost it needs it again.
    assert tasks["north"].of("model").keys() == pretrained.keys()
    lose_state(game, "east")
    game.round()
    task = game.sent["train"]["east"].of("model")
    assert task.keys() == pretrained.keys()
    assert_alike({name: task[name] for name in home}, {name: pretrained[name] for name in home})


# --- the test


@pytest.mark.parametrize(
    ("name", "rule", "models"),
    [("fedavg", "only", {"global"}), ("softpull", "mean", {"east", "north", "west"}), ("fedbn", None, None)],
)
def test_the_super_model_holds_one_model_all_or_none(played, name, rule, models):
    game = played(name=name, rounds=1)
    contents = game.server.parts["model"].outcome(game.server, {}).make_contents()
    if rule is None:
        assert contents is None
    else:
        assert contents.rule == rule and contents.models.keys() == models
        assert contents.facts["reported_round"] == 1


# --- the parts themselves


def test_kinds_tell_batchnorm_from_weights_for_each_role(make_study):
    found = {(kind.role, kind.name): kind for kind in list_outbound_payloads(make_study())}
    assert found.keys() == {("model", "weights"), ("model", "batchnorm"), ("usual", "usual_values")}
    assert found["model", "batchnorm"].names == batchnorm_names(build_plain_model(make_study(), 0))
    assert [kind.name for kind in found.values() if kind.is_of_images] == ["usual_values"]


def test_a_site_may_keep_back_any_array_of_its_update(play):
    server = play().server
    expected = server.payload_spec("east", Exchange(TRAIN, 1))
    assert expected.keys() == server.task("east", Exchange(TRAIN, 1)).arrays.keys()
    assert not any(one.is_required for one in expected.values())
    assert server.payload_spec("east", Exchange("validate", 1)) == {}


def test_the_optimisers_rate_falls_by_the_studys_rounds(play):
    game, rates = play(rounds=4, training={"schedule": "poly", "learning_rate": 0.1}), []
    for number in range(1, 5):
        game.round()
        rates.append(game.kept("east", number)["models"]["optimizer"]["model"]["param_groups"][0]["lr"])
    np.testing.assert_allclose(rates, [0.1, 0.1 * 0.75**0.9, 0.1 * 0.5**0.9, 0.1 * 0.25**0.9], rtol=1e-12)


# --- the optimisers' buffers


# --- frozen parameters

FROZEN = {"frozen": ["model.0.*"]}
SGD = {"optimizer": "sgd", "momentum": 0.0}
# Of the algorithms all that has a rule of its own for what travels, or for how a site steps.
RUNS = {
    "fedavg": {},
    "fedprox": {},
    "scaffold": {"training": SGD},
    "fedbn": {},
    "fedper": {},
    "harmofl": {},
    "adafed": {"rounds": 3},
    "softpull": {},
    "fedsm": {"selector": {"steps": 2}},
    "fedsm-collected": {"name": "fedsm", "mixing": "shared", "parts": ["fedsm", "ditto"], "selector": {"steps": 2}},
    "ditto": {},
    "moon": {"network": UNET, "training": SGD | {"frozen": ["conv_0.*"]}},
}
SOON = ("fedbn",)


def read_frozen(state):
    """Return the arrays of a model's state, with or without a role, that `FROZEN` keeps."""
    kept = tuple(f"network.{part}" for part in ("model.0.", "conv_0."))
    return {name: value for name, value in state.items() if name.rpartition("/")[2].startswith(kept)}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SOON else pytest.mark.slow) for name in RUNS])
def test_what_is_frozen_stays_and_is_in_every_written_model(play, make_study, name):
    options = {"name": name, "rounds": 2, "baseline_comparison": True} | RUNS[name]
    given = {"weights": "weights.pt", "weights_sha256": "0" * 64}
    training, model = (options.get(key, {}) for key in ("training", "model"))
    study = make_study(**options | {"training": FROZEN | training, "model": given | model})
    arrays = weights_of_a_file(study, 0.01)
    wanted, game = read_frozen(arrays), play(study=study, pretrained=arrays)
    game.round()
    # A site has nothing of the file before its first round.
    assert read_frozen(game.sent["train"]["east"].of(study.recipe.traveling_roles[0])).keys() == wanted.keys()
    game.round()
    for site in ("east", "west"):
        assert not read_frozen(game.sent["train"][site].arrays) and not read_frozen(game.answers["train"][site].arrays)
    game.finish()
    contents = next(
        (one for part in game.server.parts.values() if (one := part.outcome(game.server, {}).make_contents())), None
    )
    written = [*contents.models.values()] if contents else []
    for site in ("east", "west"):
        # The guard's own model is in `chosen`.
        for folder in ("supermodel", "chosen"):
            paths = (game.folder(site) / folder / "weights").glob("*.pt")
            written += [load_tensors(path) for path in paths if path.stem != "selector"]
    assert len(written) >= 2
    for model in written:
        for key, array in wanted.items():
            np.testing.assert_array_equal(model[key].numpy(), array, err_msg=key)


# --- from weights in a file

STARTS = {
    "shared": {"name": "fedavg"},
    "batchnorm at home": {"name": "fedbn"},
    "everything at home": {"name": "local"},
    "amplitude": {"name": "harmofl"},
    "own models": {"name": "softpull"},
    "a personal model": {"name": "ditto"},
    "fine-tuning": {"name": "finetuning", "extra_rounds": 1},
    "two models and a selector": {"name": "fedsm", "model": INSTANCE, "selector": {"steps": 2}},
}


# The longest; each is another answer of a part to the same question.
LONG = (
    "batchnorm at home",
    "everything at home",
    "own models",
    "a personal model",
    "fine-tuning",
    "two models and a selector",
)


@pytest.mark.parametrize(
    "options",
    [pytest.param(STARTS[name], id=name, marks=pytest.mark.slow if name in LONG else ()) for name in STARTS],
)
def test_a_files_weights_start_every_model(play, make_study, monkeypatch, options, site_data):
    # A run may take another's local model; one from a file takes none.
    for path in site_data.glob(".cache/*/local-*.pt"):
        path.unlink()
    given = {"weights": "weights.pt", "weights_sha256": "0" * 64}
    study = make_study(baseline_comparison=True, **options | {"rounds": 2, "model": options.get("model", {}) | given})
    arrays = weights_of_a_file(study)
    from_file, build = play(study=study, folder="file", pretrained=arrays), networks._build_network
    from_file.finish()
    # The oracle draws the numbers in the file wherever a network is built, and reads none.
    monkeypatch.setattr(networks, "_build_network", lambda study, seed: build(study, 7))
    drawn = play(baseline_comparison=True, folder="drawn", **options | {"rounds": 2})
    drawn.finish()
    assert drawn.study.model.weights is None and drawn.study.seed == study.seed == 0
    for site in SITES:
        assert_alike(from_file.models(site), drawn.models(site))
        left, right = (game.kept(site, study.total_rounds) for game in (from_file, drawn))
        assert_alike(left["models"]["home"], right["models"]["home"])
        if study.compares_with_baseline:
            assert_alike(left["guard"]["local"]["state"], right["guard"]["local"]["state"])


def test_arrays_keep_their_shapes_as_tensors():
    arrays = {"one number": np.array(True), "turned": np.arange(6.0).reshape(2, 3).T, "none": np.zeros((0, 2))}
    for name, tensor in to_tensors(arrays).items():
        assert tuple(tensor.shape) == arrays[name].shape
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])
