"""Optic disc and cup in fundus photographs: the four sources released with DoFE, or folders of images and masks.

Wang et al., DoFE: Domain-oriented Feature Embedding for Generalizable Fundus Image Segmentation on Unseen Datasets,
IEEE TMI 2020, arXiv:2010.06208, from the page of its code (emma-sjwang, Dofe); FedDG (Liu et al., CVPR 2021) takes them
as hospitals::

    SOURCE/                              SOURCE/
      Domain1/                             north/
        train/                               images/
          ROIs/      (or without it)           0001.png ...
            image/gdrishtiGS_002.png         masks/
            mask/gdrishtiGS_002.png            0001.png ...
        test/ ...

A mask is grey: 0 the cup, 128 the rim of the disc around it, 255 the background. Interpolated masks hold greys between
them: up to 50 is the cup, up to 200 the rim, as in the release's loaders. At the site the rim is label 1 and the cup
label 2; the disc is both together (``regions`` of a study). The train and test folders are joined and split anew. The
sets name no patients: they are unknown.
"""

from functools import partial
from pathlib import Path

import numpy as np

from silofl.base.errors import DataError
from silofl.importing.options import FIFTHS, ImportOptions, Layout
from silofl.importing.site_files import CaseFiles, SitePlan, copy_image, plan_pairs, visible_folders
from silofl.reading.formats import PICTURES
from silofl.reading.images import read_label
from silofl_desk.layouts.description import choose_labels

# Above the first a grey is the rim, above the second the background.
GREYS = (50, 200)
LABELS = np.array([2, 1, 0], dtype=np.uint8)  # cup, rim of the disc, background
# Folder of the images, folder of the masks, what a case's name begins with.
PLACES = (
    ("images", "masks", ""),
    ("train/ROIs/image", "train/ROIs/mask", "train-"),
    ("train/image", "train/mask", "train-"),
    ("test/ROIs/image", "test/ROIs/mask", "test-"),
    ("test/image", "test/mask", "test-"),
)


def plan_fundus(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of a folder a hospital, with train/ROIs/image and its like, or with images and masks.

    Raises:
        DataError: No hospital is found, or an image has no mask or a mask no image.
    """
    folders = visible_folders(source)
    if not folders:
        raise DataError(f"{source.name} must hold a folder for each hospital, as Domain1, not none")
    labels = choose_labels(options.labels, ("rim", "cup"), first=1)
    return {folder.name: plan_pairs(folder.name, _list_pairs(folder), labels, options) for folder in folders}


def _list_pairs(folder: Path) -> list[CaseFiles]:
    pairs: list[CaseFiles] = []
    for image_place, mask_place, prefix in PLACES:
        images, masks = _pictures_by_stem(folder / image_place), _pictures_by_stem(folder / mask_place)
        lonely = sorted(images.keys() ^ masks.keys())
        if lonely:
            raise DataError(
                f"site {folder.name!r} must have each picture in {image_place} and in {mask_place}; one of the two is "
                f"missing of {', '.join(lonely[:3])}: add it or remove the other"
            )
        for stem, image in images.items():
            case = f"{prefix}{stem}"
            picture = f"images/{case}{image.suffix.lower()}", partial(copy_image, image)
            pairs.append(
                CaseFiles(case, None, (picture,), (f"masks/{case}.png", partial(_save_greys, masks[stem], case)))
            )
    if not pairs:
        raise DataError(f"site {folder.name!r} must have pictures in images or train/ROIs/image, not none; add them")
    return pairs


def _pictures_by_stem(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES and path.name[0] != ".")
    found = {path.stem: path for path in pictures}
    twins = [path.name for path in pictures if found[path.stem] != path]
    if twins:
        raise DataError(f"{twins[0]} must be the only picture of its name in {folder.name}; rename or remove the other")
    return found


def _save_greys(mask: Path, case: str, target: Path) -> None:
    """Save a mask's greys as label numbers."""
    from PIL import Image

    grey = read_label(mask, f"the mask of {case}").array[0]
    if grey.max() <= GREYS[1]:
        raise DataError(
            f"the mask {mask.name} of {case} must hold 0 (cup), 128 (rim of the disc) and 255 (background), not "
            f"greys up to {grey.max()} alone; save it in these greys"
        )
    Image.fromarray(LABELS[np.digitize(grey, GREYS, right=True)]).save(target)


LAYOUT = Layout(plan_fundus, FIFTHS)
