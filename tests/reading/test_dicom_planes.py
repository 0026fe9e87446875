import numpy as np
import pytest
from pydicom.dataset import Dataset

from silofl.base.errors import DataError
from silofl.reading.dicom_planes import (
    DIRECTION,
    GROUPS,
    INDEX,
    POSITION,
    SPACING,
    order_frames,
    read_planes,
    step_between,
)
from tests.conftest import group

UPRIGHT = [1, 0, 0, 0, 1, 0]


def planes(positions, directions=UPRIGHT):
    several = directions if isinstance(directions[0], list) else [directions] * len(positions)
    size = {SPACING: [1, 1], "Rows": 4, "Columns": 5, INDEX: None}
    return [{POSITION: p, DIRECTION: d, **size} for p, d in zip(positions, several, strict=True)]


def upright(heights, indices=None):
    found = planes([[0, 0, z] for z in heights])
    return [plane | {INDEX: index} for plane, index in zip(found, indices or [None] * len(found), strict=True)]


def changed(places, **changes):
    """Return three slices, some of them changed."""
    return [{**plane, **(changes if z in places else {})} for z, plane in enumerate(upright((0, 2, 4)))]


def test_the_step_is_that_of_the_positions():
    # From (0, 0, 0) to (2, 4, 6) in two steps.
    np.testing.assert_array_equal(step_between(planes([[0, 0, 0], [1, 2, 3], [2, 4, 6]]), "scan"), [1, 2, 3])
    assert step_between(planes([None, None]), "scan") is None
    assert step_between(planes([[0, 0, 0]]), "scan") is None


TURNED = [1, 0, 0, 0, 0.99999, 0.002]


def test_rounding_is_no_other_direction_and_no_gap():
    turned = [*TURNED[:-1], 0.00002]
    assert step_between(planes([[0, 0, 0], [0, 0, 3]], [UPRIGHT, turned]), "scan") is not None
    # The mean step is 3.05, the largest difference from it 0.25.
    assert step_between(upright((0, 3, 6, 9.3, 12.2)), "scan")[2] == pytest.approx(3.05)


def test_two_images_at_one_place_are_refused_with_their_files():
    slices, files = upright((0, 3, 3, 6)), ["a", "b", "b2", "c"]
    with pytest.raises(
        DataError, match="two images at one place, as b and b2; remove the older version of an image, and save"
    ):
        step_between(slices, "scan", files)
    assert step_between(slices[:2] + slices[3:], "scan", files[:2] + files[3:])[2] == 3


@pytest.mark.parametrize(
    ("slices", "sentence"),
    [
        (planes([[0, 0, 0], [0, 0, 3]], [UPRIGHT, TURNED]), "has slices of different directions"),
        (upright((0, 3, 6, 12)), "has slices 3.00 to 6.00 mm apart"),
        *((upright(z), "holds two images at one place") for z in ((0, 3, 3, 6), (0, 3, 6, 3), (0, 3, 6, 0, 3, 6))),
        (planes([[0, 0, 0], None, [0, 0, 6]]), "states the place of 2 of its 3 slices"),
        (changed([1], Columns=6), "has slices of .* numbers of pixels .Columns."),
        (changed([1, 2], **{SPACING: [2, 2]}), "pixel sizes .*.PixelSpacing"),
        (changed([1], **{SPACING: None}), "pixel sizes .*.PixelSpacing"),
        # All are the root of 3 * 3 + 2 * 2, 3.61 mm apart, in a zigzag.
        (changed([1], **{POSITION: [3, 0, 2]}), "has slices 3.61 to 3.61 mm apart and up to 3.00 mm"),
    ],
)
def test_slices_that_are_no_one_volume_are_refused_as_such(slices, sentence):
    with pytest.raises(DataError, match=f"scan .*{sentence}"):
        step_between(slices, "scan")


@pytest.mark.parametrize(
    ("frames", "order"),
    [
        # Columns run to the back and rows to the feet: the normal runs to the right, against the first axis.
        (planes([[x, 5, 5] for x in (4, 0, 6, 2)], [0, 1, 0, 0, 0, -1]), [2, 0, 3, 1]),
        # They run on already.
        (upright((0, 3, 6)), [0, 1, 2]),
        (upright((6, 3, 0)), [0, 1, 2]),
        (upright((0, 3, 3, 6)), [0, 1, 2, 3]),
        (upright((7,)), [0]),
        # One states no place or no direction.
        ([{**upright((0,))[0], POSITION: None}, *upright((6, 3))], [0, 1, 2]),
        ([{**upright((0,))[0], DIRECTION: None}, *upright((6, 3))], [0, 1, 2]),
        # Of one stack and one time, whatever numbers the places have; or the number in the stack alone.
        (upright((0, 6, 3), [(1, 1, 1), (1, 3, 1), (1, 2, 1)]), [0, 2, 1]),
        (upright((0, 6, 3), [1, 3, 2]), [0, 2, 1]),
        # Of two times.
        (upright((0, 6, 3), [(1, 1), (2, 3), (1, 2)]), [0, 1, 2]),
    ],
)
def test_frames_come_in_the_order_of_their_places(frames, order):
    assert order_frames(frames).tolist() == order


def test_a_frames_own_value_goes_before_shared_ones():
    def stated(key, value):
        return group(GROUPS[key], **{key: value})

    header = Dataset()
    header.PixelSpacing, header.ImageOrientationPatient = [3, 3], [1, 0, 0, 0, 0, 1]
    assert [plane[SPACING] for plane in read_planes(header)] == [[3, 3]]
    header.SharedFunctionalGroupsSequence = [stated(DIRECTION, UPRIGHT)]
    header.PerFrameFunctionalGroupsSequence = [stated(POSITION, [0, 0, 0]), stated(DIRECTION, [0, 1, 0, 0, 0, 1])]
    first, second = read_planes(header)
    assert (first[POSITION], first[DIRECTION], first[SPACING]) == ([0, 0, 0], UPRIGHT, [3, 3])
    assert (second[POSITION], second[DIRECTION]) == (None, [0, 1, 0, 0, 0, 1])
