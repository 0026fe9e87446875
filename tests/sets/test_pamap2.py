import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.site_data import load_site_data
from silofl.importing.importers import ImportOptions, import_layout
from silofl_desk.sets.pamap2 import ACTIVITIES, MAX_GAP, WINDOW, fill_gaps

NAN = float("nan")
LABELS = dict(enumerate(ACTIVITIES.values()))
# Subject -> activity and number of samples of each bout; 0 is transient, 24 rope jumping.
BOUTS = {
    "subject101": [(1, 400), (0, 150), (4, 300), (24, 400), (1, 500), (4, 300)],
    "subject102": [(4, 650), (1, 650), (4, 300), (1, 199)],
}


def table(bouts):
    """Lines of 54 columns; column c holds c but for the hand's first acceleration (16 g), which counts the lines."""
    activities = np.repeat([activity for activity, _ in bouts], [count for _, count in bouts])
    lines = np.tile(np.arange(54.0), (len(activities), 1))
    lines[:, 0] = 8.38 + 0.01 * np.arange(len(lines))
    lines[:, 1] = activities
    lines[:, 2] = NAN  # the heart rate is known in one of eleven lines
    lines[:, 4] = np.arange(len(lines))
    return lines


@pytest.fixture
def tables():
    return {subject: table(bouts) for subject, bouts in BOUTS.items()}


@pytest.fixture
def run(tables, tmp_path):
    def go(**options):
        (tmp_path / "source" / "Protocol").mkdir(parents=True, exist_ok=True)
        for subject, lines in tables.items():
            np.savetxt(tmp_path / "source" / "Protocol" / f"{subject}.dat", lines, fmt="%.6g")
        return import_layout("pamap2", tmp_path / "source", tmp_path / "target", ImportOptions(**options))

    return go


@pytest.fixture
def load(study, tmp_path):
    def go(site, unit="recordings"):
        settings = study("classification", labels=LABELS, channels=27, intensity="raw", split_unit=unit)
        return load_site_data(tmp_path / "target" / site, settings, tmp_path / "cache")

    return go


def test_bouts_of_the_ten_activities_are_cut_into_overlapping_windows(run):
    summary = run(partition="own")
    # subject101: bouts of 400, 300, 500 and 300 samples: 3 + 2 + 4 + 2; subject102: 650, 650 and 300: 5 + 5 + 2
    counts = {site: sum(parts.values()) for site, parts in summary.examples.items()}
    assert counts == {"subject101": 11, "subject102": 12}


def test_channels_are_acceleration_angular_rate_and_magnetic_field_in_fixed_units(run, load):
    run(partition="own")
    data = load("subject101")
    assert data.training.images.shape[1:] == (27, 1, 200) and data.training.images.dtype == np.float32
    # columns of the hand: acceleration 4 to 6, angular rate 10 to 12, magnetic field 13 to 15; the others 17 and 34 on
    image = data.training.images[0, :, 0, 0]
    np.testing.assert_allclose(image[1:9], [5 / 9.80665, 6 / 9.80665, 10, 11, 12, 13 / 50, 14 / 50, 15 / 50], rtol=1e-6)
    np.testing.assert_allclose(image[9:12], [21 / 9.80665, 22 / 9.80665, 23 / 9.80665], rtol=1e-6)
    np.testing.assert_allclose(image[24:], [47 / 50, 48 / 50, 49 / 50], rtol=1e-6)


def test_a_window_stays_within_one_bout(run, load):
    run(partition="own")
    data = load("subject101")
    for part in (data.training, data.test):
        first = np.round(part.images[:, 0, 0] * 9.80665).astype(int)
        assert (np.diff(first, axis=1) == 1).all()
        # bouts start at lines 0, 550, 1250 and 1750
        starts = {0: range(0, 201, 100), 550: range(550, 651, 100), 1250: range(1250, 1551, 100), 1750: (1750, 1850)}
        assert set(first[:, 0]) <= {start for found in starts.values() for start in found}


def test_by_default_windows_are_dealt_to_sites_and_share_recordings(run, load):
    summary = run(num_sites=2, alpha=100.0)
    assert set(summary.examples) == {"site-1", "site-2"}
    assert all(abs(parts["training"] - parts["test"]) <= 1 for parts in summary.examples.values())
    assert load("site-1", "examples").manifest.split_unit == "examples"
    with pytest.raises(DataError, match="patient 'subject10.' must stand in one part"):
        load("site-1", "patient")


@pytest.mark.parametrize(
    ("values", "filled"),
    [
        # On a line from 1 to 4: 2 and 3.
        ([0, 1, NAN, NAN, 4], [0, 1, 2, 3, 4]),
        # Long gaps and open ends stay missing.
        ([NAN, 1, NAN, NAN, NAN, 5, NAN, 7, NAN], [NAN, 1, NAN, NAN, NAN, 5, 6, 7, NAN]),
        ([1.0, 2.0], [1.0, 2.0]),
        ([NAN] * 3, [NAN] * 3),
    ],
)
def test_small_gaps_alone_are_filled(values, filled):
    np.testing.assert_allclose(fill_gaps(np.array(values), max_gap=2), filled)


@pytest.mark.parametrize(("lost", "windows"), [(MAX_GAP, 11), (MAX_GAP + 1, 10)])
def test_windows_with_what_was_lost_for_long_are_left_out_and_counted(run, tables, lost, windows):
    # the last bout of 300 samples has windows from 0 and from 100; sample 50 belongs to the first alone
    tables["subject101"][1750 + 50 : 1750 + 50 + lost, 21] = NAN
    summary = run(partition="own")
    assert sum(summary.examples["subject101"].values()) == windows
    assert [note.startswith("1 windows left out") for note in summary.notes] == [True] * (11 - windows)


def test_a_pause_in_time_ends_a_recording(run, tables):
    # a bout of 650 becomes one of 300 and one of 350: 2 + 2 windows for 5
    tables["subject102"][300:, 0] += 1
    assert sum(run(partition="own").examples["subject102"].values()) == 11


def test_the_optional_folder_and_the_folder_of_the_archive_are_read(run, tmp_path):
    (tmp_path / "source" / "Optional").mkdir(parents=True)
    np.savetxt(tmp_path / "source" / "Optional" / "subject101.dat", table([(16, 300)]), fmt="%.6g")
    summary = run(partition="own")
    assert sum(part["vacuum cleaning"] for part in summary.classes["subject101"].values()) == 2
    (tmp_path / "outer").mkdir()
    (tmp_path / "source").rename(tmp_path / "outer" / "PAMAP2_Dataset")
    again = import_layout("pamap2", tmp_path / "outer", tmp_path / "again", ImportOptions(partition="own"))
    assert again.examples == summary.examples


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Protocol/subject109.dat must have 54 numbers a line, not 0"),
        ("1 2 3\n", "Protocol/subject109.dat must have 54 numbers a line, not 3"),
        (" ".join(["x"] * 54) + "\n", "Protocol/subject109.dat must hold numbers alone"),
        (None, "source must hold a bout of 200 samples of an activity, not none"),
    ],
)
def test_a_file_of_another_form_and_a_set_without_a_whole_window_are_refused(run, tables, tmp_path, text, sentence):
    if text is None:
        tables.clear()
        tables["subject101"] = table([(1, WINDOW - 1)])
    else:
        (tmp_path / "source" / "Protocol").mkdir(parents=True)
        (tmp_path / "source" / "Protocol" / "subject109.dat").write_text(text)
    with pytest.raises(DataError, match=sentence):
        run()
