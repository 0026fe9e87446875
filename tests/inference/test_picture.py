import io

import numpy as np
from PIL import Image

from silofl_hospital.inference.picture import _choose_slices, _turn_upright, draw_overlay

LABELS = {1: "organ", 2: "$lesion$"}


def test_an_overlay_is_a_png_that_shows_labels():
    image = np.random.default_rng(0).random((1, 20, 30, 4))
    mask = np.zeros((20, 30, 4), np.uint8)
    empty = draw_overlay(image, mask, np.diag([1, 1, 3, 1.0]), LABELS, "scan: $x$", True)
    mask[4:12, 5:20, 2] = 1
    shown = draw_overlay(image, mask, np.diag([1, 1, 3, 1.0]), LABELS, "scan: $x$", True)
    assert Image.open(io.BytesIO(shown)).format == "PNG" and shown != empty
    for channels in (1, 3):
        picture = np.random.default_rng(0).integers(0, 255, (channels, 20, 30), dtype=np.uint8)
        for mask_of_picture in (None, np.ones((20, 30), np.uint8)):
            content = draw_overlay(picture, mask_of_picture, None, {1: "organ"}, "x", True)
            assert Image.open(io.BytesIO(content)).width > 100


def test_a_volume_is_shown_as_radiologists_look_at_it():
    # RAS voxels: the corner at left, back, foot holds 1.
    volume = np.zeros((3, 4, 2), np.uint8)
    volume[0, 0, 0] = 1
    image, mask, aspect, sides = _turn_upright(volume[None], volume, np.diag([1, 2, 5, 1.0]))
    # Left, right, above, below.
    assert image.shape == (1, 4, 3, 2) and aspect == 2 and sides == "RLAP"
    # Rows run from front to back, columns from the patient's right to the left, slices from foot to head.
    assert mask[-1, -1, 0] == 1 and mask.sum() == 1
    volume = np.zeros((2, 4, 3), np.uint8)
    volume[0, 0, 2] = 1  # back and head
    _, mask, _, sides = _turn_upright(volume[None], volume, np.diag([4, 1, 1, 1.0]))
    assert mask.shape == (3, 4, 2) and mask[0, -1].any() and sides == "APHF"


def test_the_slices_with_most_of_each_label_are_shown():
    mask = np.zeros((4, 4, 9), np.uint8)
    assert _choose_slices(mask) == [4]
    mask[:3, :3, 2], mask[0, 0, 7] = 1, 2
    assert _choose_slices(mask) == [2, 7]
