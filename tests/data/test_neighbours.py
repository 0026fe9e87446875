import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.neighbours import check_has_slices, stack_neighbours
from silofl.reading.image import Image
from silofl.study.data_settings import DataSettings


def slices(count):
    """Return slices (count, 2, 1, 1) whose values tell slice and channel: 31 is the second channel of slice 3."""
    values = 10 * np.arange(count)[:, None] + np.arange(2)
    return values.astype(np.float32).reshape(count, 2, 1, 1)


def test_each_slice_stands_between_its_neighbours_with_all_its_channels_and_the_ends_are_repeated():
    found = stack_neighbours(slices(4), 1)
    assert found.shape == (4, 6, 1, 1) and found.dtype == np.float32
    # before, itself, after
    assert found[:, :, 0, 0].tolist() == [
        [0, 1, 0, 1, 10, 11],
        [0, 1, 10, 11, 20, 21],
        [10, 11, 20, 21, 30, 31],
        [20, 21, 30, 31, 30, 31],
    ]


def test_more_neighbours_than_slices_repeat_the_ends():
    # offsets -2, -1, 0, 1, 2 of two slices, and -1, 0, 1 of one
    assert stack_neighbours(slices(2), 2)[:, ::2, 0, 0].tolist() == [[0, 0, 0, 10, 10], [0, 0, 10, 10, 10]]
    assert stack_neighbours(slices(1), 1)[:, :, 0, 0].tolist() == [[0, 1, 0, 1, 0, 1]]


def test_no_neighbours_leave_the_slices_as_they_are():
    images = slices(3)
    assert stack_neighbours(images, 0) is images


def test_rows_and_columns_keep_their_places():
    images = np.random.default_rng(0).random((5, 2, 3, 4), dtype=np.float32)
    found = stack_neighbours(images, 2)
    assert found.shape == (5, 10, 3, 4)
    for offset in range(-2, 3):
        place = 2 * (offset + 2)
        np.testing.assert_array_equal(found[2, place : place + 2], images[2 + offset])


@pytest.mark.parametrize(("shape", "is_window", "kind"), [((1, 4, 4), False, "picture"), ((3, 1, 9), True, "window")])
def test_an_image_without_slices_is_refused_where_it_needs_neighbours(shape, is_window, kind):
    image = Image(np.zeros(shape, np.uint8), None, 255, is_window)
    check_has_slices(image, DataSettings(), "a.png")
    sentence = f"of data.neighbours 2, not a {kind}; give the volume, or set data.neighbours to 0"
    with pytest.raises(DataError, match=f"a.png must be a volume, .* {sentence}$"):
        check_has_slices(image, DataSettings(neighbours=2), "a.png")


def test_a_picture_is_refused_where_a_study_is_in_3d():
    sentence = "with data.dimensions 3, not a picture; give the volume, or set data.dimensions to 2"
    with pytest.raises(DataError, match=f"a.png must be a volume {sentence}$"):
        check_has_slices(Image(np.zeros((1, 4, 4), np.uint8), None, 255), DataSettings(dimensions=3), "a.png")


def test_a_volume_of_one_slice_is_a_volume():
    check_has_slices(Image(np.zeros((1, 4, 4, 1), np.uint8), np.eye(4), 255), DataSettings(neighbours=1), "a.nii.gz")
