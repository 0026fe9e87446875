from collections import Counter

import numpy as np
import pytest
from dealing import deal_equally, deal_shares, draw_shares, shard_sites, split_by_class

from silofl.base.errors import DataError
from silofl_hospital.importing.partition import split_by_patient

PATIENTS = [f"p{number}" for number in range(50)]
LABELS = np.repeat(np.arange(4), [100, 200, 50, 150])


def dirichlet_sites(labels, num_sites, alpha, seed):
    """Spread labelled examples over sites with different label shares."""
    shares = draw_shares(max(labels, default=0) + 1, num_sites, alpha, seed)
    return deal_shares(np.asarray(labels), shares, seed)


def test_patients_are_split_by_the_fractions():
    # 50 * 0.2 = 10 for the test; 40 * 0.25 = 10 for the validation; 30 stay.
    parts = split_by_patient(PATIENTS, test=0.2, validation=0.25, seed=0)
    assert Counter(parts.values()) == {"training": 30, "validation": 10, "test": 10}
    assert parts.keys() == set(PATIENTS)
    assert set(split_by_patient(PATIENTS, 0.2, 0, 0).values()) == {"training", "test"}


def test_patients_with_a_class_are_split_within_each():
    classes = {name: int(number >= 44) for number, name in enumerate(PATIENTS)}
    parts = split_by_patient(PATIENTS, 0.2, 0.2, 0, classes)
    # Of 44: round(8.8) = 9 for the test, round(35 * 0.2) = 7 for the validation. Of 6: round(1.2) = 1, then 5 * 0.2.
    counts = Counter((classes[name], part) for name, part in parts.items())
    assert counts == {
        (0, "training"): 28,
        (0, "validation"): 7,
        (0, "test"): 9,
        (1, "training"): 4,
        (1, "validation"): 1,
        (1, "test"): 1,
    }
    assert parts == split_by_patient(PATIENTS[::-1], 0.2, 0.2, 0, classes) != split_by_patient(PATIENTS, 0.2, 0.2, 0)


@pytest.mark.parametrize(
    "deal",
    [
        lambda seed: split_by_patient(PATIENTS, 0.2, 0.2, seed),
        lambda seed: split_by_class(PATIENTS, np.arange(50) % 2, 0.5, 0, seed),
        lambda seed: dirichlet_sites(LABELS, 5, 0.5, seed).tolist(),
        lambda seed: shard_sites(LABELS, 5, 2, seed).tolist(),
        lambda seed: deal_equally(LABELS, draw_shares(4, 5, 0.5, 0, is_by_site=True), seed).tolist(),
        lambda seed: draw_shares(4, 5, 0.5, seed, is_by_site=True).tolist(),
    ],
)
def test_the_same_seed_deals_alike_and_another_one_otherwise(deal):
    assert deal(1) == deal(1) != deal(2)


FRACTION = "must be a fraction from 0 to below 1, not"
ALPHA = "alpha must be above 0 and finite, not"
AT_LEAST_1 = "num_sites must be at least 1, not 0"
AT_MOST = "num_sites must be at most the number of"


@pytest.mark.parametrize(
    ("deal", "sentence"),
    [
        *((lambda x=x: split_by_patient(PATIENTS, x, 0.2, 0), f"test {FRACTION}") for x in (-0.1, 1, float("nan"))),
        *((lambda x=x: dirichlet_sites(LABELS, 3, x, 0), ALPHA) for x in (0, float("nan"), float("inf"))),
        (lambda: dirichlet_sites(LABELS, 0, 1, 0), AT_LEAST_1),
        (lambda: shard_sites(np.zeros(11, int), 0, 2, 0), AT_LEAST_1),
        (lambda: dirichlet_sites([0, 1], 3, 1, 0), f"{AT_MOST} examples, 2, not 3"),
        (lambda: deal_equally(LABELS, draw_shares(4, 501, 1, 0, is_by_site=True), 0), f"{AT_MOST} .*500, not 501"),
        (lambda: shard_sites(np.zeros(11, int), 6, 2, 0), f"{AT_MOST} examples by 2 shards a site, 5, not 6"),
        (lambda: shard_sites(np.zeros(11, int), 3, 0, 0), "shards must be at least 1 a site, not 0"),
        (
            lambda: deal_shares(np.zeros(11, int), np.ones((1, 3)) / 3, seed=0, at_least=4),
            f"{AT_MOST} examples by 4 a site, 2, not 3",
        ),
    ],
)
def test_what_cannot_be_dealt_is_refused(deal, sentence):
    with pytest.raises(DataError, match=sentence):
        deal()


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


def test_a_large_alpha_gives_equal_shares():
    even = np.bincount(dirichlet_sites(LABELS, 5, 1e6, 0))
    np.testing.assert_allclose(even, 100, atol=3)
    sites = dirichlet_sites(LABELS, 5, 0.01, 0)
    dominant = [np.bincount(sites[LABELS == label]).max() / (LABELS == label).sum() for label in range(4)]
    assert np.mean(dominant) > 0.9


def test_examples_are_dealt_by_the_shares_of_their_class():
    shares = np.array([[0.5, 0.5], [0.1, 0.9]])
    labels = np.repeat([0, 1], [20, 30])
    sites = deal_shares(labels, shares, seed=0)
    # 20 * (0.5, 0.5) and 30 * (0.1, 0.9)
    assert np.bincount(sites[:20]).tolist() == [10, 10]
    assert np.bincount(sites[20:]).tolist() == [3, 27]


@pytest.mark.parametrize(
    ("count", "shares", "at_least", "sizes"),
    # 18, 2 and 0 by the shares; 2 and 4 more come from the largest
    [(20, [0.9, 0.1, 0.0], 4, [12, 4, 4]), (10, [1.0, 0.0, 0.0], 1, [8, 1, 1])],
)
def test_a_small_site_is_filled_up_from_the_largest(count, shares, at_least, sizes):
    sites = deal_shares(np.zeros(count, int), np.array([shares]), seed=0, at_least=at_least)
    assert np.bincount(sites).tolist() == sizes


# --- recordings by class


def test_every_class_is_split_for_itself():
    recordings, labels = [f"{label}-{n}" for label in "abc" for n in range(10)], np.repeat([0, 1, 2], 10)
    part_of = split_by_class(recordings, labels, 0.3, 0.5, seed=0)
    # of 10: 10 * 0.3 = 3 for the test, floor(7 * 0.5) = 3 for the validation, 4 stay
    for name in "abc":
        parts = Counter(part for recording, part in part_of.items() if recording[0] == name)
        assert parts == {"test": 3, "validation": 3, "training": 4}


# --- shards


def test_sites_get_equal_shards_of_few_classes():
    labels = np.tile(np.arange(10), 40)
    sites = shard_sites(labels, num_sites=20, shards_per_site=2, seed=0)
    # 400 examples in 40 shards of 10; a class of 40 fills 4 shards, so a shard has one class and a site one or two
    assert np.bincount(sites).tolist() == [20] * 20
    assert max(len(set(labels[sites == site])) for site in range(20)) == 2


# --- sites of equal size


@pytest.mark.parametrize("num_sites", [1, 7, 500])
def test_every_site_gets_the_same_number(num_sites):
    sites = deal_equally(LABELS, draw_shares(4, num_sites, 0.1, seed=3, is_by_site=True), seed=3)
    # 500 examples: 500 // 7 = 71 each, and 3 are left over
    counts = Counter(sites.tolist())
    left = counts.pop(-1, 0)
    assert counts == dict.fromkeys(range(num_sites), 500 // num_sites) and left == 500 % num_sites


def test_a_used_up_class_is_replaced_by_others():
    labels = np.repeat([0, 1, 2], [10, 400, 400])
    # 810 // 3 = 270 each; 10 examples of class 0, which all three want alone, do not go far
    shares = np.array([[1 - 1e-9, 0.9e-9, 0.1e-9], [1 - 1e-9, 0.1e-9, 0.9e-9], [1.0, 0, 0]])
    sites = deal_equally(labels, shares, seed=0)
    found = np.stack([np.bincount(labels[sites == site], minlength=3) for site in range(3)])
    assert found.sum(axis=1).tolist() == [270] * 3 and found[:, 0].sum() == 10
    assert found[0, 1] > 4 * found[0, 2] and found[1, 2] > 4 * found[1, 1]
