import pytest

from silofl.base.errors import DataError
from silofl.data.records import Record, locate, parse_record

LABELS = {0: "normal", 1: "tumour"}
SEGMENTATION = {"image": "images/a.png", "label": "masks/a.png", "patient": "p1"}
CLASSIFICATION = {"image": "images/a.png", "label": 1, "patient": "p1"}


def segmentation(**changes):
    return parse_record(SEGMENTATION | changes, "record 1 of test", "segmentation", {1: "nucleus"})


def classification(**changes):
    return parse_record(CLASSIFICATION | changes, "record 1 of test", "classification", LABELS)


def test_a_record_keeps_what_dataset_json_says():
    record = segmentation(case="scan2", image="v.nii.gz", slices=[2, 5])
    assert record == Record("scan2", ("v.nii.gz",), "masks/a.png", "p1", slices=(2, 5))
    # A patient and a recording may be numbers; a recording need not be named.
    record = segmentation(patient=17, recording=4)
    assert (record.patient, record.recording, segmentation().recording) == ("17", "4", None)


def test_a_case_without_a_name_is_called_by_its_path():
    assert segmentation().case == "images/a"
    assert segmentation(image="p1/T1.axial.nii.gz").case == "p1/T1"
    assert segmentation(image="v.nii.gz", slices=[0, 6]).case == "v[0-6]"
    assert classification(image="all.npz", index=12).case == "all#12"
    record = segmentation(slices=[1, 9, 4])
    assert list(record.numbers) == [1, 5, 9] and record.case.endswith("[1-9-4]")


NO_TEXTS = ("", "  ", None, True, {"a": 1}, "a\0b", 1.5, "a\nb", "a\x1b[2Jb", "a\u2028b")
NO_SLICES = ([3, 2], [-1, 2], [0], [0, 1, 0], [0, 1, 2, 3], [0, True], [0.0, 1], "0-3", 4)
NO_CLASSES = (2, -1, "1", "masks/a.png", True, 1.0, None)
NO_FINDINGS = (1, [0, 3], [1, 1], [True], ["nodule"], None)
INDEXED = {"image": "all.npz", "label": 1}


@pytest.mark.parametrize(
    ("task", "changes", "sentence"),
    [
        ("segmentation", {"patient_id": 1}, "record 1 of test has the unknown key 'patient_id'.*mean 'patient'"),
        ("segmentation", {"image": ...}, "record 1 of test lacks the key 'image'"),
        ("segmentation", {"label": ...}, "record 1 of test lacks the key 'label'"),
        *(("segmentation", {"patient": value}, "the patient of .* must be a text") for value in NO_TEXTS),
        *(("segmentation", {key: ""}, f"the {key} of .* must be a text") for key in ("image", "case", "recording")),
        ("segmentation", {"image": "."}, "image of record 1 of test must be the path of a file, not"),
        ("segmentation", {"image": ["T1.nii", "//"]}, "image of record 1 of test must be the path of a file, not"),
        ("segmentation", {"image": []}, r"image must be one file, .*, not \[\]"),
        ("segmentation", {"image": [None, None]}, r"image must be one file, .*, not \[None, None\]"),
        ("segmentation", {"image": ["a", "a"]}, r"image must be .* different files, .* not \['a', 'a'\]"),
        ("segmentation", {"image": ["a", "b.npz"]}, "none an npz file, not \\['b.npz'\\]"),
        *(
            ("segmentation", {"label": value}, "'images/a': label must be the path of a label map")
            for value in (1, "", ["m"])
        ),
        *(("segmentation", {"slices": [0, value]}, "from 0 to 65535, .* not") for value in (65536, 10**30)),
        (
            "segmentation",
            {"slices": [0, 5, 10**30]},
            "record 1 of test: slices must be .* from 0 to 65535",
        ),
        *(("segmentation", {"slices": value}, r"slices must be \[first, last\] from 0") for value in NO_SLICES),
        *(("classification", {"label": value}, r"'images/a': label must be one of 0 \(normal") for value in NO_CLASSES),
        *(
            ("multilabel", {"label": value}, "'images/a': label must be a list of labels among 0")
            for value in NO_FINDINGS
        ),
        (
            "classification",
            {"image": "v.nii.gz", "label": 1, "index": 0},
            "index must be .* left out for another file, not 0 for 'v.nii.gz'",
        ),
        ("classification", INDEXED, "index must be a number from 0 for an npz file"),
        *(("classification", INDEXED | {"index": x}, "index must be a number from 0") for x in (-1, "3", True, 1.5)),
    ],
)
def test_a_key_without_a_right_value_is_refused(task, changes, sentence):
    record = {key: value for key, value in (SEGMENTATION | changes).items() if value is not ...}
    with pytest.raises(DataError, match=sentence):
        parse_record(record, "record 1 of test", task, LABELS)
    for value in ("a.png", ["a.png", "m.png"], None):
        with pytest.raises(DataError, match="must be an object with image and label"):
            parse_record(value, "record 1 of test", task, LABELS)


def test_findings_are_one_number_for_their_set():
    findings = {0: "effusion", 1: "nodule", 2: "mass"}
    for numbers, wanted in (([], 0), ([2, 0], 5)):
        record = parse_record({"image": "a.png", "label": numbers}, "record 1 of test", "multilabel", findings)
        assert record.label == wanted


OUTSIDE = "case 'x' names .*, (outside|which leads out) of the folder of dataset.json"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (path, OUTSIDE)
        for path in ("../a.png", "/etc/passwd", "images/../../a.png", "C:\\a.png", "..\\a.png", ".", "a/..")
    ]
    + [(path, f"case 'x': {path} is not there") for path in ("images/deep/a.png", "..a.png")]
    # A name that the disk refuses.
    + [("a" * 300 + ".png", "cannot be read: the system said")],
)
def test_a_path_outside_the_folder_or_to_nothing_is_refused(tmp_path, path, sentence):
    with pytest.raises(DataError, match=sentence):
        locate(tmp_path, path, "x")


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "site" / "a.png").symlink_to(tmp_path / "a.png")
    (tmp_path / "site" / "all").symlink_to(tmp_path)
    for path in ("a.png", "all/a.png"):
        with pytest.raises(DataError, match="case 'x' names .*, which leads out of the folder of dataset.json"):
            locate(tmp_path / "site", path, "x")
