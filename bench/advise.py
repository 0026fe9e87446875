"""What ``silofl advise`` measures at sites that differ in one way, and whether its answers are right.

    python bench/advise.py OUT [--seeds 201,202,203]

Patches of simulated abdomens, 32 x 32, are to be told apart by the organ in their middle. Four hospitals differ in
nothing, in their scanners' look, in the shares of the organs, or in zoom and direction. The thresholds of
``silofl.algorithms.advice`` were set on the seeds 1, 2 and 3.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from runs import JOBS, silofl

from silofl.data.anatomy import Tissue, draw_anatomy
from silofl.data.phantoms import SCANNERS
from silofl.data.scanner import Scanner, scan

SITES = ("north", "east", "south", "west")
ORGANS = {
    "liver": (Tissue.LIVER,),
    "spleen": (Tissue.SPLEEN,),
    "kidney": (Tissue.CORTEX, Tissue.MEDULLA),
    "stomach or bowel": (Tissue.CONTENT, Tissue.WALL),
    "spine": (Tissue.MARROW,),
}
PATIENTS = {"training": 8, "test": 6}
PATCHES, SIDE, SLICES = 15, 32, 6
PLAIN = replace(SCANNERS["north"], matrix=(96, 96), spacing_mm=(3.4, 3.4, 7.0))
# Shift -> the right answers: whether images look different, and whether labels differ.
RIGHT = {
    "none": (False, False),
    "appearance": (True, False),
    "labels": (False, True),
    "structure": (True, False),
}
STUDY = {
    "task": "classification",
    "labels": dict(enumerate(ORGANS)),
    "metric": "accuracy",
    "data": {"channels": 1, "intensity": "dtype"},
    "model": {"name": "lenet5", "normalization": "batch"},
    "training": {"loss": "cross_entropy", "optimizer": "adam", "learning_rate": 0.003, "batch_size": 16},
    "algorithm": {"name": "fedavg"},
}


@dataclass(frozen=True)
class Hospital:
    """How a hospital's patches come about.

    Attributes:
        scanner: Its look, and its zoom by the size of a voxel.
        shares: Of the organs, in the order of `ORGANS`.
        quarter_turns: By which its patches are turned.
    """

    scanner: Scanner = PLAIN
    shares: tuple[float, ...] = (1 / len(ORGANS),) * len(ORGANS)
    quarter_turns: int = 0


def same(rng: np.random.Generator, place: int) -> Hospital:
    """Return the same hospital everywhere."""
    return Hospital()


def other_look(rng: np.random.Generator, place: int) -> Hospital:
    """Return a hospital with another scanner; the last one's contrast is reversed."""
    scanner = replace(
        PLAIN,
        noise=rng.uniform(0.02, 0.08),
        blur_mm=rng.uniform(1, 5),
        bias=rng.uniform(0.1, 0.6),
        bias_degrees=rng.uniform(0, 360),
        gamma=float(np.exp(rng.uniform(-0.8, 0.8))),
        is_reversed=place == len(SITES) - 1,
    )
    return Hospital(scanner)


def other_labels(rng: np.random.Generator, place: int) -> Hospital:
    """Return a hospital with other shares of the organs."""
    return Hospital(shares=tuple(rng.dirichlet([0.3] * len(ORGANS))))


def other_structure(rng: np.random.Generator, place: int) -> Hospital:
    """Return a hospital whose images are zoomed and turned."""
    side_mm = rng.uniform(2.2, 4.8)
    return Hospital(replace(PLAIN, spacing_mm=(side_mm, side_mm, 7.0)), quarter_turns=place)


SHIFTS: dict[str, Callable[[np.random.Generator, int], Hospital]] = {
    "none": same,
    "appearance": other_look,
    "labels": other_labels,
    "structure": other_structure,
}


def main() -> None:
    """Print ratios and answers for each shift and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="201,202,203")
    options = parser.parse_args()
    job = write_job(options.out / "job")
    print("| differ in | seed | amplitudes, features, labels | look different | labels differ | right |")
    print("|---|---|---|---|---|---|")
    num_right, cases = 0, [(shift, int(seed)) for shift in SHIFTS for seed in options.seeds.split(",")]
    for shift, seed in cases:
        data = write_sites(options.out / f"{shift}-{seed}" / "data", shift, seed)
        found = json.loads(silofl("advise", str(job), "--data", str(data / "{site}"), "--json"))
        ratios = ", ".join(f"{found['ratios'][name]['value']:.2f}" for name in ("amplitude", "features", "labels"))
        answers = tuple(found["findings"][kind]["is_yes"] for kind in ("amplitude", "labels"))
        num_right += answers == RIGHT[shift]
        words = ["yes" if one else "no" for one in (*answers, answers == RIGHT[shift])]
        print(f"| {shift} | {seed} | {ratios} | {' | '.join(words)} |")
    print(f"both answers are right in {num_right} of {len(cases)}")


def write_job(job: Path) -> Path:
    """Write the job of the study."""
    if not job.exists():
        shutil.copytree(JOBS / "fedavg_phantoms", job)
        path = job / "app" / "config" / "study.yaml"
        study = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump(study | {"name": "patches"} | STUDY, sort_keys=False))
    return job


def write_sites(folder: Path, shift: str, seed: int) -> Path:
    """Write the four hospitals of a shift and a seed, unless they are there."""
    for place, site in enumerate(SITES):
        rng = np.random.default_rng([seed, list(SHIFTS).index(shift), place])
        if not (folder / site / "dataset.json").is_file():
            write_site(folder / site, SHIFTS[shift](rng, place), rng)
    return folder


def write_site(folder: Path, hospital: Hospital, rng: np.random.Generator) -> None:
    """Write a hospital's patches as one array, with its dataset.json."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"task": "classification", "labels": {str(n): name for n, name in enumerate(ORGANS)}}
    images: list[NDArray[np.uint8]] = []
    for part, count in PATIENTS.items():
        content[part] = []
        for number in range(count):
            for patch, label in patches(hospital, rng):
                record = {"image": "images.npz", "index": len(images), "label": label, "patient": f"{part}{number}"}
                content[part].append(record)
                images.append(patch)
    np.savez_compressed(folder / "images.npz", images=np.stack(images))
    (folder / "dataset.json").write_text(json.dumps(content))


def patches(hospital: Hospital, rng: np.random.Generator) -> list[tuple[NDArray[np.uint8], int]]:
    """Draw a patient and return patches around voxels of its organs, each with the organ's number."""
    tissue = draw_anatomy(rng, hospital.scanner.grid(SLICES))
    volume = scan(rng, tissue, hospital.scanner).astype(np.float32)
    low, high = np.percentile(volume, (1, 99))
    pixels = np.uint8(255 * np.clip((volume - low) / (high - low), 0, 1))
    half, found = SIDE // 2, []
    pixels = np.pad(pixels, ((half, half), (half, half), (0, 0)))
    for label in rng.choice(len(ORGANS), PATCHES, p=hospital.shares).tolist():
        seats = np.argwhere(np.isin(tissue, list(ORGANS.values())[label]))
        if len(seats):
            x, y, z = rng.choice(seats)
            found.append((np.rot90(pixels[x : x + SIDE, y : y + SIDE, z], hospital.quarter_turns), label))
    return found


if __name__ == "__main__":
    main()
