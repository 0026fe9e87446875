import numpy as np
import pytest
import torch

from silofl.core.operating_point import (
    MOST_TEMPERATURE,
    OperatingPoint,
    choose_operating_point,
    find_temperature,
    find_threshold,
    temper,
)


def made_up(seed=0, n=400, classes=3, temperature=2.0):
    """Return probabilities that are too sure by a temperature, and the true classes, drawn from the right ones."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, classes)) * 1.5
    right = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = np.array([random.choice(classes, p=row) for row in right])
    sure = np.exp(logits * temperature)
    return sure / sure.sum(axis=1, keepdims=True), truth


def units(n):
    return [f"p{i}" for i in range(n)]


def test_a_temperature_divides_the_logits():
    # logits log 4 and 0 are at temperature 2 log 2 and 0: 2 of 3
    np.testing.assert_allclose(temper(np.array([[0.8, 0.2]]), 2.0), [[2 / 3, 1 / 3]])
    # of each finding alone: odds of 4 and of 1/9 become 2 and 1/3
    np.testing.assert_allclose(temper(np.array([[0.8, 0.1]]), 2.0, is_multilabel=True), [[2 / 3, 1 / 4]])


@pytest.mark.parametrize("is_multilabel", [False, True])
def test_a_temperature_changes_no_answer_and_1_changes_nothing(is_multilabel):
    chances, _ = made_up()
    np.testing.assert_allclose(temper(chances, 1.0, is_multilabel), chances)
    for temperature in (0.3, 4.0):
        result = temper(chances, temperature, is_multilabel)
        np.testing.assert_array_equal(result.argmax(axis=1), chances.argmax(axis=1))
        np.testing.assert_array_equal(result > 0.5, chances > 0.5) if is_multilabel else None
        assert np.isfinite(temper(np.array([[1.0, 0.0]]), temperature, is_multilabel)).all()


@pytest.mark.parametrize("is_multilabel", [False, True])
def test_the_temperature_is_the_one_that_torch_finds(is_multilabel):
    random = np.random.default_rng(3)
    logits = random.normal(size=(60, 3)) * 3
    noisy = logits + random.normal(size=(60, 3)) * 4
    is_true = noisy > 0 if is_multilabel else np.eye(3, dtype=bool)[noisy.argmax(axis=1)]
    given = torch.from_numpy(logits)
    wanted = torch.from_numpy(is_true.astype(float))
    log_t = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t], max_iter=200, line_search_fn="strong_wolfe")
    loss = torch.nn.functional.binary_cross_entropy_with_logits if is_multilabel else torch.nn.functional.cross_entropy

    def closure():
        optimizer.zero_grad()
        value = loss(given / log_t.exp(), wanted)
        value.backward()
        return value

    optimizer.step(closure)
    chances = (given.sigmoid() if is_multilabel else given.softmax(dim=1)).numpy()
    result = find_temperature(chances, is_true, units(60), is_multilabel)
    assert result == pytest.approx(float(log_t.detach().exp()), rel=1e-4) and result > 1.5


def test_answers_without_order_are_made_most_unsure():
    random = np.random.default_rng(0)
    chances = random.dirichlet([0.1, 0.1], size=200)
    is_true = np.eye(2, dtype=bool)[1 - chances.argmax(axis=1)]
    result = find_temperature(chances, is_true, units(200))
    assert result == pytest.approx(MOST_TEMPERATURE, rel=1e-2)


def test_a_patient_with_many_cases_counts_once():
    chances, truth = made_up(n=60)
    is_true = np.eye(3, dtype=bool)[truth]
    names = units(60)
    rows = [*range(60), *[0] * 500]
    many = find_temperature(chances[rows], is_true[rows], [names[row] for row in rows])
    assert many == pytest.approx(find_temperature(chances, is_true, names), rel=1e-6)


@pytest.mark.parametrize("n", [5, 40])
def test_few_patients_or_right_answers_give_no_temperature(n):
    for sure in (0.9, 0.99, 0.999):
        chances = np.tile([sure, 1 - sure], (n, 1))
        if n == 5:
            chances[0] = [0.1, 0.9]
        for is_multilabel in (False, True):
            assert find_temperature(chances, np.tile([True, False], (n, 1)), units(n), is_multilabel) == 1.0


SCORES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.35, 0.6, 0.7, 0.9])
IS_POSITIVE = np.array([False] * 5 + [True] * 4)


def test_a_threshold_keeps_the_wanted_specificity_or_sensitivity():
    # all 5 negatives lie below 0.6, and 3 of 4 positives at it or above; the next score below is 0.5
    assert find_threshold(SCORES, IS_POSITIVE, specificity=0.9) == pytest.approx(0.55)
    # at 0.35 all positives, and 0.4 and 0.5 too: specificity 3/5; the next is 0.3
    assert find_threshold(SCORES, IS_POSITIVE, specificity=0.6) == pytest.approx(0.325)
    assert find_threshold(SCORES, IS_POSITIVE, sensitivity=1.0) == pytest.approx(0.325)
    assert find_threshold(SCORES, IS_POSITIVE, sensitivity=0.75) == pytest.approx(0.55)
    # half of 4 is 2, the two highest: 0.7, and 0.6 below
    assert find_threshold(SCORES, IS_POSITIVE, sensitivity=0.5) == pytest.approx(0.65)


def test_a_threshold_lies_halfway_or_at_the_upper_neighbour():
    assert find_threshold(np.array([0.4, 0.6]), np.array([True, False]), sensitivity=1.0) == pytest.approx(0.2)
    upper = np.nextafter(0.5, 1)
    assert find_threshold(np.array([0.5, upper]), np.array([False, True]), specificity=1.0) == upper


def test_without_both_kinds_there_is_no_threshold():
    assert find_threshold(SCORES[:5], IS_POSITIVE[:5], specificity=0.9) is None
    assert find_threshold(SCORES[:5], IS_POSITIVE[:5], sensitivity=0.9) is None
    # the negative one is the surest
    assert find_threshold(np.array([0.2, 0.9]), np.array([True, False]), specificity=1.0) is None


def test_a_threshold_decides_two_classes_and_each_finding():
    two = np.array([[0.65, 0.35], [0.7, 0.3], [0.2, 0.8]])
    np.testing.assert_array_equal(OperatingPoint().decide(two), [0, 0, 1])
    np.testing.assert_array_equal(OperatingPoint(thresholds={1: 0.35}).decide(two), [1, 0, 1])
    # a temperature changes no answer
    np.testing.assert_array_equal(OperatingPoint(3.0, {1: 0.35}).decide(two), [1, 0, 1])
    findings = np.array([[0.65, 0.35], [0.2, 0.8]])
    # findings count 1 and 2; the first has the usual threshold
    np.testing.assert_array_equal(OperatingPoint(thresholds={1: 0.3}).decide(findings, is_multilabel=True), [1 + 2, 2])


def test_a_reading_is_chosen_of_the_classes_that_are_called():
    chances, truth = made_up(n=100, classes=2)
    is_true = np.eye(2, dtype=bool)[truth]
    result = choose_operating_point(chances, is_true, units(100), [1], specificity=0.9)
    assert result.thresholds == {1: find_threshold(chances[:, 1], is_true[:, 1], specificity=0.9)}
    assert result.temperature > 1.5
    called = result.decide(chances) == 1
    assert called[~is_true[:, 1]].mean() <= 0.1
    assert choose_operating_point(chances, is_true, units(100), [1]).thresholds == {}
