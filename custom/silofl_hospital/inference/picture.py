"""The overlay of a prediction: the slices with most of each label, the right way up."""

from collections.abc import Mapping
from typing import Any

import nibabel.orientations as orientations
import numpy as np
from numpy.typing import NDArray

from silofl_hospital.report.canvas import encode_png, escape_math, make_panels
from silofl_hospital.report.outlines import add_label_legend, draw_outlines, grey_window, show_image

MAX_PANES = 3
INCH = 3.4
DPI = 110
# What lies at the beginning and end of the axes to the left, to the back and, turned round, to the head.
SIDES = ("RL", "AP", "HF")
# A slice with these sides is called so.
PLANES = {"RLAP": "axial", "RLHF": "coronal", "APHF": "sagittal"}
# Voxels that are so much wider than the others are slices; about equal ones may have been cut in any direction.
WIDER = 1.2
# The letters stand here, as fractions of width and height: left, right, above, below.
LETTERS_AT = ((0.04, 0.5), (0.96, 0.5), (0.5, 0.96), (0.5, 0.04))
LPS = orientations.axcodes2ornt(("L", "P", "S"))  # type: ignore[no-untyped-call]


def draw_overlay(
    image: NDArray[Any],
    label_map: NDArray[Any] | None,
    affine: NDArray[Any] | None,
    labels: Mapping[int, str],
    title: str,
    is_oriented: bool,
) -> bytes:
    """Draw an image with its label map over it, as PNG.

    A volume is shown from the side it was cut, along its widest voxels, and across the body where none are far wider:
    the patient's right on the left of the picture, front or head at the top.

    Args:
        image: (C, rows, columns), or (C, X, Y, Z).
        label_map: Label numbers without the first axis; None for a class.
        affine: Voxel indices to millimetres; None of a picture.
        labels: Number -> name.
        is_oriented: Whether the affine says how the axes lie in the body, so that the sides of a slice have letters.
    """
    mask = np.zeros(image.shape[1:], np.uint8) if label_map is None else label_map
    aspect = 1.0
    sides = ""
    if affine is None:
        slices = [("", image, mask)]
    else:
        image, mask, aspect, sides = _turn_upright(image, mask, affine)
        count = mask.shape[-1]
        plane = f"{PLANES[sides]} " if is_oriented else ""
        slices = []
        for z in _choose_slices(mask):
            slices.append((f"{plane}slice {z + 1} of {count}", image[..., z], mask[..., z]))
    return _draw_slices(slices, aspect, {} if label_map is None else labels, title, sides if is_oriented else "")


def _turn_upright(
    image: NDArray[Any], mask: NDArray[Any], affine: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], float, str]:
    """Return image (C, rows, columns, slices) and mask the right way up, a pixel's height by its width, and its sides.

    The sides are the letters of what lies left, right, above and below.
    """
    turn = orientations.ornt_transform(orientations.io_orientation(affine), LPS)  # type: ignore[no-untyped-call]
    spacing = np.linalg.norm(affine[:3, :3], axis=0)[np.argsort(turn[:, 0])]
    arrays = [orientations.apply_orientation(array, turn) for array in (*image, mask)]  # type: ignore[no-untyped-call]
    axis = int(np.argmax(spacing))
    if spacing[axis] <= WIDER * np.delete(spacing, axis).max():
        axis = 2
    columns, rows = (number for number in range(3) if number != axis)
    arrays = [array.transpose(rows, columns, axis) for array in arrays]
    if rows == 2:
        # Axis z runs to the head, which belongs at the top.
        arrays = [array[::-1] for array in arrays]
    return np.stack(arrays[:-1]), arrays[-1], float(spacing[rows] / spacing[columns]), SIDES[columns] + SIDES[rows]


def _choose_slices(mask: NDArray[Any]) -> list[int]:
    """Return the slices with most of any label, then with most of each; the middle one where there is none."""
    counts = [np.count_nonzero(mask, axis=(0, 1))]
    counts += [np.count_nonzero(mask == number, axis=(0, 1)) for number in np.unique(mask) if number]
    fullest = dict.fromkeys(int(count.argmax()) for count in counts if count.any())
    return sorted(list(fullest)[:MAX_PANES]) or [mask.shape[-1] // 2]


def _draw_slices(
    slices: list[tuple[str, NDArray[Any], NDArray[Any]]],
    aspect: float,
    labels: Mapping[int, str],
    title: str,
    sides: str,
) -> bytes:
    height, width = slices[0][2].shape
    # A very long or wide slice would leave no room for the others.
    tall = float(np.clip(aspect * height / width, 0.3, 3))
    figure, grid = make_panels(1, len(slices), (max(INCH * len(slices), 5.0), INCH * tall + 1.1))
    window = grey_window([image for _, image, _ in slices])
    for axes, (name, image, mask) in zip(grid[0], slices, strict=True):
        show_image(axes, image[:3], window)
        axes.set_aspect(aspect)
        draw_outlines(axes, mask, labels)
        axes.set_title(name, fontsize=9)
        for position, letter in zip(LETTERS_AT, sides, strict=False):
            axes.text(*position, letter, transform=axes.transAxes, ha="center", va="center", color="gold", fontsize=9)
    figure.suptitle(escape_math(title), fontsize=10, wrap=True)
    return encode_png(add_label_legend(figure, labels), DPI)
