"""Daily activities from a wrist accelerometer (Bruno et al., ICRA 2013); each volunteer is a site.

SOURCE/HMP_Dataset/<activity>/Accelerometer-...-<volunteer>.txt (UCI, Wrist-worn Accelerometer, CC BY 4.0): numbers
from 0 to 63, which become g. A window begins every 64 samples; a shorter recording is filled up with its last
sample. Volunteers with fewer than 9 recordings are left out. A recording's windows stay in one part.

Or SOURCE/dataset.json names the classes and each volunteer's npz file of windows: x (N, 128, 3), y and recording
(N,).
"""

import json
from pathlib import Path

import numpy as np
from dealing_options import OWN, parse_dealing
from examples import ClassificationSet, Stacked, import_examples
from numpy.lib.stride_tricks import sliding_window_view

from silofl_hospital.importing.site_files import number_labels

ACCELERATION_G = ((-14.709 + np.arange(64) / 63 * 29.418) / 9.80665).astype(np.float32)
WINDOW, STEP, MIN_RECORDINGS = 128, 64, 9

options, dealing = parse_dealing(__doc__, partition=OWN)
targets, cases, windows, recordings, volunteers, notes = [], [], [], [], [], ()
if (options.source / "dataset.json").is_file():
    description = json.loads((options.source / "dataset.json").read_text())
    names = tuple(description["classes"].values())
    for sample in description["samples"]:
        with np.load(options.source / sample["file"]) as arrays:
            found = ACCELERATION_G[arrays["x"]].transpose(0, 2, 1)
            targets += arrays["y"].tolist()
            recordings += map(str, arrays["recording"].tolist())
        windows.append(found)
        cases += [f"{sample['site']}-{number}" for number in range(len(found))]
        volunteers += [sample["site"]] * len(found)
else:
    activities = [path for path in (options.source / "HMP_Dataset").iterdir() if not path.name.endswith("_MODEL")]
    names = tuple(sorted(path.name for path in activities if path.is_dir()))
    files: dict[str, list[Path]] = {}
    for name in names:
        for file in sorted((options.source / "HMP_Dataset" / name).glob("[!.]*.txt")):
            files.setdefault(file.stem.rpartition("-")[2], []).append(file)
    few = {volunteer: len(found) for volunteer, found in sorted(files.items()) if len(found) < MIN_RECORDINGS}
    if few:
        shown = ", ".join(f"{volunteer} ({count})" for volunteer, count in few.items())
        notes = (f"volunteers with fewer than {MIN_RECORDINGS} recordings are left out: {shown}",)
    for file in sorted(file for volunteer in files.keys() - few.keys() for file in files[volunteer]):
        recording, _, volunteer = file.stem.removeprefix("Accelerometer-").rpartition("-")
        signals = ACCELERATION_G[np.loadtxt(file, dtype=np.int64, ndmin=2)]
        signals = np.pad(signals, ((0, max(0, WINDOW - len(signals))), (0, 0)), mode="edge")
        found = sliding_window_view(signals, WINDOW, axis=0)[::STEP]
        windows.append(found)
        targets += [names.index(file.parent.name)] * len(found)
        cases += [f"{volunteer}-{recording}-{number}" for number in range(len(found))]
        recordings += [recording] * len(found)
        volunteers += [volunteer] * len(found)
examples = ClassificationSet(
    labels=number_labels(dealing.labels or names, first=0),
    targets=np.array(targets, dtype=np.int64),
    cases=cases,
    content=Stacked("windows", np.concatenate(windows)),
    patients=volunteers,
    recordings=recordings,
    sites=volunteers,
    notes=notes,
)
import_examples(examples, dealing, options)
