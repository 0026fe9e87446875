import numpy as np
import pytest

from silofl.core.lesions import Agreement, LesionCounts, count_lesions, measure_agreement


def draw(*rows):
    return np.array([[[one == "#" for one in row] for row in rows]])


def test_a_lesion_is_found_by_one_pixel():
    truth = draw("##....", "##..#.", "......")
    predicted = draw(".#....", "......", "...#.#")
    # of the two true lesions the first is touched; the pixels below the second one touch nothing
    assert count_lesions(predicted, truth) == LesionCounts(num_true=2, num_found=1, num_false=2)


def test_slices_of_a_volume_are_connected_and_pictures_are_not():
    truth = np.ones((3, 2, 2), bool)
    assert count_lesions(truth, truth) == LesionCounts(1, 1, 0)
    assert count_lesions(truth, truth, is_one_volume=False) == LesionCounts(3, 3, 0)


def list_components(mask):
    """Return the components of a mask as sets of places, found by walking from voxel to voxel."""
    left = set(map(tuple, np.argwhere(mask)))
    result = []
    steps = [np.array(step) - 1 for step in np.ndindex(*(3,) * mask.ndim)]
    while left:
        seen = walk = {left.pop()}
        while walk:
            walk = {tuple(np.add(place, step)) for place in walk for step in steps} & left
            left -= walk
            seen = seen | walk
        result.append(seen)
    return result


@pytest.mark.parametrize("shape", [(1, 20, 20), (6, 12, 12)])
def test_the_counts_of_random_cases_are_those_of_a_walk(shape):
    random = np.random.default_rng(0)
    for _ in range(100):
        shares = random.uniform(0.02, 0.12, (2, *(1,) * len(shape)))
        truth, predicted = (random.random((2, *shape)) < shares).astype(bool)
        true = list_components(truth)
        called = list_components(predicted)
        result = [one for one in true if any(one & other for other in called)]
        false = [one for one in called if not any(one & other for other in true)]
        assert count_lesions(predicted, truth) == LesionCounts(len(true), len(result), len(false))


def test_the_limits_of_agreement_lie_about_the_mean_difference():
    # differences 1, 2 and 3: mean 2, deviation 1
    assert measure_agreement([2, 4, 6], [1, 2, 3]) == Agreement(2, pytest.approx(0.04), pytest.approx(3.96))
    assert measure_agreement([2], [1]) == Agreement(1, None, None) and measure_agreement([], []) is None
