"""Tiles of stained tissue from the 2018 Data Science Bowl: many nuclei or few, at four hospitals.

It is the set of the layout nuclei-dsb2018::

    SOURCE/                            or stage1_train itself
      stage1_train/
        <id>/
          images/<id>.png
          masks/<mask>.png ...         one nucleus each; not 0 is the nucleus

Of its kinds of microscopy the two of stained tissue are taken, histo_purple and histo_white: two laboratories, of which
each becomes two hospitals, half of its pictures each, dealt by the seed. Pictures are cut into tiles of 64x64 pixels,
brought to 40x40. A tile has many nuclei where they take at least 25 % of it, few where they take at most 12 %; others
are left out. Training, validation and test of a site share no picture, and each has as many tiles of each class, drawn
by the seed; training has at most 16.

It is a small set in which hospitals differ in appearance and little else, for comparisons of federated algorithms.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.importing.options import ImportOptions, Layout
from silofl.importing.site_files import JsonRecord, SitePlan
from silofl.reading.images import read_image, read_label
from silofl_desk.layouts.description import choose_labels
from silofl_desk.sets.examples import ClassificationSet, Stacked, plan_examples
from silofl_desk.sets.nuclei_dsb2018 import plan_nuclei

LABORATORIES = ("histo_purple", "histo_white")
HALVES = 2
TILE, SIZE = 64, 40
FEW, MANY = 0.12, 0.25
MOST_TRAINING = 16


class Tile(NamedTuple):
    """A tile, its class and where it comes from."""

    pixels: NDArray[np.uint8]
    label: int
    case: str
    picture: str
    site: str


def plan_tiles(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of the tiles of SOURCE's stained tissue.

    Raises:
        DataError: SOURCE is not the set, or lacks pictures of one of the laboratories.
    """
    tiles = list(_cut_tiles(source, options.seed))
    examples = ClassificationSet(
        labels=choose_labels(options.labels, ("few", "many"), first=0),
        targets=np.array([tile.label for tile in tiles]),
        cases=[tile.case for tile in tiles],
        content=Stacked("images", np.stack([tile.pixels for tile in tiles])),
        patients=[tile.picture for tile in tiles],
        sites=[tile.site for tile in tiles],
        notes=("the set names no patients: a picture counts as one, and its tiles stay together",),
    )
    plans = plan_examples(examples, replace(options, partition="own"))
    return {site: _balance(plan, options.seed) for site, plan in plans.items()}


def _cut_tiles(source: Path, seed: int) -> Iterator[Tile]:
    plans = plan_nuclei(source, ImportOptions(test=0.5, validation=0.0))
    if not {*LABORATORIES} <= plans.keys():
        raise DataError(
            f"{source.name} must hold pictures of {' and '.join(LABORATORIES)}, not only of {', '.join(plans)}; "
            "download the whole set"
        )
    for laboratory in LABORATORIES:
        records = sorted((r for part in plans[laboratory].records.values() for r in part), key=lambda r: r["case"])
        pictures = sorted({str(record["patient"]) for record in records})
        order = np.random.default_rng(seed).permutation(len(pictures)).tolist()
        half = {pictures[place]: rank % HALVES + 1 for rank, place in enumerate(order)}
        for record in records:
            site = f"{laboratory}_{half[record['patient']]}"
            image, mask = _read_picture(plans[laboratory], record)
            yield from _tiles_of_picture(image, mask, record, site)


def _read_picture(plan: SitePlan, record: JsonRecord) -> tuple[NDArray[np.uint8], NDArray]:
    """Return a picture (H, W, 3) and its nuclei (H, W), which the plan knows how to write."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{key}.png" for key in ("image", "label")]
        for key, path in zip(("image", "label"), paths, strict=True):
            plan.files[record[key]](path)
        return np.moveaxis(read_image(paths[0]).array[:3], 0, -1), read_label(paths[1]).array[0] > 0


def _tiles_of_picture(image: NDArray[np.uint8], mask: NDArray, record: JsonRecord, site: str) -> Iterator[Tile]:
    from PIL import Image

    for number, (row, column) in enumerate(np.ndindex(*(side // TILE for side in mask.shape))):
        place = slice(row * TILE, (row + 1) * TILE), slice(column * TILE, (column + 1) * TILE)
        share = mask[place].mean()
        if share <= FEW or share >= MANY:
            pixels = np.asarray(Image.fromarray(image[place]).resize((SIZE, SIZE), Image.Resampling.BOX))
            case = f"{record['case']}_{number}"
            yield Tile(pixels, int(share >= MANY), case, str(record["patient"]), site)


def _balance(plan: SitePlan, seed: int) -> SitePlan:
    """Return a site with as many tiles of each class in each part, of the training at most `MOST_TRAINING`."""
    rng, kept = np.random.default_rng(seed), {}
    for part, records in plan.records.items():
        by_label = {label: [record for record in records if record["label"] == label] for label in plan.labels}
        fewest = min(map(len, by_label.values()))
        count = min(fewest, MOST_TRAINING // len(by_label)) if part == "training" else fewest
        drawn = [rng.permutation(len(found))[:count] for found in by_label.values()]
        # One of each class in turn, so that each batch of a test has as many of each.
        kept[part] = [
            found[place]
            for places in zip(*drawn, strict=True)
            for found, place in zip(by_label.values(), places, strict=True)
        ]
    return replace(plan, records=kept)


LAYOUT = Layout(plan_tiles, {"test": 0.4, "validation": 0.25})
