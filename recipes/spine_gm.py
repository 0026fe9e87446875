"""White and grey matter of the spinal cord on T2*-weighted MRI: the challenge of 2016, or six hospitals of 2018.

SOURCE/site1-sc01-image.nii.gz with -mask-r1 to -mask-r4 of four raters (Prados et al., NeuroImage 2017; 1 grey, 2
white matter): the cord is where more than half of them draw it, of the matter that more of them draw, at a tie
white.

Or SOURCE/dataset.json names volumes and label maps of hospitals with one volunteer each (Spinal Cord Gray Matter
Imaging Challenge, CC0). Their parts are slices of each volume, and the same person is in training and test: every
second slice for training, the others in turn for validation and test.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import nibabel
import numpy as np
from folders import import_folders, link, write_patients

RATERS = (1, 2, 3, 4)


def fill(source: Path, folder: Path) -> None:
    for image in sorted(source.glob("site*-sc*-image.nii.gz")):
        patient = image.name.removesuffix("-image.nii.gz")
        site = folder / patient.partition("-")[0]
        link(image, site / image.name)
        raters = [nibabel.load(image.with_name(f"{patient}-mask-r{rater}.nii.gz")) for rater in RATERS]
        drawn = np.stack([np.asanyarray(rater.dataobj) for rater in raters])
        grey, white = (drawn == 1).sum(axis=0), (drawn == 2).sum(axis=0)
        matter = np.where(grey > white, 2, 1) * (2 * (grey + white) > len(RATERS))
        (site / "masks").mkdir(exist_ok=True)
        mask = nibabel.Nifti1Image(matter.astype(np.uint8), raters[0].affine)
        nibabel.save(mask, site / "masks" / f"{patient}.nii.gz")
    for site in folder.iterdir():
        patients = [path.name.removesuffix(".nii.gz") for path in (site / "masks").iterdir()]
        write_patients(site, {patient: patient for patient in patients})


def write_volunteers(source: Path, target: Path) -> None:
    sites: dict[str, dict] = {}
    for sample in json.loads((source / "dataset.json").read_text())["samples"]:
        volume, label = source / sample["volume"], source / sample["volume_label"]
        site = target / sample["site"]
        if (site / "images" / volume.name).exists():  # each slice is a sample
            continue
        for file, place in ((volume, "images"), (label, "labels")):
            (site / place).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, site / place / file.name)
        content = sites.setdefault(
            sample["site"],
            {
                "task": "segmentation",
                "labels": {"1": "white matter", "2": "grey matter"},
                "split_unit": "slices",
                **{part: [] for part in ("training", "validation", "test")},
            },
        )
        last = nibabel.load(volume).shape[2] - 1
        record = {"image": f"images/{volume.name}", "label": f"labels/{label.name}"}
        record["patient"] = re.sub(r"Ses\d+$", "", sample["group"])
        for part, first, step in (("training", 0, 2), ("validation", 1, 4), ("test", 3, 4)):
            case = f"{volume.name.partition('.')[0]}-{part}"
            content[part].append({**record, "case": case, "slices": [first, last, step]})
    for name, content in sites.items():
        (target / name / "dataset.json").write_text(json.dumps(content, indent=1) + "\n")


if len(sys.argv) == 3 and (Path(sys.argv[1]) / "dataset.json").is_file():
    write_volunteers(Path(sys.argv[1]), Path(sys.argv[2]))
else:
    patterns = ("--image-pattern", "{case}-image", "--mask-pattern", "masks/{case}")
    import_folders(fill, *patterns, "--labels", "white matter,grey matter")
