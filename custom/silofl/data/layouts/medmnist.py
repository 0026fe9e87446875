"""MedMNIST's npz form (Yang et al., MedMNIST v2, Scientific Data 2023, arXiv:2110.14795): small images in classes.

The sets have no hospitals: sites are made by a seeded Dirichlet split of the classes, the same shares for training,
validation and test. They name no patients either: every image counts as a patient of its own.
"""

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.access import open_error
from silofl.data.layouts.plan import ImportOptions, JsonRecord, SitePlan, numbered_labels, read_description
from silofl.data.partition import assign_sites, draw_shares
from silofl.errors import DataError

PREFIXES = {"training": "train", "validation": "val", "test": "test"}
FILE_NAME = "images.npz"

Arrays = dict[str, NDArray]


def plan_medmnist(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE, a MedMNIST npz file or the folder of one.

    Raises:
        DataError: It is not such a file, an image has several labels, or there are too few images for the sites.
    """
    path = _find(source)
    arrays = _read(path)
    labels = _labels(path, options, 1 + max(int(arrays[f"{prefix}_labels"].max()) for prefix in PREFIXES.values()))
    shares = draw_shares(len(labels), options.num_sites, options.alpha, options.seed)
    sites = {
        part: assign_sites(arrays[f"{prefix}_labels"], shares, options.seed + number)
        for number, (part, prefix) in enumerate(PREFIXES.items())
    }
    return {f"site-{site + 1}": _plan_site(arrays, labels, sites, site) for site in range(options.num_sites)}


def _plan_site(arrays: Arrays, labels: dict[int, str], sites: dict[str, NDArray], site: int) -> SitePlan:
    records: dict[str, list[JsonRecord]] = {}
    images: list[NDArray] = []
    for part, prefix in PREFIXES.items():
        chosen = np.flatnonzero(sites[part] == site)
        start = sum(map(len, images))
        images.append(arrays[f"{prefix}_images"][chosen])
        records[part] = [
            {
                "image": FILE_NAME,
                "label": int(arrays[f"{prefix}_labels"][number]),
                "patient": f"{prefix}-{number}",
                "case": f"{prefix}-{number}",
                "index": start + place,
            }
            for place, number in enumerate(chosen.tolist())
        ]
    write = partial(np.savez_compressed, images=np.concatenate(images))
    return SitePlan("classification", labels, records, {FILE_NAME: write})


def _find(source: Path) -> Path:
    if source.is_file():
        return source
    found = sorted(source.glob("*.npz"))
    if len(found) != 1:
        raise DataError(f"{source.name} must be an npz file or a folder with one, not with {len(found)}; name the file")
    return found[0]


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [
                f"{p}_{k}" for p in PREFIXES.values() for k in ("images", "labels") if f"{p}_{k}" not in file.files
            ]
            if missing:
                raise DataError(f"{path.name} must hold the arrays of MedMNIST; {', '.join(missing)} missing")
            return {name: _checked(file, name, path) for name in file.files if name.split("_")[0] in PREFIXES.values()}
    except DataError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise open_error(path.name, error) from None
    except Exception as error:  # NumPy and zipfile raise what they like on broken bytes
        raise DataError(
            f"{path.name} must be a whole npz file, not a corrupt one ({error}); download it again"
        ) from None


def _checked(file: np.lib.npyio.NpzFile, name: str, path: Path) -> NDArray:
    array = file[name]
    if name.endswith("_images"):
        return array
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    is_class = (
        array.ndim == 1 and array.dtype.kind in "iu" and len(array) == len(file[name.replace("labels", "images")])
    )
    if not is_class or array.min(initial=0) < 0:
        form = f"{array.dtype} of shape {array.shape}"
        raise DataError(f"{name} of {path.name} must hold one class from 0 an image, not {form}; take another set")
    return array.astype(np.int64)


def _labels(path: Path, options: ImportOptions, num_classes: int) -> dict[int, str]:
    names = options.labels
    if names is None and (path.parent / "dataset.json").is_file():
        classes = read_description(path.parent, ()).get("classes", {})
        names = tuple(classes.get(str(number), f"class {number}") for number in range(num_classes))
    names = names or tuple(f"class {number}" for number in range(num_classes))
    if len(names) < num_classes:
        raise DataError(
            f"labels must name the {num_classes} classes of {path.name}, not {len(names)}; name all of them"
        )
    return numbered_labels(names, first=0)
