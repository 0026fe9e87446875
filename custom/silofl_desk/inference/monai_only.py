"""A bundle's ``configs/inference.json``: from NIfTI files to label maps by MONAI alone, without SiloFL.

It labels as `silofl predict` does, but for rounding, and checks nothing: it refuses no image, and warns of none.
"""

from typing import Any

from silofl.data.intensity import PERCENTILES
from silofl.data.transforms import INTENSITY, RAS_LABELS
from silofl.inference.contents import Contents
from silofl.setup.extensions import is_extension
from silofl.study.data_settings import DataSettings, Transform

# This transform changes each pixel by its own value alone; the others look at all pixels of a slice.
PIXELWISE = "ScaleIntensityRange"
# MONAI's ScaleIntensityRangePercentiles has percentiles in float32, by which images differ in the last digits. Where
# nearly all pixels are background the few others still count.
RANGE = f"next(ends for ends in (np.percentile(x, {PERCENTILES}), np.percentile(x, (0, 100))) if ends[0] < ends[1])"
SCALED = f"ScaleIntensityRange(*{RANGE}, 0, 1, clip=True)(x)"
IMPORTS = (
    "$import numpy as np",
    "$import torch",
    "$from monai.data import MetaTensor",
    "$from monai.transforms import ScaleIntensityRange",
    "$from monai.transforms.utils import convert_applied_interp_mode",
)
# Probabilities go back through the preparation linearly, whatever the image was interpolated by.
RESTORED = (
    "$@preparation.inverse(MetaTensor(@foreground, meta=@prepared.meta, "
    "applied_operations=convert_applied_interp_mode(@prepared.applied_operations, 'bilinear')))"
)
# What the labels leave of 1 is background: so is what was cropped away.
DECISION = [
    {"_target_": "Lambda", "func": "$lambda x: torch.cat([1 - x.sum(dim=0, keepdim=True), x])"},
    {"_target_": "AsDiscrete", "argmax": True},
    {
        "_target_": "SaveImage",
        "output_dir": "@output",
        "output_postfix": "labels",
        "output_dtype": "$np.uint8",
        "separate_folder": False,
        "resample": False,
    },
]


def find_obstacle(contents: Contents) -> str | None:
    """Return why MONAI alone cannot answer as `silofl predict` does, as a clause; None where it can."""
    study = contents.study
    settings = study.data
    # MONAI's steps see a volume's slices as channels, all at once.
    looks_at_slices = {transform.name for transform in settings.transforms} & (INTENSITY - {PIXELWISE})
    transforms = (*settings.volume_transforms, *settings.transforms)
    obstacles = {
        "the answer is no label map": study.task != "segmentation",
        "the study has a rule do_not_use": study.do_not_use is not None,
        "the model learnt from pictures or windows": bool({*contents.data_profile.kinds} - {"volumes"}),
        "intensities are divided by the range of the file's type": settings.intensity == "dtype",
        "NaN becomes a value": settings.background.nan is not None,
        "contrasts are resampled": settings.resample,
        "several channels have no names": settings.channels > 1 and not settings.channel_names,
        "a transform is a package's": any(is_extension(transform.name) for transform in transforms),
        "a transform has align_corners": any("align_corners" in transform.options for transform in transforms),
        "slices are scaled one by one": settings.dimensions == 2 and bool(looks_at_slices),
    }
    for reason, is_present in obstacles.items():
        if is_present:
            return reason
    return None


def build_inference(contents: Contents, common: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a super model without an obstacle.

    Args:
        common: Where the bundle, the image and the answer lie, the device, and the network.
    """
    settings = contents.study.data
    preparation = [{"_target_": "LoadImage", "reader": "NibabelReader", "ensure_channel_first": True}]
    preparation += [*_scale(settings), *map(_to_step, settings.volume_transforms)]
    if settings.dimensions == 2:
        preparation.append(_cut(len(contents.study.labels)))
    preparation += map(_to_step, settings.transforms)
    labels = "" if contents.study.out_channels == 1 else "[:, 1:]"
    return common | {
        "imports": [*IMPORTS],
        # A list is the files of one image, its contrasts.
        "preparation": {"_target_": "Compose", "transforms": preparation, "map_items": False},
        "prepared": "$@preparation(@image)",
        **_take_images(settings),
        # No gradients, without a switch that outlives the run in another program.
        "fixed": "$[one.requires_grad_(False) for one in @network_def.parameters()]",
        "foreground": f"$(@fixed and @network_def(@images.to(@device))){labels}.flatten(0, 1).cpu()",
        "restored": RESTORED,
        "decision": {"_target_": "Compose", "transforms": DECISION},
        "run": ["$@decision(@restored)"],
    }


def _to_step(transform: Transform) -> dict[str, Any]:
    step = {"_target_": transform.name, **transform.options}
    if transform.name == "Orientation":
        # MONAI's default is about to change its meaning: it is always stated.
        step["labels"] = RAS_LABELS
    return step


def _scale(settings: DataSettings) -> list[dict[str, Any]]:
    """Return the steps of a case's intensities, each contrast on its own scale."""
    least = settings.background.below
    steps = []
    if least is not None:
        steps.append({"_target_": "ThresholdIntensity", "threshold": least, "above": True, "cval": least})
    if settings.intensity == "zscore":
        steps.append({"_target_": "NormalizeIntensity", "channel_wise": True})
    if settings.intensity == "percentiles" and settings.channels == 1:
        steps.append({"_target_": "Lambda", "func": f"$lambda x: {SCALED}"})
    elif settings.intensity == "percentiles":
        contrasts = f"torch.stack([{SCALED} for x in y.as_tensor()])"
        steps.append({"_target_": "Lambda", "func": f"$lambda y: MetaTensor({contrasts}, meta=y.meta)"})
    return steps


def _cut(labels: int) -> dict[str, Any]:
    """Return the step that lays a volume's slices behind one another as channels, and each label's back."""
    return {
        "_target_": "Lambda",
        "func": "$lambda x: x.permute(3, 0, 1, 2).flatten(0, 1).contiguous()",
        "inv_func": f"$lambda x: x.unflatten(0, (-1, {labels})).permute(1, 2, 3, 0).contiguous()",
    }


def _take_images(settings: DataSettings) -> dict[str, str]:
    """Return the network's images, as expressions; beyond the ends of a volume the nearest slice is repeated."""
    if settings.dimensions == 3:
        return {"images": "$@prepared.as_tensor()[None]"}
    slices = f"$@prepared.as_tensor().unflatten(0, (-1, {settings.channels}))"
    count = settings.neighbours
    if count == 0:
        return {"images": slices}
    rows = "(torch.arange(len(@slices)) + offset).clip(0, len(@slices) - 1)"
    stacked = f"$torch.cat([@slices[{rows}] for offset in range(-{count}, {count + 1})], dim=1)"
    return {"slices": slices, "images": stacked}
