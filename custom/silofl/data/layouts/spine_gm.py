"""Spinal cord white and grey matter of the gray matter segmentation challenge (CC0): NIfTI volumes of six hospitals.

Each hospital scanned one volunteer, so that the parts are slices of each volume and the same person is in training and
test: every second slice for training, the others in turn for validation and test. A test slice lies between training
slices a few millimetres away, so that its score measures how well a model does on people that it knows; only a hospital
that is left out measures more. Two hospitals scanned their volunteer twice: one patient, two volumes.
"""

import re
from pathlib import Path

from silofl.data.images import read_image
from silofl.data.layouts.options import ImportOptions
from silofl.data.layouts.plan import JsonRecord, SitePlan, copy_of, numbered_labels, read_description, sample_file
from silofl.data.manifest import PARTS
from silofl.errors import DataError

MIN_SLICES = 4
SESSION = re.compile(r"Ses\d+$")


def plan_spine(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE, a folder with dataset.json and <site>/volumes.

    Raises:
        DataError: The folder is not this set, a file that it names is missing, or a volume has fewer than 4 slices.
    """
    labels = numbered_labels(options.labels or ("white matter", "grey matter"), first=1)
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
    plan.files.update({names[0]: copy_of(volume), names[1]: copy_of(label)})
    stem = volume.name.split(".")[0]
    for part, slices in slices_by_part(read_image(volume).spatial_shape[-1]).items():
        record: JsonRecord = {"image": names[0], "label": names[1], "patient": SESSION.sub("", str(sample["group"]))}
        plan.records[part].append({**record, "case": f"{stem}-{part}", "slices": slices})
