"""Daily activities from a wrist accelerometer, in windows of 128 samples (4 s at 32 Hz); each volunteer is a site.

Bruno et al., Analysis of Human Behavior Recognition Algorithms based on Acceleration Data, ICRA 2013; from the UCI
Machine Learning Repository, Dataset for ADL Recognition with Wrist-worn Accelerometer (CC BY 4.0)::

    SOURCE/                        or a folder that holds HMP_Dataset
      Brush_teeth/                 one folder for each of 14 activities; Brush_teeth_MODEL and its like hold copies
        Accelerometer-2011-04-11-13-28-18-brush_teeth-f1.txt ...   a recording of volunteer f1
      Climb_stairs/ ...

A line has three whole numbers from 0 to 63, which stand for -14.709 to 14.709 m/s2 and become accelerations in g. A
window begins every 64 samples; the rest of a recording is left out, but one shorter than a window is filled up with its
last sample. Volunteers with fewer than 9 recordings are left out.

Windows of a recording overlap by half, so that all windows of a recording go to one part: by default half of a
volunteer's recordings of each activity, rounded down, are for the test.

A folder of windows that are cut already is read too: dataset.json with the classes and each volunteer's site and npz
file, and in this x uint8 (N, 128, 3), y class (N,) and recording number (N,).
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.importing.options import DEALT, ImportOptions, Layout
from silofl.importing.site_files import SitePlan
from silofl.reading.access import open_error, read_bytes
from silofl_desk.layouts.description import choose_labels, read_description, sample_file
from silofl_desk.sets.examples import ClassificationSet, Stacked, plan_examples

LARGEST = 63
STANDARD_GRAVITY = 9.80665
# Values 0 to 63 stand for -14.709 to 14.709 m/s2.
ACCELERATION_G = ((-14.709 + np.arange(LARGEST + 1) / LARGEST * 29.418) / STANDARD_GRAVITY).astype(np.float32)
WINDOW, STEP = 128, 64  # samples: 4 s, every 2 s
MIN_RECORDINGS = 9
ACTIVITIES = (
    "Brush_teeth",
    "Climb_stairs",
    "Comb_hair",
    "Descend_stairs",
    "Drink_glass",
    "Eat_meat",
    "Eat_soup",
    "Getup_bed",
    "Liedown_bed",
    "Pour_water",
    "Sitdown_chair",
    "Standup_chair",
    "Use_telephone",
    "Walk",
)
FILE = re.compile(r"Accelerometer-(?P<recording>.+)-(?P<volunteer>[fm]\d+)\.txt")

Arrays = tuple[NDArray, NDArray, NDArray]


class Recording(NamedTuple):
    """A file: volunteer, name, class, and windows float32 (n, 3, 128) in g."""

    volunteer: str
    name: str
    target: int
    windows: NDArray[np.float32]


def plan_hmp(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<activity>/<recording>.txt, or of windows that SOURCE/dataset.json names.

    Raises:
        DataError: The folder is not this set, a file is missing or of another form, or a volunteer has no activity with
            enough recordings for one in the test.
    """
    has_windows = (source / "dataset.json").exists()
    return plan_examples((_read_stored_windows if has_windows else _cut_windows)(source, options.labels), options)


def _cut_windows(source: Path, labels: tuple[str, ...] | None) -> ClassificationSet:
    folder = source / "HMP_Dataset" if (source / "HMP_Dataset").is_dir() else source
    missing = [activity for activity in ACTIVITIES if not (folder / activity).is_dir()]
    if missing:
        raise DataError(
            f"{source.name} must hold the folders of HMP_Dataset, one for each activity, or a dataset.json that names "
            f"windows; {missing[0]} is missing, and {len(missing) - 1} other folders: is it this set?"
        )
    found = [
        _read_recording(path, target)
        for target, activity in enumerate(ACTIVITIES)
        for path in sorted((folder / activity).glob("[!.]*.txt"))
    ]
    counts = Counter(recording.volunteer for recording in found)
    few = {volunteer: count for volunteer, count in sorted(counts.items()) if count < MIN_RECORDINGS}
    kept = [recording for recording in found if recording.volunteer not in few]
    if not kept:
        raise DataError(
            f"{source.name} must hold a volunteer with at least {MIN_RECORDINGS} recordings, not only "
            f"{len(few)} with fewer; unpack it again"
        )
    lengths = [len(recording.windows) for recording in kept]
    volunteers = np.repeat([recording.volunteer for recording in kept], lengths).tolist()
    shown = ", ".join(f"{volunteer} ({count})" for volunteer, count in few.items())
    return ClassificationSet(
        choose_labels(labels, ACTIVITIES, first=0),
        np.repeat([recording.target for recording in kept], lengths),
        cases=[f"{r.volunteer}-{r.name}-{number}" for r in kept for number in range(len(r.windows))],
        content=Stacked("windows", np.concatenate([recording.windows for recording in kept])),
        patients=volunteers,
        recordings=np.repeat([recording.name for recording in kept], lengths).tolist(),
        sites=volunteers,
        notes=(f"volunteers with fewer than {MIN_RECORDINGS} recordings are left out: {shown}",) if few else (),
    )


def _read_recording(path: Path, target: int) -> Recording:
    name = f"{path.parent.name}/{path.name}"
    match = FILE.fullmatch(path.name)
    if match is None:
        raise DataError(f"{name} must be named like Accelerometer-2011-04-11-13-28-18-walk-f1.txt; rename or remove it")
    lines = read_bytes(path, name).decode(errors="replace").splitlines()
    if not lines:
        raise DataError(f"{name} must hold at least one sample, not none; copy it again")
    try:
        values = np.loadtxt(lines, dtype=np.int64, ndmin=2)
    except ValueError as error:
        raise DataError(
            f"{name} must hold whole numbers alone ({' '.join(str(error).split())}); copy it again"
        ) from None
    if values.shape[1] != 3:
        raise DataError(f"{name} must hold 3 numbers a line, not an array of shape {values.shape}; copy it again")
    if not (values.min() >= 0 and values.max() <= LARGEST):
        raise DataError(f"{name} must be from 0 to {LARGEST}, not {values.min()} to {values.max()}; is it this set?")
    return Recording(match["volunteer"], match["recording"], target, _slide_windows(ACCELERATION_G[values]))


def _slide_windows(signals: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cut signals (T, 3) into windows (n, 3, 128), at least one."""
    filled = np.pad(signals, ((0, max(0, WINDOW - len(signals))), (0, 0)), mode="edge")
    return sliding_window_view(filled, WINDOW, axis=0)[::STEP]


def _read_stored_windows(source: Path, labels: tuple[str, ...] | None) -> ClassificationSet:
    description = read_description(source, ("classes", "samples"))
    names = choose_labels(labels, _parse_class_names(description["classes"], source), first=0)
    files = {_parse_site(sample, source): sample_file(source, sample, "file") for sample in description["samples"]}
    arrays = {site: _read_windows(path, len(names)) for site, path in files.items()}
    if not arrays:
        raise DataError(f"dataset.json of {source.name} must name the samples of at least one volunteer, not 0")
    sites = [site for site, (_, targets, _) in arrays.items() for _ in targets]
    return ClassificationSet(
        names,
        np.concatenate([targets for _, targets, _ in arrays.values()]),
        cases=[f"{site}-{row}" for site, (_, targets, _) in arrays.items() for row in range(len(targets))],
        content=Stacked("windows", np.concatenate([windows for windows, _, _ in arrays.values()])),
        patients=sites,
        recordings=[str(number) for _, _, recordings in arrays.values() for number in recordings],
        sites=sites,
    )


def _parse_class_names(classes: object, source: Path) -> list[str]:
    if not isinstance(classes, dict) or set(classes) != set(map(str, range(len(classes)))):
        raise DataError(
            f"the classes of {source.name} must be names by number from 0, not {classes!r}; is it this set?"
        )
    return [str(classes[str(number)]) for number in range(len(classes))]


def _parse_site(sample: object, source: Path) -> str:
    if not isinstance(sample, dict) or not {"site", "file"} <= sample.keys():
        raise DataError(f"every sample of {source.name} must have site and file, not {sample!r}")
    return str(sample["site"])


def _read_windows(path: Path, num_classes: int) -> Arrays:
    """Return windows float32 (N, 3, T) in g, classes int64 (N,) and the numbers of recordings (N,)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {key: file[key] for key in ("x", "y", "recording") if key in file.files}
    except OSError as error:
        raise open_error(path.name, error) from None
    except Exception as error:  # NumPy and zipfile raise what they like on broken bytes
        raise DataError(f"{path.name} must be a whole npz file, not a corrupt one ({error}); copy it again") from None
    if missing := {"x", "y", "recording"} - found.keys():
        raise DataError(f"{path.name} must hold x, y and recording; {', '.join(sorted(missing))} missing")
    values, targets, recordings = found["x"], found["y"], found["recording"]
    shapes = (values.shape[:1] + values.shape[2:], targets.shape, recordings.shape)
    count = len(targets)
    if shapes != ((count, 3), (count,), (count,)) or any(array.dtype.kind not in "iu" for array in found.values()):
        raise DataError(
            f"{path.name} must hold whole numbers x (N, T, 3), y (N,) and recording (N,), not of shapes "
            f"{values.shape}, {targets.shape} and {recordings.shape}; copy it again"
        )
    if not (0 <= values.min(initial=0) and values.max(initial=0) <= LARGEST):
        raise DataError(f"x of {path.name} must be from 0 to {LARGEST}, not up to {values.max()}; is it this set?")
    if not (0 <= targets.min(initial=0) and targets.max(initial=0) < num_classes):
        raise DataError(f"y of {path.name} must be below {num_classes}, not {targets.max()}; name all classes")
    return ACCELERATION_G[values].transpose(0, 2, 1), targets.astype(np.int64), recordings


LAYOUT = Layout(plan_hmp, {**DEALT, "partition": "own"})
