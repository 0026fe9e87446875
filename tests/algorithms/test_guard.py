import numpy as np
import pytest
from scipy import stats

from silofl.algorithms.guard import ERROR_RATE, Choice, choose, leads_and_margins
from silofl.errors import ConfigError

NAN = float("nan")


def scores(federated, **others):
    return {name: np.array(values, float) for name, values in {"federated": federated, **others}.items()}


@pytest.mark.parametrize(("n", "t"), [(5, 2.015), (6, 1.943)])
def test_a_candidate_that_wins_on_every_unit_is_chosen_from_six_on(n, t):
    # n differences of 1 and one of -1: s = 2 / sqrt(n + 1), the margin (1 + 2 t) / n: 1.006 of five, 0.814 of six
    choice = choose(scores([0] * n, local=[1] * n), "federated")
    assert choice.margin == pytest.approx(min(1, (1 + 2 * t) / n), abs=1e-3)
    assert (choice.chosen, choice.lead, choice.num_units) == (("local", 1, 6) if n == 6 else ("federated", 0, 5))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_nothing_is_left_for_a_few_units(n):
    assert choose(scores([0] * n, local=[1] * n), "federated") == Choice("federated", "federated", 0.0, 1.0, n)


@pytest.mark.parametrize("n", [1, 2, 10, 200])
@pytest.mark.parametrize("value", [0.0, 0.7, 1.0])
def test_the_default_is_kept_among_equals(n, value):
    choice = choose(scores([value] * n, local=[value] * n, averaged=[value] * n), "averaged")
    assert (choice.chosen, choice.default, choice.lead, choice.num_units) == ("averaged", "averaged", 0.0, n)


@pytest.mark.parametrize("n", range(1, 201))
def test_a_candidate_that_loses_outright_is_never_chosen(n):
    choice = choose(scores([1] * n, local=[0] * n), "federated")
    assert choice.chosen == "federated" and 0 <= choice.margin <= 1


def test_a_default_without_rivals_is_kept():
    assert choose(scores([0.5, NAN]), "federated") == Choice("federated", "federated", 0.0, 1.0, 1)


@pytest.mark.parametrize("n", [3, 8, 40])
@pytest.mark.parametrize("draw", ["binary", "continuous"])
def test_a_lead_counts_where_a_t_test_with_one_unit_lost_outright_says_so(n, draw):
    rng = np.random.default_rng(n)
    binary, continuous = rng.choice([-1.0, 0, 1], (500, n), p=[0.1, 0.3, 0.6]), rng.uniform(-0.2, 1, (500, n))
    differences = binary if draw == "binary" else continuous
    leads, margins = leads_and_margins(differences, 0.05)
    with_one_lost = np.concatenate([differences, np.full((500, 1), -1)], axis=1)
    test = stats.ttest_1samp(with_one_lost, 0, axis=1, alternative="greater")
    np.testing.assert_allclose(leads, differences.mean(axis=1), atol=1e-12)
    np.testing.assert_array_equal(leads > margins, test.pvalue < 0.05)


@pytest.mark.parametrize("level", [0.05, 0.0125])
@pytest.mark.parametrize("n", [*range(1, 26), 60])
def test_of_equally_good_answers_no_share_won_and_lost_is_a_lead_too_often(n, level):
    outcomes = np.array([(wins, losses) for wins in range(n + 1) for losses in range(n + 1 - wins)])
    differences = np.array([[1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses) for wins, losses in outcomes])
    leads, margins = leads_and_margins(differences, level)
    wins, losses = outcomes[leads > margins].T
    for p in (0.02, 0.1, 0.3, 0.5):
        rate = stats.multinomial.pmf(np.stack([wins, losses, n - wins - losses], axis=1), n, [p, p, 1 - 2 * p]).sum()
        assert rate <= level


def test_more_candidates_ask_for_a_larger_lead():
    rng = np.random.default_rng(0)
    federated = rng.uniform(0.4, 0.6, 30)
    alone = choose(scores(federated, local=federated + 0.2), "federated")
    among = choose(scores(federated, local=federated + 0.2, averaged=federated), "federated")
    assert alone.chosen == among.chosen == "local" and alone.margin < among.margin
    assert among.margin == pytest.approx(leads_and_margins(np.full(30, 0.2), ERROR_RATE / 2)[1])


def test_the_largest_lead_is_chosen_and_of_equal_ones_the_first():
    rest = {"averaged": [0.8] * 40, "local": [0.9] * 40, "blend": [0.9] * 40}
    choice = choose(scores([0.5] * 40, **rest), "federated")
    assert (choice.chosen, choice.lead) == ("local", pytest.approx(0.4))


def test_a_small_lead_that_is_sure_is_chosen_before_a_larger_one_that_is_not():
    # blend leads by 0.1 on every unit; wild by 0.5 on six of ten and by -0.4 on the others, 0.14 in the mean
    wild = np.where(np.arange(40) % 10 < 6, 1.0, 0.1)
    choice = choose(scores([0.5] * 40, blend=[0.6] * 40, wild=wild), "federated")
    assert (choice.chosen, choice.lead) == ("blend", pytest.approx(0.1))


def test_units_without_a_score_of_either_do_not_count():
    federated, local = np.full(30, 0.5), np.full(30, 0.9)
    federated[:5], local[3:10] = NAN, NAN
    choice = choose(scores(federated, local=local), "federated")
    few = choose(scores(federated[10:], local=local[10:]), "federated")
    assert choice == few and choice.num_units == 20 and choice.chosen == "local"


def test_a_candidate_without_any_score_is_not_chosen():
    choice = choose(scores([0.5] * 9, local=[NAN] * 9), "federated")
    assert choice == Choice("federated", "federated", 0.0, 1.0, 0)


@pytest.mark.parametrize(
    ("candidates", "default", "match"),
    [
        (scores([0.5]), "local", r"the default must be one of the candidates \['federated'\], not 'local'"),
        (scores([0.5], local=[1, 1]), "federated", r"scores of 'local' must have shape \(1,\), .* not \(2,\)"),
        (scores([0.5], local=[1.5]), "federated", "scores of 'local' must be from 0 to 1, or NaN"),
        (scores([np.inf]), "federated", "scores of 'federated' must be from 0 to 1, or NaN"),
    ],
)
def test_what_cannot_be_compared_is_refused(candidates, default, match):
    with pytest.raises(ConfigError, match=match):
        choose(candidates, default)
