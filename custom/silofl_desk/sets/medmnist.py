"""MedMNIST's npz form (Yang et al., MedMNIST v2, Scientific Data 2023, arXiv:2110.14795): small images in classes.

From medmnist.com or Zenodo, MedMNIST v2, a file for each set::

    SOURCE               organamnist.npz, bloodmnist.npz and their like, or a folder with one
      train_images       (N, 28, 28) or (N, 28, 28, 3), also of val and test
      train_labels       (N, 1), also of val and test

For 2D sets, grey or RGB, with one class an image, such as OrganA/C/S-MNIST. They have no hospitals: sites are made by a
seeded split of the classes. Without a test fraction, each of the set's parts is dealt by the same Dirichlet shares;
with one, all images are dealt and each site is split anew, as in AdaFed (Chen et al., arXiv:2112.00734: 20 sites, alpha
0.1, half of each for the test). The sets name no patients: they are unknown. A file names no classes either: by the
names of OrganA/C/S-MNIST's and PneumoniaMNIST's files they are the published ones, otherwise ``class 0`` and so on,
where neither ``--labels`` nor a dataset.json beside the file names them.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError
from silofl.importing.options import DEALT, ImportOptions, Layout
from silofl.importing.site_files import SitePlan, number_labels
from silofl.reading.access import open_error
from silofl_desk.layouts.description import read_description
from silofl_desk.sets.examples import ClassificationSet, Stacked, plan_examples

PREFIXES = {"training": "train", "validation": "val", "test": "test"}
ORGANS = ("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left")
ORGANS += ("lung-right", "pancreas", "spleen")
# Name of a set's file, without the size of its images -> its classes, in the order of their numbers.
PUBLISHED = {
    **dict.fromkeys(("organamnist", "organcmnist", "organsmnist"), ORGANS),
    "pneumoniamnist": ("normal", "pneumonia"),
}
Arrays = dict[str, NDArray]


def plan_medmnist(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE, a MedMNIST npz file or the folder of one.

    Raises:
        ConfigError: An option cannot go with the set's own parts.
        DataError: It is not such a file, an image has several labels, or there are too few images for the sites.
    """
    if options.test is not None:
        options = replace(options, validation=options.validation or 0.0)
    elif options.partition != "dirichlet" or options.validation is not None:
        raise ConfigError(
            "the set's own parts must be dealt by dirichlet shares and stay as they are, without a validation "
            "fraction; give a test fraction to split the sites anew"
        )
    path = _find_npz_file(source)
    arrays = _read_npz_file(path)
    return plan_examples(_build_examples(path, arrays, options), options)


def _build_examples(path: Path, arrays: Arrays, options: ImportOptions) -> ClassificationSet:
    targets = np.concatenate([arrays[f"{prefix}_labels"] for prefix in PREFIXES.values()])
    counts = {part: len(arrays[f"{prefix}_labels"]) for part, prefix in PREFIXES.items()}
    shapes = {arrays[f"{prefix}_images"].shape[1:] for prefix in PREFIXES.values()}
    if len(shapes) > 1:
        raise DataError(f"{path.name} must hold images of one size, not {sorted(shapes)}; download it again")
    images = np.concatenate([arrays[f"{prefix}_images"] for prefix in PREFIXES.values()])
    return ClassificationSet(
        _name_classes(path, options, 1 + int(targets.max(initial=0))),
        targets,
        cases=[f"{PREFIXES[part]}-{number}" for part, count in counts.items() for number in range(count)],
        content=Stacked("images", images),
        parts=[part for part, count in counts.items() for _ in range(count)],
    )


def _find_npz_file(source: Path) -> Path:
    if source.is_file():
        return source
    found = sorted(source.glob("*.npz"))
    if len(found) != 1:
        raise DataError(f"{source.name} must be an npz file or a folder with one, not with {len(found)}; name the file")
    return found[0]


def _read_npz_file(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [
                f"{p}_{k}" for p in PREFIXES.values() for k in ("images", "labels") if f"{p}_{k}" not in file.files
            ]
            if missing:
                raise DataError(f"{path.name} must hold the arrays of MedMNIST; {', '.join(missing)} missing")
            return {
                name: _check_array(file, name, path) for name in file.files if name.split("_")[0] in PREFIXES.values()
            }
    except DataError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise open_error(path.name, error) from None
    except Exception as error:  # NumPy and zipfile raise what they like on broken bytes
        raise DataError(
            f"{path.name} must be a whole npz file, not a corrupt one ({error}); download it again"
        ) from None


def _check_array(file: np.lib.npyio.NpzFile, name: str, path: Path) -> NDArray:
    array = file[name]
    if name.endswith("_images"):
        if array.ndim < 3 or array.shape[3:] not in ((), (1,), (3,), (4,)):
            raise DataError(
                f"{name} of {path.name} must be of shape (N, H, W) or (N, H, W, 3), not {array.shape}; take a 2D set"
            )
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


def _name_classes(path: Path, options: ImportOptions, num_classes: int) -> dict[int, str]:
    names = options.labels
    if names is None and (path.parent / "dataset.json").is_file():
        classes = read_description(path.parent, ()).get("classes", {})
        names = tuple(classes.get(str(number), f"class {number}") for number in range(num_classes))
    names = names or PUBLISHED.get(path.stem.partition("_")[0])
    names = names or tuple(f"class {number}" for number in range(num_classes))
    if len(names) < num_classes:
        raise DataError(
            f"labels must name the {num_classes} classes of {path.name}, not {len(names)}; name all of them"
        )
    return number_labels(names, first=0)


LAYOUT = Layout(plan_medmnist, {**DEALT, "num_sites": 4, "alpha": 0.5, "test": None, "validation": None})
