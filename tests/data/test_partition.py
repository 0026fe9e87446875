from collections import Counter

import numpy as np
import pytest

from silofl.data.partition import assign_sites, dirichlet_sites, draw_shares, split_by_patient
from silofl.errors import DataError

PATIENTS = [f"p{number}" for number in range(50)]
LABELS = np.repeat(np.arange(4), [100, 200, 50, 150])


def test_patients_are_split_by_the_fractions():
    # 50 * 0.2 = 10 for the test; 40 * 0.25 = 10 for the validation; 30 stay.
    parts = split_by_patient(PATIENTS, test=0.2, validation=0.25, seed=0)
    assert Counter(parts.values()) == {"training": 30, "validation": 10, "test": 10}
    assert parts.keys() == set(PATIENTS)


def test_the_same_seed_gives_the_same_split_whatever_the_order_or_repetition():
    assert split_by_patient(PATIENTS, 0.2, 0.2, 3) == split_by_patient(PATIENTS[::-1] * 2, 0.2, 0.2, 3)


def test_another_seed_gives_another_split():
    assert split_by_patient(PATIENTS, 0.2, 0.2, 3) != split_by_patient(PATIENTS, 0.2, 0.2, 4)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, {}),
        (1, {"training": 1}),
        (2, {"training": 1, "test": 1}),
        (3, {"training": 1, "validation": 1, "test": 1}),
        (4, {"training": 2, "validation": 1, "test": 1}),
    ],
)
def test_each_part_gets_a_patient_where_there_are_enough(count, expected):
    assert Counter(split_by_patient(PATIENTS[:count], 0.2, 0.2, 0).values()) == expected


@pytest.mark.parametrize("fraction", [0.9, 0.99])
def test_training_is_never_left_empty(fraction):
    for count in range(1, 8):
        assert "training" in split_by_patient(PATIENTS[:count], fraction, fraction, 0).values()


def test_no_fraction_is_no_part():
    assert set(split_by_patient(PATIENTS, 0.2, 0, 0).values()) == {"training", "test"}


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(DataError, match="test must be a fraction from 0 to below 1, not"):
        split_by_patient(PATIENTS, fraction, 0.2, 0)
    with pytest.raises(DataError, match="validation must be a fraction from 0 to below 1, not"):
        split_by_patient(PATIENTS, 0.2, fraction, 0)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1, 100])
@pytest.mark.parametrize("num_sites", [1, 3, 20])
def test_every_example_has_a_site_and_every_site_an_example(alpha, num_sites):
    sites = dirichlet_sites(LABELS, num_sites, alpha, seed=0)
    assert sites.shape == LABELS.shape
    assert set(sites) == set(range(num_sites))


def test_as_many_sites_as_examples_get_one_each():
    assert sorted(dirichlet_sites([0, 0, 1, 1, 1], 5, 0.1, seed=2)) == [0, 1, 2, 3, 4]


def test_the_same_seed_gives_the_same_sites():
    np.testing.assert_array_equal(dirichlet_sites(LABELS, 5, 0.5, 1), dirichlet_sites(LABELS, 5, 0.5, 1))
    assert not np.array_equal(dirichlet_sites(LABELS, 5, 0.5, 1), dirichlet_sites(LABELS, 5, 0.5, 2))


def test_a_large_alpha_gives_equal_shares_and_a_small_one_few_classes():
    even = np.bincount(dirichlet_sites(LABELS, 5, 1e6, 0))
    np.testing.assert_allclose(even, 100, atol=3)
    sites = dirichlet_sites(LABELS, 5, 0.01, 0)
    dominant = [np.bincount(sites[LABELS == label]).max() / (LABELS == label).sum() for label in range(4)]
    assert np.mean(dominant) > 0.9


def test_examples_are_dealt_by_the_shares_of_their_class():
    shares = np.array([[0.5, 0.5], [0.1, 0.9]])
    labels = np.repeat([0, 1], [20, 30])
    sites = assign_sites(labels, shares, seed=0)
    # 20 * (0.5, 0.5) and 30 * (0.1, 0.9)
    assert np.bincount(sites[:20]).tolist() == [10, 10]
    assert np.bincount(sites[20:]).tolist() == [3, 27]


def test_a_site_that_no_share_reaches_gets_an_example_of_the_largest():
    sites = assign_sites(np.zeros(10, int), np.array([[1.0, 0.0, 0.0]]), seed=0)
    assert np.bincount(sites).tolist() == [8, 1, 1]


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 1, 1e6])
def test_shares_sum_to_one(alpha):
    np.testing.assert_allclose(draw_shares(6, 4, alpha, 0).sum(axis=1), 1)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_an_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(DataError, match="alpha must be above 0 and finite, not"):
        dirichlet_sites(LABELS, 3, alpha, 0)


@pytest.mark.parametrize("num_sites", [0, -1])
def test_a_number_of_sites_out_of_range_is_refused(num_sites):
    with pytest.raises(DataError, match="num_sites must be at least 1, not"):
        dirichlet_sites(LABELS, num_sites, 1, 0)


@pytest.mark.parametrize("labels", [[], [0, 1]])
def test_more_sites_than_examples_are_refused(labels):
    with pytest.raises(DataError, match=f"num_sites must be at most the number of examples, {len(labels)}, not 3"):
        dirichlet_sites(labels, 3, 1, 0)
