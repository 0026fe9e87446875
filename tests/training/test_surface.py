import numpy as np
import pytest
from scipy.ndimage import binary_erosion

from silofl.training.surface import TOLERANCE, surface_by_case, surface_numbers


def square(top, left, size=10, shape=(24, 24), label=1):
    mask = np.zeros(shape, np.uint8)
    mask[top : top + size, left : left + size] = label
    return mask


def points(mask):
    """Return the places of a mask's surface: its pixels with a neighbour outside."""
    return np.argwhere(mask & ~binary_erosion(mask))


def expected(one, other):
    """Return both distances of two masks from all pairs of surface points."""
    between = np.linalg.norm(points(one)[:, None] - points(other)[None], axis=2)
    there = between.min(axis=1)
    back = between.min(axis=0)
    near = (there <= TOLERANCE).sum() + (back <= TOLERANCE).sum()
    return max(np.percentile(there, 95), np.percentile(back, 95)), near / (len(there) + len(back))


def of_case(prediction, truth, regions=((1,),), spacing=None):
    spacings = {} if spacing is None else {"a": spacing}
    return surface_by_case(np.stack(prediction), np.stack(truth), ["a"] * len(prediction), regions, spacings)["a"]


@pytest.mark.parametrize("prediction", [square(7, 4), square(4, 4, 5), square(0, 0, 3), square(5, 9, 1)])
def test_a_picture_is_measured_as_its_surface_points_say(prediction):
    assert of_case([prediction], [square(4, 4)]) == pytest.approx(expected(prediction == 1, square(4, 4) == 1))


def test_a_volume_is_measured_across_its_slices():
    empty = np.zeros((24, 24), np.uint8)
    truth = [empty, *[square(4, 4)] * 5, *[empty] * 6]
    prediction = [*[empty] * 5, *[square(4, 4)] * 5, empty, empty]
    result = of_case(prediction, truth)
    assert result == pytest.approx(expected(np.stack(prediction) == 1, np.stack(truth) == 1)) and result[0] == 4


def cube(first, size=6):
    mask = np.zeros((16, 16, 16), np.uint8)
    mask[tuple(slice(start, start + size) for start in first)] = 1
    return mask


@pytest.mark.parametrize(("shift", "size_mm"), [((3, 0, 0), 0.5), ((0, 3, 0), 1), ((0, 0, 3), 4)])
def test_voxels_of_known_size_are_measured_in_mm(shift, size_mm):
    truth = cube((4, 4, 4))
    prediction = cube(np.add((4, 4, 4), shift))
    # 0.5 mm from column to column, 1 mm from row to row, 4 mm from slice to slice; without sizes 3 voxels each
    whole = of_case([prediction], [truth], spacing=(0.5, 1.0, 4.0))
    assert whole[0] == 3 * size_mm and of_case([prediction], [truth])[0] == 3
    # the same volume cut along its last axis
    assert of_case(prediction.transpose(2, 0, 1), truth.transpose(2, 0, 1), spacing=(0.5, 1.0, 4.0)) == whole
    # of 1.5 mm all is within the tolerance of 2 mm, of 12 mm not
    assert (whole[1] == 1) == (size_mm == 0.5)


def test_a_case_has_the_mean_over_its_labels():
    truth = square(0, 0, 6) + square(12, 12, 6, label=2)
    prediction = square(0, 0, 6) + square(16, 12, 6, label=2)
    # 0 of the first label, 4 of the second
    assert of_case([prediction], [truth], ((1,), (2,)))[0] == 2


@pytest.mark.parametrize(
    ("prediction", "truth"),
    [
        (square(4, 4), square(0, 0, 0)),
        (square(0, 0, 0), square(4, 4)),
        (square(0, 0, 0), square(0, 0, 0)),
        # the second label is in truth alone
        (square(4, 4), square(4, 4) + square(16, 16, 4, label=2)),
    ],
)
def test_a_label_in_truth_or_prediction_alone_has_no_distance(prediction, truth):
    assert of_case([prediction], [truth], ((1,), (2,))) is None


def test_cases_without_a_distance_are_counted_and_the_others_averaged():
    empty = square(0, 0, 0)
    predictions = np.stack([square(4, 4), square(6, 4), empty])
    targets = np.stack([square(4, 4)] * 3)
    result = surface_by_case(predictions, targets, ["a", "b", "c"], [(1,)], {})
    # 0 and 2 pixels
    counts = {"num_cases": 2, "num_undefined": 1}
    assert surface_numbers(result, "mm") == {"hd95": 1.0, "surface_dice": 1.0, "unit": "mm"} | counts
    nothing = {"hd95": None, "surface_dice": None, "unit": "pixels", "num_cases": 0, "num_undefined": 1}
    assert surface_numbers({"c": result["c"]}, "pixels") == nothing
