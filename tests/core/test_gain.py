from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from silofl.core.gain import (
    BETTER,
    LEAST_UNITS,
    WORSE,
    Effect,
    Gain,
    MeanEffect,
    average_sites,
    average_subsets,
    holm,
    measure_gain,
    measure_joining,
    measure_skewed,
)
from silofl_desk.report.verdict_words import ONE_START, federation_sentence, network_sentence
from silofl_desk.studies.runs.starts import find_gains, measure_mean_of_starts, measure_starts
from tests.report.conftest import joined

NAN = float("nan")


def pair(lead, n=40, seed=0):
    """Return scores of a local model and of one that leads by so much on average."""
    rng = np.random.default_rng(seed)
    local = rng.uniform(0.3, 0.7, n)
    noise = rng.normal(0, 0.05, n)
    return local, local + lead + noise - noise.mean()


@pytest.mark.parametrize(("lead", "verdict"), [(0.1, BETTER), (0.0, "no clear difference"), (-0.1, WORSE)])
def test_the_verdict_is_where_the_interval_lies_and_repeats(lead, verdict):
    result = measure_gain(*pair(lead))
    assert (result.verdict, result.num_test_units) == (verdict, 40)
    assert result.difference == pytest.approx(lead, abs=1e-12) and result.low < result.difference < result.high
    assert result == measure_gain(*pair(lead))


@pytest.mark.parametrize("n", [20, 33])
def test_the_interval_holds_the_differences_that_are_not_refused(n):
    differences = np.random.default_rng(n).normal(0.03, 0.1, n)
    result = measure_gain(np.zeros(n), differences)
    step = 1e-6
    for end, refused in ((result.low, -step), (result.high, step)):
        at_end, beyond = (measure_gain(np.full(n, end + move), differences).verdict for move in (0.0, refused))
        assert at_end not in (BETTER, WORSE) and beyond in (BETTER, WORSE)


@pytest.mark.parametrize("n", [13, 30])
def test_the_p_value_is_that_of_scipys_permutation_test(n):
    local, chosen = pair(-0.01, n)
    result = stats.permutation_test(
        (local, chosen),
        lambda ours, theirs, axis: (ours - theirs).mean(axis=axis),
        permutation_type="samples",
        alternative="greater",
        n_resamples=9999,
        rng=1,
        vectorized=True,
    )
    # Of more than 13 units both draw at random: deviation sqrt(0.25 / 9999) = 0.005 at most, of each
    means = average_subsets(chosen - local)
    p_value = (1 + (means >= 0).sum()) / (1 + len(means))
    assert p_value == pytest.approx(result.pvalue, abs=1e-9 if n <= 13 else 4 * 0.007)


def test_the_p_value_is_the_larger_one_of_both_tests():
    rng = np.random.default_rng(5)
    for difference in (rng.normal(-0.02, 0.1, 30), rng.exponential(0.1, 30) - 0.12, 0.12 - rng.exponential(0.1, 30)):
        means = average_subsets(difference)
        exchanged = (1 + (means >= 0).sum()) / (1 + len(means))
        p_below = measure_gain(np.zeros(30), difference).p_below
        assert p_below == max(exchanged, measure_skewed(difference)[2])


def test_without_skewness_the_second_test_is_students():
    differences = np.array([-0.3, -0.1, 0.1, 0.3] * 6) + 0.1
    low, high, p_below = measure_skewed(differences)
    # Hall's deviation divides by n, Student's by n - 1: 24 units make that 2 %.
    result = stats.ttest_1samp(differences, 0, alternative="less")
    assert p_below == pytest.approx(result.pvalue, abs=0.005)
    half = stats.t.ppf(0.975, 23) * differences.std() / 24**0.5
    assert (low, high) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.01])
def test_the_second_tests_interval_ends_where_it_refuses(shift):
    differences = np.random.default_rng(2).exponential(0.1, 25) + shift
    low, high, _ = measure_skewed(differences)
    assert measure_skewed(differences - high)[2] == pytest.approx(0.025)
    assert measure_skewed(differences - low)[2] == pytest.approx(0.975)


def test_the_interval_of_few_units_stays_within_possible_differences():
    result = measure_gain(np.array([1.0, 0, 0, 0, 0, 0]), np.array([0.0, 1, 1, 1, 1, 1]))
    assert -1 <= result.low < result.high <= 1


@pytest.mark.parametrize("n", [6, 10, 20, 29, 40])
def test_a_model_that_fails_on_few_is_seldom_called_better(n):
    rng = np.random.default_rng(n)
    verdicts = []
    for _ in range(200):
        # 0.9 * 0.03 - 0.1 * 0.27 = 0: nothing can be gained.
        differences = np.where(rng.random(n) < 0.1, -0.27, 0.03) + rng.normal(0, 0.005, n)
        verdicts.append(measure_gain(np.zeros(n), differences).verdict)
    # 0.9 ** 20 = 12 % of sites with 20 patients see no failure.
    assert verdicts.count(BETTER) <= 0.15 * len(verdicts)


@pytest.mark.parametrize("difference", [0.0, 1.0])
def test_equal_differences_have_an_interval_without_width(difference):
    result = measure_gain(np.zeros(30), np.full(30, difference))
    assert (result.low, result.high, result.p_below) == (difference, difference, 1)
    assert result.verdict == (BETTER if difference else "no clear difference")


@pytest.mark.parametrize("n", [0, 5, 6, LEAST_UNITS - 1])
def test_few_units_that_agree_get_no_verdict(n):
    for local, chosen, difference in ((0, 1, 1.0), (1, 0, -1.0)):
        result = measure_gain(np.full(n, local), np.full(n, chosen))
        # Of 5 units 1 of 2 ** 5 exchanges is as extreme, 3.1 %: there is no interval.
        ends = (difference, difference) if n > 5 else (None, None)
        assert result == Gain("too few to say", *((difference, 0.0) if n else (None, None)), *ends, n)


def test_as_many_that_agree_get_a_verdict_and_an_interval():
    low = np.linspace(0.1, 0.2, LEAST_UNITS)
    high = np.linspace(0.3, 0.6, LEAST_UNITS)
    lost = measure_gain(high, low)
    won = measure_gain(low, high)
    assert (lost.verdict, won.verdict) == (WORSE, BETTER)
    assert lost.difference == -won.difference < 0
    assert (lost.low, lost.high) == pytest.approx((-won.high, -won.low)) and 0 < won.low < won.difference < won.high


@pytest.mark.parametrize(("wins", "verdict"), [(5, "no clear difference"), (6, BETTER)])
def test_the_verdict_of_right_and_wrong_is_mcnemars(wins, verdict):
    # All that differ are won: 2 ** -5 = 3.1 %, 2 ** -6 = 1.6 %. The second test would be content with four.
    chosen = np.array([1.0] * wins + [0.5] * (22 - wins))
    assert measure_gain(np.full(22, 0.5), chosen).verdict == verdict


def test_units_without_both_scores_do_not_count():
    local, chosen = pair(0.1)
    without = measure_gain(np.append(local, [NAN, 0.9]), np.append(chosen, [0.1, NAN]))
    assert without == measure_gain(local, chosen)


@pytest.mark.parametrize(
    ("keeps_local", "are_finished", "verdict"),
    [
        (True, True, "keeps its own model"),
        (True, False, "not trained to the end"),
        (False, False, "not trained to the end"),
    ],
)
def test_an_unfinished_or_own_model_has_only_a_difference(keeps_local, are_finished, verdict):
    local, federated = pair(0.1, 8)
    result = measure_joining(local, local, federated, keeps_local, are_finished)
    compared = measure_gain(local, federated)
    assert result == replace(compared, verdict=verdict)
    assert result.standard_error == pytest.approx(stats.sem(federated - local))


def test_better_holds_only_if_also_better_than_without_a_bias():
    local_scores = np.linspace(0.4, 0.6, 30)
    # The bias harms the own model on these units: without it, it is as good as what is kept.
    assert measure_joining(local_scores, local_scores, local_scores + 0.1).verdict == BETTER
    gain = measure_joining(local_scores, local_scores + 0.1, local_scores + 0.1)
    assert gain.verdict == "no clear difference" and gain.difference == pytest.approx(0.1)
    # Nor is it worse where it is below that.
    assert measure_joining(local_scores, local_scores + 0.2, local_scores + 0.1).verdict == "no clear difference"
    few = measure_joining(local_scores[:8], local_scores[:8] + 0.1, local_scores[:8] + 0.1)
    assert few.verdict == "too few to say"
    assert measure_joining(local_scores, local_scores + 0.1, local_scores - 0.1).verdict == WORSE


def test_over_starts_the_interval_is_students():
    result = measure_starts({"a": [Effect(0.04, 0.01, 20), Effect(0.02, 0.01, 20)], "b": [Effect(0.5, 0.1, 20)]})
    # Units 0.01^2, starts 0.0002 / 2: 0.0002 in all, of 0.0002^2 / (0.0001^2 / 19 + 0.0001^2 / 1) = 3.8 freedom.
    half = stats.t.ppf(0.975, 3.8) * 0.0002**0.5
    p_value = 2 * stats.t.sf(0.03 / 0.0002**0.5, 3.8)
    assert result == {"a": pytest.approx((0.03, 0.03 - half, 0.03 + half, p_value))}
    # A site whose two starts are alike has the mean deviation of both sites, with both sites' freedom.
    both = measure_starts({"a": [Effect(0.04, 0.01, 20), Effect(0.02, 0.01, 20)], "b": [Effect(0.03, 0.01, 20)] * 2})
    freedom = 0.00015**2 / (0.0001**2 / 19 + 0.00005**2 / 2)
    half = stats.t.ppf(0.975, freedom) * 0.00015**0.5
    assert both["b"][:3] == pytest.approx((0.03, 0.03 - half, 0.03 + half))
    # The other one has its own deviation, the larger one.
    freedom = 0.0002**2 / (0.0001**2 / 19 + 0.0001**2 / 2)
    half = stats.t.ppf(0.975, freedom) * 0.0002**0.5
    assert both["a"][:3] == pytest.approx((0.03, 0.03 - half, 0.03 + half))


def test_the_mean_over_hospitals_has_all_units_and_starts():
    starts = {"a": [Effect(m, 0.01, 20) for m in (0.04, 0.02)], "b": [Effect(m, 0.02, 30) for m in (0.05, 0.03)]}
    # Means 0.045 and 0.025. Units and each site's own luck: (0.0001 + 0.0004 + 2 * 0.0002) / 4; starts 0.0002 / 2.
    within = 0.0009 / 4
    between = 0.0001
    half = stats.t.ppf(0.975, (within + between) ** 2 / (within**2 / 49 + between**2)) * (within + between) ** 0.5
    assert measure_mean_of_starts(starts)[:3] == pytest.approx((0.035, 0.035 - half, 0.035 + half))
    assert measure_mean_of_starts({"a": starts["a"][:1]}) is None


def test_a_site_gains_over_starts_only_after_holm():
    # 0.02 * 2 is at most 0.05; 0.02 * 3 is not. What loses is no gain, however sure.
    sure = MeanEffect(0.1, 0.01, 0.2, 0.02)
    loss = MeanEffect(-0.1, -0.2, -0.01, 0.001)
    vain = MeanEffect(0, -1, 1, 0.9)
    assert find_gains({"a": sure, "b": vain}) == ["a"]
    assert find_gains({"a": sure, "b": vain, "c": vain}) == []
    assert find_gains({"a": sure, "b": loss}) == ["a"]


def test_units_and_starts_that_are_all_alike_are_no_gain():
    assert find_gains(measure_starts({"a": [Effect(1.0, 0.0, 2)] * 2})) == []


def test_among_eight_hospitals_without_gain_one_is_seldom_named():
    rng = np.random.default_rng(0)
    named = 0
    before = 0
    for _ in range(400):
        sites = {}
        for site in range(8):
            units = rng.normal(0, 0.1, 12)
            starts = [units + rng.normal(0, 0.02) for _ in range(2)]
            sites[str(site)] = [Effect(one.mean(), stats.sem(one), 12) for one in starts]
        effects = measure_starts(sites)
        named += bool(find_gains(effects))
        before += any(effect.low > 0 for effect in effects.values())
    # By the intervals alone it is one in seven.
    assert named / 400 <= 0.05 < 0.1 < before / 400


def test_the_networks_answer_weighs_sites_alike():
    result = average_sites([Effect(0.10, 0.03, 10), Effect(0.02, 0.04, 5)])
    # Mean (0.10 + 0.02) / 2. Squared errors 0.0009 and 0.0016: error sqrt(0.0025) / 2 = 0.025. Freedom
    # 0.0025^2 / (0.0009^2 / 9 + 0.0016^2 / 4) = 6.25e-6 / (9e-8 + 6.4e-7) = 625 / 73.
    half = stats.t.ppf(0.975, 625 / 73) * 0.025
    assert result == pytest.approx((0.06, 0.06 - half, 0.06 + half, 2 * stats.t.sf(2.4, 625 / 73)))
    # Equal errors and units of two sites: the freedom of both, 2 * 9.
    equal = average_sites([Effect(0.1, 0.03, 10)] * 2)
    assert equal.high - 0.1 == pytest.approx(stats.t.ppf(0.975, 18) * 0.03 / 2**0.5)


def test_one_site_or_equal_units_give_no_clear_answer():
    assert average_sites([]) is None and average_sites([Effect(0.1, 0.03, 10)]) is None
    # 1e-17 is the rounding of a standard deviation of equal numbers.
    assert average_sites([Effect(0.5, 1e-17, 2)] * 3) == (0.5, 0.5, 0.5, 1.0)
    same = joined(difference=0.5, standard_error=0.0)
    assert network_sentence({"a": same, "b": same}).endswith(
        "+0.500 (0.500 to 0.500) in this start of the training: not clear."
    )


@pytest.mark.parametrize(
    ("differences", "answer"),
    [
        # Error 0.05 / sqrt(2) with 48 degrees of freedom: 2.011 * 0.0354 = 0.071.
        ((0.10, 0.06), "+0.080 (0.009 to 0.151) in this start of the training: a clear gain"),
        ((0.10, 0.02), "+0.060 (-0.011 to 0.131) in this start of the training: not clear"),
        ((-0.10, -0.06), "-0.080 (-0.151 to -0.009) in this start of the training: a clear loss"),
    ],
)
def test_the_networks_sentence_says_mean_interval_and_clearness(differences, answer):
    joining = {site: joined(difference=difference) for site, difference in zip("ab", differences, strict=True)}
    begin = "Over all 2 hospitals (50 test patients) the mean difference, federated minus local, is"
    assert network_sentence(joining) == f"{begin} {answer}."


def test_the_networks_sentence_names_whom_it_leaves_out():
    one = joined(difference=0.4, standard_error=None, num_test_units=1)
    none = joined(difference=None, standard_error=None, num_test_units=0)
    cases = joined(unit="case")
    text = network_sentence({"a": joined(), "lyon": one, "nice": none, "b": joined(), "c": cases})
    assert text.startswith("Over 3 of 5 hospitals (75 test units; fewer than 2 at lyon and nice) the mean")
    assert network_sentence({"a": joined(), "lyon": one}) == "" and network_sentence({}) == ""


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        # sorted: 0.01 * 4, 0.02 * 3, 0.029 * 2 = 0.058, at least 0.06, 0.9 * 1
        ({"a": 0.029, "b": 0.9, "c": 0.01, "d": 0.02}, {"a": 0.06, "b": 0.9, "c": 0.04, "d": 0.06}),
        ({"a": 0.6, "b": 0.7}, {"a": 1.0, "b": 1.0}),
        ({}, {}),
    ],
)
def test_holm_never_falls_and_stays_a_probability(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


EQUAL, FEW, OWN = "no clear difference", "too few to say", "keeps its own model"
SHORT = "not trained to the end"
BETTER_ONE = "1 keeps a model that is better for its test patients than its own"


@pytest.mark.parametrize(
    ("verdicts", "tests", "sentence"),
    [
        ([], [], "No hospital has been tested."),
        (
            [BETTER],
            [],
            "The only hospital keeps a model that is better for its test patients than its own: " + ONE_START + ".",
        ),
        ([BETTER, OWN], [], f"Of 2 hospitals, {BETTER_ONE} and 1 keeps its local model: {ONE_START}."),
        (
            [BETTER] * 3,
            [],
            f"All 3 hospitals keep a model that is better for their test patients than their own: {ONE_START}.",
        ),
        (
            [FEW, EQUAL],
            [],
            "Of 2 hospitals, 1 has no clear difference and 1 has too few test patients to say: it is not "
            "known yet whether joining pays.",
        ),
        (
            [WORSE, BETTER],
            [],
            f"Of 2 hospitals, {BETTER_ONE} and 1 keeps a model that is worse for its test patients than its own: "
            "a would do better with the local model.",
        ),
        (
            [SHORT, BETTER],
            [],
            f"Of 2 hospitals, {BETTER_ONE} and 1 has a model that was not trained to the end: what joining gives is "
            "not known before both models are trained to the end.",
        ),
        (
            [OWN] * 3,
            [(0.7, 1.0), (0.762, 1.0), (0.701, 1.0)],
            "Joining gave nothing: the federated model is worse at all 3 hospitals (0.721, local 1.000).",
        ),
        (
            [OWN] * 2,
            [(0.7, 0.8), (0.8, 0.8)],
            "Joining gave nothing: on validation data the federated model is no better at any of the 2 hospitals.",
        ),
    ],
)
def test_the_federations_sentence_counts_every_hospital(verdicts, tests, sentence):
    assert federation_sentence(dict(zip("abcdef", verdicts, strict=False)), tests) == sentence


def test_without_any_unit_that_counts_nothing_is_said_of_the_training():
    nothing = np.full(3, np.nan)
    found = measure_joining(nothing, nothing, nothing, keeps_local=True, are_finished=False)
    assert (found.verdict, found.num_test_units) == ("too few to say", 0)
