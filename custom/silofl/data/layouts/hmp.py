"""Daily activities from a wrist accelerometer, in windows of 128 samples (4 s at 32 Hz); each volunteer is a site.

Bruno et al., Analysis of Human Behavior Recognition Algorithms based on Acceleration Data, ICRA 2013; UCI, Dataset for
ADL Recognition with Wrist-worn Accelerometer (CC BY 4.0)::

    SOURCE/
      dataset.json       with the classes, and the site and file of each volunteer
      f1.npz             x uint8 (N, 128, 3) from 0 to 63, y class (N,), recording number (N,)
      m1.npz ...

Windows of a recording overlap by half, so that all windows of a recording go to one part: by default half of a
volunteer's recordings of each activity, rounded down, are for the test. Values become accelerations in g.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.access import open_error
from silofl.data.layouts.examples import Examples, Stacked, plan_examples
from silofl.data.layouts.options import ImportOptions
from silofl.data.layouts.plan import SitePlan, numbered_labels, read_description, sample_file
from silofl.errors import DataError

LARGEST = 63
STANDARD_GRAVITY = 9.80665
# Values 0 to 63 stand for -14.709 to 14.709 m/s2.
ACCELERATION_G = ((-14.709 + np.arange(LARGEST + 1) / LARGEST * 29.418) / STANDARD_GRAVITY).astype(np.float32)

Arrays = tuple[NDArray, NDArray, NDArray]


def plan_hmp(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE, a folder with dataset.json and a npz file a volunteer.

    Raises:
        DataError: The folder is not this set, a file that it names is missing or of another form, or a volunteer has
            no activity with enough recordings for one in the test.
    """
    description = read_description(source, ("classes", "samples"))
    names = options.labels or _class_names(description["classes"], source)
    files = {_site(sample, source): sample_file(source, sample, "file") for sample in description["samples"]}
    arrays = {site: _read(path, len(names)) for site, path in files.items()}
    if not arrays:
        raise DataError(f"dataset.json of {source.name} must name the samples of at least one volunteer, not 0")
    sites = [site for site, (_, targets, _) in arrays.items() for _ in targets]
    examples = Examples(
        numbered_labels(names, first=0),
        np.concatenate([targets for _, targets, _ in arrays.values()]),
        cases=[f"{site}-{row}" for site, (_, targets, _) in arrays.items() for row in range(len(targets))],
        content=Stacked("windows", np.concatenate([windows for windows, _, _ in arrays.values()])),
        patients=sites,
        recordings=[str(number) for _, _, recordings in arrays.values() for number in recordings],
        sites=sites,
    )
    return plan_examples(examples, options)


def _class_names(classes: object, source: Path) -> list[str]:
    if not isinstance(classes, dict) or set(classes) != set(map(str, range(len(classes)))):
        raise DataError(
            f"the classes of {source.name} must be names by number from 0, not {classes!r}; is it this set?"
        )
    return [str(classes[str(number)]) for number in range(len(classes))]


def _site(sample: object, source: Path) -> str:
    if not isinstance(sample, dict) or not {"site", "file"} <= sample.keys():
        raise DataError(f"every sample of {source.name} must have site and file, not {sample!r}")
    return str(sample["site"])


def _read(path: Path, num_classes: int) -> Arrays:
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
