"""Build the transforms that a study names, for an image and its label map.

Only the names of MONAI listed here run, and those of packages that the machine's own settings name: a study file must
not make a hospital's machine load, save or execute anything else.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from silofl.base.errors import ConfigError, error_text, suggest_nearest
from silofl.base.settings import numbers_in
from silofl.setup.extensions import TRANSFORMS, is_extension, load_extension
from silofl.study import Study
from silofl.study.data_settings import DataSettings, Transform

if TYPE_CHECKING:
    from monai.transforms.compose import Compose

# Like MONAI's transforms, it maps a dictionary to another one.
Step = Callable[[dict[str, Any]], dict[str, Any]]
Kind = Literal["volume_transforms", "transforms", "augment"]

INTENSITY = frozenset(
    "ScaleIntensity ScaleIntensityRange ScaleIntensityRangePercentiles NormalizeIntensity AdjustContrast "
    "RandGaussianNoise RandGaussianSmooth RandAdjustContrast RandScaleIntensity RandShiftIntensity".split()
)
# Resize and RandZoom call torch's interpolate, whose "nearest" is off by half a pixel; the others call grid_sample,
# which has no "nearest-exact".
LABEL_MODE = {
    "Spacing": "nearest",
    "Resize": "nearest-exact",
    "RandRotate": "nearest",
    "RandZoom": "nearest-exact",
    "RandAffine": "nearest",
}
PADDING = frozenset(("ResizeWithPadOrCrop", "SpatialPad"))
# These modes of RandZoom make values up; the others copy what lies at the border.
COMPUTED_PADDING = frozenset("empty linear_ramp maximum mean median minimum".split())
SIZES = ("Resize", "ResizeWithPadOrCrop", "CenterSpatialCrop", "SpatialPad")
ALLOWED: Mapping[Kind, tuple[str, ...]] = {
    "volume_transforms": ("Orientation", "Spacing", *SIZES),
    "transforms": (
        *SIZES,
        "ScaleIntensity",
        "ScaleIntensityRange",
        "ScaleIntensityRangePercentiles",
        "NormalizeIntensity",
        "AdjustContrast",
    ),
    "augment": (
        "RandRotate90",
        "RandFlip",
        "RandRotate",
        "RandZoom",
        "RandAffine",
        "RandGaussianNoise",
        "RandGaussianSmooth",
        "RandAdjustContrast",
        "RandScaleIntensity",
        "RandShiftIntensity",
    ),
}
# SiloFL sets these options itself, or they would reach beyond the arrays.
RESERVED = frozenset(
    "self keys labels allow_missing_keys lazy dtype device factor_key meta_keys meta_key_postfix".split()
)
# Values outside would fill the memory before MONAI says a word; a kernel is eight of its sigma long.
RANGES = {
    "spatial_size": (1, 1 << 14),
    "roi_size": (1, 1 << 14),
    "pixdim": (0.01, 1000),
    **dict.fromkeys(("min_zoom", "max_zoom"), (0.1, 4)),
    **dict.fromkeys(("sigma_x", "sigma_y", "sigma_z"), (0, 100)),
}
# MONAI takes these for "leave this axis as it is".
AS_IT_IS = (-1, 0)
MOST_VOXELS = 1 << 28
RAS_LABELS = (("L", "R"), ("P", "A"), ("I", "S"))
# Blank images of these sizes try the transforms before any data are read.
TRIAL_IMAGE = (64, 64)
TRIAL_VOLUME = (12, 10, 4)

# MONAI's switch is one for the process, whose threads may prepare different sites.
_metadata_switch = threading.RLock()


def compose(settings: DataSettings, kind: Kind, has_label_map: bool) -> Compose | None:
    """Build the transforms of one kind over the keys ``image`` and, for label maps, ``label``.

    Labels are interpolated by nearest neighbour and never blurred. SpatialPad and ResizeWithPadOrCrop pad them with
    background; an augmentation does too, or copies what lies at the border of image and label alike.

    Args:
        kind: Which of the three lists.
        has_label_map: Whether there is a label map to transform along (segmentation).

    Returns:
        MONAI's composition, or None when the study names no transform of this kind.

    Raises:
        ConfigError: A transform is not allowed here, or its options are not right.
    """
    named: Sequence[Transform] = getattr(settings, kind)
    if not named:
        return None
    from monai.transforms.compose import Compose

    keys = ("image", "label") if has_label_map else ("image",)
    axes = 3 if kind == "volume_transforms" else settings.dimensions
    steps = []
    for transform in named:
        steps += _build_steps(transform, kind, keys, axes, settings.channels)
    return Compose(steps)


def build_augmentation(study: Study, has_label_map: bool | None = None) -> Compose | None:
    """Build the study's random transforms of training images, for `silofl.data.batches.training_batches`.

    Args:
        has_label_map: Whether a label map is transformed too; by default when the task is segmentation.
    """
    has_label_map = study.task == "segmentation" if has_label_map is None else has_label_map
    named = compose(study.data, "augment", has_label_map)
    if not study.data.channel_names:
        return named
    from monai.transforms.compose import Compose

    from silofl.data.drop_channels import DropChannels, MissingContrasts

    steps: list[Step] = []
    if named is not None:
        # Noise, and a shift, would make something of the zeros of a contrast that is not there.
        missing = MissingContrasts(study.data.channels)
        steps = [missing.find, *named.transforms, missing.blank]
    if study.training.drop_channels:
        steps.append(DropChannels(study.training.drop_channels, study.data.channels))
    return Compose(steps) if steps else None


def check_transforms(study: Study) -> None:
    """Refuse transforms that cannot run, without any data: each list is tried once on a blank image.

    Raises:
        ConfigError: A transform is not allowed, its options are not right, or an augmentation changes the size.
    """
    has_label_map = study.task == "segmentation"
    for kind, size in _trial_sizes(study.data).items():
        certain = [_make_certain(transform) for transform in getattr(study.data, kind)]
        # The transforms as the study has them come first: their own probabilities must be right too.
        compose(study.data, kind, has_label_map)
        # One more transform at a time, so that the error names the one that fails.
        for number in range(1, len(certain) + 1):
            _try_transforms(study.data.model_copy(update={kind: tuple(certain[:number])}), kind, size, has_label_map)


@contextmanager
def metadata_tracking(is_on: bool) -> Iterator[None]:
    """Switch MONAI's metadata on (volumes need the affine) or off (faster), for one thread at a time."""
    from monai.data.meta_obj import get_track_meta, set_track_meta

    with _metadata_switch:
        before = get_track_meta()
        set_track_meta(is_on)
        try:
            yield
        finally:
            set_track_meta(before)


def _trial_sizes(settings: DataSettings) -> dict[Kind, tuple[int, ...]]:
    if settings.dimensions == 2:
        return {"volume_transforms": TRIAL_VOLUME, "transforms": TRIAL_IMAGE, "augment": TRIAL_IMAGE}
    # An augmentation must keep a patch's very size; of whole volumes nobody knows the size yet.
    patch = settings.patches.size if settings.patches else (16, 16, 16)
    return {"volume_transforms": TRIAL_VOLUME, "transforms": TRIAL_VOLUME, "augment": patch}


def _build_steps(transform: Transform, kind: Kind, keys: tuple[str, ...], axes: int, channels: int) -> list[Any]:
    import monai.transforms

    where = f"data.{kind}: {transform.name}"
    if kind != "volume_transforms" and is_extension(transform.name):
        factory = partial(load_extension(where, TRANSFORMS, transform.name), keys)
        calls = [transform.options]
    elif transform.name in ALLOWED[kind]:
        factory = getattr(monai.transforms, transform.name + "d")
        _check_options(transform, factory, where)
        _check_spatial_size(transform, where, axes, channels)
        calls = _options_by_key(transform, keys)
    else:
        raise ConfigError(
            f"data.{kind} must be among {', '.join(ALLOWED[kind])}, not {transform.name!r}"
            f"{suggest_nearest(transform.name, ALLOWED[kind])}"
        )
    try:
        steps = [factory(**options) for options in calls]
    except Exception as error:  # MONAI and packages raise whatever their checks raise
        raise ConfigError(f"{where} refuses its options: {error_text(error)}") from None
    # How large a resampled volume becomes is known only once the volume is there.
    return [_limit_spacing(transform.options.get("pixdim")), *steps] if transform.name == "Spacing" else steps


def _check_options(transform: Transform, factory: type, where: str) -> None:
    signature = inspect.signature(factory).parameters
    allowed = [key for key in signature if key not in RESERVED and not key.endswith("kwargs")]
    if transform.name in PADDING:
        # MONAI takes the padded value among its keyword arguments, which the signature does not name.
        allowed.append("value")
    for key in transform.options:
        if key not in allowed:
            raise ConfigError(
                f"{where}: options must be among {', '.join(allowed)}, not {key!r}{suggest_nearest(key, allowed)}"
            )
    prob = transform.options.get("prob", 0)
    if isinstance(prob, bool) or not isinstance(prob, int | float) or not 0 <= prob <= 1:
        raise ConfigError(f"{where}: prob must be from 0 to 1, not {prob!r}")
    for key, (low, high) in RANGES.items():
        for number in numbers_in(transform.options.get(key)):
            if number not in AS_IT_IS and not low <= number <= high:
                raise ConfigError(f"{where}: {key} must be from {low:g} to {high:g}, not {number:g}")
    for key in ("mode", "padding_mode"):
        if not isinstance(transform.options.get(key, ""), str):
            raise ConfigError(
                f"{where}: {key} must be one word, not {transform.options[key]!r}; the label's is set for you"
            )


def _check_spatial_size(transform: Transform, where: str, axes: int, channels: int) -> None:
    """Refuse images that would fill the memory, one number being the length of each side."""
    size = transform.options.get("spatial_size")
    sides = [max(1, side) for side in numbers_in(size)]
    if not isinstance(size, list | tuple):
        sides = sides * axes
    if channels * math.prod(sides) > MOST_VOXELS:
        raise ConfigError(
            f"{where}: spatial_size must be of at most {MOST_VOXELS} pixels or voxels, of all channels, not {size}"
        )


def _limit_spacing(pixdim: object) -> Step:
    def check(case: dict[str, Any]) -> dict[str, Any]:
        before = np.linalg.norm(np.asarray(case["image"].affine)[:3, :3], axis=0)
        # As MONAI fills up: an axis without a number gets 1, and what is not above 0 stays as it is.
        after = [*numbers_in(pixdim), 1.0, 1.0, 1.0][:3]
        finer = 1.0
        for old, new in zip(before, after, strict=True):
            if new > 0:
                finer *= old / new
        voxels = finer * case["image"].numel()
        if voxels > MOST_VOXELS:
            raise ValueError(f"{voxels:.3g} voxels, where at most {MOST_VOXELS} are possible")
        return case

    return check


def _options_by_key(transform: Transform, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    import monai.transforms

    options = {key: _to_tuples(value) for key, value in transform.options.items()}
    if transform.name == "Orientation":
        options["labels"] = RAS_LABELS
    if transform.name in INTENSITY or keys == ("image",):
        return [{"keys": ("image",), **options}]
    if transform.name in PADDING:
        # Mode and value are for the image only: a label map is padded with background.
        background = {key: value for key, value in options.items() if key not in ("mode", "value")}
        return [{"keys": ("image",), **options}, {"keys": ("label",), **background}]
    if transform.name in LABEL_MODE:
        factory = getattr(monai.transforms, transform.name + "d")
        default = inspect.signature(factory).parameters["mode"].default
        options |= {"keys": keys, "mode": (options.get("mode", default), LABEL_MODE[transform.name])}
        if "anti_aliasing" in options:
            options["anti_aliasing"] = (options["anti_aliasing"], False)
        if options.get("padding_mode") in COMPUTED_PADDING:
            options["padding_mode"] = (options["padding_mode"], "constant")
        return [options]
    return [{"keys": keys, **options}]


def _to_tuples(value: object) -> object:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def _make_certain(transform: Transform) -> Transform:
    if not transform.name.startswith("Rand"):
        return transform
    return transform.model_copy(update={"options": {**transform.options, "prob": 1.0}})


def _try_transforms(settings: DataSettings, kind: Kind, size: tuple[int, ...], has_label_map: bool) -> None:
    from monai.data.meta_tensor import MetaTensor
    from monai.transforms.compose import Compose

    name = getattr(settings, kind)[-1].name
    where = f"data.{kind}: {name}"
    steps = compose(settings, kind, has_label_map)
    if steps is None:
        return
    # The image is a ramp, since some transforms of intensities divide by the range of values.
    ramp = np.linspace(0, 1, settings.channels * math.prod(size), dtype=np.float32)
    blank = {"image": MetaTensor(ramp.reshape(settings.channels, *size))}
    if has_label_map:
        blank["label"] = MetaTensor(np.zeros((1, *size), dtype=np.float32))
    try:
        with metadata_tracking(True):
            after = tuple(steps(blank)["image"].shape[1:])
    except Exception as error:  # MONAI raises whatever its array code raises
        reason = error_text(error.__cause__ or error)
        raise ConfigError(f"{where} fails on a {len(size)}D image; MONAI says: {reason}") from None
    if len(after) != len(size):
        raise ConfigError(f"{where} makes size {after} of a {len(size)}D image; change its options")
    # Batches hold images of one size, and nobody knows what a package's transform does to a volume's grid.
    if kind == "augment" or is_extension(name):
        with metadata_tracking(True):
            before = tuple(Compose(steps.transforms[:-1])(blank)["image"].shape[1:])
        if after != before:
            raise ConfigError(f"{where} changes an image's size from {before} to {after}; change its options")
