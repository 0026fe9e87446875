"""PAMAP2: ten activities from sensors on hand, chest and ankle, in windows of 2 s (Reiss and Stricker, ISWC 2012).

SOURCE/Protocol/*.dat and SOURCE/Optional/*.dat where it is given (UCI, CC BY 4.0). Taken are acceleration (16 g),
angular rate and magnetic field, in g, rad/s and 50 microtesla. A recording is an uninterrupted bout of one activity;
up to 20 samples that a sensor loses in a row are interpolated, and windows with more are left out. As in AdaFed
(arXiv:2112.00734) windows are dealt one by one, so that overlapping ones are in training and test; --partition own
makes each person a site.
"""

import numpy as np
from dealing_options import parse_dealing
from examples import ClassificationSet, Stacked, import_examples
from numpy.lib.stride_tricks import sliding_window_view

from silofl_hospital.importing.site_files import number_labels

# Of the protocol's twelve, ironing and rope jumping are left out; AdaFed does not name its ten.
ACTIVITIES = {
    **{1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "Nordic walking"},
    **{12: "ascending stairs", 13: "descending stairs", 16: "vacuum cleaning"},
}
# Column within a sensor's 17 -> one unit of the channel in the column's unit.
UNITS = {**dict.fromkeys((1, 2, 3), 9.80665), **dict.fromkeys((7, 8, 9), 1.0), **dict.fromkeys((10, 11, 12), 50.0)}
COLUMNS = [first + offset for first in (3, 20, 37) for offset in UNITS]
WINDOW, STEP, MAX_GAP, MAX_PAUSE_S = 200, 100, 20, 0.1


def fill_gaps(values: np.ndarray) -> np.ndarray:
    """Interpolate a signal (T,) where at most `MAX_GAP` values in a row are missing, but not at its ends."""
    known, missing = np.flatnonzero(np.isfinite(values)), np.flatnonzero(~np.isfinite(values))
    after = np.searchsorted(known, missing)
    is_inside = (after > 0) & (after < len(known))
    missing, after = missing[is_inside], after[is_inside]
    missing = missing[known[after] - known[after - 1] - 1 <= MAX_GAP]
    filled = values.copy()
    if len(missing):
        filled[missing] = np.interp(missing, known, values[known])
    return filled


options, dealing = parse_dealing(__doc__)
targets, cases, windows, recordings, subjects = [], [], [], [], []
left_out = 0
for part in ("Protocol", "Optional"):
    for file in sorted(options.source.glob(f"{part}/*.dat")):
        table = np.loadtxt(file, usecols=(0, 1, *COLUMNS), ndmin=2)
        is_new = (np.diff(table[:, 1].astype(int)) != 0) | (np.diff(table[:, 0]) > MAX_PAUSE_S)
        for bout, rows in enumerate(np.split(table, np.flatnonzero(is_new) + 1)):
            activity = int(rows[0, 1])
            if activity not in ACTIVITIES or len(rows) < WINDOW:
                continue
            signals = rows[:, 2:] / np.tile([*UNITS.values()], 3)
            signals = np.stack([fill_gaps(signal) for signal in signals.T], axis=1)
            cut = sliding_window_view(signals, WINDOW, axis=0)[::STEP].astype(np.float32)
            whole = cut[np.isfinite(cut).all(axis=(1, 2))]
            left_out += len(cut) - len(whole)
            windows.append(whole)
            targets += [[*ACTIVITIES].index(activity)] * len(whole)
            cases += [f"{file.stem}-{part}-{bout}-{number}" for number in range(len(whole))]
            recordings += [f"{part}-{bout}"] * len(whole)
            subjects += [file.stem] * len(whole)
note = f"{left_out} windows left out: a sensor lost more than {MAX_GAP} samples in a row, or the bout's first or last"
examples = ClassificationSet(
    labels=number_labels(dealing.labels or ACTIVITIES.values(), first=0),
    targets=np.array(targets, dtype=np.int64),
    cases=cases,
    content=Stacked("windows", np.concatenate(windows)),
    patients=subjects,
    recordings=recordings,
    sites=subjects,
    notes=(note,) if left_out else (),
)
import_examples(examples, dealing, options)
