"""Whether classes are answered better than by guessing."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from silofl.core.guess import (
    Measured,
    describe_guess,
    describe_guesses,
    measure_classes,
    measure_findings,
    pool_measured,
)

EVEN = {"accuracy": 0.5, "balanced_accuracy": 0.5, "auroc": 0.5}


def measured(accuracy, cases, name="m"):
    return measure_classes(name, {"accuracy": accuracy}, cases)[name, "accuracy"]


@pytest.mark.parametrize("cases", [(3, 3), (10, 10), (30, 10), (90, 10)])
def test_an_accuracy_is_better_where_the_binomial_test_says_so(cases):
    total = sum(cases)
    most = max(cases)
    for right in range(total + 1):
        p_value = stats.binom.sf(right - 1, total, most / total)
        # The normal distribution is near it: at 2.5 % they agree but for a case.
        if p_value < 0.01 or p_value > 0.04:
            assert measured(right / total, cases).is_better() == (p_value < 0.025), right


def test_guesses_have_the_mean_and_the_variance_that_is_said():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], (12, 20, 8))
    predicted = rng.integers(0, 3, (4000, 40))
    scores = rng.random((4000, 40))
    recalls = np.mean([(predicted[:, truth == one] == one).mean(axis=1) for one in range(3)], axis=0)
    result = measure_classes("m", EVEN, (12, 20, 8, 0))
    balanced = result["m", "balanced_accuracy"]
    assert (recalls.mean(), recalls.var()) == pytest.approx((balanced.guess, balanced.variance), rel=0.06)
    areas = [roc_auc_score(truth == 0, one) for one in scores[:1000]]
    (area,) = measure_findings("m", EVEN, [(12, 28)]).values()
    assert (np.mean(areas), np.var(areas)) == pytest.approx((area.guess, area.variance), rel=0.1)
    assert result["m", "accuracy"].guess == 20 / 40


def test_several_looks_ask_for_more():
    # 8 right of 8: by luck in one of 256 searches
    assert measured(1.0, (4, 4)).is_better() and not measured(1.0, (4, 4)).is_better(looks=9)


def test_measures_of_several_sites_count_by_their_cases():
    pooled = pool_measured([Measured(1.0, 0.5, 0.04, 10), Measured(0.5, 0.75, 0.02, 30)])
    # (10 * 1 + 30 * 0.5) / 40, (10 * 0.5 + 30 * 0.75) / 40, 0.25^2 * 0.04 + 0.75^2 * 0.02
    assert (pooled.value, pooled.guess, pooled.variance, pooled.num_cases) == pytest.approx(
        (0.625, 0.6875, 0.01375, 40)
    )


@pytest.mark.parametrize(
    ("values", "cases"),
    [({"accuracy": 1.0}, (7, 0)), ({"auprc": 0.9}, (7, 7)), ({}, (7, 7)), ({"accuracy": 0.5}, ())],
)
def test_what_has_no_guess_beside_it_is_not_judged(values, cases):
    assert measure_classes("m", values, cases) == {}
    assert measure_findings("m", {"auroc": 1.0}, [(7, 0)]) == {} and describe_guesses({"north": {}}, "accuracy") == []


def of_site(accuracy, cases=(50, 50), auroc=None, name="m"):
    return measure_classes(name, {"accuracy": accuracy} | ({} if auroc is None else {"auroc": auroc}), cases)


def test_models_that_guess_at_all_sites_are_named_once():
    sites = {
        "north": {**of_site(0.4), **of_site(0.5, name="own")},
        "south": {**of_site(0.5), **of_site(0.48, name="own")},
    }
    sentence = "the best has accuracy 0.490 in 200 test cases, 0.500 by always answering the most frequent class"
    assert describe_guess(sites.values(), "accuracy") == f"better than guessing: {sentence}"
    # 110 of 200: p 0.09
    text = describe_guess([of_site(0.55), of_site(0.55)], "accuracy")
    assert text.startswith("shown to be better than guessing: accuracy 0.550 in 200 test cases")
    # Few cases of a good model say it together; each site's four do not.
    assert describe_guess([of_site(1.0, (2, 2)) for _ in "abc"], "accuracy") == ""
    few = describe_guess([of_site(1.0, (2, 2))], "accuracy")
    assert few.startswith("shown to be better than guessing: accuracy 1.000 in 4 test cases")
    # No site is named beside others that are no better.
    assert describe_guesses(sites, "accuracy") == []


def test_one_model_or_one_measure_that_is_better_is_enough():
    local = {**of_site(0.5), **of_site(0.9, name="own")}
    assert describe_guess([local], "accuracy") == ""
    # As with a rare class: every case is called the frequent one, and the order is right.
    assert describe_guess([of_site(0.9, (90, 10), auroc=0.9)], "accuracy") == ""
    assert describe_guess([of_site(0.5, auroc=0.5)], "auroc", "validation") == (
        "better than guessing: AUROC 0.500 in 100 validation cases, 0.500 by guessing"
    )


def test_a_site_whose_models_guess_is_named_beside_good_ones():
    good = of_site(0.9, auroc=0.9)
    (text,) = describe_guesses({"north": good, "south": of_site(0.45, auroc=0.4)}, "accuracy")
    assert text.startswith("south: no model is better than guessing: accuracy 0.450 in 100 test cases")
    for case in (of_site(0.45, (5, 5)), of_site(0.55), of_site(0.98, (98, 2), auroc=0.8)):
        assert describe_guesses({"north": good, "south": case}, "accuracy") == []
