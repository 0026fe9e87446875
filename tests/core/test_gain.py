import numpy as np
import pytest
from scipy import stats

from silofl.core.gain import (
    MIN_UNITS,
    Gain,
    estimate_needed_units,
    federation_sentence,
    holm,
    measure_gain,
    measure_joining,
)

NAN = float("nan")


def pair(lead, n=40, seed=0):
    """Return scores of a local model and of one that leads by so much on average."""
    rng = np.random.default_rng(seed)
    local = rng.uniform(0.3, 0.7, n)
    noise = rng.normal(0, 0.05, n)
    return local, local + lead + noise - noise.mean()


@pytest.mark.parametrize(("lead", "verdict"), [(0.1, "gains"), (0.0, "no clear difference"), (-0.1, "loses")])
def test_the_verdict_is_where_the_interval_lies_and_repeats(lead, verdict):
    found = measure_gain(*pair(lead))
    assert (found.verdict, found.num_test_units, found.needed_units) == (verdict, 40, None)
    assert found.difference == pytest.approx(lead, abs=1e-12) and found.low < found.difference < found.high
    assert found == measure_gain(*pair(lead))


@pytest.mark.parametrize("n", [6, 13, 14])
def test_the_interval_holds_the_differences_that_the_test_does_not_refuse(n):
    differences = np.random.default_rng(n).normal(0.03, 0.1, n)
    found, step = measure_gain(np.zeros(n), differences), 1e-6
    for end, refused in ((found.low, -step), (found.high, step)):
        at_end, beyond = (measure_gain(np.full(n, end + move), differences).verdict for move in (0.0, refused))
        assert at_end not in ("gains", "loses") and beyond in ("gains", "loses")


@pytest.mark.parametrize("n", [13, 30])
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


@pytest.mark.parametrize("difference", [0.0, 1.0])
def test_equal_differences_have_an_interval_without_width(difference):
    found = measure_gain(np.zeros(30), np.full(30, difference))
    assert (found.low, found.high, found.p_below) == (difference, difference, 1)
    assert found.verdict == ("gains" if difference else "no clear difference")


@pytest.mark.parametrize("n", [0, 5])
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


@pytest.mark.parametrize(
    ("wins", "verdict"),
    [
        # McNemar: P(at most 1 of 8) = 9 / 256, P(at most 1 of 9) = 10 / 512
        (7, "too few to say"),
        (8, "gains"),
    ],
)
def test_the_verdict_of_right_and_wrong_is_mcnemars(wins, verdict):
    chosen = np.array([1.0] * wins + [0])
    found = measure_gain(1 - chosen, chosen)
    # of the other side at least 1 of all
    assert (found.verdict, found.p_below) == (verdict, 1 - 0.5 ** (wins + 1))


def test_units_of_equal_models_get_a_verdict_no_more_often_than_stated():
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


def test_a_site_gains_only_if_it_also_does_beside_its_own_model_without_a_bias():
    own = np.linspace(0.4, 0.6, 30)
    # The bias harms the own model on these units: without it, it is as good as what is kept.
    assert measure_joining(own, own, own + 0.1).verdict == "gains"
    gain = measure_joining(own, own + 0.1, own + 0.1)
    assert gain.verdict == "no clear difference" and gain.difference == pytest.approx(0.1)
    # Nor does it lose where what it keeps is worse than that.
    assert measure_joining(own, own + 0.2, own + 0.1).verdict == "no clear difference"
    few = measure_joining(own[:8], own[:8] + 0.1, own[:8] + 0.1)
    assert (few.verdict, few.needed_units) == ("too few to say", 9)
    assert measure_joining(own, own + 0.1, own - 0.1).verdict == "loses"


@pytest.mark.parametrize(
    ("differences", "needed"),
    [
        # Nothing is known: the least number with which the test can say anything.
        ([], 6),
        ([0.1], 6),
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
def test_too_few_units_say_how_many_would_do_by_the_spread_that_is_seen(differences, needed):
    assert estimate_needed_units(np.array(differences)) == needed
    found = measure_gain(np.zeros(len(differences)), np.array(differences))
    assert (found.verdict, found.needed_units) == ("too few to say", needed)


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        # sorted: 0.01 * 4, 0.02 * 3, 0.029 * 2 = 0.058, at least 0.06, 0.9 * 1
        ({"a": 0.029, "b": 0.9, "c": 0.01, "d": 0.02}, {"a": 0.06, "b": 0.9, "c": 0.04, "d": 0.06}),
        ({"a": 0.6, "b": 0.7}, {"a": 1.0, "b": 1.0}),
        ({}, {}),
    ],
)
def test_holm_multiplies_the_smallest_most_never_falls_and_stays_a_probability(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


GAINS, EQUAL, LOSES, FEW, OWN = "gains", "no clear difference", "loses", "too few to say", "keeps its own model"


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([], "No hospital has been tested."),
        ([GAINS], "The only hospital gains: none loses by joining."),
        ([GAINS, OWN, GAINS], "Of 3 hospitals, 2 gain and 1 keeps its own model: none loses by joining."),
        ([GAINS, EQUAL], "Of 2 hospitals, 1 gains and 1 has no clear difference: none is seen to lose by joining."),
        ([FEW, FEW], "Of 2 hospitals, 2 have too few test cases to say: nobody can tell yet whether joining pays."),
        (
            [FEW, OWN],
            "Of 2 hospitals, 1 has too few test cases to say and 1 keeps its own model: "
            "nobody can tell yet whether joining pays.",
        ),
        ([LOSES, GAINS], "Of 2 hospitals, 1 gains and 1 loses: a loses by joining."),
        (
            [LOSES, OWN, LOSES, OWN, LOSES, EQUAL],
            "Of 6 hospitals, 1 has no clear difference, 3 lose and 2 keep their own model: a, c and e lose by joining.",
        ),
    ],
)
def test_the_federations_sentence_counts_every_hospital(verdicts, sentence):
    assert federation_sentence(dict(zip("abcdef", verdicts, strict=False))) == sentence
