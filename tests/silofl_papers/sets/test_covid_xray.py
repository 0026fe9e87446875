import json
import os

import numpy as np
import pytest
from PIL import Image

from silofl.data.importers import ImportOptions, import_layout
from silofl.data.site_data import load_site_data
from silofl.errors import DataError

CLASSES = {"COVID": 12, "NORMAL": 24, "Pneumonia-Bacterial": 12, "Pneumonia-Viral": 12}
NAMES = ("COVID-19", "Normal", "Pneumonia-Bacterial", "Pneumonia-Viral")


@pytest.fixture
def source(tmp_path):
    """Pictures of 4 x 4, all different, in the folders of the public set."""
    rng = np.random.default_rng(0)
    for name, count in CLASSES.items():
        (tmp_path / "source" / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "source" / name / f"{name} ({number}).png")
    return tmp_path / "source"


def labels_of(target):
    return json.loads((target / "site-1" / "dataset.json").read_text())["labels"]


def test_every_picture_is_at_one_site_and_half_of_each_site_is_for_the_test(source, tmp_path):
    summary = import_layout("covid-xray", source, tmp_path / "target", ImportOptions(num_sites=3))
    total = {name: 0 for name in NAMES}
    for parts in summary.classes.values():
        for name in total:
            total[name] += sum(part[name] for part in parts.values())
    assert total == dict(zip(NAMES, CLASSES.values(), strict=True))
    for parts in summary.examples.values():
        assert parts["validation"] == 0 and abs(parts["training"] - parts["test"]) <= 1
    assert "the set names no patients" in summary.notes[0]


def test_a_study_reads_what_was_imported(source, tmp_path, study):
    import_layout("covid-xray", source, tmp_path / "target", ImportOptions(num_sites=2))
    wanted = study("classification", labels=dict(enumerate(NAMES)), split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "site-1", wanted, tmp_path / "cache")
    assert data.training.images.shape[1:] == (1, 4, 4) and data.training.num_patients == 0
    for case, target in zip(data.training.cases, data.training.targets, strict=True):
        assert case.startswith(list(CLASSES)[int(target)] + "/")


def test_there_are_twenty_sites_unless_something_else_is_said(source, tmp_path):
    # 60 pictures in 20 sites: every site gets at least 3
    summary = import_layout("covid-xray", source, tmp_path / "target")
    assert len(summary.examples) == 20 and min(sum(parts.values()) for parts in summary.examples.values()) >= 3


def test_sites_of_equal_size_differ_in_their_classes(source, tmp_path):
    summary = import_layout("covid-xray", source, tmp_path / "target", ImportOptions(num_sites=6, is_equal=True))
    assert list(summary.examples.values()) == [{"training": 5, "validation": 0, "test": 5}] * 6
    assert len({str(parts["training"]) for parts in summary.classes.values()}) > 1


def test_a_picture_is_linked(source, tmp_path):
    import_layout("covid-xray", source, tmp_path / "target", ImportOptions(num_sites=1))
    name = "COVID/COVID (0).png"
    assert os.path.samefile(source / name, tmp_path / "target" / "site-1" / name)


def test_the_known_classes_keep_their_order_and_others_follow_by_name(source, tmp_path):
    (source / "COVID").rename(source / "Covid-19")
    (source / "Pneumonia-Viral").rename(source / "lung")
    (source / "Pneumonia-Bacterial").rename(source / "heart")
    import_layout("covid-xray", source, tmp_path / "target", ImportOptions(num_sites=1))
    assert labels_of(tmp_path / "target") == {"0": "COVID-19", "1": "Normal", "2": "heart", "3": "lung"}


def test_hidden_folders_and_other_files_are_no_classes_and_no_pictures(source, tmp_path):
    (source / ".cache").mkdir()
    (source / "COVID" / "notes.txt").write_text("x")
    (source / "readme.md").write_text("x")
    summary = import_layout("covid-xray", source, tmp_path / "target", ImportOptions(num_sites=1))
    assert sum(summary.examples["site-1"].values()) == sum(CLASSES.values())


@pytest.mark.parametrize(
    ("change", "labels", "message"),
    [
        ("Fracture", None, "the class Fracture must have pictures in .png, .*, not none"),
        ("COVID", None, "COVID must hold a folder of pictures for each class, at least 2, not 0"),
        (None, ("covid",), "labels must name the 4 classes of source, not 1"),
    ],
)
def test_a_set_of_another_form_or_without_names_is_refused(source, tmp_path, change, labels, message):
    if change == "Fracture":
        (source / change).mkdir()
    with pytest.raises(DataError, match=message):
        import_layout(
            "covid-xray",
            source / "COVID" if change == "COVID" else source,
            tmp_path / "target",
            ImportOptions(labels=labels),
        )
