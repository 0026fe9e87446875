"""What a list of annotated labels is worth where two of four simulated hospitals have drawn no lesions.

    python bench/annotated_labels.py OUT [--seeds 0,1,2] [--rounds 24]

FedAvg on the phantoms of seed 0, in whose label maps north and east show the organ alone, so that a lesion there is
background. With the lists, `labels_annotated` in their dataset.json, their loss takes a background for either of both;
without, for background. Test Dice, by training seed: of the lesions at the two other hospitals, and the mean over all
four of the organ. Finished runs in OUT are used again.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import nibabel
import numpy as np
from runs import JOBS, is_finished, silofl

from silofl.federation.results import Results, read_results
from silofl_desk.phantoms.anatomy import LESION_LABEL, ORGAN_LABEL
from silofl_desk.phantoms.phantoms import LABELS, SITES, make_phantoms

ARMS = {"with the lists": True, "without": False}
UNDRAWN = ("north", "east")
SETTINGS = ("training.schedule=poly", "training.learning_rate=0.003", "guard=false")


def main() -> None:
    """Make the data, train what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", default="24")
    options = parser.parse_args()
    rows, began = [], time.monotonic()
    for name, is_listed in ARMS.items():
        data = make_sites(options.out / "data" / ("listed" if is_listed else "bare"), is_listed)
        for seed in options.seeds.split(","):
            folder = options.out / "runs" / f"{data.name}-{seed}"
            rows.append((name, seed, *measured(train(data, folder, seed, options.rounds))))
    drawn = [site for site in SITES if site not in UNDRAWN]
    print("\n| arm | seed |", " | ".join(f"lesion at {site}" for site in drawn), "| organ, mean of sites |")
    print("|---|---|" + "---|" * (len(drawn) + 1))
    for name, seed, *values in rows:
        print(f"| {name} | {seed} |", " | ".join(f"{value:.3f}" for value in values), "|")
    for name in ARMS:
        found = np.array([values for arm, _, *values in rows if arm == name])
        texts = [f"{mean:.3f} ± {spread:.3f}" for mean, spread in zip(found.mean(0), found.std(0), strict=True)]
        print(f"| {name} | mean |", " | ".join(texts), "|")
    print(f"\n{time.monotonic() - began:.0f} s")


def make_sites(folder: Path, is_listed: bool) -> Path:
    """Make the four hospitals, two of them without lesions in their label maps; returns their folder."""
    if folder.exists():
        return folder
    made = make_phantoms(folder.with_name("phantoms"))
    for site in SITES:
        shutil.copytree(made / site, folder / site)
    for site in UNDRAWN:
        path = folder / site / "dataset.json"
        content = json.loads(path.read_text())
        for part in ("training", "validation", "test"):
            for record in content[part]:
                erase_lesions(path.parent / record["label"])
        path.write_text(json.dumps(content | ({"labels_annotated": [ORGAN_LABEL]} if is_listed else {})))
    return folder


def erase_lesions(path: Path) -> None:
    """Make the lesions of a label map background."""
    image = nibabel.load(path)
    labels = np.array(image.dataobj)
    labels[labels == LESION_LABEL] = 0
    nibabel.save(nibabel.Nifti1Image(labels, image.affine, image.header), path)


def train(data: Path, folder: Path, seed: str, rounds: str) -> Results:
    """Train with a seed in one process, unless it was; returns the results."""
    if not is_finished(folder):
        changes = [text for setting in SETTINGS for text in ("--set", setting)]
        command = ["simulate", str(JOBS / "fedavg_phantoms"), "--data", str(data), "--out", str(folder), "--alone"]
        silofl(*command, "--rounds", rounds, "--seed", seed, *changes)
        print(f"{folder.name} is trained", flush=True)
    return read_results(folder)


def measured(results: Results) -> list[float]:
    """Return the test Dice of the lesion at each site that has drawn them, and the organ's mean over all sites."""
    tests = {site: one.labels for site, one in results.tests.items()}
    lesions = [tests[site][LABELS[LESION_LABEL]] for site in SITES if site not in UNDRAWN]
    return [*lesions, float(np.mean([test[LABELS[ORGAN_LABEL]] for test in tests.values()]))]


if __name__ == "__main__":
    main()
