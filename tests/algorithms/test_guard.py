import numpy as np
import pytest
from scipy import stats

from silofl.algorithms.guard import (
    ERROR_RATE,
    SHARES,
    GuardChoice,
    choose_candidate,
    choose_share,
    leads_and_margins,
    weigh_local,
)
from silofl.errors import ConfigError

NAN = float("nan")


def scores(federated, **others):
    return {name: np.array(values, float) for name, values in {"federated": federated, **others}.items()}


@pytest.mark.parametrize(("n", "margin"), [(4, 1.0), (5, 0.1)])
def test_a_candidate_that_wins_on_every_unit_is_chosen_from_five_on(n, margin):
    # Of n wins a sign test says 1 / 2^n: 0.0625 of four, 0.031 of five. They do not vary: a tenth is the margin.
    choice = choose_candidate(scores([0] * n, local=[1] * n), "federated")
    assert choice.margin == pytest.approx(margin)
    assert (choice.chosen, choice.lead, choice.num_units) == (("local", 1, 5) if n == 5 else ("federated", 0, 4))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_nothing_is_left_for_a_few_units(n):
    assert choose_candidate(scores([0] * n, local=[1] * n), "federated") == GuardChoice(
        "federated", "federated", 0.0, 1.0, n
    )


@pytest.mark.parametrize("n", [1, 2, 10, 200])
@pytest.mark.parametrize("value", [0.0, 0.7, 1.0])
def test_the_default_is_kept_among_equals(n, value):
    choice = choose_candidate(scores([value] * n, local=[value] * n, averaged=[value] * n), "averaged")
    assert (choice.chosen, choice.default, choice.lead, choice.num_units) == ("averaged", "averaged", 0.0, n)


@pytest.mark.parametrize("n", range(1, 201))
def test_a_candidate_that_loses_outright_is_never_chosen(n):
    choice = choose_candidate(scores([1] * n, local=[0] * n), "federated")
    assert choice.chosen == "federated" and 0 <= choice.margin <= 1


def test_a_default_without_rivals_is_kept():
    assert choose_candidate(scores([0.5, NAN]), "federated") == GuardChoice("federated", "federated", 0.0, 1.0, 1)


@pytest.mark.filterwarnings("ignore:Precision loss")  # of differences that are all the same
@pytest.mark.parametrize("n", [3, 8, 40])
@pytest.mark.parametrize("draw", ["binary", "continuous"])
def test_a_lead_counts_by_a_t_test_with_one_unit_lost_outright_or_by_two_tests_without(n, draw):
    rng = np.random.default_rng(n)
    binary, continuous = rng.choice([-1.0, 0, 1], (500, n), p=[0.1, 0.3, 0.6]), rng.uniform(-0.2, 1, (500, n))
    differences = binary if draw == "binary" else continuous
    leads, margins = leads_and_margins(differences, 0.05)
    with_one_lost = np.concatenate([differences, np.full((500, 1), -1)], axis=1)
    above_0 = stats.ttest_1samp(with_one_lost, 0, axis=1, alternative="greater").pvalue
    above_a_tenth = stats.ttest_1samp(differences, 0.1, axis=1, alternative="greater").pvalue
    counts = zip((differences > 0).sum(1), (differences < 0).sum(1), strict=True)
    signs = [stats.binomtest(won, won + lost, alternative="greater").pvalue if won else 1 for won, lost in counts]
    is_lead = (above_0 < 0.05) | ((above_a_tenth < 0.05) & (np.array(signs) <= 0.05))
    np.testing.assert_allclose(leads, differences.mean(axis=1), atol=1e-12)
    np.testing.assert_array_equal(leads > margins, is_lead)
    assert n != 8 or (is_lead & (above_0 >= 0.05)).any()


def test_a_federated_model_that_has_learnt_nothing_is_left_by_eight_units():
    local = np.array([0.78, 0.81, 0.85, 0.79, 0.83, 0.76, 0.80, 0.82])
    blend = local - [0.20, 0.31, 0.22, 0.15, 0.28, 0.24, 0.19, 0.26]
    rest = {"averaged": blend, "fine_tuned": blend, "local": local, "blend": blend}
    assert choose_candidate(scores([0.1] * 8, **rest)).chosen == "local"
    # Failing on one of the eight might be no rare failure.
    local[0] = 0.0
    assert choose_candidate(scores([0.1] * 8, **rest | {"local": local})).chosen == "blend"


def blended(federated, local, bonus=0.0, best=0.5):
    """Return scores by share: on the line between both models', and higher around the best share by a bonus."""
    federated, local, shares = np.array(federated, float), np.array(local, float), SHARES[:, None]
    hump = np.minimum(shares / best, (1 - shares) / (1 - best))
    return (1 - shares) * federated + shares * local + bonus * hump


@pytest.mark.parametrize(
    ("federated", "local", "share"),
    [
        # Means with one more unit of a half: 0.6 and 0.8, 0.2 and 0.7.
        ([0.62, 0.68], [0.95, 0.95], 4**2 / (1.5**2 + 4**2)),
        ([0.02, 0.08], [0.8, 0.8], (7 / 3) ** 2 / (0.25**2 + (7 / 3) ** 2)),
        ([0.4, NAN, 0.4], [0.4, 0.9, 0.4], 0.5),
        ([NAN, 0.9], [0.1, NAN], 0.5),
        ([1.0], [0.0], 0.012),
        ([0.0], [1.0], 0.988),
        ([], [], 0.5),
    ],
)
def test_with_few_units_the_better_model_has_the_larger_share_and_none_has_all(federated, local, share):
    assert choose_share(blended(federated, local)) == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize(("num_labels", "share"), [(1, 1 / 11), (3, 3 / 13), (9, 9 / 19), (10, 0.5), (500, 0.5)])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_local_model_of_few_labels_has_a_smaller_share_where_units_are_few(n, num_labels, share):
    blends = blended(np.full(n, 0.9), np.full(n, 0.9))
    assert choose_share(blends, weigh_local(num_labels)) == pytest.approx(share, abs=5e-4)


def test_what_units_show_counts_whatever_few_labels_a_local_model_has():
    assert choose_share(blended([0.4] * 9, [0.4] * 9, bonus=0.3, best=0.9), weigh_local(1)) == 0.9
    assert choose_share(blended([0.0], [1.0]), weigh_local(3)) == pytest.approx(0.3 * 9 / (1 / 9 + 0.3 * 9), abs=5e-4)
    # Of equally good ones the nearest to 1 / 11.
    assert choose_share(blended([1.0] * 4, [1.0] * 4), weigh_local(1)) == 0.1


@pytest.mark.parametrize("best", [0.1, 0.35, 0.9])
@pytest.mark.parametrize("n", [3, 200])
def test_the_share_is_the_one_with_the_best_mean(n, best):
    rng = np.random.default_rng(n)
    federated, local = rng.uniform(0.4, 0.6, (2, n))
    assert choose_share(blended(federated, local, bonus=0.3, best=best)) == best


@pytest.mark.parametrize(("federated", "local", "share"), [(0.5, 0.5, 0.5), (0.6, 0.6, 0.5), (0.75, 0.5, 0.15)])
def test_of_shares_that_are_as_good_the_nearest_to_that_of_the_odds_counts(federated, local, share):
    flat = np.full((len(SHARES), 9), 0.5)
    flat[0], flat[-1] = federated, local
    # The means of nine units and one of a half; of odds (0.725 / 0.275) and 1 the share is 0.126.
    flat[1:-1] = 0.8
    assert choose_share(flat) == share


@pytest.mark.parametrize("n", [4, 8, 12])
@pytest.mark.parametrize("lead", [0.02, -0.02])
def test_a_better_local_model_has_the_largest_share_within_a_standard_error_of_the_best(n, lead):
    # Half of the units are for the other model, so that neither leads surely.
    local = 0.4 + lead * np.where(np.arange(n) % 2, 4, -2)
    blends = blended(np.full(n, 0.4), local) + 0.2 * (SHARES * (1 - SHARES))[:, None]
    best = blends.mean(axis=1).argmax()
    behind = blends[best] - blends
    as_good = SHARES[behind.mean(axis=1) <= stats.sem(behind, axis=1)]
    assert SHARES[best] < as_good.max() < 0.95 or lead < 0
    assert choose_share(blends) == (as_good.max() if lead > 0 else SHARES[best])


@pytest.mark.parametrize(
    ("n", "lost", "share"), [(7, 0, 1.0), (6, 0, 0.95), (11, 1, 1.0), (11, 2, 0.95), (200, 50, 1.0)]
)
def test_nothing_is_left_of_the_federated_model_only_where_the_local_one_leads_by_two_tests(n, lost, share):
    federated = np.full(n, 0.4)
    leads = np.where(np.arange(n) < lost, -0.005, 0.02 + 0.001 * np.arange(n) / n)
    assert choose_share(blended(federated, federated + leads)) == share


@pytest.mark.parametrize("n", [3, 4, 200])
def test_nothing_is_left_of_the_local_model_where_that_is_best(n):
    assert choose_share(blended(np.full(n, 0.42), np.full(n, 0.4))) == 0


def test_the_shares_of_many_sites_are_found_at_once():
    blends = np.random.default_rng(0).random((len(SHARES), 5, 12))
    np.testing.assert_array_equal(choose_share(blends), [choose_share(blends[:, site]) for site in range(5)])


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
    local = federated + rng.uniform(0.1, 0.3, 30)
    alone = choose_candidate(scores(federated, local=local), "federated")
    among = choose_candidate(scores(federated, local=local, averaged=federated), "federated")
    assert alone.chosen == among.chosen == "local" and alone.margin < among.margin
    assert among.margin == pytest.approx(leads_and_margins(local - federated, ERROR_RATE / 2)[1])


def test_the_largest_lead_is_chosen_and_of_equal_ones_the_first():
    rest = {"averaged": [0.8] * 40, "local": [0.9] * 40, "blend": [0.9] * 40}
    choice = choose_candidate(scores([0.5] * 40, **rest), "federated")
    assert (choice.chosen, choice.lead) == ("local", pytest.approx(0.4))


def test_a_small_lead_that_is_sure_is_chosen_before_a_larger_one_that_is_not():
    # blend leads by 0.1 on every unit; wild by 0.5 on six of ten and by -0.4 on the others, 0.14 in the mean
    wild = np.where(np.arange(40) % 10 < 6, 1.0, 0.1)
    choice = choose_candidate(scores([0.5] * 40, blend=[0.6] * 40, wild=wild), "federated")
    assert (choice.chosen, choice.lead) == ("blend", pytest.approx(0.1))


def test_units_without_a_score_of_either_do_not_count():
    federated, local = np.full(30, 0.5), np.full(30, 0.9)
    federated[:5], local[3:10] = NAN, NAN
    choice = choose_candidate(scores(federated, local=local), "federated")
    few = choose_candidate(scores(federated[10:], local=local[10:]), "federated")
    assert choice == few and choice.num_units == 20 and choice.chosen == "local"


def test_a_candidate_without_any_score_is_not_chosen():
    choice = choose_candidate(scores([0.5] * 9, local=[NAN] * 9), "federated")
    assert choice == GuardChoice("federated", "federated", 0.0, 1.0, 0)


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
        choose_candidate(candidates, default)
