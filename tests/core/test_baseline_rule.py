from itertools import takewhile

import numpy as np
import pytest

from bench.baseline import AT_ZERO, DICE, FEDERATED, OWN, USELESS, draw_populations, place_rows
from silofl.core.baseline_rule import BIASES, choose_kept
from silofl.core.gain import BETTER, measure_joining

NAN = float("nan")


def grid(units, **points):
    """Return scores (biases, units): those of `units` everywhere but at biases named like ``b12`` or ``bm5``."""
    scores = np.tile(np.array(units, float), (len(BIASES), 1))
    for name, values in points.items():
        scores[int(name[1:].replace("m", "-")) + 30] = values
    return scores


def test_the_grid_is_that_of_the_rule():
    np.testing.assert_allclose(BIASES, np.linspace(-3, 3, 61))


@pytest.mark.parametrize("n", [0, 1, 2, 10, 200])
def test_of_identical_models_the_own_one_is_kept(n):
    choice = choose_kept(grid([0.7] * n), grid([0.7] * n))
    assert (choice.keeps_local, choice.bias, choice.local_bias, choice.lead, choice.num_units) == (True, 0, 0, 0, n)


def test_a_bias_that_both_models_need_is_no_gain():
    scores = grid([0.4] * 10, b12=0.8)
    choice = choose_kept(scores, scores)
    assert (choice.keeps_local, choice.bias, choice.local_bias, choice.federated_bias) == (True, 1.2, 1.2, 1.2)
    assert choice.lead == 0


# The prior takes 0.3 b^2 / n: of two units a bias of 1 costs 0.15 of the score, of ten 0.03.
@pytest.mark.parametrize(
    ("n", "score", "bias"), [(2, 0.6499, 0.0), (2, 0.6501, 1.0), (10, 0.5299, 0.0), (10, 0.5301, 1.0)]
)
def test_units_ask_for_a_bias_beyond_the_prior(n, score, bias):
    assert choose_kept(grid([0.5] * n), grid([0.5] * n, b10=score)).local_bias == bias
    assert choose_kept(grid([0.5] * n, b10=score), grid([0.5] * n)).federated_bias == bias


@pytest.mark.parametrize(("lead", "keeps_local"), [(0.0049, True), (0.0051, False)])
def test_the_federated_model_must_gain_more_than_the_least_lead(lead, keeps_local):
    choice = choose_kept(grid([0.5 + lead] * 200, bm4=0.52 + lead), grid([0.5] * 200, b3=0.52))
    assert (choice.keeps_local, choice.lead) == (keeps_local, pytest.approx(lead))
    assert (choice.local_bias, choice.federated_bias, choice.bias) == (0.3, -0.4, 0.3 if keeps_local else -0.4)


@pytest.mark.parametrize(("n", "keeps_local", "bias"), [(0, True, 0.0), (1, True, 0.0), (2, False, 0.5)])
def test_a_single_unit_of_a_segmentation_keeps_the_own_model(n, keeps_local, bias):
    choice = choose_kept(grid([0.1] * n, b5=1.0), grid([0.0] * n, b5=0.9))
    assert (choice.keeps_local, choice.bias, choice.local_bias) == (keeps_local, bias, bias)


@pytest.mark.parametrize(("n", "keeps_local"), [(4, True), (5, True), (6, False)])
def test_few_units_of_a_classification_keep_the_own_model(n, keeps_local):
    choice = choose_kept(np.full((1, n), 0.9), np.full((1, n), 0.2), np.zeros(1))
    assert (choice.keeps_local, choice.lead) == (keeps_local, pytest.approx(0.7))


# Ten differences of lead +- 0.3 have a standard error of 0.3 / sqrt(9) = 0.1.
@pytest.mark.parametrize(("lead", "keeps_local"), [(0.09, True), (0.11, False)])
def test_the_lead_of_a_classification_exceeds_its_standard_error(lead, keeps_local):
    federated = np.array([[0.5 + lead + 0.3, 0.5 + lead - 0.3] * 5])
    assert choose_kept(federated, np.full((1, 10), 0.5), np.zeros(1)).keeps_local == keeps_local


def test_a_bias_never_lowers_the_mean_it_is_chosen_by():
    rng = np.random.default_rng(3)
    for n in range(2, 30):
        federated, local = rng.random((2, len(BIASES), n))
        choice = choose_kept(federated, local)
        assert choice.own >= choice.local_at_zero and choice.federated >= choice.federated_at_zero


def test_the_lead_is_of_the_chosen_biases():
    choice = choose_kept(grid([0.5] * 10, b5=0.75), grid([0.25] * 10, bm5=0.5))
    assert (choice.federated, choice.own, choice.lead) == (0.75, 0.5, 0.25)
    assert (choice.federated_at_zero, choice.local_at_zero) == (0.5, 0.25)


def test_ties_go_to_the_smaller_bias():
    assert choose_kept(grid([0.5] * 9), grid([0.5] * 9, bm5=0.9 - 0.3 * (1 - 0.25) / 9, b10=0.9)).local_bias == -0.5


def test_a_unit_without_either_score_does_not_count():
    federated = grid([0.7, 0.1, NAN, 0.7])
    local = grid([0.5, NAN, 0.5, 0.5])
    assert choose_kept(federated, local) == choose_kept(federated[:, [0, 3]], local[:, [0, 3]])
    assert choose_kept(federated, local).num_units == 2


# Simulated sites with their test units, beside each federated model.
SITES, TESTED = 2000, 25


def count_sites(population, sites, rng):
    """Return how many of simulated sites keep the federated model, and to how many it is better on other units."""
    scores = population.validation
    keeping = 0
    gaining = 0
    for n in rng.integers(1, 31, size=sites):
        validation, test = np.split(rng.choice(scores.shape[-1], n + TESTED, replace=False), [n])
        rows = place_rows(scores[..., validation])
        keeps_local = choose_kept(*scores[..., validation]).keeps_local
        local, at_zero, federated = (scores[rows[row]][test] for row in (OWN, AT_ZERO, FEDERATED))
        keeping += not keeps_local
        # The test of each site would take long: what is below the own model's mean is not better.
        if not keeps_local and federated.mean() > local.mean():
            gaining += measure_joining(local, at_zero, federated).verdict == BETTER
    return keeping, gaining


@pytest.fixture(scope="module")
def populations():
    """Populations whose local model needs a threshold: federated model -> population."""
    drawn = takewhile(lambda one: one.kind == DICE, draw_populations(np.random.default_rng(0)))
    return {one.federated: one for one in drawn if one.offset}


@pytest.mark.parametrize("name", USELESS)
def test_a_useless_federated_model_is_seldom_better(populations, name):
    assert count_sites(populations[name], SITES, np.random.default_rng(1))[1] <= 0.025 * SITES


def test_a_useful_federated_model_is_kept_and_better(populations):
    assert min(count_sites(populations["better"], 100, np.random.default_rng(2))) >= 95
