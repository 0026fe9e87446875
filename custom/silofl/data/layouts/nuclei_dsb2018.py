"""Tiles with cell nuclei of the 2018 Data Science Bowl (BBBC038, CC0), with a site for each kind of microscopy.

A tile's patient is the source image that it was cut from, so tiles of one image stay together. Masks of 0 and 255
become 0 and 1.
"""

from pathlib import Path

from silofl.data.layouts.options import ImportOptions
from silofl.data.layouts.plan import (
    Pair,
    SitePlan,
    copy_of,
    mask_png,
    numbered_labels,
    plan_pairs,
    read_description,
    sample_file,
)
from silofl.errors import DataError


def plan_nuclei(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE, a folder with dataset.json and <site>/images and <site>/masks.

    Raises:
        DataError: The folder is not this set, or a file that it names is missing.
    """
    labels = numbered_labels(options.labels or ("nucleus",), first=1)
    pairs: dict[str, list[Pair]] = {}
    for sample in read_description(source, ("samples",))["samples"]:
        if not isinstance(sample, dict) or not {"id", "site", "group"} <= sample.keys():
            raise DataError(f"every sample of {source.name} must have id, site and group, not {sample!r}")
        image, mask = sample_file(source, sample, "image"), sample_file(source, sample, "mask")
        case = str(sample["id"])
        files = (f"images/{image.name}", copy_of(image)), (f"masks/{case}.png", mask_png(mask, labels))
        pairs.setdefault(str(sample["site"]), []).append(Pair(case, str(sample["group"]), *files))
    return {site: plan_pairs(site, found, labels, options) for site, found in sorted(pairs.items())}
