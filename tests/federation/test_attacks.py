"""What one hospital of three can do to a study, and what the ledger says of it."""

import numpy as np
import pytest

from silofl.algorithms.harmofl.amplitude import MEAN
from silofl.parts.task import Message

from ..conftest import write_site

pytestmark = pytest.mark.long

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


@pytest.mark.parametrize("algorithm", ["harmofl", "scaffold"])
def test_reversed_heavy_update_is_named_and_no_honest_site(play, algorithm):
    training = {"optimizer": "sgd", "momentum": 0} if algorithm == "scaffold" else {}
    game = play(name=algorithm, training=training, rounds=4)
    # The others have 5 and 4 examples, 4.5 in the median: ten times that.
    record = game.round(change=scaled(-3, is_update, num_examples=45))
    assert record.failed == {} and record.outliers.keys() == {ATTACKER}
    assert record.outliers[ATTACKER]["cosine"] < -0.1
    assert any("'west' sent an update that points away from the mean of the others'" in note for note in record.notes)
    if game.study.recipe.counts_examples:
        assert record.outliers[ATTACKER]["examples"] == 10
        assert any("'west' says that it has 10 times as many training examples" in note for note in record.notes)


def test_long_update_is_named_below_the_refusing_bound(play):
    record = play().round(change=scaled(20))
    assert record.failed == {} and record.outliers.keys() == {ATTACKER}
    assert 3 < record.outliers[ATTACKER]["length"] < 100


def test_honest_sites_are_not_named(play):
    game = play(rounds=2)
    game.rounds(2)
    assert [record.outliers for record in game.server.ledger] == [None, None]


def test_tenfold_amplitude_is_left_out_of_the_mean(play):
    game = play(name="harmofl")
    record = game.round(change=scaled(10, is_amplitude))
    honest = [game.answers["train"][site].arrays[MEAN] for site in ("east", "north")]
    np.testing.assert_allclose(game.server.parts["amplitude"].amplitude, np.mean(honest, axis=0), rtol=1e-6)
    assert any("the amplitude of site 'west' is left out of the mean: it is" in note for note in record.notes)
    # Its update counts, and it goes on with the others' mean.
    assert record.answered == ["east", "north", ATTACKER] and record.failed == {}
    game.round()
    assert MEAN in game.sent["train"][ATTACKER].arrays and game.server.ledger[1].outliers is None


@pytest.fixture(scope="module")
def five_sites(tmp_path_factory):
    root = tmp_path_factory.mktemp("five")
    for seed, name in enumerate(FIVE):
        write_site(root / name, seed, {"training": 4, "validation": 2, "test": 2})
    return root


def flatten(arrays):
    return np.concatenate([np.ravel(array) for name, array in arrays.items() if is_free(name)])


@pytest.fixture
def five(play, five_sites):
    """Begin a study of five sites by its rule, in a folder of its own."""

    def begin(folder="attacked", robust=None, **options):
        options = {"federation": {"min_sites": 5}} | ({"robust": robust} if robust else {}) | options
        return play(FIVE, f"{folder} {robust}", data=five_sites, **options)

    return begin


@pytest.mark.parametrize(
    ("algorithm", "rules"),
    [("fedavg", RULES), ("ditto", ("clipped",))],
)
def test_attack_on_the_mean_does_not_turn_robust_model(five, algorithm, rules):
    attack = scaled(-10, is_update)

    def learnt(rule=None, change=attack):
        game = five("attacked" if change else "honest", rule, name=algorithm, rounds=4)
        before = flatten(game.models("east"))
        game.round(change=change)
        return flatten(game.models("east")) - before

    def cosine(update):
        return update @ honest / np.linalg.norm(update) / np.linalg.norm(honest)

    honest = learnt(change=None)
    assert cosine(learnt()) < 0
    for rule in rules:
        assert cosine(learnt(rule)) > 0.5, rule


def test_the_ledger_names_whom_multi_krum_leaves_out(five):
    record = five(robust="multi_krum").round(change=scaled(-10))
    assert record.outliers[ATTACKER]["distance"] > 3
    assert any("multi_krum leaves it out" in note for note in record.notes)


@pytest.fixture
def reach(five):
    """Return how far something gets after an honest start: honestly, in an attack, and in one that is clipped."""

    def find(read, attack, start=0, count=1, **options):
        lengths = []
        for change, robust in ((None, None), (attack, None), (attack, "clipped")):
            game = five("attacked" if change else "honest", robust, **options)
            if start:
                game.rounds(start)
            before = flatten(read(game))
            game.rounds(count, change=change)
            lengths.append(np.linalg.norm(flatten(read(game)) - before))
        return lengths

    return find


# A selector beside models of which each site has its own.
SELECTED = {"parts": ["fedsm"], "model": {"normalization": "instance"}}
# What travels beside the model: the selector's constants, its kind of moments that the server keeps, and the task.
BESIDE = {
    "its further steps": ({"steps": 2}, "mean", "selector"),
    "its moments": ({"learning": "moments"}, "square", "train"),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_the_selector_is_bounded_with_the_rule_and_without_it(reach, beside):
    constants, moments, task = BESIDE[beside]
    options = SELECTED | {"name": "ditto", "parts": ["ditto", "fedsm"], "selector": constants}
    attack = scaled(50, lambda name: name.startswith("selector/"), [task])
    honest, attacked, clipped = reach(
        lambda game: getattr(game.server.parts["selector"].adam, moments), attack, **options
    )
    # An update that is 50 times as long would reach more than 10 times as far.
    assert attacked < 4 * honest and clipped < 2 * honest


def test_robust_rule_bounds_the_amplitude_too(five):
    def found(folder, change=None, **robust):
        game = five(folder, name="harmofl", preset="paper", training={"batch_size": 4}, **robust)
        game.round(change=change)
        return game.server.parts["amplitude"].amplitude

    attack, honest = scaled(50, is_amplitude), found("honest")
    clipped = found("clipped", attack, robust="clipped")
    assert np.linalg.norm(found("attacked", attack)) > 4 * np.linalg.norm(honest)
    assert np.linalg.norm(clipped) < 2 * np.linalg.norm(honest)
    # All amplitudes count alike.
    few = scaled(50, is_amplitude, num_examples=1, num_patients=1)
    np.testing.assert_array_equal(found("few", few, robust="clipped"), clipped)


@pytest.mark.parametrize("rule", [None, "clipped", "multi_krum"])
def test_a_rule_bounds_scaffolds_control_in_all_rounds(five, rule):
    game = five(robust=rule, name="scaffold", training={"optimizer": "sgd", "momentum": 0}, rounds=6)
    lengths = []
    for _ in range(3):
        # It sends the same change in every round, which would add up.
        game.round(change=scaled(50, lambda name: name.startswith("control/")))
        lengths.append(np.linalg.norm(flatten(game.server.parts["control"].control)))
    own = game.server.parts["control"].own
    honest = max(np.linalg.norm(flatten(own[site])) for site in FIVE if site != ATTACKER)
    assert (max(lengths) < 2 * honest) == (rule is not None)


@pytest.mark.parametrize("algorithm", ["softpull", "adafed"])
def test_little_listened_site_moves_no_own_model_far(reach, algorithm):
    options = {"name": algorithm, "model": {"normalization": "batch"}, "rounds": 4}
    options |= {"federation": {"min_sites": 5, "max_update_ratio": None}}
    honest, attacked, clipped = reach(lambda game: game.models("east"), scaled(50), count=2, **options)
    assert attacked > 2 * honest and clipped < 1.5 * honest


def test_copied_statistics_do_not_become_all_listened_to(five):
    def listened(robust):
        game = five(robust=robust, name="adafed", model={"normalization": "batch"}, rounds=4)
        known = {}

        def copy(task, site, answer):
            # FIVE is the order in which sites answer.
            if task == "statistics":
                known[site] = answer
                return known["east"] if site == ATTACKER else answer
            return answer

        game.rounds(3, change=copy)
        return game.server.parts["statistics"].history[-1]["weights"][FIVE.index("east")]

    plain, robust = listened(None), listened("clipped")
    # lambda is one half
    assert plain[FIVE.index(ATTACKER)] == pytest.approx(0.5)
    assert robust[FIVE.index(ATTACKER)] < 0.35 and min(robust) > 0
