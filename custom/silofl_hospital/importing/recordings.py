"""Recordings of time series, as ECG or acceleration, cut into windows of one length.

A file is one recording: an array of time x channels (.npy, or .npz with one array), EDF with its channels, or a table
of numbers (.csv) with a row for each time and a column for each channel.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError, error_text
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import JsonRecord

ENDINGS = (".npy", ".npz", ".edf")
TABLE = ".csv"
# Columns of a table that number its rows, in small letters.
TIMES = ("time", "timestamp", "t", "seconds")


def is_recording(path: Path, options: ImportOptions) -> bool:
    """Return whether a file is one; a table only where the options say so by a window."""
    return path.suffix.lower() in (ENDINGS if options.window is None else (*ENDINGS, TABLE))


def cut_windows(path: Path, name: str, options: ImportOptions) -> NDArray[np.float32]:
    """Read a recording and cut it into windows, one behind the other; what is left at its end is left out.

    Args:
        name: What messages call it.
        options: With the samples of a window, None for the whole recording, and the rate of EDF.

    Returns:
        The windows, (N, channels, samples).

    Raises:
        DataError: It cannot be read, holds other than finite numbers, or is shorter than a window.
    """
    samples = read_recording(path, name, options)
    length, channels = samples.shape
    window = options.window or length
    if channels > length:
        raise DataError(f"{name} has {length} rows of {channels} columns; rows are times: transpose it")
    if not np.isfinite(samples).all():
        raise DataError(f"{name} holds NaN or infinite numbers; repair or remove it")
    if length < window:
        raise DataError(f"{name} has {length} samples, fewer than a window of {window}; shorten --window, or remove it")
    count = length // window
    windows = samples[: count * window].reshape(count, window, channels)
    return np.ascontiguousarray(windows.swapaxes(1, 2), np.float32)


def read_recording(path: Path, name: str, options: ImportOptions) -> NDArray[np.floating]:
    """Return the samples of a recording, (time, channels).

    Raises:
        DataError: It cannot be read, or its channels have different rates and no one is given.
    """
    ending = path.suffix.lower()
    try:
        if ending == ".edf":
            return _read_edf(path, name, options.rate)
        if options.rate is not None:
            raise DataError(f"{name} states no rate, which rate needs; leave it out")
        loaded: Any = _read_csv(path) if ending == TABLE else np.load(path, allow_pickle=False)
        if ending == ".npz":
            (loaded,) = loaded.values()
        samples = np.asarray(loaded, np.float64)
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{name} is no array of numbers ({error_text(error, 100)}); export it again") from None
    if samples.ndim == 1:
        samples = samples[:, None]
    if samples.ndim != 2 or not samples.size:
        raise DataError(f"{name} has the shape {samples.shape} in place of time x channels; reshape it")
    return samples


def _read_csv(path: Path) -> NDArray[np.float64]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    delimiter = next((sign for sign in "\t;," if sign in lines[0]), ",")
    names = [name.strip().strip('"').casefold() for name in lines[0].split(delimiter)]
    try:
        [float(name) for name in names]
        first = 0
    except ValueError:
        first = 1
    columns = [place for place, name in enumerate(names) if name not in TIMES]
    return np.loadtxt(lines[first:], delimiter=delimiter, usecols=columns, ndmin=2)


def _read_edf(path: Path, name: str, rate: int | None) -> NDArray[np.floating]:
    # Imported here, because other files need neither.
    import edfio
    from scipy.signal import resample_poly

    signals = edfio.read_edf(path).signals
    rates = sorted({signal.sampling_frequency for signal in signals})
    if rate is None and len(rates) > 1:
        shown = ", ".join(f"{value:g}" for value in rates)
        raise DataError(f"{name} has channels of {shown} samples in a second; bring them to one with --rate")
    channels = []
    for signal in signals:
        ratio = Fraction((rate or rates[0]) / signal.sampling_frequency).limit_denominator(1000)
        channels.append(resample_poly(signal.data, ratio.numerator, ratio.denominator))
    return np.stack(channels, axis=1)


def check_alike(shapes: Mapping[str, tuple[int, int]]) -> None:
    """Refuse recordings whose windows, (channels, samples) by the file's name, are not of one shape.

    Raises:
        DataError: Two differ; the message names them.
    """
    first = next(iter(shapes), "")
    for name, shape in shapes.items():
        if shape != shapes[first]:
            kinds = [f"{channels} channels and {samples} samples" for channels, samples in (shapes[first], shape)]
            raise DataError(
                f"{first} has windows of {kinds[0]}, and {name} of {kinds[1]}; give all one length with --window, and "
                "the same channels"
            )


def expand_windows(record: JsonRecord, count: int) -> list[JsonRecord]:
    """Return a record for each window of a recording's record, which no two parts of a split share."""
    case = str(record["case"])
    return [record | {"case": f"{case}-{index}", "index": index, "recording": case} for index in range(count)]
