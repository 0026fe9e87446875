from itertools import takewhile

import numpy as np
import pytest

from bench.guard import AT_ZERO, DICE, KEPT, OWN, USELESS, draw_populations, place_rows
from silofl.core.gain import measure_joining
from silofl.core.guard_rule import BIASES, SHARES, choose_kept
from silofl.errors import ConfigError

NAN = float("nan")


def grid(units, **points):
    """Return scores (shares, biases, units): those of `units` everywhere but at points named like ``s7_b12``."""
    scores = np.tile(np.array(units, float), (len(SHARES), len(BIASES), 1))
    for name, values in points.items():
        share, bias = (int(part[1:].replace("m", "-")) for part in name.split("_"))
        scores[share, bias + 30] = values
    return scores


def test_the_grid_is_that_of_the_rule():
    np.testing.assert_allclose(SHARES, np.linspace(0, 1, 11))
    np.testing.assert_allclose(BIASES, np.linspace(-3, 3, 61))


@pytest.mark.parametrize("n", [0, 1, 10, 200])
def test_of_identical_models_the_own_one_is_kept_without_a_bias(n):
    choice = choose_kept(grid([0.7] * n))
    assert (choice.share, choice.bias, choice.own_bias, choice.lead, choice.num_units) == (1, 0, 0, 0, n)


def test_a_bias_that_both_models_need_is_no_gain_of_pooling():
    scores = grid([0.4] * 10)
    scores[:, 30 + 12] = 0.8
    choice = choose_kept(scores)
    assert (choice.share, choice.bias, choice.own_bias, choice.federated_bias) == (1, 1.2, 1.2, 1.2)
    assert choice.lead == 0


# One unit; the prior takes 0.1 ((s - c)^2 + b^2). A bias of 1 costs the own model 0.1 of its score.
@pytest.mark.parametrize(("score", "bias"), [(0.5999, 0.0), (0.6001, 1.0)])
def test_one_unit_asks_for_a_bias_by_what_it_gains_beyond_the_prior(score, bias):
    assert choose_kept(grid([0.5], s10_b10=score)).own_bias == bias


# 0.75 lies between 0.7 and 0.8; 0 is 0.5625 - 0.0025 further from it, squared, and so must gain 0.056 over one unit.
@pytest.mark.parametrize(("federated", "share"), [(0.6559, 0.8), (0.6561, 0.0)])
def test_one_unit_asks_for_the_federated_model_by_what_it_gains_beyond_the_prior(federated, share):
    choice = choose_kept(grid([0.5], s8_b0=0.6, s0_b0=federated))
    assert (choice.share, choice.lead) == (share, pytest.approx(0.1 if share else federated - 0.5))


def test_of_ten_units_the_prior_has_a_tenth():
    # 0.1 (0 - 0.75)^2 / 10 = 0.005625, and 0.000025 for 0.8.
    assert choose_kept(grid([0.5] * 10, s8_b0=0.6, s0_b0=0.6055)).share == 0.8
    assert choose_kept(grid([0.5] * 10, s8_b0=0.6, s0_b0=0.6057)).share == 0.0


@pytest.mark.parametrize(("lead", "share"), [(0.0049, 1.0), (0.0051, 0.8)])
def test_pooling_must_gain_more_than_the_least_lead(lead, share):
    choice = choose_kept(grid([0.5] * 200, s8_b0=0.5 + lead))
    assert (choice.share, choice.lead) == (share, pytest.approx(lead))


def test_ties_go_towards_the_prior_and_of_two_as_far_to_the_own_model():
    # 0.7 and 0.8 are as far from 0.75; -0.5 is nearer to 0 than 1.
    assert choose_kept(grid([0.5] * 9, s7_b0=0.6, s8_b0=0.6)).share == 0.8
    scores = grid([0.5] * 9, s10_bm5=0.9 - 0.1 * (1 - 0.25) / 9, s10_b10=0.9)
    assert choose_kept(scores).own_bias == -0.5


def test_without_a_bias_the_share_alone_is_chosen():
    scores = grid([0.5] * 9, s8_b0=0.6)[:, 30:31]
    choice = choose_kept(scores, np.zeros(1))
    assert (choice.share, choice.bias, choice.own_bias) == (0.8, 0, 0)


def test_a_unit_without_a_score_does_not_count():
    scores = grid([0.5, NAN, 0.5], s8_b0=[0.7, NAN, 0.7])
    assert choose_kept(scores) == choose_kept(scores[..., [0, 2]])
    assert choose_kept(scores).num_units == 2


@pytest.mark.parametrize("scores", [grid([1.5]), grid([-0.1]), grid([0.5])[:, :3], grid([np.inf])])
def test_other_shapes_and_ranges_are_refused(scores):
    with pytest.raises(ConfigError, match="scores must be from 0 to 1, of 11 shares and 61 biases"):
        choose_kept(scores)


# Simulated sites with their test units, beside each federated model.
SITES, TESTED = 2000, 25


def count_sites(population, sites, rng):
    """Return how many of simulated sites keep a pooled model, and how many gain by it on other units."""
    scores, pooled, gaining = population.validation, 0, 0
    for n in rng.integers(1, 31, size=sites):
        validation, test = np.split(rng.choice(scores.shape[-1], n + TESTED, replace=False), [n])
        rows = place_rows(scores[..., validation])
        own, at_zero, kept = (scores[rows[row]][test] for row in (OWN, AT_ZERO, KEPT))
        if rows[KEPT][0] < 10:
            pooled += 1
            # The test of each site would take long: what is below the own model's mean gains nothing.
            gaining += kept.mean() > own.mean() and measure_joining(own, at_zero, kept).verdict == "gains"
    return pooled, gaining


@pytest.fixture(scope="module")
def populations():
    """Populations whose local model needs a threshold: federated model -> population."""
    drawn = takewhile(lambda one: one.kind == DICE, draw_populations(np.random.default_rng(0)))
    return {one.federated: one for one in drawn if one.offset}


@pytest.mark.parametrize("name", USELESS)
def test_a_useless_federated_model_gives_gains_at_no_more_than_one_site_in_forty(populations, name):
    assert count_sites(populations[name], SITES, np.random.default_rng(1))[1] <= 0.025 * SITES


def test_a_useful_federated_model_is_kept_and_gains(populations):
    assert min(count_sites(populations["better"], 100, np.random.default_rng(2))) >= 95
