"""What is usual at the sites travels once, beside the test."""

from dataclasses import replace

import numpy as np
import pytest

from silofl.core.spread import Spread
from silofl.federation.egress import Gate
from silofl.inference.directory import read_model_folder
from silofl.inference.reference_statistics import FeatureSpread, ReferenceStatistics
from silofl.parts.reference_statistics import KIND, ROLE, pack_arrays, unpack_arrays
from silofl.parts.task import TEST

from ..conftest import UNET, write_site

NETWORK = UNET


@pytest.fixture(scope="module")
def site_data(tmp_path_factory):
    """Three sites with as many validation patients as the numbers need."""
    root = tmp_path_factory.mktemp("sites")
    for seed, name in enumerate(("east", "north", "west")):
        write_site(root / name, seed, {"training": 2, "validation": 3, "test": 2})
    return root


@pytest.fixture
def usual_of(play):
    """Carry out a run and return it with what its server knows to be usual."""

    def carry_out(change=None, **options):
        game = play(**options)
        game.finish(change=change)
        return game, game.server.parts[ROLE].found

    return carry_out


def test_the_server_completes_the_super_model(usual_of):
    game, found = usual_of(rounds=1)
    assert list(found) == ["east", "north", "west"]
    own = read_model_folder(game.folder("east") / "supermodel").reference_statistics
    # Pictures have no millilitres.
    assert list(own) == ["east"] and own["east"].roots_ml is None
    # Its own folder names its only model by the site, the server's one for all.
    np.testing.assert_allclose(own["east"].features["east"].mean, found["east"].features["own"].mean, rtol=1e-4)
    contents = game.server.parts["model"].outcome(game.server, {}).make_contents()
    completed = game.server.parts[ROLE].outcome(game.server, {}).complete(contents)
    assert [*completed.reference_statistics["west"].features] == [
        "global"
    ] and completed.reference_statistics.keys() == found.keys()


def test_all_that_leaves_is_of_one_kind(usual_of):
    game, _ = usual_of(rounds=1)
    sent = game.answers[TEST]["east"].of(ROLE)
    gate = Gate.of(game.study, game.settings)
    assert {gate.kind(f"{ROLE}/{name}") for name in sent} == {KIND}
    assert {*sent} == {"own.mean", "own.variance", "own.distance"}


@pytest.mark.parametrize("settings", [{"may_leave": ("weights", "batchnorm")}, {"min_patients": 99}])
def test_a_site_may_keep_it_back_and_still_test(play, settings):
    game = play(rounds=1)
    changed = game.settings.model_copy(update=settings)
    site = type(game.sites["east"])("east", game.study, changed)
    game.sites["east"] = site
    tests = game.finish()
    assert tests.scores.keys() == {"east", "north", "west"} and not tests.missing
    assert game.server.parts[ROLE].found.keys() == {"north", "west"}


def test_numbers_that_are_no_deviations_cost_the_answer(usual_of):
    def change(task, site, answer):
        if task == TEST and site == "east":
            answer.arrays["usual/own.distance"][1] = -1
        return answer

    _, found = usual_of(change, rounds=1)
    assert found.keys() == {"north", "west"}


def test_what_is_usual_comes_back_from_its_arrays(make_study):
    study = make_study()
    spreads = dict.fromkeys(study.labels.values(), Spread(1.0, 0.5, 7))
    features = {"own": FeatureSpread((0.0, 1.0), (1.0, 2.0), Spread(0.0, 0.1))}
    reference_statistics = ReferenceStatistics(roots_ml=spreads, features=features, codes={"body part": ("LIVER",)})
    # The selector's scores stay at home: a super model of several hospitals compares none.
    assert (
        unpack_arrays(pack_arrays(replace(reference_statistics, score=Spread(3.0, 1.0)), study), study)
        == reference_statistics
    )


def test_far_wider_reference_values_are_bounded(usual_of):
    def change(task, site, answer):
        if task == TEST:
            answer.arrays["usual/roots_ml"] = np.array([[0.5, 1e6 if site == "west" else 0.1, 3]])
        return answer

    game, found = usual_of(change, rounds=1)
    assert found["west"].roots_ml["blob"].deviation == 1e6
    contents = game.server.parts["model"].outcome(game.server, {}).make_contents()
    completed = game.server.parts[ROLE].outcome(game.server, {}).complete(contents)
    assert completed.reference_statistics["west"].roots_ml["blob"].deviation < 1
