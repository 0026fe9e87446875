"""Folder trees as public data sets are unpacked, in small, and the one line that imports each.

``python -m tests.importing.trees`` prints how many are imported; files and masks are noise of the right form.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from silofl.command_line.cli import main

RNG = np.random.default_rng(0)


def draw(path: Path, size: int = 12) -> None:
    """Write a picture of noise, or a volume by its name's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (size, size), dtype=np.uint8)
    if path.name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(np.stack([pixels] * 3, 2), np.eye(4)), path)
    else:
        Image.fromarray(pixels).save(path)


def draw_mask(path: Path, value: int = 255, size: int = 12, row: int = 2, smoothed: bool = False) -> None:
    """Write a square of one number, with smoothed edges if wanted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((size, size), np.uint8)
    pixels[row : row + 4, 3:8] = value
    if path.name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(np.stack([pixels] * 3, 2), np.eye(4)), path)
    elif smoothed:
        small = Image.fromarray(pixels).resize((size // 2, size // 2), Image.Resampling.BILINEAR)
        small.resize((size, size), Image.Resampling.BILINEAR).save(path, quality=90)
    else:
        Image.fromarray(pixels).save(path)


def chest_xray(root: Path) -> None:
    for part, count in (("train", 6), ("val", 2), ("test", 4)):
        for name in ("NORMAL", "PNEUMONIA"):
            for number in range(count):
                draw(root / part / name / f"{part}{number}.jpeg")


def brain_tumours(root: Path) -> None:
    for part in ("Training", "Testing"):
        for name in ("glioma", "meningioma", "notumor"):
            for number in range(4):
                draw(root / part / name / f"{part}-{number}.jpg")


def retina_scans(root: Path) -> None:
    for part in ("train", "valid", "test"):
        for name in ("CNV", "DRUSEN"):
            for number in range(4):
                draw(root / "hospital" / part / name / f"{name}-{part}-{number}.jpeg")
    (root / "__MACOSX").mkdir()


def unlabelled_test(root: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(6):
            draw(root / "train" / name / f"{number}.png")
    for number in range(3):
        draw(root / "test" / f"{number}.png")


def ultrasound_classes(root: Path) -> None:
    for name in ("benign", "malignant"):
        for number in range(6):
            draw(root / "north" / name / f"{name} ({number}).png")
            draw_mask(root / "north" / name / f"{name} ({number})_mask.png")


def skin_table(root: Path) -> None:
    rows = [f"images/IMD{number:03},{('nevus', 'melanoma')[number % 2]}" for number in range(12)]
    for number in range(12):
        draw(root / "north" / "images" / f"IMD{number:03}.bmp")
    (root / "north" / "labels.csv").write_text("\n".join(["file,label", *rows, ",", ","]), encoding="utf-16")


def skin_metadata(root: Path) -> None:
    for number in range(12):
        draw(root / "north" / "images" / f"ISIC_{number}.jpg")
    rows = [f"ISIC_{number},{('nv', 'mel')[number % 2]}" for number in range(12)]
    (root / "north" / "HAM10000_metadata.csv").write_text("\n".join(["image_id,dx", *rows]))


def blood_cells(root: Path) -> None:
    for part in ("TRAIN", "TEST", "TEST_SIMPLE"):
        for name in ("EOSINOPHIL", "MONOCYTE"):
            for number in range(4):
                draw(root / part / name / f"{number}.jpeg")


def ultrasound_masks(root: Path) -> None:
    for number in range(8):
        draw(root / "north" / "benign" / f"benign ({number}).png")
        draw_mask(root / "north" / "benign" / f"benign ({number})_mask.png")
    draw_mask(root / "north" / "benign" / "benign (4)_mask_1.png", row=7)


def retina_vessels(root: Path) -> None:
    for part, first in (("training", 21), ("test", 1)):
        for number in range(first, first + 4):
            draw(root / part / "images" / f"{number:02}_{part}.tif")
            draw_mask(root / part / "1st_manual" / f"{number:02}_manual1.gif")
            draw_mask(root / part / "mask" / f"{number:02}_{part}_mask.gif")


def polyps(root: Path) -> None:
    for number in range(6):
        draw(root / "north" / "images" / f"cju{number}.jpg")
        draw_mask(root / "north" / "masks" / f"cju{number}.jpg", smoothed=True)


def nuclei(root: Path) -> None:
    for number in range(6):
        draw(root / "north" / f"n{number}" / "images" / f"n{number}.png")
        for cell in range(3):
            draw_mask(root / "north" / f"n{number}" / "masks" / f"{cell}.png", row=3 * cell)


def heart(root: Path) -> None:
    for part, first in (("training", 1), ("testing", 101)):
        for number in range(first, first + 4):
            folder = root / "north" / part / f"patient{number:03}"
            for frame in (1, 12):
                draw(folder / f"patient{number:03}_frame{frame:02}.nii.gz")
                draw_mask(folder / f"patient{number:03}_frame{frame:02}_gt.nii.gz", value=1)
            draw(folder / f"patient{number:03}_4d.nii.gz")


def lungs(root: Path) -> None:
    for number in range(6):
        draw(root / "north" / "CXR_png" / f"MCU_{number}.png")
        draw_mask(root / "north" / "ManualMask" / "leftMask" / f"MCU_{number}.png")
        draw_mask(root / "north" / "ManualMask" / "rightMask" / f"MCU_{number}.png", row=7)


def tissue(root: Path) -> None:
    for part in ("train", "val", "test"):
        for number in range(4):
            draw(root / "north" / "images" / part / f"t{number}.png")
            draw_mask(root / "north" / "masks" / part / f"t{number}.png")
            (root / "north" / "images" / part / "Thumbs.db").write_bytes(b"x")


def white_cells(root: Path) -> None:
    for number in range(6):
        draw(root / "north" / f"{number:03}.bmp")
        draw_mask(root / "north" / f"{number:03}.png")


@dataclass(frozen=True)
class Tree:
    """A tree, the line behind ``silofl import`` that should import it, and how many cases each part then has.

    The counts are (training, validation, test); None of a tree that is no hospital's folder, for which the line gives a
    sentence.
    """

    build: Callable[[Path], None]
    line: str
    counts: tuple[int, int, int] | None


TREES = (
    Tree(chest_xray, "table", (12, 4, 8)),
    Tree(brain_tumours, "table", (9, 3, 12)),
    Tree(retina_scans, "table", (8, 8, 8)),
    Tree(unlabelled_test, "table", (8, 2, 2)),
    Tree(ultrasound_classes, "table", (8, 2, 2)),
    Tree(skin_table, "table", (8, 2, 2)),
    Tree(skin_metadata, "table", None),
    Tree(blood_cells, "table", None),
    Tree(
        ultrasound_masks, "folders --image-pattern benign/{case}.png --mask-pattern benign/{case}_mask*.png", (5, 1, 2)
    ),
    Tree(
        retina_vessels, "folders --image-pattern images/{case}_*.tif --mask-pattern 1st_manual/{case}_*.gif", (3, 1, 4)
    ),
    Tree(polyps, "folders --mask-threshold 128", (4, 1, 1)),
    Tree(nuclei, "folders --image-pattern {case}/images/{case}.png --mask-pattern {case}/masks/*.png", (4, 1, 1)),
    Tree(
        heart,
        "folders --image-pattern patient*/{case}.nii.gz --mask-pattern patient*/{case}_gt.nii.gz --skip",
        (6, 2, 8),
    ),
    Tree(
        lungs,
        "folders --labels leftMask,rightMask --image-pattern CXR_png/{case}.png --mask-pattern "
        "ManualMask/{label}/{case}.png",
        (4, 1, 1),
    ),
    Tree(tissue, "folders", (4, 4, 4)),
    Tree(white_cells, "folders --image-pattern {case}.bmp --mask-pattern {case}.png", (4, 1, 1)),
)


def import_tree(tree: Tree, folder: Path) -> tuple[tuple[int, ...] | None, str]:
    """Build a tree in a new folder and import it: the cases of each part, None if refused, and what was printed."""
    layout, *options = tree.line.split()
    tree.build(folder / "source")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(["import", layout, str(folder / "source"), str(folder / "data"), *options])
        except SystemExit as stop:
            code = stop.code
    if code:
        return None, said.getvalue()
    (described,) = (folder / "data").glob("*/dataset.json")
    parts = json.loads(described.read_text())
    return tuple(len(parts[part]) for part in ("training", "validation", "test")), said.getvalue()


def print_trees() -> None:
    """Print for each tree whether its line imports it as wanted."""
    for tree in TREES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                counts, said = import_tree(tree, Path(folder))
            except ValueError:  # several sites
                counts, said = (), "several sites"
        outcome = "refused" if counts is None else "right" if counts == tree.counts else "wrong"
        print(f"{tree.build.__name__}: {outcome}: {said.strip().splitlines()[0][:150]}")


if __name__ == "__main__":
    print_trees()
