"""Prostate MRI of six sites, collected for SAML, as NIfTI volumes in one folder for each site.

Liu, Dou and Heng, Shape-aware Meta-learning for Generalizing Prostate MRI Segmentation to Unseen Domains, MICCAI 2020,
arXiv:2007.02035; from its authors' page, A Multi-site Dataset for Prostate MRI Segmentation::

    SOURCE/
      RUNMC/                          RUNMC, BMC, I2CVB (also called HCRUDB), UCL, BIDMC, HK; any name is taken
        Case00.nii.gz                 axial slices along the last axis
        Case00_Segmentation.nii.gz    or Case00_segmentation.nii.gz
        Case01.nii.gz ...

A case is a patient. Where a segmentation has the prostate's two zones (1 and 2), both become one label; the images are
copied unchanged, with all their slices.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np

from silofl.base.errors import DataError
from silofl.importing.masks import save_with_header
from silofl.importing.options import FIFTHS, ImportOptions, Layout
from silofl.importing.site_files import CaseFiles, SitePlan, copy_image, plan_pairs, visible_folders
from silofl.reading.images import read_image, read_label
from silofl_desk.layouts.description import choose_labels

VOLUME = re.compile(r"(?P<case>[^.].*?)(?P<segmentation>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def plan_prostate(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<site>/<case>.nii.gz and SOURCE/<site>/<case>_Segmentation.nii.gz.

    Raises:
        DataError: No site is found, a case lacks its image or its segmentation, or an image cannot be read.
    """
    folders = visible_folders(source)
    if not folders:
        raise DataError(f"{source.name} must hold a folder for each site with NIfTI volumes in it, not none")
    labels = choose_labels(options.labels, ("prostate",), first=1)
    return {folder.name: plan_pairs(folder.name, _list_pairs(folder), labels, options) for folder in folders}


def _list_pairs(folder: Path) -> list[CaseFiles]:
    images, segmentations = _list_volumes(folder)
    if not images and not segmentations:
        raise DataError(f"site {folder.name!r} must have volumes like Case00.nii.gz, not none; remove its folder")
    lonely = sorted(images.keys() ^ segmentations.keys())
    if lonely:
        raise DataError(
            f"site {folder.name!r} must have an image and a segmentation of each case; one is missing of "
            f"{', '.join(lonely[:3])}: add it or remove the other"
        )
    return [_plan_pair(case, image, segmentations[case]) for case, image in images.items()]


def _list_volumes(folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the images and the segmentations of a site by their case."""
    found: tuple[dict[str, Path], dict[str, Path]] = ({}, {})
    for path in sorted(folder.iterdir()):
        match = VOLUME.fullmatch(path.name)
        if match is None:
            continue
        group, case = found[match["segmentation"] is not None], match["case"]
        if case in group:
            twins = f"{group[case].name} and {path.name}"
            raise DataError(f"site {folder.name!r} must have one file of a kind for {case}, not {twins}; remove one")
        group[case] = path
    return found


def _plan_pair(case: str, image: Path, segmentation: Path) -> CaseFiles:
    num_slices = read_image(image, f"{image.parent.name}/{image.name}").spatial_shape[-1]
    mask = f"labels/{case}.nii.gz", partial(_save_prostate, segmentation)
    return CaseFiles(
        case, case, ((f"images/{image.name}", partial(copy_image, image)),), mask, slices=(0, num_slices - 1)
    )


def _save_prostate(segmentation: Path, target: Path) -> None:
    """Save every number but 0 as 1, on the same grid."""
    numbers = read_label(segmentation, f"{segmentation.parent.name}/{segmentation.name}").array[0]
    save_with_header(segmentation, (numbers != 0).astype(np.uint8), target)


LAYOUT = Layout(plan_prostate, FIFTHS)
