import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.manifest import PARTS
from silofl.data.site_data import load_site_data
from silofl.study import load_study

STUDY = Path(__file__).resolve().parents[2] / "jobs" / "harmofl_camelyon17" / "app" / "config" / "study.yaml"
LAYOUT = "camelyon17-wilds"
HEADER = ",patient,node,x_coord,y_coord,tumor,slide,center,split"


def write_set(folder, patches_by_center):
    """Write a set in the form of WILDS: five patients a center, and as many patches of each as are wanted."""
    rng, rows = np.random.default_rng(0), [HEADER]
    for center, patches in patches_by_center.items():
        for patient in (f"{10 * center + number:03d}" for number in range(5)):
            place = folder / "patches" / f"patient_{patient}_node_1"
            place.mkdir(parents=True)
            for number in range(patches):
                x, y, tumor = 32 * number, 64 * center, number % 2
                pixels = rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"patch_patient_{patient}_node_1_x_{x}_y_{y}.png")
                rows.append(f"{len(rows) - 1},{patient},1,{x},{y},{tumor},{center},{center},0")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def source(tmp_path):
    return write_set(tmp_path / "source", {0: 2, 4: 4})


PATCH = "patches/patient_000_node_1/patch_patient_000_node_1_x_0_y_0.png"


def change_row(source, number, column, value):
    lines = (source / "metadata.csv").read_text().splitlines()
    cells = lines[number].split(",")
    cells[HEADER.split(",").index(column)] = value
    lines[number] = ",".join(cells)
    (source / "metadata.csv").write_text("\n".join(lines))


def test_a_center_is_a_site_whose_patients_stand_in_one_part_and_which_the_job_reads(run, source, tmp_path):
    summary = run()
    # 5 patients: round(5 * 0.2) = 1 test, round(4 * 0.2) = 1 validation, 3 training
    assert summary.examples == {
        "center_0": {"training": 6, "validation": 2, "test": 2},
        "center_4": {"training": 12, "validation": 4, "test": 4},
    }
    assert os.path.samefile(source / PATCH, tmp_path / "target" / "center_0" / PATCH)
    content = json.loads((tmp_path / "target" / "center_4" / "dataset.json").read_text())
    patients = [patient for part in PARTS for patient in {record["patient"] for record in content[part]}]
    assert sorted(patients) == ["040", "041", "042", "043", "044"]
    data = load_site_data(tmp_path / "target" / "center_0", load_study(STUDY), tmp_path / "cache")
    assert data.training.images.shape == (6, 3, 96, 96)
    for part in (data.training, data.validation, data.test):
        # the first patch of a patient, at x = 0, is normal, the second, at x = 32, holds tumour
        assert part.targets.tolist() == [int("_x_32_" in case) for case in part.cases]


WHOLE = "row 2 of metadata.csv in source must hold whole numbers in patient, node"


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (0, "patient", "other", "metadata.csv in source must have the columns .*; patient missing"),
        (2, "patient", "four", WHOLE),
        (2, "x_coord", "1.5", WHOLE),
        (2, "center", "", WHOLE),
        (3, "tumor", "2", "row 3 of metadata.csv in source must have tumor 0 or 1, not 2"),
        # Of files that are not there.
        (None, PATCH, None, "patch_patient_000_node_1_x_0_y_0.png must exist; it is not there"),
        (None, "metadata.csv", None, "source must hold metadata.csv and patches.*; it has no metadata.csv"),
    ],
)
def test_a_column_or_a_value_or_a_file_that_is_none_is_refused(run, source, tmp_path, row, column, value, message):
    (source / column).unlink() if row is None else change_row(source, row, column, value)
    with pytest.raises(DataError, match=message):
        run()
    assert not (tmp_path / "target").exists()
