import json

import edfio
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl_hospital.importing.importers import ImportOptions, import_layout

RNG = np.random.default_rng(0)
SAMPLES = RNG.normal(size=(250, 3))


def write_npy(path, samples):
    np.save(path, samples)


def write_npz(path, samples):
    np.savez(path, ecg=samples)


def write_csv(path, samples):
    rows = [",".join(["0.01", *map(repr, row.tolist())]) for row in samples]
    path.write_text("\n".join(["Time,x,y,z"[: 4 + 2 * samples.shape[1]], *rows]))


def write_edf(path, samples, rates=(100, 100, 100)):
    signals = []
    for channel, rate in zip(samples.T, rates, strict=True):
        data = channel[: len(channel) * rate // 100]
        signals.append(edfio.EdfSignal(data, sampling_frequency=rate, physical_range=(-9, 9)))
    edfio.Edf(signals).write(path)


WRITERS = {".npy": write_npy, ".npz": write_npz, ".csv": write_csv, ".edf": write_edf}


@pytest.fixture
def source(tmp_path):
    """Write six recordings of 200 samples and three channels to each of two sites, as such files, with a table."""

    def write(ending, samples=SAMPLES[:200]):
        for site in ("north", "south"):
            folder = tmp_path / "source" / site
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(6):
                WRITERS[ending](folder / f"r{number}{ending}", samples + number)
            rows = [f"r{number}{ending},{('rest', 'walk')[number % 2]},p{number // 2}" for number in range(6)]
            (folder / "labels.csv").write_text("\n".join(["file,label,patient", *rows]))
        return tmp_path / "source"

    return write


@pytest.fixture
def run(tmp_path):
    def go(source, **options):
        import_layout("table", source, tmp_path / "data", ImportOptions(**options))
        content = json.loads((tmp_path / "data" / "north" / "dataset.json").read_text())
        return [record | {"part": part} for part in ("training", "validation", "test") for record in content[part]]

    return go


@pytest.mark.parametrize("ending", WRITERS)
def test_recordings_are_cut_into_windows_of_one_part(source, run, tmp_path, ending):
    records = run(source(ending), window=64)
    # 200 samples are three windows of 64.
    assert len(records) == 6 * 3 and {record["index"] for record in records} == {0, 1, 2}
    parts = {}
    for record in records:
        parts.setdefault(record["recording"], set()).add((record["part"], record["patient"], record["label"]))
        with np.load(tmp_path / "data" / "north" / record["image"]) as arrays:
            window = arrays["windows"][record["index"]]
        number, first = int(record["recording"][1]), 64 * record["index"]
        np.testing.assert_allclose(window, SAMPLES[first : first + 64].T + number, atol=1e-3)
    assert all(len(found) == 1 for found in parts.values())


def test_a_whole_recording_is_one_window(source, run):
    records = run(source(".npy"))
    assert len(records) == 6 and records[0]["image"] == f"images/{records[0]['recording']}.npz"


def test_a_single_channel_needs_no_second_axis(source, run, tmp_path):
    record = run(source(".npy", SAMPLES[:, 0]))[0]
    with np.load(tmp_path / "data" / "north" / record["image"]) as arrays:
        assert arrays["windows"].shape == (1, 1, 250)


def test_channels_of_several_rates_are_brought_to_one(source, run, tmp_path):
    folder = source(".edf")
    seconds = np.arange(1000) / 100
    slow = np.stack([np.sin(2 * np.pi * seconds)] * 2, axis=1)
    for site in ("north", "south"):
        for number in range(6):
            signals = [edfio.EdfSignal(slow[::step, 0], 100 // step, physical_range=(-2, 2)) for step in (1, 2)]
            edfio.Edf(signals).write(folder / site / f"r{number}.edf")
    with pytest.raises(DataError, match="r0.edf has channels of 50, 100 samples in a second; bring them to one with"):
        run(folder)
    record = run(folder, rate=50)[0]
    with np.load(tmp_path / "data" / "north" / record["image"]) as arrays:
        (window,) = arrays["windows"]
    assert window.shape == (2, 500)
    np.testing.assert_allclose(window[:, 50:-50], slow[100:-100:2].T, atol=0.02)


@pytest.mark.parametrize(
    ("ending", "samples", "options", "sentence"),
    [
        (".npy", SAMPLES[:2], {}, "r0.npy has 2 rows of 3 columns; rows are times: transpose it"),
        (
            ".npy",
            SAMPLES,
            {"window": 300},
            "has 250 samples, fewer than a window of 300; shorten --window, or remove it",
        ),
        (".npy", np.full((9, 2), np.nan), {}, "r0.npy holds NaN or infinite numbers; repair or remove it"),
        (".npy", np.zeros((9, 2, 2)), {}, r"r0.npy has the shape \(9, 2, 2\) in place of time x channels; reshape it"),
        (".npy", SAMPLES, {"rate": 50}, "r0.npy states no rate, which rate needs; leave it out"),
        (".csv", SAMPLES, {}, "r0.csv must end in one of .png"),
    ],
)
def test_what_is_no_recording_is_refused(source, run, ending, samples, options, sentence):
    folder = source(".npy")
    for site in ("north", "south"):
        for number in range(6):
            WRITERS[ending](folder / site / f"r{number}{ending}", samples)
        rows = [f"r{number}{ending},{('rest', 'walk')[number % 2]},p{number // 2}" for number in range(6)]
        (folder / site / "labels.csv").write_text("\n".join(["file,label,patient", *rows]))
    with pytest.raises(DataError, match=sentence):
        run(folder, **options)


def test_broken_and_unlike_recordings_are_refused(source, run):
    folder = source(".npy")
    write_npy(folder / "south" / "r1.npy", SAMPLES)
    with pytest.raises(
        DataError, match="has windows of 3 channels and 200 samples, and site 'south': r1.npy of 3 chan"
    ):
        run(folder)
    (folder / "south" / "r1.npy").write_bytes(b"x")
    with pytest.raises(DataError, match="site 'south': r1.npy is no array of numbers"):
        run(folder)
    (folder / "south" / "r1.npy").unlink()
    from PIL import Image

    Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / "south" / "r1.png")
    table = folder / "south" / "labels.csv"
    table.write_text(table.read_text().replace("r1.npy", "r1.png"))
    with pytest.raises(DataError, match="site 'south' has recordings and images, as r0.npy; import each alone"):
        run(folder)
