"""From what a hospital has, a folder of DICOM exams, a BIDS tree or a table of labels, to a report in four commands."""

import json

import pytest

from silofl_desk.phantoms.phantoms import make_phantoms
from tests.conftest import count_cases

from ..conftest import SMALL_UNET
from ..importing.exams import write_exam

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]

SITES = ("clinic", "ward")
TINY = ["--in-process", "--rounds", 1, "--set", "device=cpu", "--set", "baseline_comparison=false"]
SMALL = ["--set", f"model={json.dumps(SMALL_UNET)}"]


@pytest.fixture
def walk(silofl, tmp_path):
    """Go from a source to a run and its report; returns what the import printed, and results.json."""

    def go(layout, source, job, *options, more=()):
        data, own, run = tmp_path / "data", tmp_path / "own", tmp_path / "run"
        code, printed, error = silofl("import", layout, source, data, *options)
        assert (code, error) == (0, "")
        assert silofl("new-study", data, own, "--from", job)[0] == 0
        code, _, error = silofl("simulate", own, "--data", data, "--out", run, *TINY, *more)
        assert code == 0, error
        assert (run / "report.html").stat().st_size > 0
        return printed, json.loads((run / "results.json").read_text())

    return go


def test_a_folder_of_dicom_exams_leads_to_a_report(silofl, walk, tmp_path):
    source = tmp_path / "source"
    for site in SITES:
        for number in range(6):
            write_exam(source / site / f"exam{number}", f"{site}-{number}", number)
    code, listed, _ = silofl("import", "dicom", source)
    assert code == 0 and "Abdomen portal" in listed
    pattern = ["--image-pattern", "CT/*portal*", "--mask-pattern", "{case}/mask.nii.gz", "--labels", "organ"]
    printed, results = walk("dicom", source, "fedavg_phantoms", *pattern, more=SMALL)
    assert "series that no pattern names are left out: CT/Bone (6)" in printed
    # 6 patients: round(6 * 0.2) = 1 for the test
    assert (results["status"], count_cases(results)) == ("COMPLETE", dict.fromkeys(SITES, 1))


def test_a_run_and_a_comparison_go_on_without_an_exam_that_is_cut_in_half(silofl, tmp_path):
    data = make_phantoms(tmp_path / "data", seed=7, patients=dict.fromkeys(("north", "south"), 6))
    damaged = next(iter(sorted((data / "north" / "images").iterdir())))
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    how = ["--data", data, *SMALL, *TINY, "--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]
    code, _, error = silofl("simulate", "fedavg_phantoms", "--out", tmp_path / "refused", *how)
    assert code == 2 and damaged.name.partition(".")[0] in error
    code, out, error = silofl("simulate", "fedavg_phantoms", "--out", tmp_path / "run", "--skip-unreadable", 0.2, *how)
    assert code == 0 and "north: 1 of 6 cases cannot be read and are left out" in out + error
    (ledger,) = json.loads((tmp_path / "run" / "ledger.json").read_text())
    said = "site 'north' leaves out cases that cannot be read: 1 damaged"
    assert ledger["notes"] == [said]
    assert "leaves out cases that cannot be read" in (tmp_path / "run" / "report.html").read_text()
    words = ["--methods", "fedbn", "--seeds", "0", "--skip-unreadable", 0.2, *how]
    code, _, error = silofl("compare", "fedavg_phantoms", "--out", tmp_path / "rows", *words)
    assert code == 0, error
    ledgers = [json.loads(path.read_text()) for path in sorted((tmp_path / "rows").rglob("ledger.json"))]
    assert [rounds[0]["notes"] for rounds in ledgers] == [[said]] * 2
