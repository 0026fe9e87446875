"""What an import wrote, in a form that is compared: each site's dataset.json, and a digest of its decoded files."""

import hashlib
import json

import nibabel
import numpy as np
from PIL import Image

PARTS = ("training", "validation", "test")


def read_written(target):
    """Return site -> its dataset.json, and the digest of all images and masks in the order of its records."""
    found = {}
    for path in sorted(target.glob("*/dataset.json")):
        content = json.loads(path.read_text())
        digest = hashlib.sha256()
        for part in PARTS:
            for record in content[part]:
                _add_record(digest, path.parent, record)
        found[path.parent.name] = {"dataset": content, "digest": digest.hexdigest()}
    return found


def _add_record(digest, folder, record):
    images = record["image"] if isinstance(record["image"], list) else [record["image"]]
    masks = [record["label"]] if isinstance(record["label"], str) else []
    for name in (*images, *masks):
        if name is not None:
            array = _decode(folder / name)
            array = array[record["index"]] if "index" in record else array
            digest.update(f"{array.shape} {array.dtype.kind}".encode())
            digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())


def _decode(path):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return arrays[arrays.files[0]]
    if path.suffix == ".gz":
        return np.asanyarray(nibabel.load(path).dataobj)
    return np.asarray(Image.open(path))
