"""Spinal cords at a hospital that did not train: slices in 2D and volumes in 3D, as long each.

    python bench/spine_volumes.py DATA OUT [--seconds 300] [--seeds 0] [--arms 2D,3D] [--processes 1]

DATA is the folder that ``recipes/spine_gm.py`` wrote. FedAvg trains at all hospitals but one, whose whole volumes
``silofl predict`` then labels on their own grid: Dice, and the 95th percentile of the surfaces' distances in mm, means
over the labels. A few rounds of each arm first, one arm after the other, say how many fit into the seconds. Finished
runs in OUT are reused.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from monai.metrics import compute_dice, compute_hausdorff_distance
from runs import JOBS, Choices, is_finished, silofl

from silofl.federation.ledger import read_ledger
from silofl_desk.options import format_set_options
from silofl_desk.report.result_tables import mean_and_deviation

# Of each training volume these last slices stand apart, since a site must have a test part.
TEST_SLICES = 3
ROUNDS_TO_MEASURE = 3
FEDAVG: Choices = {"algorithm": {"name": "fedavg"}, "guard": False, "training.schedule": "poly"}
MOVES = {"rotate_range": [0.0, 0.0, 0.2], "scale_range": [0.1, 0.1, 0.0], "translate_range": [6, 6, 0]}
IN_3D: Choices = {
    "data.dimensions": 3,
    "data.patches": {"size": [64, 64, 16], "per_volume": 4, "foreground": 0.5, "overlap": 0.25},
    "data.augment": [{"RandAffine": {"prob": 0.5} | MOVES}],
}
CROPPED: Choices = {"data.transforms": [{"CenterSpatialCrop": {"roi_size": [64, 64, -1]}}]}
JOB = JOBS / "fedsm_spine"
ARMS = {"2D": FEDAVG, "3D": FEDAVG | IN_3D | CROPPED}


@dataclass(frozen=True)
class Run:
    """One arm without one hospital.

    Attributes:
        out: Folder of everything.
        arm: Key of `ARMS`.
        left_out: The hospital that does not train.
        seed: Of the training.
        kind: ``runs``, or ``short`` where only the time of a round is wanted.
    """

    out: Path
    arm: str
    left_out: str
    seed: str
    kind: str = "runs"

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return self.out / self.kind / self.arm / f"without-{self.left_out}-seed{self.seed}"

    def train(self, rounds: int) -> Path:
        """Train, unless that is done, and return the folder."""
        run = self.folder
        if not is_finished(run):
            shutil.rmtree(run, ignore_errors=True)
            run.parent.mkdir(parents=True, exist_ok=True)
            words = {"data": self.out / "data", "cache": self.out / "cache", "out": run, "leave-out": self.left_out}
            words |= {"rounds": rounds, "seed": self.seed}
            options = [word for key, value in words.items() for word in (f"--{key}", str(value))]
            silofl("simulate", str(JOB), *options, *format_set_options(ARMS[self.arm]), "--alone", "--json")
        return run

    def cases(self, rounds: int) -> list[Case]:
        """Train, label the volumes of the hospital left out, and return how right the labels are."""
        run, data = self.train(rounds), self.out / "data" / self.left_out
        records = json.loads((data / "dataset.json").read_text())["training"]
        predicted = run / "predicted"
        if not predicted.exists():
            images = [str(data / record["image"]) for record in records]
            silofl("predict", str(run / "supermodel"), *images, "--out", str(predicted), "--json")
        found = []
        for record in records:
            (answer,) = predicted.rglob(f"{Path(record['image']).name.split('.')[0]}*.nii.gz")
            found.append(measured(self, data / record["label"], answer))
        return found


@dataclass(frozen=True)
class Case:
    """A volume of the hospital that did not train.

    Attributes:
        run: Whose model labelled it.
        dice: Mean over the labels.
        hd95_mm: Mean over the labels that are in truth and answer.
        num_missing: Labels that are not in the answer.
    """

    run: Run
    dice: float
    hd95_mm: float
    num_missing: int


def main() -> None:
    """Measure the rounds, run what is not there yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    out, arms = options.out.resolve(), options.arms.split(",")
    hospitals = write_whole(options.data, out / "data")
    rounds = rounds_of(out, hospitals[0], options.seconds)
    runs = [Run(out, *one) for one in itertools.product(arms, hospitals, options.seeds.split(","))]
    with ThreadPoolExecutor(options.processes) as pool:
        cases = list(itertools.chain(*pool.map(lambda run: run.cases(rounds[run.arm]), runs)))
    print("\n".join(page(cases, arms, hospitals)))
    for arm in arms:
        took = np.median([sum(record.seconds for record in read_ledger(run.folder)) for run in runs if run.arm == arm])
        missing = sum(case.num_missing for case in cases if case.run.arm == arm)
        print(f"{arm}: {rounds[arm]} rounds, median {took:.0f} s; {missing} labels not found")


def write_whole(source: Path, target: Path) -> list[str]:
    """Write the hospitals with whole volumes in training, but for the last slices, and return their names."""
    hospitals = sorted(path.parent.name for path in source.glob("*/dataset.json"))
    for hospital in hospitals:
        folder = target / hospital
        if (folder / "dataset.json").is_file():
            continue
        shutil.copytree(source / hospital, folder, ignore=shutil.ignore_patterns("dataset.json"), dirs_exist_ok=True)
        content = json.loads((source / hospital / "dataset.json").read_text())
        parts: dict[str, list[dict[str, Any]]] = {"training": [], "validation": [], "test": []}
        for record in content["training"]:
            num_slices, name = nibabel.load(folder / record["image"]).shape[2], Path(record["image"]).name.split(".")[0]
            border = num_slices - TEST_SLICES
            parts["training"].append(record | {"case": name, "slices": [0, border - 1]})
            parts["test"].append(record | {"case": f"{name} end", "slices": [border, num_slices - 1]})
        (folder / "dataset.json").write_text(json.dumps(content | parts, indent=1))
    return hospitals


def rounds_of(out: Path, left_out: str, seconds: float) -> dict[str, int]:
    """Return how many rounds of each arm fit into the seconds, by a short run of each; kept for the next call."""
    kept = out / f"rounds-{seconds:g}s.json"
    if not kept.exists():
        short = {arm: Run(out, arm, left_out, "0", "short") for arm in ARMS}
        # The first round also loads torch's compiler.
        records = {arm: read_ledger(run.train(ROUNDS_TO_MEASURE))[1:] for arm, run in short.items()}
        means = {arm: float(np.mean([record.seconds for record in of_arm])) for arm, of_arm in records.items()}
        kept.write_text(json.dumps({arm: max(2, round(seconds / mean)) for arm, mean in means.items()}))
    return json.loads(kept.read_text())


def measured(run: Run, truth: Path, answer: Path) -> Case:
    """Compare a label map with the true one, on the volume's own grid."""
    true, said = nibabel.load(truth), nibabel.load(answer)
    if true.shape != said.shape or not np.allclose(true.affine, said.affine, atol=1e-4):
        raise SystemExit(f"{answer} must lie on the grid of {truth}")
    maps = [np.asanyarray(image.dataobj) for image in (said, true)]
    labels = [int(label) for label in np.unique(maps[1]) if label]
    one_hot = [torch.from_numpy(np.stack([volume == label for label in labels]))[None].float() for volume in maps]
    is_there = one_hot[0].flatten(2).any(dim=2)[0]
    dice = compute_dice(*one_hot, include_background=True)[0].mean().item()
    spacing = [float(size) for size in true.header.get_zooms()[:3]]
    known = [channels[:, is_there] for channels in one_hot]
    distance = compute_hausdorff_distance(*known, include_background=True, percentile=95, spacing=spacing)
    return Case(run, dice, distance.mean().item(), int((~is_there).sum()))


def page(cases: Sequence[Case], arms: Sequence[str], hospitals: Sequence[str]) -> list[str]:
    """Return the table: a hospital a row, an arm two columns."""
    heads = ["hospital left out", "volumes", *(f"{arm}: {what}" for arm in arms for what in ("Dice", "HD95, mm"))]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for hospital in [*hospitals, None]:
        chosen = [hospital] if hospital else hospitals
        own = [case for case in cases if case.run.left_out in chosen and case.run.arm == arms[0]]
        cells = [hospital or "mean of hospitals", str(len(own) // len({case.run.seed for case in own}))]
        cells += [over_seeds(cases, arm, chosen, key) for arm in arms for key in ("dice", "hd95_mm")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def over_seeds(cases: Sequence[Case], arm: str, hospitals: Sequence[str], key: str) -> str:
    """Return the mean over hospitals of their volumes' means, with its deviation over several seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        if case.run.arm == arm and case.run.left_out in hospitals:
            found.setdefault(case.run.seed, {}).setdefault(case.run.left_out, []).append(getattr(case, key))
    means = [np.mean([np.nanmean(values) for values in by_hospital.values()]) for by_hospital in found.values()]
    return mean_and_deviation(means)


if __name__ == "__main__":
    main()
