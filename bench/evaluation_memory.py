"""The memory of a site whose whole volumes are large beside its patches: what `estimate` says, and what it took.

    python bench/evaluation_memory.py FOLDER [--set KEY=VALUE]

Two sites with a training, a validation and a test volume of 256 x 256 x 200 voxels and 15 labels, seen by windows of
96 x 96 x 48; one round in NVFlare's simulator, whose largest process counts. FOLDER keeps the volumes and the run.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
from memory import GIB, largest_below, watched
from runs import JOBS

JOB = JOBS / "harmofl_volumes"
SIZE, LABELS = (256, 256, 200), 15
SITES = ("east", "west")
# Of what it took, an estimate may be as far from it.
FARTHEST = 0.2
SETTINGS = (
    "labels={" + ", ".join(f"{number}: part{number}" for number in range(1, LABELS + 1)) + "}",
    "data.channels=1",
    "data.channel_names=[T1]",
    "data.volume_transforms=[]",
    "data.augment=[]",
    "data.patches={size: [96, 96, 48], per_volume: 8}",
    "model={name: unet, normalization: instance, features: [4, 4, 4, 4, 4, 4]}",
    "algorithm={name: fedavg}",
    "training.batch_size=2",
    "training.local_epochs=1",
    "rounds=1",
)


def main() -> int:
    """Print both numbers; the exit code is 1 where they are too far apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="changes")
    options = parser.parse_args()
    folder = options.folder
    data, run = folder / "data", folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    for seed, site in enumerate(SITES):
        write_site(data / site, seed)
    changes = [text for setting in (*SETTINGS, *options.changes) for text in ("--set", setting)]
    command = [sys.executable, "-m", "silofl", "estimate", str(JOB), "--sites", str(len(SITES)), "--examples", "1"]
    command += ["--bandwidth", "1Gbit", "--image-size", "x".join(map(str, SIZE)), "--json", *changes]
    estimated = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["site_memory_bytes"]
    command = [sys.executable, "-m", "silofl", "simulate", str(JOB), "--data", str(data), "--out", str(run)]
    measured = watched([*command, *changes], measure=largest_below)
    is_kept = abs(estimated / measured - 1) <= FARTHEST
    print(f"{'kept  ' if is_kept else 'BROKEN'} memory of a site: estimated {estimated / GIB:.2f} GiB, ", end="")
    print(f"measured {measured / GIB:.2f} GiB: {estimated / measured - 1:+.0%}, at most {FARTHEST:.0%}")
    return int(not is_kept)


def write_site(folder: Path, seed: int) -> None:
    """Write a site's volumes: noise with a bright box for each label."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    content = {
        "task": "segmentation",
        "labels": {str(n): f"part{n}" for n in range(1, LABELS + 1)},
        "channel_names": ["T1"],
    }
    for part in ("training", "validation", "test"):
        target = np.zeros(SIZE, np.uint8)
        for number in range(LABELS):
            target[10 + 15 * number : 20 + 15 * number, 100:140, 80:120] = number + 1
        image = (random.normal(100, 10, SIZE) + 10 * target).astype(np.int16)
        for name, array in ((f"{part}.nii.gz", image), (f"{part}_mask.nii.gz", target)):
            nib.save(nib.Nifti1Image(array, np.eye(4)), folder / name)
        content[part] = [{"image": f"{part}.nii.gz", "label": f"{part}_mask.nii.gz", "patient": part}]
    (folder / "dataset.json").write_text(json.dumps(content))


if __name__ == "__main__":
    sys.exit(main())
