"""What one hospital of three can do to a study, and what the ledger says of it."""

import numpy as np
import pytest

from silofl.algorithms.harmofl.amplitude import MEAN
from silofl.parts.task import Message

from ..conftest import write_site

ATTACKER = "west"
FIVE = ("coast", "east", "north", "south", ATTACKER)
RULES = ("median", "trimmed_mean", "clipped", "multi_krum")


def is_free(name):
    """Return whether an array may be scaled; of a variance that fell below 0 the answer would be refused."""
    return not name.endswith("running_var")


def scaled(factor, of=is_free, tasks=("train",), **meta):
    """Return an attack that sends a multiple of its honest arrays, and says something else of itself."""

    def attack(task, site, answer):
        if site != ATTACKER or task not in tasks:
            return answer
        arrays = {name: factor * array if of(name) else array for name, array in answer.arrays.items()}
        return Message(arrays, answer.meta | meta)

    return attack


def is_amplitude(name):
    return name == MEAN


def is_update(name):
    return is_free(name) and name != MEAN


@pytest.mark.parametrize("algorithm", ["fedavg", "harmofl", "adafed", "scaffold", "fedsm"])
def test_an_update_turned_round_with_ten_times_the_examples_is_named_and_no_honest_site(play, algorithm):
    training = {"optimizer": "sgd", "momentum": 0} if algorithm == "scaffold" else {}
    game = play(name=algorithm, training=training, rounds=4)
    # The others have 5 and 4 examples, 4.5 in the median: ten times that.
    record = game.round(change=scaled(-3, is_update, num_examples=45))
    assert record.refused == {} and record.unlike.keys() == {ATTACKER}
    assert record.unlike[ATTACKER]["cosine"] < -0.1
    assert any("'west' sent an update that points away from the mean of the others'" in note for note in record.notes)
    if game.study.recipe.counts_examples:
        assert record.unlike[ATTACKER]["examples"] == 10
        assert any("'west' says that it has 10 times as many training examples" in note for note in record.notes)


def test_a_flipped_sign_is_named(play):
    game = play()
    records = [game.round(change=scaled(-1)) for _ in range(2)]
    assert [record.unlike.keys() for record in records] == [{ATTACKER}] * 2
    assert all(record.unlike[ATTACKER]["cosine"] < 0 for record in records)
    # The sentence stands once, the number in every round.
    assert len(records[0].notes) == 1 and records[1].notes == [] and game.warnings == records[0].notes


def test_parameters_turned_round_behind_honest_statistics_are_named(play):
    game = play(model={"normalization": "batch"})
    record = game.round(change=scaled(-1, lambda name: "running" not in name))
    assert record.unlike.keys() == {ATTACKER} and record.unlike[ATTACKER]["cosine"] < 0


def test_a_long_update_is_named_below_the_bound_that_refuses_it(play):
    record = play().round(change=scaled(20))
    assert record.refused == {} and record.unlike.keys() == {ATTACKER}
    assert 3 < record.unlike[ATTACKER]["length"] < 100


def test_patients_that_cannot_be_are_refused(play):
    record = play().round(change=scaled(1, num_patients=10**7))
    assert record.refused.keys() == {ATTACKER}
    assert "patients in training as examples, 3, not 10000000" in record.refused[ATTACKER]


def test_honest_sites_are_not_named(play):
    game = play(rounds=2)
    game.finish()
    assert [record.unlike for record in game.server.ledger] == [None, None]


def test_two_sites_are_not_compared(play):
    record = play(("east", ATTACKER)).round(change=scaled(-3, num_examples=45))
    assert record.unlike is None and record.refused == {}


def test_extra_rounds_in_which_nobody_listens_compare_nothing(play):
    game = play(name="finetuning", extra_rounds=1, rounds=1)
    game.round()
    assert game.round(change=scaled(-3)).unlike is None


TUNED = {
    "name": "finetuning",
    "parts": ["fedsm"],
    "rounds": 1,
    "extra_rounds": 1,
    "model": {"normalization": "instance"},
}


def test_extra_rounds_compare_the_global_model_that_goes_on_in_them(play):
    game = play(**TUNED)
    unlike = game.rounds(2, change=scaled(-3, num_examples=45)).unlike
    assert unlike.keys() == {ATTACKER} and unlike[ATTACKER].keys() >= {"cosine", "examples"}
    endless = play(folder="endless", **TUNED)
    endless.round()
    assert endless.round(change=scaled(1e4)).refused.keys() == {ATTACKER}


def test_a_site_that_joins_late_is_compared_as_the_others_are(play):
    game, late = play(sites=("east", "north"), rounds=4), play(sites=(ATTACKER,), folder="late", rounds=4)
    game.round()
    game.server.join(ATTACKER)
    game.sites[ATTACKER] = late.sites[ATTACKER]
    assert game.round(change=scaled(-1)).unlike[ATTACKER]["cosine"] < 0


def test_an_amplitude_times_ten_is_left_out_before_the_mean_is_fixed_and_named(play):
    game = play(name="harmofl")
    record = game.round(change=scaled(10, is_amplitude))
    honest = [game.answers["train"][site].arrays[MEAN] for site in ("east", "north")]
    np.testing.assert_allclose(game.server.parts["amplitude"].amplitude, np.mean(honest, axis=0), rtol=1e-6)
    assert record.unlike.keys() == {ATTACKER} and record.unlike[ATTACKER]["amplitude"] > 3
    assert any("the amplitude of site 'west' is left out of the mean: it is" in note for note in record.notes)
    # Its update counts, and it goes on with the others' mean.
    assert record.answered == ["east", "north", ATTACKER] and record.refused == {}
    game.round()
    assert MEAN in game.sent["train"][ATTACKER].arrays and game.server.ledger[1].unlike is None


def test_a_tenth_of_an_amplitude_is_left_out_too(play):
    game = play(name="harmofl")
    record = game.round(change=scaled(0.05, is_amplitude))
    assert record.unlike.keys() == {ATTACKER} and record.unlike[ATTACKER]["amplitude"] < 1 / 3
    assert any("times the smallest of the other sites'" in note for note in record.notes)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_the_published_presets_keep_the_published_mean_and_the_ledger_names_the_site(play, preset):
    game = play(name="harmofl", preset=preset)
    record = game.round(change=scaled(10, is_amplitude))
    amplitudes = [answer.arrays[MEAN] for answer in game.answers["train"].values()]
    np.testing.assert_allclose(game.server.parts["amplitude"].amplitude, np.mean(amplitudes, axis=0), rtol=1e-6)
    assert record.unlike.keys() == {ATTACKER} and record.unlike[ATTACKER]["amplitude"] > 3
    assert any("'west' sent its amplitude that is" in note for note in record.notes)
    assert not any("left out" in note for note in record.notes)


def test_of_two_amplitudes_nobody_knows_which_is_odd(play):
    game = play(("east", ATTACKER), name="harmofl")
    record = game.round(change=scaled(10, is_amplitude))
    assert record.unlike is None and record.notes == []


@pytest.fixture(scope="module")
def five_sites(tmp_path_factory):
    root = tmp_path_factory.mktemp("five")
    for seed, name in enumerate(FIVE):
        write_site(root / name, seed, {"training": 4, "validation": 2, "test": 2})
    return root


@pytest.fixture
def learn(play, five_sites):
    """Return the direction in which two rounds move the shared model of five sites, with an attack or without it."""

    def start(change=None, algorithm="fedavg", **recipe):
        folder = "-".join([algorithm, *recipe.values(), "attacked" if change else "honest"])
        options = {"name": algorithm, "federation": {"min_sites": 5}, "rounds": 4, **recipe}
        game = play(FIVE, folder, data=five_sites, **options)
        before = game.models("east")
        game.rounds(2, change=change)
        return np.concatenate(
            [(array - before[name]).ravel() for name, array in game.models("east").items() if is_free(name)]
        )

    return start


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.mark.parametrize(
    ("algorithm", "rules"),
    [("fedavg", RULES), *((name, ("clipped",)) for name in ("fedopt", "harmofl", "feddyn", "fedbn", "ditto"))],
)
def test_an_attack_that_turns_the_mean_round_does_not_turn_the_robust_model(learn, algorithm, rules):
    attack = scaled(-10, is_update)
    honest = learn(algorithm=algorithm)
    assert cosine(learn(attack, algorithm), honest) < 0
    for rule in rules:
        assert cosine(learn(attack, algorithm, robust=rule), honest) > 0.5, rule


def test_the_rule_bounds_the_global_model_in_extra_rounds_too(play, five_sites):
    def moved(change=None, **robust):
        folder = "-".join(["attacked" if change else "honest", *robust.values()])
        game = play(FIVE, folder, data=five_sites, federation={"min_sites": 5}, **TUNED, **robust)
        game.round()
        before = game.models("east")
        game.round(change=change)
        return np.linalg.norm(flatten(game.models("east")) - flatten(before))

    attack = scaled(50, lambda name: name.startswith("global/"))
    assert moved(attack) > 4 * moved()
    assert moved(attack, robust="clipped") < 2 * moved(robust="clipped")


def test_the_ledger_names_whom_multi_krum_leaves_out(play, five_sites):
    game = play(FIVE, data=five_sites, robust="multi_krum", federation={"min_sites": 5})
    record = game.round(change=scaled(-10))
    assert record.unlike[ATTACKER]["distance"] > 3
    assert any("multi_krum leaves it out" in note for note in record.notes)


def flatten(arrays):
    return np.concatenate([np.ravel(array) for array in arrays.values()])


SGD = {"optimizer": "sgd", "momentum": 0}
SELECTED = {"name": "ditto", "parts": ["ditto", "fedsm"], "model": {"normalization": "instance"}}
# What travels beside the model: the study, whose role it is, what became of it at the server, and in which tasks.
BESIDE = {
    "selector": (SELECTED, "selector", lambda part: part.adam.mean, ["train"]),
    "its further steps": (SELECTED | {"selector": {"steps": 2}}, "selector", lambda part: part.adam.mean, ["selector"]),
    "its moments": (
        SELECTED | {"selector": {"learning": "moments"}},
        "selector",
        lambda part: part.adam.square,
        ["train"],
    ),
    "control": ({"name": "scaffold", "training": SGD}, "control", lambda part: part.control, ["train"]),
    "amplitude": (
        {"name": "harmofl", "preset": "paper"},
        "amplitude",
        lambda part: {"mean": part.amplitude},
        ["train"],
    ),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_the_rule_bounds_what_travels_beside_the_model_too(play, five_sites, beside):
    options, role, read, tasks = BESIDE[beside]

    def found(change=None, **robust):
        folder = "-".join(["attacked" if change else "honest", *robust.values()])
        game = play(FIVE, folder, data=five_sites, federation={"min_sites": 5}, **options, **robust)
        game.rounds(2, change=change)
        return flatten(read(game.server.parts[role]))

    attack = scaled(50, lambda name: name.startswith(f"{role}/"), tasks)
    honest = np.linalg.norm(found())
    assert np.linalg.norm(found(attack)) > 4 * honest
    assert np.linalg.norm(found(attack, robust="clipped")) < 2 * honest


def test_a_site_that_says_it_has_one_example_moves_the_amplitude_no_further(play, five_sites):
    def found(folder, **claims):
        options = {"name": "harmofl", "preset": "paper", "robust": "clipped", "federation": {"min_sites": 5}}
        game = play(FIVE, folder, data=five_sites, training={"batch_size": 4}, **options)
        game.round(change=scaled(50, is_amplitude, **claims))
        return game.server.parts["amplitude"].amplitude

    # All amplitudes count alike.
    np.testing.assert_array_equal(found("few", num_examples=1, num_patients=1), found("all"))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_bounds_scaffolds_control_in_all_rounds(play, five_sites, rule):
    game = play(
        FIVE, data=five_sites, federation={"min_sites": 5}, name="scaffold", training=SGD, rounds=6, robust=rule
    )
    lengths = []
    for _ in range(4):
        # It sends the same change in every round, which would add up.
        game.round(change=scaled(50, lambda name: name.startswith("control/")))
        lengths.append(np.linalg.norm(flatten(game.server.parts["control"].control)))
    own = game.server.parts["control"].own
    assert max(lengths) < 2 * max(np.linalg.norm(flatten(own[site])) for site in FIVE if site != ATTACKER)


@pytest.mark.parametrize("algorithm", ["softpull", "adafed"])
def test_a_site_that_all_listen_to_a_little_moves_nobodys_own_model_far(play, five_sites, algorithm):
    def moved(change=None, **robust):
        folder = "-".join(["attacked" if change else "honest", *robust.values()])
        options = {"name": algorithm, "model": {"normalization": "batch"}, "rounds": 4}
        federation = {"min_sites": 5, "max_update_ratio": None}
        game = play(FIVE, folder, data=five_sites, federation=federation, **options, **robust)
        before = game.models("east")
        game.rounds(3, change=change)
        return np.linalg.norm(
            [np.linalg.norm(array - before[name]) for name, array in game.models("east").items() if is_free(name)]
        )

    honest = moved()
    assert moved(scaled(50)) > 2 * honest
    assert moved(scaled(50), robust="clipped") < 1.5 * honest


def test_a_site_that_copies_anothers_statistics_does_not_become_all_that_it_listens_to(play, five_sites):
    def listened(**robust):
        folder = "-".join(["copied", *robust.values()])
        options = {"name": "adafed", "model": {"normalization": "batch"}, "rounds": 4, "federation": {"min_sites": 5}}
        game = play(FIVE, folder, data=five_sites, **options, **robust)
        known = {}

        def copy(task, site, answer):
            # FIVE is the order in which sites answer.
            if task == "statistics":
                known[site] = answer
                return known["east"] if site == ATTACKER else answer
            return answer

        game.rounds(3, change=copy)
        return game.server.parts["statistics"].history[-1]["weights"][FIVE.index("east")]

    plain, robust = listened(), listened(robust="clipped")
    # lambda is one half
    assert plain[FIVE.index(ATTACKER)] == pytest.approx(0.5)
    assert robust[FIVE.index(ATTACKER)] < 0.35 and min(robust) > 0


def test_a_site_with_its_own_model_goes_on_from_what_the_rule_left_of_it(play, five_sites):
    options = {"name": "softpull", "softpull": {"self_weight": 1}, "robust": "clipped", "federation": {"min_sites": 5}}
    game = play(FIVE, data=five_sites, **options)
    game.round(change=scaled(50))
    bounded = game.models(ATTACKER)
    game.round()
    sent = game.sent["train"][ATTACKER].arrays
    assert bounded.keys() <= sent.keys()
    for name, array in bounded.items():
        np.testing.assert_array_equal(sent[name], array)
