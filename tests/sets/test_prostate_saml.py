import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.site_data import load_site_data
from silofl.importing.importers import import_layout
from silofl.study import load_study
from tests.conftest import list_records

JOBS = Path(__file__).resolve().parents[2] / "jobs"
LAYOUT = "prostate-saml"
AFFINE = np.array([[-0.6, 0, 0, 10], [0, -0.6, 0, 20], [0, 0, 3.6, -30], [0, 0, 0, 1]])
SIZE = (12, 10, 5)


def write_case(site, number, ending="_Segmentation", zones=2):
    """Write one case as the public set does: an image, and its zones as 0, 1 and 2."""
    site.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([number, len(site.name)])
    image = nibabel.Nifti1Image(rng.integers(0, 900, SIZE, dtype=np.int16), AFFINE)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, site / f"Case{number:02d}.nii.gz")
    mask = rng.integers(0, zones + 1, SIZE).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(mask, AFFINE), site / f"Case{number:02d}{ending}.nii.gz")
    return mask


@pytest.fixture
def source(tmp_path):
    """Two sites with eight cases each, whose segmentations are spelled in both ways."""
    for site, ending in (("RUNMC", "_Segmentation"), ("HK", "_segmentation")):
        for number in range(8):
            write_case(tmp_path / "source" / site, number, ending)
    return tmp_path / "source"


def records_of(folder):
    content = json.loads((folder / "dataset.json").read_text())
    return list_records(content)


def test_a_case_is_a_patient_and_its_slices_are_counted(run, source, tmp_path):
    # What is no volume is left out.
    (source / "HK" / "README.txt").write_text("x")
    (source / "HK" / "._Case00.nii.gz").write_bytes(b"x")
    (source / ".hidden").mkdir()
    summary = run(test=0.25, validation=0.3334)
    # 8 patients: round(8 * 0.25) = 2 test, round(6 * 0.3334) = 2 validation, 4 training; 5 slices each
    counts = {"training": 20, "validation": 10, "test": 10}
    assert summary.examples == {"RUNMC": counts, "HK": counts}
    assert summary.patients == {"RUNMC": 8, "HK": 8}
    assert {r["patient"] for r in records_of(tmp_path / "target" / "HK")} == {f"Case{n:02d}" for n in range(8)}
    assert records_of(tmp_path / "target" / "HK")[0]["slices"] == [0, 4]


def test_the_zones_become_one_label_on_the_same_grid_by_the_same_bytes_each_time(run, source, tmp_path):
    run()
    target = tmp_path / "target" / "HK"
    assert (target / "images" / "Case03.nii.gz").read_bytes() == (source / "HK" / "Case03.nii.gz").read_bytes()
    original = nibabel.load(source / "HK" / "Case03_segmentation.nii.gz")
    written = nibabel.load(target / "labels" / "Case03.nii.gz")
    np.testing.assert_array_equal(np.asanyarray(written.dataobj), np.asanyarray(original.dataobj) > 0)
    np.testing.assert_array_equal(written.affine, original.affine)
    assert written.header.get_zooms() == original.header.get_zooms()
    assert written.header["sform_code"] == original.header["sform_code"]
    import_layout(LAYOUT, source, tmp_path / "again")
    for path in target.rglob("*.nii.gz"):
        assert (tmp_path / "again" / "HK" / path.relative_to(target)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("job", ["harmofl_prostate", "fedsm_prostate"])
def test_the_jobs_read_what_was_imported(run, tmp_path, job):
    run()
    study = load_study(JOBS / job / "app" / "config" / "study.yaml")
    data = load_site_data(tmp_path / "target" / "RUNMC", study, tmp_path / "cache")
    # round(8 * 0.2) = 2 test, round(6 * 0.2) = 1 validation, 5 training
    assert (len(data.training), len(data.validation), len(data.test)) == (25, 5, 10)
    shape = {"harmofl_prostate": (3, 384, 384), "fedsm_prostate": (1, 256, 256)}[job]
    assert data.training.images.shape[1:] == shape
    assert set(np.unique(data.test.targets)) == {0, 1}


def test_truncation_cuts_by_slices(run, source, tmp_path, study):
    for number in (6, 7):
        for path in (source / "HK").glob(f"Case0{number}*"):
            path.unlink()
    for name in ("Case00", "Case00_segmentation"):
        thin = nibabel.Nifti1Image(np.ones((12, 10, 3), np.int16), AFFINE)
        nibabel.save(thin, source / "HK" / f"{name}.nii.gz")
    whole, cut = import_layout(LAYOUT, source, tmp_path / "whole").examples, run(is_truncated=True).examples
    smallest = whole["HK"]["training"]
    assert smallest < whole["RUNMC"]["training"]
    assert cut == {"HK": whole["HK"], "RUNMC": {**whole["RUNMC"], "training": smallest}}
    data = load_site_data(tmp_path / "target" / "RUNMC", study(labels={1: "prostate"}), tmp_path / "cache")
    assert len(data.training) == smallest


LACKS = "site 'RUNMC' must have an image and a segmentation of each case; .* Case02"
ONE = "site 'RUNMC' must have one file of a kind for Case01, not .*"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("RUNMC/Case02.nii.gz", None, LACKS),
        ("RUNMC/Case02_Segmentation.nii.gz", None, LACKS),
        ("RUNMC/Case01.nii", b"x", f"{ONE}Case01.nii"),
        ("RUNMC/Case01_SEGMENTATION.nii.gz", b"x", f"{ONE}Case01_SEGMENTATION.nii.gz"),
        ("notes/a.txt", b"x", "site 'notes' must have volumes like Case00.nii.gz, not none"),
        ("HK/Case04.nii.gz", b"x", "HK/Case04.nii.gz must be a whole file"),
        ("HK/Case04_segmentation.nii.gz", b"x", "HK/Case04_segmentation.nii.gz must be a whole file"),
    ],
)
def test_a_site_without_whole_cases_is_refused(run, source, name, content, sentence):
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).unlink() if content is None else (source / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        run()
