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
    # offsets -2, -1, 0, 1, 2 of two slices, and -1, 0, 1 of one
    assert stack_neighbours(slices(2), 2)[:, ::2, 0, 0].tolist() == [[0, 0, 0, 10, 10], [0, 0, 10, 10, 10]]
    assert stack_neighbours(slices(1), 1)[:, :, 0, 0].tolist() == [[0, 1, 0, 1, 0, 1]]
    images = slices(3)
    assert stack_neighbours(images, 0) is images


def test_rows_and_columns_keep_their_places():
    images = np.random.default_rng(0).random((5, 2, 3, 4), dtype=np.float32)
    found = stack_neighbours(images, 2)
    assert found.shape == (5, 10, 3, 4)
    for offset in range(-2, 3):
        place = 2 * (offset + 2)
        np.testing.assert_array_equal(found[2, place : place + 2], images[2 + offset])


@pytest.mark.parametrize(
    ("shape", "is_window", "settings", "sentence"),
    [
        ((1, 4, 4), False, {"neighbours": 2}, "not a picture; give the volume, or set data.neighbours to 0"),
        ((3, 1, 9), True, {"neighbours": 2}, "not a window; give the volume, or set data.neighbours to 0"),
        ((1, 4, 4), False, {"dimensions": 3}, "not a picture; give the volume, or set data.dimensions to 2"),
    ],
)
def test_an_image_without_slices_is_refused_where_it_needs_some(shape, is_window, settings, sentence):
    image, (key, value) = Image(np.zeros(shape, np.uint8), None, 255, is_window), *settings.items()
    check_has_slices(image, DataSettings(), "a.png")
    with pytest.raises(DataError, match=f"a.png must be a volume.* data.{key} {value}, {sentence}$"):
        check_has_slices(image, DataSettings(**settings), "a.png")
    # One slice is a volume.
    check_has_slices(Image(np.zeros((1, 4, 4, 1), np.uint8), np.eye(4), 255), DataSettings(**settings), "a.nii.gz")
