import json
import os
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.site_data import load_site_data

LAYOUT = "covid-xray"
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


def test_every_picture_is_at_one_of_twenty_sites_and_half_of_each_site_is_for_the_test(run):
    summary = run()
    total = Counter()
    for parts in summary.classes.values():
        for found in parts.values():
            total.update(found)
    assert total == dict(zip(NAMES, CLASSES.values(), strict=True)) and len(summary.examples) == 20
    for parts in summary.examples.values():
        # 60 pictures: every site gets at least 3
        assert sum(parts.values()) >= 3
        assert parts["validation"] == 0 and abs(parts["training"] - parts["test"]) <= 1
    assert "the set names no patients" in summary.notes[0]


def test_a_study_reads_what_was_imported_by_links(run, source, tmp_path, study):
    run(num_sites=1)
    wanted = study("classification", labels=dict(enumerate(NAMES)), split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "site-1", wanted, tmp_path / "cache")
    assert data.training.images.shape[1:] == (1, 4, 4) and data.training.num_patients == 0
    for case, target in zip(data.training.cases, data.training.targets, strict=True):
        assert case.startswith(list(CLASSES)[int(target)] + "/")
    name = "COVID/COVID (0).png"
    assert os.path.samefile(source / name, tmp_path / "target" / "site-1" / name)


def test_the_known_classes_keep_their_order_and_others_follow_by_name_but_for_what_is_no_class(run, source, tmp_path):
    for old, new in (("COVID", "Covid-19"), ("Pneumonia-Viral", "lung"), ("Pneumonia-Bacterial", "heart")):
        (source / old).rename(source / new)
    (source / ".cache").mkdir()
    for name in ("lung/notes.txt", "readme.md"):
        (source / name).write_text("x")
    summary = run(num_sites=1)
    assert sum(summary.examples["site-1"].values()) == sum(CLASSES.values())
    labels = json.loads((tmp_path / "target" / "site-1" / "dataset.json").read_text())["labels"]
    assert labels == {"0": "COVID-19", "1": "Normal", "2": "heart", "3": "lung"}


def test_a_set_of_another_form_or_without_names_is_refused(run, source):
    with pytest.raises(DataError, match="labels must name the 4 classes of source, not 1"):
        run(labels=("covid",))
    with pytest.raises(DataError, match="COVID must hold a folder of pictures for each class, at least 2, not 0"):
        run(source / "COVID")
    (source / "Fracture").mkdir()
    with pytest.raises(DataError, match="the class Fracture must have pictures in .png, .*, not none"):
        run()
