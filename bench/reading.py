"""The promises of reading: files to prepared arrays beside decoding alone, batches beside the training they feed."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import nibabel as nib
import numpy as np
import torch
import volumes
from kernels import plain_learner, study_of
from measured import Row
from PIL import Image

from silofl.base.settings import parse
from silofl.data.batches import training_batches
from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data
from silofl.study import Study
from silofl.training.loop import train

# Preparing is more than decoding: a process that may crash is started and works ahead on the other core; whether each
# file is whole, intensities and sizes, checks of each label, checksums.
FIRST, AIMS = {"tiles": 5.0, "scans": 2.0}, {"tiles": 2.5, "scans": 1.5}
# What is done once takes what the machine does at that moment: each is measured so often.
TIMES = 3
TILES, SIDE, SCANS, SCAN = 400, 128, 8, (192, 192, 40)


def patches(is_short: bool) -> Iterator[Row]:
    """Compare an epoch of patches of four volumes with a plain MONAI loop."""
    if not is_short:
        ours, plain = volumes.epochs()
        yield Row("an epoch of patches of 4 volumes", ours, "a plain MONAI loop", plain, 1.1)


def loading(is_short: bool) -> Iterator[Row]:
    """Compare reading for the first time with decoding alone, a later time, and the wait for batches in an epoch."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for what, files, study in (
            (f"{TILES} PNG tiles of {SIDE} x {SIDE}", write_tiles(folder / "tiles"), study_of("fedavg")),
            (f"{SCANS} volumes of {' x '.join(map(str, SCAN))}", write_scans(folder / "scans"), study_of_scans()),
        ):
            site = files[0].parent.parent
            read = partial(load_site_data, site, study, has_progress=False)
            alone = min(seconds(lambda files=files: [decode(file) for file in files]) for _ in range(TIMES))
            # Into a cache of its own each time.
            first = min(seconds(partial(read, folder / f"cache-{turn}")) for turn in range(TIMES))
            later = median(seconds(partial(read, folder / "cache-0")) for _ in range(TIMES))
            aim = AIMS[site.name]
            yield Row(f"reading {what} for the first time", first, "decoding alone", alone, FIRST[site.name], aim=aim)
            yield Row(f"reading {what} once more", later, "decoding alone", alone, 1.2)
        examples = load_site_data(folder / "tiles", study_of("fedavg"), folder / "cache-0", False).training
        # An epoch of all takes 20 s.
        yield waiting(examples.select_rows([*range(80)]) if is_short else examples, study_of("fedavg"))


def waiting(examples: Examples, study: Study) -> Row:
    """Return which part of an epoch training waits for its batches."""
    waited = 0.0

    def timed() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        nonlocal waited
        batches = training_batches(examples, 8, None, 0, "cpu")
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - started
            if batch is None:
                return
            yield batch

    epoch = seconds(lambda: train({"model": plain_learner(study)}, [timed()]))
    return Row("training waits for batches, of an epoch", 100 * waited / epoch, "-", None, 5, "%")


def study_of_scans() -> Study:
    """Return a study of slices of volumes."""
    data = {"channels": 1, "transforms": [{"Resize": {"spatial_size": [96, 96]}}]}
    base = {"name": "scans", "task": "segmentation", "labels": {1: "organ"}, "rounds": 1, "data": data}
    return parse(Study, base | {"model": {"name": "unet"}, "algorithm": {"name": "fedavg"}}, "bench")


def write_tiles(folder: Path, count: int = TILES, shape: tuple[int, ...] = (SIDE, SIDE, 3)) -> list[Path]:
    """Write a site of noisy tiles, grey or in colour; returns its files."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, shape, dtype=np.uint8) for _ in range(count)]
    masks = [(rng.random(shape[:2]) > 0.7).astype(np.uint8) for _ in range(count)]
    return write_site(
        folder, ".png", images, masks, {"1": "nucleus"}, lambda array, path: Image.fromarray(array).save(path)
    )


def write_scans(folder: Path) -> list[Path]:
    """Write a site of noisy volumes; returns its files."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 1000, SCAN).astype(np.int16) for _ in range(SCANS)]
    masks = [(rng.random(SCAN) > 0.7).astype(np.uint8) for _ in range(SCANS)]

    def save(array: np.ndarray, path: Path) -> None:
        nib.save(nib.Nifti1Image(array, np.eye(4)), path)

    return write_site(folder, ".nii.gz", images, masks, {"1": "organ"}, save)


def write_site(
    folder: Path, suffix: str, images: list, masks: list, labels: dict[str, str], save: object
) -> list[Path]:
    """Write images and label maps with their dataset.json: a tenth each validates and tests."""
    records, files = [], []
    for number, arrays in enumerate(zip(images, masks, strict=True)):
        record = {key: f"{key}s/{number}{suffix}" for key in ("image", "label")}
        for array, relative in zip(arrays, record.values(), strict=True):
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            save(array, folder / relative)
            files.append(folder / relative)
        records.append(record | {"patient": f"p{number}"})
    count = max(1, len(records) // 10)
    parts = {"training": records[2 * count :], "validation": records[:count], "test": records[count : 2 * count]}
    (folder / "dataset.json").write_text(json.dumps({"task": "segmentation", "labels": labels, **parts}))
    return files


def decode(path: Path) -> np.ndarray:
    """Read one file with the library of its format."""
    return np.asarray(Image.open(path)) if path.suffix == ".png" else np.asanyarray(nib.load(path).dataobj)


def seconds(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


MEASURES = (patches, loading)
