"""Spinal cord white and grey matter on T2*-weighted MRI: the challenge's volumes, or those of six hospitals.

Prados et al., Spinal cord grey matter segmentation challenge, NeuroImage 2017; from the challenge's page at UCL's
NiftyWeb (registration), Spinal Cord Grey Matter Segmentation Challenge, ISMRM 2016, the training data::

    SOURCE/                  or a folder that holds training-data-gm-sc-challenge-ismrm16-v20160302b
      site1-sc01-image.nii.gz
      site1-sc01-mask-r1.nii.gz ... site1-sc01-mask-r4.nii.gz     four raters: 1 grey, 2 white matter
      site1-sc02-image.nii.gz ...                                 four sites of ten volunteers
      site1-sc01-levels.txt ...                                   not read

A volunteer is a patient and comes into one part with all slices. Of the raters' masks one is made by majority: the cord
is where more than half of them draw it, and there a voxel is of the matter that more of them draw, at a tie white. At
the site white matter is label 1 and grey matter 2.

Read too is a folder whose dataset.json names volumes and label maps (1 white, 2 grey matter) of hospitals with one
volunteer each, as can be made of the challenge on imaging of 2018 (Spinal Cord Gray Matter Imaging Challenge, CC0). The
parts are then slices of each volume, and the same person is in training and test: every second slice for training, the
others in turn for validation and test. A test slice lies between training slices a few millimetres away, so that its
score measures how well a model does on people that it knows; only a hospital that is left out measures more. Two
hospitals scanned their volunteer twice: one patient, two volumes.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError
from silofl.data.manifest import PARTS
from silofl.importing.masks import Values, copy_checked, read_mask, save_with_header
from silofl.importing.options import ImportOptions, Layout
from silofl.importing.site_files import CaseFiles, JsonRecord, SitePlan, copy_image, plan_pairs
from silofl.reading.images import read_image, read_label
from silofl_desk.layouts.description import choose_labels, read_description, sample_file

DOWNLOAD = "training-data-gm-sc-challenge-ismrm16-v20160302b"
IMAGE = re.compile(r"(?P<patient>(?P<site>site\d+)-sc\d+)-image\.nii\.gz")
RATERS = (1, 2, 3, 4)
RATED_GREY, RATED_WHITE = 1, 2
WHITE, GREY = 1, 2
FIFTH = 0.2
MIN_SLICES = 4
SESSION = re.compile(r"Ses\d+$")


def plan_spine(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of the challenge's volumes, or of those that SOURCE/dataset.json names.

    Raises:
        ConfigError: A fraction is given for volumes that are split by slices.
        DataError: The folder is not this set, a file is missing or of another form, or a volume that is split by slices
            has fewer than 4.
    """
    labels = choose_labels(options.labels, ("white matter", "grey matter"), first=1)
    if (source / "dataset.json").exists():
        if options.test is not None or options.validation is not None:
            raise ConfigError(
                "test and validation must not be given with one volunteer a hospital, split by slices; leave them out"
            )
        return _plan_volunteers(source, labels)
    test = FIFTH if options.test is None else options.test
    validation = FIFTH if options.validation is None else options.validation
    return _plan_challenge(source, labels, replace(options, test=test, validation=validation))


def majority(raters: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return one label map of several raters': 0, 1 (white matter) or 2 (grey matter).

    Args:
        raters: (R, ...), 0, 1 (grey matter) or 2 (white matter).
    """
    grey, white = (raters == RATED_GREY).sum(axis=0), (raters == RATED_WHITE).sum(axis=0)
    is_cord = 2 * (grey + white) > len(raters)
    return np.where(is_cord, np.where(grey > white, GREY, WHITE), 0).astype(np.uint8)


def _plan_challenge(source: Path, labels: dict[int, str], options: ImportOptions) -> dict[str, SitePlan]:
    folder = source / DOWNLOAD if (source / DOWNLOAD).is_dir() else source
    matches = sorted(filter(None, map(IMAGE.fullmatch, (path.name for path in folder.iterdir()))), key=lambda m: m[0])
    if not matches:
        raise DataError(
            f"{source.name} must hold site1-sc01-image.nii.gz and its like, or a dataset.json that names volumes; "
            "neither is there: is it this set?"
        )
    pairs: dict[str, list[CaseFiles]] = {}
    for match in matches:
        pairs.setdefault(match["site"], []).append(_plan_rated_pair(folder / match[0], match["patient"]))
    return {site: plan_pairs(site, found, labels, options) for site, found in pairs.items()}


def _plan_rated_pair(image: Path, patient: str) -> CaseFiles:
    masks = [image.with_name(f"{patient}-mask-r{rater}.nii.gz") for rater in RATERS]
    missing = [mask.name for mask in masks if not mask.is_file()]
    if missing:
        raise DataError(
            f"{patient} must have the masks of {len(RATERS)} raters; {', '.join(missing)} missing: add them"
        )
    num_slices = read_image(image).spatial_shape[-1]
    mask = f"labels/{patient}.nii.gz", partial(_save_majority, masks)
    return CaseFiles(
        patient, patient, ((f"images/{image.name}", partial(copy_image, image)),), mask, slices=(0, num_slices - 1)
    )


def _save_majority(masks: Sequence[Path], target: Path) -> None:
    raters = [read_label(mask).array[0] for mask in masks]
    for mask, numbers in zip(masks, raters, strict=True):
        if numbers.shape != raters[0].shape or not np.isin(numbers, (0, RATED_GREY, RATED_WHITE)).all():
            raise DataError(
                f"{mask.name} must hold 0, 1 and 2 in the shape {raters[0].shape}, not up to {numbers.max()} in "
                f"{numbers.shape}; download it again"
            )
    save_with_header(masks[0], majority(np.stack(raters)), target)


def _plan_volunteers(source: Path, labels: dict[int, str]) -> dict[str, SitePlan]:
    plans: dict[str, SitePlan] = {}
    for sample in read_description(source, ("samples",))["samples"]:
        if not isinstance(sample, dict) or not {"site", "group", "volume", "volume_label"} <= sample.keys():
            raise DataError(
                f"every sample of {source.name} must have site, group, volume and volume_label, not {sample!r}"
            )
        empty = SitePlan("segmentation", labels, {part: [] for part in PARTS}, {}, split_unit="slices")
        _add_volume(plans.setdefault(str(sample["site"]), empty), source, sample)
    return dict(sorted(plans.items()))


def slices_by_part(num_slices: int) -> dict[str, list[int]]:
    """Return the slices of each part of a volume of n slices as [first, last, step]: a half, a quarter, a quarter.

    Raises:
        DataError: There are fewer than 4 slices.
    """
    if num_slices < MIN_SLICES:
        raise DataError(f"a volume must have at least {MIN_SLICES} slices to be split, not {num_slices}; leave it out")
    last = num_slices - 1
    return {"training": [0, last, 2], "validation": [1, last, 4], "test": [3, last, 4]}


def _add_volume(plan: SitePlan, source: Path, sample: dict) -> None:
    volume, label = sample_file(source, sample, "volume"), sample_file(source, sample, "volume_label")
    names = f"images/{volume.name}", f"labels/{label.name}"
    if names[0] in plan.files:  # every slice of the public set is a sample; the volume is added once
        return
    read = partial(read_mask, label, volume, Values(plan.labels), label.name)
    plan.files.update({names[0]: partial(copy_image, volume), names[1]: partial(copy_checked, label, read)})
    stem = volume.name.split(".")[0]
    for part, slices in slices_by_part(read_image(volume).spatial_shape[-1]).items():
        record: JsonRecord = {"image": names[0], "label": names[1], "patient": SESSION.sub("", str(sample["group"]))}
        plan.records[part].append({**record, "case": f"{stem}-{part}", "slices": slices})


LAYOUT = Layout(plan_spine, {"test": None, "validation": None})
