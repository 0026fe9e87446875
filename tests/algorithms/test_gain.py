import numpy as np
import pytest
from scipy import stats

from silofl.algorithms.gain import (
    MIN_UNITS,
    Gain,
    estimate_needed_units,
    federation_sentence,
    holm,
    measure_gain,
    measure_joining,
)
from silofl.errors import ConfigError

NAN = float("nan")


def pair(lead, n=40, seed=0):
    """Return scores of a local model and of one that leads by so much on average."""
    rng = np.random.default_rng(seed)
    local = rng.uniform(0.3, 0.7, n)
    noise = rng.normal(0, 0.05, n)
    return local, local + lead + noise - noise.mean()


@pytest.mark.parametrize(("lead", "verdict"), [(0.1, "gains"), (0.0, "no clear difference"), (-0.1, "loses")])
def test_the_verdict_is_where_the_interval_lies(lead, verdict):
    found = measure_gain(*pair(lead))
    assert (found.verdict, found.num_units) == (verdict, 40)
    assert found.difference == pytest.approx(lead, abs=1e-12) and found.low < found.difference < found.high


@pytest.mark.parametrize("n", [20, 60])
def test_the_interval_is_close_to_students_where_differences_are_normal(n):
    differences = np.random.default_rng(1).normal(0, 0.1, n)
    student = stats.t.interval(0.95, n - 1, differences.mean(), stats.sem(differences))
    found = measure_gain(np.zeros(n), differences)
    np.testing.assert_allclose([found.low, found.high], student, atol=0.1 * (student[1] - student[0]))


@pytest.mark.parametrize("n", [6, 13, 14, 40])
def test_the_interval_holds_the_differences_that_the_test_does_not_refuse(n):
    differences = np.random.default_rng(n).normal(0.03, 0.1, n)
    found, step = measure_gain(np.zeros(n), differences), 1e-6
    for end, refused in ((found.low, -step), (found.high, step)):
        at_end, beyond = (measure_gain(np.full(n, end + move), differences).verdict for move in (0.0, refused))
        assert at_end not in ("gains", "loses") and beyond in ("gains", "loses")


@pytest.mark.parametrize("n", [8, 13, 30])
def test_the_p_value_is_that_of_scipys_permutation_test(n):
    local, chosen = pair(-0.01, n)
    found = stats.permutation_test(
        (local, chosen),
        lambda ours, theirs, axis: (ours - theirs).mean(axis=axis),
        permutation_type="samples",
        alternative="greater",
        n_resamples=9999,
        rng=1,
        vectorized=True,
    )
    # Of more than 13 units both draw at random: deviation sqrt(0.25 / 9999) = 0.005 at most, of each
    assert measure_gain(local, chosen).p_below == pytest.approx(found.pvalue, abs=1e-9 if n <= 13 else 4 * 0.007)


def test_the_same_scores_have_the_same_interval():
    assert measure_gain(*pair(0.03)) == measure_gain(*pair(0.03))


def test_pairing_counts_and_the_spread_of_the_cases_does_not():
    # the cases' scores spread by 0.1 about their mean, the differences by nothing
    local = pair(0)[0]
    assert measure_gain(local, local + 0.01).verdict == "gains"


@pytest.mark.parametrize("difference", [0.0, 1.0])
def test_equal_differences_have_an_interval_without_width(difference):
    found = measure_gain(np.zeros(30), np.full(30, difference))
    assert (found.low, found.high) == (difference, difference)
    assert found.verdict == ("gains" if difference else "no clear difference")


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_up_to_five_units_that_agree_get_no_verdict(n):
    # of 5 units 1 of 2 ** 5 exchanges is as extreme: 3.1 %
    for local, chosen, difference in ((0, 1, 1.0), (1, 0, -1.0)):
        found = measure_gain(np.full(n, local), np.full(n, chosen))
        p_below = 0.5**n if difference < 0 else 1
        assert found == Gain("too few to say", difference if n else None, None, None, n, 6, p_below)


@pytest.mark.parametrize("n", [6, MIN_UNITS - 1])
def test_few_units_that_agree_get_a_verdict_and_an_interval(n):
    # of 6 units 1 of 2 ** 6 exchanges: 1.6 %
    low, high = np.linspace(0.1, 0.2, n), np.linspace(0.3, 0.6, n)
    lost, won = measure_gain(high, low), measure_gain(low, high)
    assert (lost.verdict, won.verdict) == ("loses", "gains")
    assert lost.difference == -won.difference < 0
    assert (lost.low, lost.high) == (-won.high, -won.low) and 0 < won.low < won.difference < won.high
    assert measure_joining(high, high, low, keeps_own=True).verdict == "keeps its own model"


@pytest.mark.parametrize(
    ("wins", "verdict"),
    [
        # McNemar: P(at most 1 of 8) = 9 / 256, P(at most 1 of 9) = 10 / 512
        (7, "too few to say"),
        (8, "gains"),
    ],
)
def test_the_verdict_of_few_is_that_of_the_exact_test(wins, verdict):
    chosen = np.array([1.0] * wins + [0])
    assert measure_gain(1 - chosen, chosen).verdict == verdict


def test_few_equal_units_get_no_verdict():
    assert measure_gain(np.full(10, 0.5), np.full(10, 0.5)) == Gain("too few to say", 0.0, 0.0, 0.0, 10, 11, 1.0)


def test_few_units_of_equal_models_get_a_verdict_no_more_often_than_stated():
    rng = np.random.default_rng(4)
    verdicts = [measure_gain(*rng.normal(0.5, 0.1, (2, 8))).verdict for _ in range(400)]
    # each at most 400 * 0.025 = 10, deviation sqrt(400 * 0.025 * 0.975) = 3.1
    assert all(verdicts.count(one) <= 10 + 4 * 3.1 for one in ("gains", "loses"))


def test_units_without_both_scores_do_not_count():
    local, chosen = pair(0.1)
    without = measure_gain(np.append(local, [NAN, 0.9]), np.append(chosen, [0.1, NAN]))
    assert without == measure_gain(local, chosen)


def test_a_site_that_keeps_its_own_model_is_not_compared():
    local, _ = pair(0)
    assert measure_joining(local, local, local, keeps_own=True) == Gain("keeps its own model", None, None, None, 40)


def test_scores_of_other_units_are_refused():
    with pytest.raises(ConfigError, match=r"must have scores of the same units, not \(3,\) and \(2,\)"):
        measure_gain(np.zeros(3), np.zeros(2))


def p_below(local, chosen):
    return measure_gain(local, chosen).p_below


def test_the_p_value_of_right_and_wrong_is_mcnemars():
    # of 10 units local alone is right on 7, the chosen model on 1: P(at least 7 of 8) = 9 / 256
    local, chosen = np.array([1.0] * 7 + [0, 1, 0]), np.array([0.0] * 7 + [1, 1, 0])
    assert p_below(local, chosen) == pytest.approx(9 / 256)
    # at least 1 of 8, the other way round
    assert p_below(chosen, local) == pytest.approx(255 / 256)


@pytest.mark.parametrize(("local", "chosen", "p"), [([], [], 1), ([1], [0], 0.5), ([0], [1], 1), ([0.4], [0.4], 1)])
def test_one_unit_proves_nothing(local, chosen, p):
    assert p_below(np.array(local, float), np.array(chosen, float)) == p


def test_equal_scores_prove_nothing():
    assert p_below(np.full(30, 0.5), np.full(30, 0.5)) == 1


def test_the_p_value_falls_where_the_chosen_model_is_worse_and_repeats():
    worse, equal = p_below(*pair(-0.03)), p_below(*pair(0.0))
    assert worse < 0.01 < 0.3 < equal and worse == p_below(*pair(-0.03))


def test_p_values_of_equal_models_are_not_too_small_too_often():
    rng = np.random.default_rng(3)
    small = [p_below(*rng.normal(0.5, 0.1, (2, 8))) <= 0.05 for _ in range(400)]
    # 400 * 0.05 = 20, deviation sqrt(400 * 0.05 * 0.95) = 4.4
    assert 20 - 4 * 4.4 <= sum(small) <= 20 + 4 * 4.4


def test_holm_multiplies_the_smallest_most_and_never_falls():
    # sorted: 0.01 * 4, 0.02 * 3, 0.029 * 2 = 0.058, at least 0.06, 0.9 * 1
    assert holm({"a": 0.029, "b": 0.9, "c": 0.01, "d": 0.02}) == pytest.approx(
        {"a": 0.06, "b": 0.9, "c": 0.04, "d": 0.06}
    )


def test_holm_keeps_one_p_value_and_none_and_stays_a_probability():
    assert holm({"a": 0.03}) == {"a": 0.03} and holm({}) == {}
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([], "No hospital has been tested."),
        (["gains"], "The only hospital gains: none loses by joining."),
        (
            ["gains", "keeps its own model", "gains"],
            "Of 3 hospitals, 2 gain and 1 keeps its own model: none loses by joining.",
        ),
        (
            ["gains", "gains", "no clear difference", "keeps its own model"],
            "Of 4 hospitals, 2 gain, 1 has no clear difference and 1 keeps its own model: "
            "none is seen to lose by joining.",
        ),
        (
            ["too few to say", "too few to say"],
            "Of 2 hospitals, 2 have too few test cases to say: nobody can tell yet whether joining pays.",
        ),
        (
            ["too few to say", "keeps its own model"],
            "Of 2 hospitals, 1 has too few test cases to say and 1 keeps its own model: "
            "nobody can tell yet whether joining pays.",
        ),
        (["loses", "gains"], "Of 2 hospitals, 1 gains and 1 loses: a loses by joining."),
        (
            ["loses", "keeps its own model", "loses", "keeps its own model", "loses"],
            "Of 5 hospitals, 3 lose and 2 keep their own model: a, c and e lose by joining.",
        ),
    ],
)
def test_the_federations_sentence_counts_every_hospital(verdicts, sentence):
    assert federation_sentence(dict(zip("abcdef", verdicts, strict=False))) == sentence


def test_a_site_gains_only_if_it_also_does_beside_its_own_model_without_a_bias():
    own = np.linspace(0.4, 0.6, 30)
    # The bias harms the own model on these units: without it, it is as good as what is kept.
    assert measure_joining(own, own, own + 0.1).verdict == "gains"
    gain = measure_joining(own, own + 0.1, own + 0.1)
    assert gain.verdict == "no clear difference" and gain.difference == pytest.approx(0.1)
    few = measure_joining(own[:8], own[:8] + 0.1, own[:8] + 0.1)
    assert (few.verdict, few.needed_units) == ("too few to say", 9)
    assert measure_joining(own, own + 0.1, own - 0.1).verdict == "loses"


@pytest.mark.parametrize(
    ("differences", "needed"),
    [
        # Nothing is known: the least number with which the test can say anything.
        ([], 6),
        ([0.1], 6),
        ([0.0, 0.0], 6),
        ([0.1, -0.1], 6),
        ([0.0] * 9, 10),
        # Standard deviation 0.1, mean 0.1: (2.8 * 1)^2 = 7.84.
        ([0.0, 0.1, 0.2], 8),
        # The same beside a mean of 0.05: 31.36.
        ([-0.05, 0.05, 0.15], 32),
        # The units agree: six that do so are enough for the test.
        ([0.1] * 4, 6),
    ],
)
def test_how_many_units_would_do_comes_from_the_spread_that_is_seen(differences, needed):
    assert estimate_needed_units(np.array(differences)) == needed


def test_too_few_units_say_how_many_would_do():
    local = np.array([0.5, 0.5, 0.5])
    gain = measure_gain(local, local + [0.0, 0.1, 0.2])
    assert (gain.verdict, gain.needed_units) == ("too few to say", 8)
    assert measure_gain(np.zeros(30), np.ones(30)).needed_units is None
