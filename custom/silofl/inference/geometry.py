"""From probabilities on the prepared images back to label numbers on the input's own grid."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.core.findings import most_likely
from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint
from silofl.data.preparation import InverseTransform, Preparation
from silofl.data.prepared_image import PreparedImage
from silofl.data.transforms import metadata_tracking
from silofl.study import Study

if TYPE_CHECKING:
    from monai.transforms.compose import Compose

# A single value that a transform has interpolated differs by less than this from pixel to pixel.
ROUNDING = 1e-6
# What MONAI calls linear interpolation, by the name of the transform whose inverse interpolates.
LINEAR = {"Resize": {2: "bilinear", 3: "trilinear"}}
LINEAR_ON_A_GRID = "bilinear"


def check_images(images: NDArray[Any], image_shape: Sequence[int], is_in_patches: bool = False) -> None:
    """Refuse prepared images of another shape than the training images, or with values that are not finite.

    Args:
        images: Expected as (n, C, *spatial), n at least 1; a volume that is seen in patches as (1, C, X, Y, Z).
        image_shape: (C, *spatial) of the training images, or patches.
        is_in_patches: Whether the network sees patches of volumes of any size.

    Raises:
        DataError: Another shape, or a value that is not finite.
    """
    if is_in_patches and (images.ndim != 5 or images.shape[:2] != (1, image_shape[0]) or images.size == 0):
        raise DataError(
            f"the prepared images must have shape (1, {image_shape[0]}, X, Y, Z), one volume as in training, not "
            f"{images.shape}; give the whole volume"
        )
    if not is_in_patches and (len(images) < 1 or images.shape[1:] != tuple(image_shape)):
        raise DataError(
            f"the prepared images must have shape (n, {', '.join(map(str, image_shape))}) as in training, not "
            f"{images.shape}; bring the image to the training images' size, or name Resize in the study's data"
        )
    if not np.isfinite(images).all():
        raise DataError("the prepared images must be finite, not NaN or infinite; repair the image")


def check_is_not_blank(images: NDArray[Any], name: str, names: Sequence[str], missing: Sequence[str]) -> None:
    """Refuse the prepared images of a case that shows nothing, or nothing in a contrast; no answer means anything then.

    Args:
        images: (n, C, *spatial); where contrasts have names, all of one slice, then those of the next.
        name: What messages call the input.
        names: The study's contrasts, where they have files of their own; empty where one file holds all.
        missing: Those that the case is known to lack.

    Raises:
        DataError: They, or one of the other contrasts, are of one intensity.
    """
    for number, contrast in enumerate(names or ("",)):
        shown = images[:, number :: len(names) or 1]
        if contrast not in missing and np.isclose(shown.min(), shown.max(), rtol=ROUNDING, atol=0):
            blank = f" in {contrast}; export it again, or leave that contrast out" if contrast else "; export it again"
            raise DataError(f"{name} shows one intensity alone{blank}")


def check_probabilities(probabilities: NDArray[np.floating], name: str) -> None:
    """Refuse an answer that is not finite, which would be read as background.

    Raises:
        DataError: It is not.
    """
    if not np.isfinite(probabilities).all():
        raise DataError(
            f"the model {name!r} answered with NaN, as its numbers overflow on this image; look at the image, or train "
            "the model anew"
        )


def decide_answers(
    probabilities: NDArray[Any], study: Study, operating_point: OperatingPoint = MOST_PROBABLE
) -> NDArray[Any]:
    """Return label maps as `decide_labels` does; of a classification classes, or sets of findings, (n,) int64."""
    if study.task == "segmentation":
        return decide_labels(probabilities)
    return operating_point.decide(probabilities, study.is_multilabel)


def decide_labels(probabilities: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the label of each pixel, (n, *spatial), as training decides: the largest, or one above one half.

    Args:
        probabilities: (n, out_channels, *spatial).
    """
    return most_likely(probabilities, threshold=0.5).astype(np.uint8)


def decide_on_input(
    probabilities: NDArray[np.float32], prepared: PreparedImage, steps: Preparation
) -> NDArray[np.uint8]:
    """Return the label of each pixel of the input.

    Each label's probability goes back through the inverse of the study's transforms, linearly where pixels were
    resampled and untouched where they were only moved; the most probable label of each pixel is taken there. What was
    cropped away is background.

    Args:
        probabilities: (n, out_channels, *spatial) of the prepared images; n is 1 where a volume was not cut.
        prepared: The images, with their way back.
        steps: The preparation that made them.

    Returns:
        The input's own size: (rows, columns), or (X, Y, Z).

    Raises:
        DataError: The transforms cannot be inverted to the input's size.
    """
    if prepared.plane_inverse is None and prepared.volume_inverse is None:
        return _check_input_shape(_join_slices(decide_labels(probabilities)), prepared.shape)
    foreground = probabilities if probabilities.shape[1] == 1 else probabilities[:, 1:]
    label_map = np.zeros(prepared.shape, dtype=np.uint8)
    largest = np.zeros(prepared.shape, dtype=np.float32)
    # What the labels leave of 1, and not inverted itself: a cropped pixel has 0 for every label, so it is background.
    background = np.ones(prepared.shape, dtype=np.float32)
    for number in range(1, foreground.shape[1] + 1):
        value = map_to_input(foreground[:, number - 1], prepared, steps)
        background -= value
        label_map[value > largest] = number
        np.maximum(largest, value, out=largest)
    label_map[background >= largest] = 0
    return label_map


def map_to_input(values: NDArray[np.float32], prepared: PreparedImage, steps: Preparation) -> NDArray[np.float32]:
    """Take one value a pixel of the prepared images, (n, *spatial), to the input's grid; cropped pixels get 0.

    Raises:
        DataError: The transforms cannot be inverted to the input's size.
    """
    volume = _join_slices(_invert_transforms(steps.image_steps, prepared.plane_inverse, values))
    if len(prepared.shape) == 3:
        volume = _invert_transforms(steps.volume_steps, prepared.volume_inverse, volume[None])[0]
    return _check_input_shape(volume, prepared.shape)


def _join_slices(values: NDArray[Any]) -> NDArray[Any]:
    """Return the volume (X, Y, Z) of its slices (n, X, Y), or of a whole one (1, X, Y, Z)."""
    return values[0] if values.ndim == 4 else np.moveaxis(values, 0, -1)


def _invert_transforms(
    steps: Compose | None, inverse: InverseTransform | None, values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Run transforms backwards over values of shape (channels, *spatial)."""
    if steps is None or inverse is None:
        return values
    from monai.data.meta_tensor import MetaTensor

    # Copied: the same inverse takes every label back, and both `_make_linear` and MONAI change its records.
    operations = [_make_linear(operation, values.ndim - 1) for operation in copy.deepcopy(inverse.operations)]
    try:
        with metadata_tracking(True):
            moved = MetaTensor(
                np.ascontiguousarray(values),
                affine=inverse.affine.copy(),  # type: ignore[arg-type]  # MONAI takes arrays too
                applied_operations=operations,
            )
            back = steps.inverse({"image": moved})  # type: ignore[no-untyped-call]  # of MONAI
            return np.asarray(back["image"], dtype=np.float32)
    except Exception as error:  # MONAI passes on any error of its array code
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise DataError(f"the study's transforms cannot be inverted on this image: MONAI says {reason}") from None


def _make_linear(operation: dict[str, Any], num_axes: int) -> dict[str, Any]:
    """Return a record of a transform with linear interpolation in place of the image's own."""
    # The image's may be nearest or cubic: probabilities would get steps, or leave [0, 1].
    extra = operation.get("extra_info")
    if isinstance(extra, dict) and "mode" in extra:
        mode = LINEAR.get(operation["class"], {}).get(num_axes, LINEAR_ON_A_GRID)
        operation["extra_info"] = extra | {"mode": mode}
    return operation


def _check_input_shape(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a picture's one plane, or a volume, after checking that it has the input's size."""
    if len(shape) == 2:
        values = values[..., 0]
    if values.shape != shape:
        raise DataError(
            f"the answer came back in the size {values.shape}, and the image has {shape}; report this study"
        )
    return values
