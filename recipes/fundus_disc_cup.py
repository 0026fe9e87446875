"""Optic disc and cup in the fundus photographs released with DoFE (Wang et al., TMI 2020, arXiv:2010.06208).

SOURCE/<site>/train/ROIs/image and mask, also test/, also without ROIs/; or SOURCE/<site>/images and masks. A mask is
0 in the cup, 128 in the rim of the disc, 255 outside; greys between are read as the release's loaders do. The sets
name no patients.
"""

from pathlib import Path

import numpy as np
from folders import import_folders, link
from PIL import Image

# Of a grey up to 50, up to 200 and above: the cup, the rim, the background.
LABELS = np.array([2, 1, 0], dtype=np.uint8)


def fill(source: Path, folder: Path) -> None:
    for image in source.rglob("image*/[!.]*.png"):
        site, *places = image.relative_to(source).parts
        case = image.stem if places[0] == "images" else f"{places[0]}-{image.stem}"
        mask = image.parent.with_name(image.parent.name.replace("image", "mask")) / image.name
        link(image, folder / site / "images" / f"{case}.png")
        greys = np.asarray(Image.open(mask).convert("L"))
        (folder / site / "masks").mkdir(exist_ok=True)
        Image.fromarray(LABELS[np.digitize(greys, [50, 200], right=True)]).save(folder / site / "masks" / f"{case}.png")


import_folders(fill, "--labels", "rim,cup")
