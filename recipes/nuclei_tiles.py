"""Tiles of stained tissue from the 2018 Data Science Bowl: many nuclei or few, at four hospitals.

SOURCE as of nuclei_dsb2018.py. Of its sites histo_purple and histo_white become two hospitals each, half of the
pictures, dealt by the seed. Tiles of 64 x 64 pixels are brought to 40 x 40; a tile has many nuclei where they take
at least 25 % of it, few where they take at most 12 %; others are left out. Each part of a site has as many tiles of
each class, drawn by the seed, training at most 16: a small set in which hospitals differ in appearance and little
else.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from dealing_options import OWN, parse_dealing
from examples import ClassificationSet, Stacked, plan_examples
from nuclei_dsb2018 import cut_tiles, link_tiles
from PIL import Image

from silofl_hospital.importing.importers import write_plans
from silofl_hospital.importing.site_files import SitePlan, number_labels
from silofl_hospital.site.import_data import report_import

TILE, SIZE = 64, 40


def cut_picture(image: Path, picture: str, site: str) -> Iterator[tuple[np.ndarray, int, str, str, str]]:
    """Yield pixels, class, case, picture and site of the tiles of a picture that have few nuclei or many."""
    pixels = np.asarray(Image.open(image).convert("RGB"))
    nuclei = np.asarray(Image.open(image.parents[1] / "masks" / image.name)) > 0
    for number, (row, column) in enumerate(np.ndindex(nuclei.shape[0] // TILE, nuclei.shape[1] // TILE)):
        place = slice(row * TILE, (row + 1) * TILE), slice(column * TILE, (column + 1) * TILE)
        share = nuclei[place].mean()
        if share <= 0.12 or share >= 0.25:
            tile = np.asarray(Image.fromarray(pixels[place]).resize((SIZE, SIZE), Image.Resampling.BOX))
            yield tile, int(share >= 0.25), f"{image.stem}_{number}", picture, site


def balance(plan: SitePlan, seed: int) -> SitePlan:
    """Return a site with as many tiles of each class in each part, one of each class in turn."""
    rng, kept = np.random.default_rng(seed), {}
    for part, records in plan.records.items():
        few = [record for record in records if record["label"] == 0]
        many = [record for record in records if record["label"] == 1]
        count = min(len(few), len(many))
        if part == "training":
            count = min(count, 8)
        drawn = [[found[place] for place in rng.permutation(len(found))[:count]] for found in (few, many)]
        kept[part] = [record for pair in zip(*drawn, strict=True) for record in pair]
    return replace(plan, records=kept)


options, dealing = parse_dealing(__doc__, partition=OWN, test=0.4, validation=0.25)
tiles = []
with TemporaryDirectory() as name:
    read = link_tiles if (options.source / "dataset.json").is_file() else cut_tiles
    picture_of = read(options.source, Path(name))
    for laboratory in ("histo_purple", "histo_white"):
        pictures = sorted(set(picture_of[laboratory].values()))
        order = np.random.default_rng(dealing.seed).permutation(len(pictures)).tolist()
        hospital = {pictures[place]: f"{laboratory}_{rank % 2 + 1}" for rank, place in enumerate(order)}
        for image in sorted((Path(name) / laboratory / "images").iterdir()):
            picture = picture_of[laboratory][image.stem]
            tiles += cut_picture(image, picture, hospital[picture])
pixels, targets, cases, pictures, sites = zip(*tiles, strict=True)
examples = ClassificationSet(
    labels=number_labels(dealing.labels or ("few", "many"), first=0),
    targets=np.array(targets),
    cases=cases,
    content=Stacked("images", np.stack(pixels)),
    patients=pictures,
    sites=sites,
    notes=("the set names no patients: a picture counts as one, and its tiles stay together",),
)
plans = {site: balance(plan, dealing.seed) for site, plan in plan_examples(examples, dealing).items()}
report_import(write_plans(plans, options.target), options)
