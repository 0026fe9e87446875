import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from silofl.data.importers import ImportOptions, import_layout
from silofl.data.manifest import PARTS
from silofl.data.site_data import load_site_data
from silofl.errors import DataError
from silofl.study import load_study

STUDY = Path(__file__).resolve().parents[3] / "jobs" / "harmofl_camelyon17" / "app" / "config" / "study.yaml"
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


def content_of(folder):
    return json.loads((folder / "dataset.json").read_text())


def patients_of(content):
    return {part: {record["patient"] for record in content[part]} for part in PARTS}


def change_row(source, number, column, value):
    lines = (source / "metadata.csv").read_text().splitlines()
    cells = lines[number].split(",")
    cells[HEADER.split(",").index(column)] = value
    lines[number] = ",".join(cells)
    (source / "metadata.csv").write_text("\n".join(lines))


def test_a_center_is_a_site_and_its_patients_stand_in_one_part(source, tmp_path):
    summary = import_layout("camelyon17-wilds", source, tmp_path / "target")
    # 5 patients: round(5 * 0.2) = 1 test, round(4 * 0.2) = 1 validation, 3 training
    assert summary.examples == {
        "center_0": {"training": 6, "validation": 2, "test": 2},
        "center_4": {"training": 12, "validation": 4, "test": 4},
    }
    patients = patients_of(content_of(tmp_path / "target" / "center_4"))
    assert sorted(patient for found in patients.values() for patient in found) == ["040", "041", "042", "043", "044"]


def test_the_job_reads_what_was_imported(source, tmp_path):
    import_layout("camelyon17-wilds", source, tmp_path / "target")
    data = load_site_data(tmp_path / "target" / "center_0", load_study(STUDY), tmp_path / "cache")
    assert data.training.images.shape == (6, 3, 96, 96)
    for part in (data.training, data.validation, data.test):
        # the first patch of a patient, at x = 0, is normal, the second, at x = 32, holds tumour
        assert part.targets.tolist() == [int("_x_32_" in case) for case in part.cases]


def test_a_patch_is_linked_where_the_disk_allows_it(source, tmp_path):
    import_layout("camelyon17-wilds", source, tmp_path / "target")
    name = "patches/patient_000_node_1/patch_patient_000_node_1_x_0_y_0.png"
    assert os.path.samefile(source / name, tmp_path / "target" / "center_0" / name)


def test_a_patch_is_copied_where_the_disk_has_no_links(source, tmp_path, monkeypatch):
    def refuse(*places):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    import_layout("camelyon17-wilds", source, tmp_path / "target")
    name = "patches/patient_000_node_1/patch_patient_000_node_1_x_0_y_0.png"
    assert not os.path.samefile(source / name, tmp_path / "target" / "center_0" / name)
    assert (tmp_path / "target" / "center_0" / name).read_bytes() == (source / name).read_bytes()


def test_a_symbolic_link_leads_to_the_patch_itself(source, tmp_path):
    path = source / "patches" / "patient_000_node_1" / "patch_patient_000_node_1_x_0_y_0.png"
    path.rename(tmp_path / "store.png")
    path.symlink_to("../../../store.png")
    import_layout("camelyon17-wilds", source, tmp_path / "target")
    written = tmp_path / "target" / "center_0" / path.relative_to(source)
    assert not written.is_symlink()
    assert written.read_bytes() == (tmp_path / "store.png").read_bytes()


def test_truncation_cuts_every_center_to_the_smallest(source, tmp_path):
    summary = import_layout("camelyon17-wilds", source, tmp_path / "target", ImportOptions(is_truncated=True))
    assert summary.examples["center_4"] == {"training": 6, "validation": 4, "test": 4}
    assert len(list((tmp_path / "target" / "center_4").rglob("*.png"))) == 14


def test_a_missing_patch_is_named(source, tmp_path):
    (source / "patches" / "patient_000_node_1" / "patch_patient_000_node_1_x_32_y_0.png").unlink()
    with pytest.raises(DataError, match="patch_patient_000_node_1_x_32_y_0.png must exist; it is not there"):
        import_layout("camelyon17-wilds", source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_source_without_metadata_is_told(source, tmp_path):
    (source / "metadata.csv").unlink()
    with pytest.raises(DataError, match="source must hold metadata.csv and patches.*; it has no metadata.csv"):
        import_layout("camelyon17-wilds", source, tmp_path / "target")


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (0, "patient", "other", "metadata.csv in source must have the columns .*; patient missing"),
        (0, "tumor", "other", "metadata.csv in source must have the columns .*; tumor missing"),
        (2, "patient", "four", "row 2 of metadata.csv in source must hold whole numbers in patient, node"),
        (2, "x_coord", "1.5", "row 2 of metadata.csv in source must hold whole numbers in patient, node"),
        (2, "center", "", "row 2 of metadata.csv in source must hold whole numbers in patient, node"),
        (3, "tumor", "2", "row 3 of metadata.csv in source must have tumor 0 or 1, not 2"),
    ],
)
def test_a_column_or_a_value_that_is_none_is_refused_with_its_row(source, tmp_path, row, column, value, message):
    change_row(source, row, column, value)
    with pytest.raises(DataError, match=message):
        import_layout("camelyon17-wilds", source, tmp_path / "target")


def test_a_center_with_one_patient_is_refused(source, tmp_path):
    for row in range(1, 11):
        change_row(source, row, "patient", "000")
    with pytest.raises(DataError, match="site 'center_0' must have at least 2 patients .* not 1"):
        import_layout("camelyon17-wilds", source, tmp_path / "target")
