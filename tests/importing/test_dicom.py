import json
import re
from dataclasses import replace

import numpy as np
import pytest
from pydicom.uid import generate_uid

from silofl.base.errors import ConfigError, DataError
from silofl.reading.images import read_image
from silofl_hospital.importing.dicom import find_exams
from silofl_hospital.importing.importers import ImportOptions, import_layout
from tests.conftest import records_of

from .exams import write_exam, write_report, write_segmentation, write_series

PORTAL, MASKS = "CT/*portal*", "{case}/mask.nii.gz"


@pytest.fixture
def source(tmp_path):
    """Two sites with three patients each, of whom the first has two exams; the volumes by site and exam."""
    for site in ("north", "south"):
        for number in range(4):
            write_exam(tmp_path / "source" / site / f"exam{number}", f"{site}-{max(number - 1, 0)}", number)
    return tmp_path / "source"


@pytest.fixture
def run(source, tmp_path):
    """Import and return the summary and north's dataset.json."""

    def go(image_pattern=PORTAL, mask_pattern=MASKS, **options):
        settings = ImportOptions(image_pattern=image_pattern, mask_pattern=mask_pattern, **options)
        summary = import_layout("dicom", source, tmp_path / "target", settings)
        return summary, json.loads((tmp_path / "target" / "north" / "dataset.json").read_text())

    return go


def test_a_pattern_takes_its_series_of_each_exam(run, tmp_path):
    summary, content = run(labels=("organ",))
    records = records_of(content)
    assert {case: record["patient"] for case, record in records.items()} == {
        f"exam{number}": f"north-{max(number - 1, 0)}" for number in range(4)
    }
    # 3 patients: round(3 * 0.2) = 1 for the test
    assert summary.patients == {"north": 3, "south": 3} and len({r["patient"] for r in content["test"]}) == 1
    image = read_image(tmp_path / "target" / "north" / records["exam3"]["image"])
    assert image.spatial_shape == (16, 12, 4)
    mask = read_image(tmp_path / "target" / "north" / records["exam3"]["label"]).array
    # The box is 200 brighter than what lies about it, of a deviation of 5.
    np.testing.assert_array_equal(mask > 0, image.array > 140)


def test_what_is_left_over_is_counted(run, source):
    (source / "north" / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    summary, _ = run()
    assert "north: series that no pattern names are left out: CT/Bone (4)" in summary.notes


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (None, "image-pattern is missing; name .*as MODALITY/DESCRIPTION.*: CT/Abdomen portal"),
        ("MR/*", r"site 'north' has no series as MR/\*, but CT/Abdomen portal, CT/Bone"),
        # A mask by its path cannot serve two series.
        ("CT/*", r"exam0 of site 'north' has 2 series as CT/\*"),
        ("all=CT/*,bone=CT/bone", r"exam0 of site 'north' has 2 series as CT/\*: Abdomen portal"),
    ],
)
def test_a_pattern_of_no_series_or_several_is_refused(run, pattern, sentence):
    with pytest.raises((ConfigError, DataError), match=sentence):
        run(image_pattern=pattern)


def test_contrasts_are_the_series_of_one_exam(run):
    _, content = run("venous=CT/*portal*,bone=CT/bone", MASKS)
    record = records_of(content)["exam0"]
    assert content["channel_names"] == ["venous", "bone"]
    assert record["image"] == ["images/exam0/venous", "images/exam0/bone"]


def test_a_segmentation_goes_to_the_series_that_it_names(tmp_path):
    folder, study, volume = tmp_path / "north", generate_uid(), np.zeros((12, 16, 3), np.int16)
    wanted = write_series(folder / "a", volume, "p0", "Portal", study, number=1)
    write_series(folder / "a", volume, "p0", "Portal", study, number=2)
    write_segmentation(folder / "b" / "SEG", "p0", study, wanted)
    write_segmentation(folder / "b" / "SEG2", "p0", study, generate_uid())
    options = ImportOptions(image_pattern="CT/*", scratch=tmp_path / "scratch")
    found, notes = find_exams(folder, options)
    (case,) = found.cases
    (mask,) = case.masks
    assert case.name == "a-1" and mask.resolve() == folder / "b" / "SEG" and mask.suffix == ".dcm"
    assert len([*case.images[0].iterdir()]) == 3
    assert notes == ["north: 1 of 2 exams have no mask, and are left out"]


@pytest.mark.parametrize("names", [("first reader", "second reader"), ("", "")])
def test_two_segmentations_of_one_series_are_refused(tmp_path, names):
    folder, study = tmp_path / "north", generate_uid()
    series = write_series(folder / "a", np.zeros((12, 16, 3), np.int16), "p0", "Portal", study)
    for number, name in enumerate(names):
        write_segmentation(folder / "a" / f"SEG{number}", "p0", study, series, name)
    options = ImportOptions(image_pattern="CT/*", scratch=tmp_path / "scratch")
    shown = ", ".join(rf"{name or 'without a description'} \(a/SEG{number}\)" for number, name in enumerate(names))
    said = rf"a of site 'north' has 2 masks as SEG/\*: {shown}; .* move the others out of"
    with pytest.raises(DataError, match=said):
        find_exams(folder, options)
    chosen = replace(options, mask_pattern="SEG/second*")
    if not all(names):
        chosen = options
        (folder / "a" / "SEG0").rename(tmp_path / "SEG0")
    (case,) = find_exams(folder, chosen)[0].cases
    assert case.masks[0].resolve().name == "SEG1"


def test_an_empty_source_lists_nothing(silofl, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, error = silofl("import", "dicom", tmp_path / "empty")
    assert code == 2 and "empty has no folder of a site with DICOM files" in error


def test_without_a_target_the_series_are_listed(silofl, source):
    write_report(source / "north" / "exam0", "secret-name", generate_uid())
    write_exam(source / "north" / "exam4", "north-3", 4)
    code, out, error = silofl("import", "dicom", source)
    assert (code, error) == (0, "")
    rows = [re.split(" {2,}", line) for line in out.splitlines()]
    # 5 exams of 4 patients
    assert ["north", "CT", "Abdomen portal", "16 x 12 x 4", "5", "4"] in rows
    assert "north-" not in out and "secret" not in out
