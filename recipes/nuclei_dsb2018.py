"""Cell nuclei of the 2018 Data Science Bowl (Caicedo et al., Nature Methods 2019; BBBC038), by kind of microscopy.

SOURCE/stage1_train/<id>/images/<id>.png and masks/<mask>.png, one nucleus each. The site is ours, by an image's size
and look; other images are left out. Tiles of 256 x 256 are cut from the middle of each. An image counts as a
patient.

Or SOURCE/dataset.json names ready tiles: id, site, group, image and mask with 0 and 255.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
from folders import import_folders, link, write_patients
from PIL import Image

TILE = 256
# Look and size -> site, and how many tiles are cut along each axis.
SITES = {
    ("dark", (256, 256)): ("fluo_256", 1),
    ("dark", (360, 360)): ("fluo_360", 1),
    ("dark", (520, 696)): ("fluo_520", 1),
    ("dark", (512, 640)): ("fluo_512x640", 2),
    ("light", (1024, 1024)): ("brightfield_1024", 2),
    ("purple", (256, 320)): ("histo_purple", 1),
    ("white", (256, 320)): ("histo_white", 1),
}


def classify_look(pixels: np.ndarray) -> str:
    """Say whether an image (H, W, 3) is dark or light, or stained on a white or on a purple background."""
    grey = pixels.mean(axis=2)
    if np.ptp(pixels, axis=2).mean() < 5:
        return "dark" if np.median(grey) < 80 else "light"
    background = pixels[grey >= np.percentile(grey, 90)].mean(axis=0)
    return "white" if np.ptp(background) < 25 else "purple"


def cut_tiles(source: Path, folder: Path) -> dict[str, dict[str, str]]:
    patients: dict[str, dict[str, str]] = {}
    left_out: Counter[str] = Counter()
    root = source / "stage1_train" if (source / "stage1_train").is_dir() else source
    for image in sorted(root.glob("[!.]*/images/[!.]*.png")):
        pixels = np.asarray(Image.open(image).convert("RGB"))
        look, (rows, columns) = classify_look(pixels), pixels.shape[:2]
        if (look, (rows, columns)) not in SITES:
            left_out[f"{rows}x{columns} {look}"] += 1
            continue
        site, tiles = SITES[look, (rows, columns)]
        masks = [np.asarray(Image.open(path)) for path in image.parents[1].glob("masks/[!.]*.png")]
        nuclei = np.any([mask > 0 for mask in masks], axis=0).astype(np.uint8)
        if (pixels == pixels[..., :1]).all():
            pixels = pixels[..., 0]
        for kind in ("images", "masks"):
            (folder / site / kind).mkdir(parents=True, exist_ok=True)
        for number, (row, column) in enumerate(np.ndindex(tiles, tiles)):
            top = (rows - tiles * TILE) // 2 + row * TILE
            left = (columns - tiles * TILE) // 2 + column * TILE
            name = f"{image.stem}_{number}"
            for kind, array in (("images", pixels), ("masks", nuclei)):
                tile = array[top : top + TILE, left : left + TILE]
                Image.fromarray(tile).save(folder / site / kind / f"{name}.png")
            patients.setdefault(site, {})[name] = image.stem
    if left_out:
        counts = ", ".join(f"{count} of {kind}" for kind, count in sorted(left_out.items()))
        print(f"{left_out.total()} images fit no kind of microscopy and are left out: {counts}")
    return patients


def link_tiles(source: Path, folder: Path) -> dict[str, dict[str, str]]:
    patients: dict[str, dict[str, str]] = {}
    for sample in json.loads((source / "dataset.json").read_text())["samples"]:
        for key, kind in (("image", "images"), ("mask", "masks")):
            link(source / sample[key], folder / sample["site"] / kind / f"{sample['id']}.png")
        patients.setdefault(sample["site"], {})[sample["id"]] = sample["group"]
    return patients


def fill(source: Path, folder: Path) -> None:
    read = link_tiles if (source / "dataset.json").is_file() else cut_tiles
    for site, patients in read(source, folder).items():
        write_patients(folder / site, patients)


if __name__ == "__main__":
    import_folders(fill, "--labels", "nucleus")
