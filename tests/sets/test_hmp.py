import json
from collections import Counter

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.site_data import load_site_data
from silofl.importing.importers import ImportOptions, import_layout
from silofl_desk.sets.hmp import ACTIVITIES

LABELS = {0: "Walk", 1: "Comb_hair"}
# Volunteer -> the class of each recording; a recording has two windows.
RECORDINGS = {"f1": (0, 0, 0, 1), "m1": (1, 1, 0, 0)}


@pytest.fixture
def arrays():
    """Windows of 8 samples: axis a of window w of recording r stores 16 * a + 2 * r + w throughout."""
    found = {}
    for site, classes in RECORDINGS.items():
        recordings = np.repeat(np.arange(len(classes), dtype=np.int16), 2)
        first = 2 * recordings + np.tile([0, 1], len(classes))
        x = (first[:, None, None] + 16 * np.arange(3) + np.zeros((8, 1))).astype(np.uint8)
        found[site] = {"x": x, "y": np.repeat(np.array(classes, np.uint8), 2), "recording": recordings}
    return found


@pytest.fixture
def run(arrays, tmp_path):
    def go(**options):
        (tmp_path / "source").mkdir()
        for site, values in arrays.items():
            np.savez(tmp_path / "source" / f"{site}.npz", **values)
        samples = [{"site": site, "file": f"{site}.npz"} for site in arrays]
        classes = {str(number): name for number, name in LABELS.items()}
        (tmp_path / "source" / "dataset.json").write_text(json.dumps({"classes": classes, "samples": samples}))
        return import_layout("hmp", tmp_path / "source", tmp_path / "target", ImportOptions(**options))

    return go


@pytest.fixture
def load(study, tmp_path):
    def go(site, labels=LABELS, **data):
        settings = {"channels": 3, "intensity": "raw", "split_unit": "recordings"} | data
        return load_site_data(
            tmp_path / "target" / site, study("classification", labels, **settings), tmp_path / "cache"
        )

    return go


def test_a_volunteer_is_a_site_whose_recordings_are_halved_by_activity(run):
    summary = run()
    # f1: 3 // 2 = 1 of its walks, of 2 windows, is for the test; its only combing stays. m1: one of two each.
    counts = {site: [[*found.values()] for found in parts.values()] for site, parts in summary.classes.items()}
    # of training, validation and test
    assert counts == {"f1": [[4, 2], [0, 0], [2, 0]], "m1": [[2, 2], [0, 0], [2, 2]]}
    assert [*summary.classes["f1"]["test"]] == ["Walk", "Comb_hair"]
    assert summary.patients == {"f1": 1, "m1": 1} and summary.notes == ()


def test_values_become_accelerations_in_g(run, load):
    run()
    data = load("m1")
    assert data.training.images.dtype == np.float32 and data.training.images.shape == (4, 3, 1, 8)
    for case, image in zip(data.training.cases, data.training.images, strict=True):
        row = int(case.removeprefix("m1-"))
        # the window's number in its file is 2 * r + w; axis a adds 16 * a; -14.709 + v / 63 * 29.418 m/s2
        expected = [(-14.709 + (row + 16 * axis) / 63 * 29.418) / 9.80665 for axis in range(3)]
        np.testing.assert_allclose(image[:, 0, 0], expected, rtol=1e-5)
        assert np.ptp(image, axis=2).max() == 0
    resized = load("m1", transforms=[{"Resize": {"spatial_size": [1, 10]}}])
    assert resized.training.images.shape == (4, 3, 1, 10)
    with pytest.raises(DataError, match="case 'm1-.': the image must have data.channels, 2, not 3"):
        load("m1", channels=2)
    with pytest.raises(DataError, match="patient 'm1' must stand in one part, not in training and test"):
        load("m1", split_unit="patient")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("x", np.full((8, 8, 3), 64), "x of m1.npz must be from 0 to 63, not up to 64"),
        ("x", np.zeros((8, 8, 2), int), r"m1.npz must hold whole numbers x \(N, T, 3\).* not of shapes \(8, 8, 2\)"),
        ("x", None, "m1.npz must hold x, y and recording; x missing"),
        ("recording", None, "m1.npz must hold x, y and recording; recording missing"),
        ("x", np.zeros((8, 8, 3)), "m1.npz must hold whole numbers"),
        ("y", np.zeros(7, int), "m1.npz must hold whole numbers"),
        ("y", np.full(8, 2), "y of m1.npz must be below 2, not 2"),
    ],
)
def test_arrays_of_another_form_are_refused(run, arrays, key, value, sentence):
    arrays["m1"][key] = value
    arrays["m1"] = {key: value for key, value in arrays["m1"].items() if value is not None}
    with pytest.raises(DataError, match=sentence):
        run()


@pytest.mark.parametrize("classes", [["Walk"], {"1": "Walk"}, {"Walk": 0}])
def test_classes_that_are_not_numbered_are_refused(tmp_path, classes):
    (tmp_path / "dataset.json").write_text(json.dumps({"classes": classes, "samples": []}))
    with pytest.raises(DataError, match="the classes of .* must be names by number from 0"):
        import_layout("hmp", tmp_path, tmp_path / "target")


def test_the_real_set_loads(real_data, load, tmp_path):
    source = real_data("hmp_activity")
    summary = import_layout("hmp", source, tmp_path / "target")
    description = json.loads((source / "dataset.json").read_text())
    windows = {sample["site"]: sample["windows"] for sample in description["samples"]}
    assert {site: sum(parts.values()) for site, parts in summary.examples.items()} == windows
    data = load("m2", {int(number): name for number, name in description["classes"].items()})
    assert data.training.images.shape[1:] == (3, 1, 128)
    with np.load(source / "m2.npz") as stored:
        labels = dict(zip(stored["recording"].tolist(), stored["y"].tolist(), strict=True))
    held = {part: {int(record.recording) for record in records} for part, records in data.manifest.parts.items()}
    for label, count in Counter(labels.values()).items():
        assert sum(labels[recording] == label for recording in held["test"]) == count // 2


# --- the set as it is downloaded


def name_of(activity, volunteer, minute):
    return f"Accelerometer-2011-03-24-10-{minute:02}-39-{activity.lower()}-{volunteer}.txt"


def add_recording(folder, activity, volunteer, minute, samples):
    """Add a recording, its numbers in two digits as the set has them."""
    lines = ["{:02} {:02} {:02}\n".format(*sample) for sample in samples]
    (folder / activity / name_of(activity, volunteer, minute)).write_text("".join(lines))


@pytest.fixture
def hmp(tmp_path):
    """Volunteer f1 with ten recordings of 128 samples, five walks and five combings; the other activities are empty."""
    folder, rng = tmp_path / "download" / "HMP_Dataset", np.random.default_rng(0)
    for activity in (*ACTIVITIES, "Walk_MODEL"):
        (folder / activity).mkdir(parents=True)
    (folder / "MANUAL.txt").write_text("how to show a recording")
    for minute in range(10):
        activity = "Walk" if minute < 5 else "Comb_hair"
        add_recording(folder, activity, "f1", minute, rng.integers(0, 64, (128, 3)))
    return folder


@pytest.mark.parametrize("is_folder_itself", [False, True])
def test_a_volunteer_of_the_downloaded_set_is_a_site(hmp, tmp_path, is_folder_itself):
    summary = import_layout("hmp", hmp if is_folder_itself else hmp.parent, tmp_path / "target")
    assert summary.patients == {"f1": 1} and summary.notes == ()
    # of five recordings of each activity, of one window each, 5 // 2 = 2 are for the test
    present = {part: {name: n for name, n in found.items() if n} for part, found in summary.classes["f1"].items()}
    assert present == {"training": {"Walk": 3, "Comb_hair": 3}, "validation": {}, "test": {"Walk": 2, "Comb_hair": 2}}
    assert list(summary.classes["f1"]["test"]) == list(ACTIVITIES)


@pytest.mark.parametrize(("length", "starts"), [(100, [0]), (191, [0]), (192, [0, 64]), (256, [0, 64, 128])])
def test_a_recording_is_cut_into_windows_that_overlap_by_half(hmp, load, tmp_path, length, starts):
    samples = np.random.default_rng(1).integers(0, 64, (length, 3))
    for minute in range(20, 22):  # two of an activity, so that one is for training
        add_recording(hmp, "Eat_soup", "f1", minute, (samples + minute) % 64)
    import_layout("hmp", hmp, tmp_path / "target")
    data = load("f1", dict(enumerate(ACTIVITIES)))
    soup = data.training.targets == ACTIVITIES.index("Eat_soup")
    minute = int(data.training.cases[np.flatnonzero(soup)[0]].split("-")[5])
    # a recording shorter than a window goes on with its last sample
    signal = np.pad((samples + minute) % 64, ((0, max(0, 128 - length)), (0, 0)), mode="edge")
    expected = [(-14.709 + signal[start : start + 128].T / 63 * 29.418) / 9.80665 for start in starts]
    np.testing.assert_allclose(data.training.images[soup][:, :, 0], expected, rtol=1e-4, atol=1e-6)
    assert len({record.recording for record in data.manifest.training if record.label == 6}) == 1


def test_a_volunteer_with_few_recordings_is_left_out_and_named_and_copies_in_the_model_folders_are_not(hmp, tmp_path):
    add_recording(hmp, "Walk_MODEL", "f1", 0, np.zeros((128, 3), int))
    for minute in range(8):
        add_recording(hmp, "Walk", "m2", minute, np.full((128, 3), minute))
    summary = import_layout("hmp", hmp, tmp_path / "target")
    assert set(summary.examples) == {"f1"} and sum(summary.examples["f1"].values()) == 10
    assert summary.notes == ("volunteers with fewer than 9 recordings are left out: m2 (8)",)


def test_a_download_with_few_recordings_of_everyone_or_without_an_activity_is_refused(hmp, tmp_path):
    for path in (hmp / "Walk").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="a volunteer with at least 9 recordings, not only 1 with fewer"):
        import_layout("hmp", hmp, tmp_path / "target")
    (hmp / "Pour_water").rmdir()
    with pytest.raises(DataError, match="HMP_Dataset.*or a dataset.json.*; Pour_water is missing, and 0 other"):
        import_layout("hmp", hmp.parent, tmp_path / "target")


WALK = name_of("Walk", "f1", 0)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (WALK, "", "must hold at least one sample, not none"),
        (WALK, "1 2 64\n", "must be from 0 to 63, not 1 to 64"),
        (WALK, "1 2 -1\n", "must be from 0 to 63, not -1 to 2"),
        (WALK, "1 2\n", r"must hold 3 numbers a line, not an array of shape \(1, 2\)"),
        (WALK, "1 2 x\n", "must hold whole numbers alone"),
        (WALK, "1 2 3\n4 5\n", "must hold whole numbers alone"),
        ("walk.txt", "1 2 3\n", "must be named like Accelerometer-"),
    ],
)
def test_a_broken_recording_is_refused_with_its_name(hmp, tmp_path, name, content, sentence):
    (hmp / "Walk" / name).write_text(content)
    with pytest.raises(DataError, match=f"Walk/{name} {sentence}"):
        import_layout("hmp", hmp, tmp_path / "target")
