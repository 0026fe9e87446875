"""PAMAP2: physical activities from inertial sensors on hand, chest and ankle, cut into windows.

Reiss and Stricker, Introducing a New Benchmarked Dataset for Activity Monitoring, ISWC 2012; from the UCI Machine
Learning Repository, PAMAP2 Physical Activity Monitoring (CC BY 4.0)::

    SOURCE/                        or a folder that holds PAMAP2_Dataset
      Protocol/subject101.dat ...
      Optional/subject101.dat ...  where it is given

A line has 54 numbers at 100 Hz: time in s, activity, heart rate, and of each sensor temperature, acceleration (+-16 g
and +-6 g), angular rate, magnetic field and orientation. Taken are acceleration (16 g), angular rate and magnetic
field, 27 channels, in g, rad/s and 50 microtesla (about the earth's field): fixed units, no statistics of the data.

AdaFed (Chen et al., arXiv:2112.00734) has ten activities and does not name them. Here they are lying, sitting,
standing, walking, running, cycling, Nordic walking, ascending and descending stairs, and vacuum cleaning; of the
protocol's twelve, ironing and rope jumping are left out.

A recording is an uninterrupted bout of one activity of one subject. As in the paper, windows are dealt to 20 sites by
default, and half of each site's are for the test: overlapping windows of one recording are then in training and test.
Where patients or recordings are dealt instead, each recording stays in one part.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.importing.options import DEALT, ImportOptions, Layout
from silofl.importing.site_files import SitePlan
from silofl.reading.access import open_error
from silofl_desk.layouts.description import choose_labels
from silofl_desk.sets.examples import ClassificationSet, Stacked, plan_examples

ACTIVITIES = {
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    5: "running",
    6: "cycling",
    7: "Nordic walking",
    12: "ascending stairs",
    13: "descending stairs",
    16: "vacuum cleaning",
}
NUM_COLUMNS = 54
FIRST_COLUMNS = (3, 20, 37)  # of hand, chest and ankle
# Column within a sensor's 17, and what one unit of the channel is in the column's unit: g, rad/s, 50 microtesla.
CHANNELS = {
    **dict.fromkeys((1, 2, 3), 9.80665),
    **dict.fromkeys((7, 8, 9), 1.0),
    **dict.fromkeys((10, 11, 12), 50.0),
}
COLUMNS = [first + offset for first in FIRST_COLUMNS for offset in CHANNELS]
UNITS = np.tile(np.array(list(CHANNELS.values())), len(FIRST_COLUMNS))
WINDOW, STEP = 200, 100  # samples: 2 s, every second
MAX_GAP = 20  # samples, 0.2 s: what a sensor loses for longer is not made up
MAX_PAUSE_S = 0.1  # between two lines of one recording


class Bout(NamedTuple):
    """A bout of one activity: subject, name, class, complete windows float32 (n, 27, 200), and the number left out."""

    subject: str
    name: str
    target: int
    windows: NDArray[np.float32]
    num_left_out: int


def plan_pamap2(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/Protocol and, where it is there, SOURCE/Optional.

    Raises:
        DataError: SOURCE holds no such files, a file is not of this form, or there are too few windows for the sites.
    """
    folder = source if (source / "Protocol").is_dir() else source / "PAMAP2_Dataset"
    paths = sorted(folder.glob("Protocol/*.dat")) + sorted(folder.glob("Optional/*.dat"))
    if not paths:
        raise DataError(f"{source.name} must hold Protocol/subject101.dat and its like, not none; is it this set?")
    recordings = [recording for path in paths for recording in _read_recordings(path)]
    found = [recording for recording in recordings if len(recording.windows)]
    if not found:
        raise DataError(f"{source.name} must hold a bout of {WINDOW} samples of an activity, not none; is it this set?")
    lengths = [len(recording.windows) for recording in found]
    subjects = np.repeat([recording.subject for recording in found], lengths).tolist()
    left_out = sum(recording.num_left_out for recording in recordings)
    note = (
        f"{left_out} windows left out: a sensor lost more than {MAX_GAP} samples in a row, or the bout's first or last"
    )
    examples = ClassificationSet(
        choose_labels(options.labels, ACTIVITIES.values(), first=0),
        np.repeat([recording.target for recording in found], lengths),
        cases=[f"{r.subject}-{r.name}-{number}" for r in found for number in range(len(r.windows))],
        content=Stacked("windows", np.concatenate([recording.windows for recording in found])),
        patients=subjects,
        recordings=np.repeat([recording.name for recording in found], lengths).tolist(),
        sites=subjects,
        notes=(note,) if left_out else (),
    )
    return plan_examples(examples, options)


def fill_gaps(values: NDArray[np.float64], max_gap: int) -> NDArray[np.float64]:
    """Interpolate a signal linearly where few values in a row are missing.

    Args:
        values: (T,), NaN where a value is missing.
        max_gap: The longest run of missing values that is filled.

    Returns:
        (T,); longer runs, and those at the start and the end, stay NaN.
    """
    known = np.flatnonzero(np.isfinite(values))
    missing = np.flatnonzero(~np.isfinite(values))
    after = np.searchsorted(known, missing)
    is_inside = (after > 0) & (after < len(known))
    missing, after = missing[is_inside], after[is_inside]
    missing = missing[known[after] - known[after - 1] - 1 <= max_gap]
    filled = values.copy()
    if len(missing):
        filled[missing] = np.interp(missing, known, values[known])
    return filled


def _read_recordings(path: Path) -> Iterator[Bout]:
    """Yield the bouts of a file's ten activities, named by the folder and their number in the file."""
    table, targets = _read_table(path), {activity: number for number, activity in enumerate(ACTIVITIES)}
    times, activities = table[:, 0], table[:, 1].astype(int)
    is_new = (np.diff(activities) != 0) | (np.diff(times) > MAX_PAUSE_S)
    for number, rows in enumerate(np.split(np.arange(len(table)), np.flatnonzero(is_new) + 1)):
        activity = activities[rows[0]]
        if activity in targets:
            windows, left_out = _cut_complete_windows(table[rows, 2:] / UNITS)
            yield Bout(path.stem, f"{path.parent.name}-{number}", targets[activity], windows, left_out)


def _cut_complete_windows(signals: NDArray[np.float64]) -> tuple[NDArray[np.float32], int]:
    """Cut signals (T, 27) into windows; return those without missing values, and the number of the others."""
    if len(signals) < WINDOW:
        return np.empty((0, signals.shape[1], WINDOW), dtype=np.float32), 0
    # Filled over the whole bout first: a gap at the edge of a window may end inside the bout.
    filled = np.stack([fill_gaps(signal, MAX_GAP) for signal in signals.T], axis=1)
    windows = sliding_window_view(filled, WINDOW, axis=0)[::STEP].astype(np.float32)
    is_whole = np.isfinite(windows).all(axis=(1, 2))
    return windows[is_whole], int((~is_whole).sum())


def _read_table(path: Path) -> NDArray[np.float64]:
    """Return time, activity and the 27 channels of each line, shape (T, 29)."""
    name = f"{path.parent.name}/{path.name}"
    try:
        with path.open() as file:
            num_columns = len(file.readline().split())
            file.seek(0)
            if num_columns != NUM_COLUMNS:
                raise DataError(f"{name} must have {NUM_COLUMNS} numbers a line, not {num_columns}; is it this set?")
            return np.loadtxt(file, usecols=(0, 1, *COLUMNS), ndmin=2)
    except OSError as error:
        raise open_error(name, error) from None
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{name} must hold numbers alone ({' '.join(str(error).split())}); copy it again") from None


LAYOUT = Layout(plan_pamap2, DEALT)
