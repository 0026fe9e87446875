"""Cell nuclei of the 2018 Data Science Bowl, with a site for each kind of microscopy.

Caicedo et al., Nucleus segmentation across imaging experiments: the 2018 Data Science Bowl, Nature Methods 2019; from
Kaggle, 2018 Data Science Bowl, or the Broad Bioimage Benchmark Collection, BBBC038 (CC0)::

    SOURCE/                            or stage1_train itself
      stage1_train/
        <id>/
          images/<id>.png
          masks/<mask>.png ...         one nucleus each; not 0 is the nucleus

The set names no laboratory. Which site an image comes to is a rule of ours, by its size (rows x columns) and look:

    fluo_256, fluo_360               256x256 and 360x360, grey and dark
    fluo_520, fluo_512x640           520x696 and 512x640, grey and dark
    brightfield_1024                 1024x1024, grey and light
    histo_purple, histo_white        256x320, coloured, on a purple or on a white background

Coloured is a mean difference of at least 5 between a pixel's largest and smallest channel, dark a median grey below 80.
White is a background, the lightest tenth of the pixels, whose mean channels differ by less than 25. Other images, about
a dozen, are left out and counted.

From the middle of an image one tile of 256x256 is cut, from 512x640 and 1024x1024 two by two. The set names no patients
either: an image counts as one, so that its tiles stay together. A folder whose dataset.json names ready tiles (site,
group, image and mask with 0 and 255) is read too.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.importing.masks import Values, plan_mask
from silofl.importing.options import FIFTHS, ImportOptions, Layout
from silofl.importing.site_files import CaseFiles, SitePlan, copy_image, plan_pairs, visible_folders
from silofl.reading.images import read_image, read_label
from silofl_desk.layouts.description import choose_labels, read_description, sample_file

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
MIN_COLOUR, MAX_DARK, MAX_WHITE = 5, 80, 25
PATIENTS = "the set names no patients: an image counts as one, and its tiles stay together"


def plan_nuclei(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/stage1_train, or of tiles that SOURCE/dataset.json names.

    Raises:
        DataError: The folder is not this set, a file is missing or of another form, or a site has fewer than 2 images.
    """
    labels = choose_labels(options.labels, ("nucleus",), first=1)
    has_tiles = (source / "dataset.json").exists()
    pairs, notes = _read_named_tiles(source, labels) if has_tiles else _cut_tiles(source)
    plans = {site: plan_pairs(site, found, labels, options) for site, found in sorted(pairs.items())}
    return {site: replace(plan, notes=(*plan.notes, *notes)) for site, plan in plans.items()}


def classify_look(pixels: NDArray[np.uint8]) -> str:
    """Return what an image looks like: grey and ``dark`` or ``light``, or stained on ``purple`` or on ``white``.

    Args:
        pixels: (1, H, W) or (3, H, W), from 0 to 255.
    """
    grey = pixels.mean(axis=0)
    if np.ptp(pixels, axis=0).mean() < MIN_COLOUR:
        return "dark" if np.median(grey) < MAX_DARK else "light"
    background = pixels[:, grey >= np.percentile(grey, 90)].mean(axis=1)
    return "white" if np.ptp(background) < MAX_WHITE else "purple"


def _read_named_tiles(source: Path, labels: dict[int, str]) -> tuple[dict[str, list[CaseFiles]], tuple[str, ...]]:
    pairs: dict[str, list[CaseFiles]] = {}
    for sample in read_description(source, ("samples",))["samples"]:
        if not isinstance(sample, dict) or not {"id", "site", "group"} <= sample.keys():
            raise DataError(f"every sample of {source.name} must have id, site and group, not {sample!r}")
        image, mask = sample_file(source, sample, "image"), sample_file(source, sample, "mask")
        case = str(sample["id"])
        images = ((f"images/{image.name}", partial(copy_image, image)),)
        pair = CaseFiles(case, str(sample["group"]), images, plan_mask(mask, image, case, Values(labels), mask.name))
        pairs.setdefault(str(sample["site"]), []).append(pair)
    return pairs, ()


def _cut_tiles(source: Path) -> tuple[dict[str, list[CaseFiles]], tuple[str, ...]]:
    pairs: dict[str, list[CaseFiles]] = {}
    left_out: Counter[str] = Counter()
    for folder in _list_image_folders(source):
        pixels = _read_pixels(folder)
        rows, columns = pixels.shape[1:]
        look = classify_look(pixels)
        if (look, (rows, columns)) in SITES:
            site, tiles = SITES[look, (rows, columns)]
            pairs.setdefault(site, []).extend(_plan_tiles(folder, (rows, columns), tiles))
        else:
            left_out[f"{rows}x{columns} {look}"] += 1
    counts = ", ".join(f"{count} of {kind}" for kind, count in sorted(left_out.items()))
    if not pairs:
        raise DataError(f"{source.name} must hold images of a known size and look, not only {counts}; is it this set?")
    note = f"{left_out.total()} images fit no kind of microscopy and are left out: {counts}"
    return pairs, (PATIENTS, *([note] if left_out else []))


def _list_image_folders(source: Path) -> list[Path]:
    root = source / "stage1_train" if (source / "stage1_train").is_dir() else source
    folders = [folder for folder in visible_folders(root) if (folder / "images").is_dir()]
    if not any(_picture_path(folder).exists() for folder in folders):
        raise DataError(
            f"{source.name} must hold stage1_train/<id>/images/<id>.png and stage1_train/<id>/masks, or a dataset.json "
            "that names tiles; neither is there: is it this set?"
        )
    for folder in folders:
        if not _picture_path(folder).exists() or not _list_masks(folder):
            wanted = f"images/{folder.name}.png and a PNG of each nucleus in masks"
            raise DataError(f"image {folder.name} must have {wanted}; one is missing: unpack it again")
    return folders


def _picture_path(folder: Path) -> Path:
    return folder / "images" / f"{folder.name}.png"


def _list_masks(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("masks/*.png") if not path.name.startswith("."))


def _read_pixels(folder: Path) -> NDArray[np.uint8]:
    """Return an image (1, H, W), or (3, H, W) where its channels differ."""
    pixels = read_image(_picture_path(folder)).array
    if pixels.dtype != np.uint8:
        raise DataError(f"image {folder.name} must have 8 bits a channel, not {pixels.dtype}; is it this set?")
    return pixels[:1] if (pixels == pixels[:1]).all() else pixels


def _plan_tiles(folder: Path, shape: tuple[int, int], tiles: int) -> Iterator[CaseFiles]:
    first_row, first_column = ((size - tiles * TILE) // 2 for size in shape)
    for number, (row, column) in enumerate(np.ndindex(tiles, tiles)):
        top, left = first_row + row * TILE, first_column + column * TILE
        place = slice(top, top + TILE), slice(left, left + TILE)
        case = f"{folder.name}_{number}"
        image = f"images/{case}.png", partial(_save_image, folder, place)
        yield CaseFiles(case, folder.name, (image,), (f"masks/{case}.png", partial(_save_mask, folder, shape, place)))


def _save_image(folder: Path, place: tuple[slice, slice], target: Path) -> None:
    from PIL import Image

    tile = np.moveaxis(_read_pixels(folder)[:, *place], 0, -1)
    Image.fromarray(tile[..., 0] if tile.shape[-1] == 1 else tile).save(target)


def _save_mask(folder: Path, shape: tuple[int, int], place: tuple[slice, slice], target: Path) -> None:
    from PIL import Image

    union = np.zeros(shape, dtype=np.uint8)
    for path in _list_masks(folder):
        nucleus = read_label(path, f"mask {path.name} of {folder.name}").array[0]
        if nucleus.shape != shape:
            raise DataError(
                f"mask {path.name} of {folder.name} must have the size of its image, {shape}, not {nucleus.shape}; "
                "unpack it again"
            )
        union[nucleus != 0] = 1
    Image.fromarray(union[place]).save(target)


LAYOUT = Layout(plan_nuclei, FIFTHS)
