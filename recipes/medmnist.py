"""A 2D set of MedMNIST with one class an image (Yang et al., arXiv:2110.14795), such as organamnist.npz.

SOURCE is the file or a folder with it. Sites are dealt by class. Without --test the set's own parts are dealt by the
same shares each; with it, all images are dealt and each site is split anew. The sets name no patients. Classes have
the published names, else those of a dataset.json beside the file, unless --labels names them.
"""

import json

import numpy as np
from dealing_options import parse_dealing
from examples import ClassificationSet, Stacked, import_examples

from silofl_hospital.importing.site_files import number_labels

PREFIXES = {"training": "train", "validation": "val", "test": "test"}
ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left"),
    *("lung-right", "pancreas", "spleen"),
)
PUBLISHED = {
    **dict.fromkeys(("organamnist", "organcmnist", "organsmnist"), ORGANS),
    "pneumoniamnist": ("normal", "pneumonia"),
}

options, dealing = parse_dealing(__doc__, sites=4, alpha=0.5, test=None)
(file,) = options.source.glob("*.npz") if options.source.is_dir() else [options.source]
images, targets, parts, cases = [], [], [], []
with np.load(file) as arrays:
    for part, prefix in PREFIXES.items():
        labels = arrays[f"{prefix}_labels"]
        images.append(arrays[f"{prefix}_images"])
        targets += labels.reshape(len(labels)).tolist()
        parts += [part] * len(labels)
        cases += [f"{prefix}-{number}" for number in range(len(labels))]
names = dealing.labels
if names is None and (file.parent / "dataset.json").is_file():
    names = tuple(json.loads((file.parent / "dataset.json").read_text())["classes"].values())
names = names or PUBLISHED.get(file.stem.partition("_")[0]) or [f"class {n}" for n in range(1 + max(targets))]
examples = ClassificationSet(
    labels=number_labels(names, first=0),
    targets=np.array(targets, dtype=np.int64),
    cases=cases,
    content=Stacked("images", np.concatenate(images)),
    parts=parts,
)
import_examples(examples, dealing, options)
