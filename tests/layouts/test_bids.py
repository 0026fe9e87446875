import json
import re

import nibabel
import numpy as np
import pytest

from silofl.base.errors import ConfigError, DataError
from silofl.importing.importers import ImportOptions, import_layout
from tests.conftest import records_of

SUBJECTS, SESSIONS = 5, ("ses-1", "ses-2")
ANAT, LABELS = "north/sub-00/ses-1/anat/sub-00_ses-1", "north/derivatives/labels/sub-00/ses-1/anat/sub-00_ses-1"
PATTERNS = {"image_pattern": "T1w", "mask_pattern": "labels/*dseg"}


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)


def write_tree(root):
    """Write five subjects with two sessions of T1w and T2w, masks of 0 and 1 on the first, and a table of ages."""
    rng = np.random.default_rng(0)
    for number in range(SUBJECTS):
        for session in SESSIONS:
            stem, place = f"sub-{number:02}_{session}", f"sub-{number:02}/{session}/anat"
            for suffix in ("T1w", "T2w"):
                save(root / place / f"{stem}_{suffix}.nii.gz", rng.integers(1, 99, (6, 6, 3), dtype=np.int16))
            mask = rng.integers(0, 2, (6, 6, 3), dtype=np.uint8)
            save(root / "derivatives" / "labels" / place / f"{stem}_dseg.nii.gz", mask)
    rows = [f"sub-{number:02}\t{50 + number}" for number in range(SUBJECTS)]
    (root / "participants.tsv").write_text("\n".join(["participant_id\tage", *rows]))


@pytest.fixture
def source(tmp_path):
    for site in ("north", "south"):
        write_tree(tmp_path / "source" / site)
    return tmp_path / "source"


@pytest.fixture
def run(source, tmp_path):
    def go(site="north", **options):
        summary = import_layout("bids", source, tmp_path / "target", ImportOptions(**{**PATTERNS, **options}))
        content = json.loads((tmp_path / "target" / site / "dataset.json").read_text())
        return summary, content, records_of(content)

    return go


def test_all_sessions_of_a_subject_are_cases_of_one_patient_and_contrasts_the_images_of_one_session(run):
    summary, content, records = run(labels=("organ",), image_pattern="T1=T1w,T2=T2w")
    assert len(records) == 10 and summary.patients == {"north": 5, "south": 5}
    assert content["channel_names"] == ["T1", "T2"]
    assert records["sub-03_ses-2"] == {
        "image": [f"images/sub-03/ses-2/anat/sub-03_ses-2_{suffix}.nii.gz" for suffix in ("T1w", "T2w")],
        "label": "masks/sub-03_ses-2.nii.gz",
        "patient": "sub-03",
        "case": "sub-03_ses-2",
    }
    # 5 subjects: 1 for the test, with both sessions
    assert len(content["test"]) == 2 and len({record["patient"] for record in content["test"]}) == 1


def test_what_is_left_over_is_counted(run, source):
    (source / f"{LABELS}_dseg.nii.gz").unlink()
    with (source / "north" / "participants.tsv").open("a") as table:
        table.write("\nsub-77\t40\n")
    summary, _, records = run()
    assert len(records) == 9
    assert "north: left over: 1 images without a mask, 10 other files, T2w (10)" in summary.notes
    assert "north: participants.tsv names 1 subjects without an image that is taken: sub-77" in summary.notes


def test_runs_are_cases_with_the_masks_of_their_entities(run, source):
    for place, name in ((ANAT, "T1w"), (LABELS, "desc-final_dseg")):
        for number in (1, 2):
            save(source / f"{place}_run-{number}_{name}.nii.gz", np.ones((6, 6, 3), np.uint8))
        (source / f"{place}_{name.removeprefix('desc-final_')}.nii.gz").unlink()
    _, _, records = run()
    assert len(records) == 11
    assert records["sub-00_ses-1_run-2_T1w"]["image"].endswith("sub-00_ses-1_run-2_T1w.nii.gz")


@pytest.mark.parametrize(
    ("added", "options", "sentence"),
    [
        (f"{ANAT}_run-2_T1w", {}, "sub-00_ses-1 of site 'north' must have a mask for each of its 2 images"),
        (None, {"image_pattern": "any=T*w,T2=T2w"}, r"sub-00_ses-1 of site 'north' must have one image as T\*w, not 2"),
        (f"{LABELS}_desc-second_dseg", {}, r"sub-00_ses-1 of site 'north' must have one mask as labels/\*dseg, not 2"),
        (None, {"image_pattern": "FLAIR"}, r"site 'north' must have an image as FLAIR with a mask as labels/\*dseg"),
        (None, {"mask_pattern": None}, r"image-pattern and mask-pattern must .* T1w \(20\), T2w \(20\), .*dseg"),
    ],
)
def test_images_and_masks_that_are_no_pairs_are_refused(run, source, added, options, sentence):
    if added:
        save(source / f"{added}.nii.gz", np.ones((6, 6, 3), np.uint8))
    with pytest.raises((ConfigError, DataError), match=sentence):
        run(**options)


def test_a_column_of_sites_divides_one_tree(source, run, tmp_path):
    for member in (source / "south").iterdir():
        member.rename(source / member.name)
    (source / "south").rmdir()
    for path in (source / "north").rglob("*"):
        path.is_file() and path.unlink()
    rows = [f"sub-{number:02}\t{'ab'[number % 2]}" for number in range(SUBJECTS)]
    (source / "participants.tsv").write_text("\n".join(["participant_id\tsite", *rows]))
    summary, _, records = run("site-a")
    assert {record["patient"] for record in records.values()} == {"sub-00", "sub-02", "sub-04"}
    assert summary.patients == {"site-a": 3, "site-b": 2}


def test_a_subject_that_the_table_gives_to_two_sites_is_refused(source, run):
    rows = [f"sub-{number:02}\t{site}" for number in range(SUBJECTS) for site in ("paris", "rome")[: 1 + number]]
    (source / "north" / "participants.tsv").write_text("\n".join(["participant_id\tsite", *rows]))
    for member in (source / "north").iterdir():
        member.rename(source / member.name)
    with pytest.raises(DataError, match="patient 'sub-01' must be at one site, not at 'paris' and 'rome'; correct par"):
        run()


def test_without_a_target_the_kinds_of_files_are_listed(silofl, source):
    code, out, error = silofl("import", "bids", source)
    assert (code, error) == (0, "")
    rows = [re.split(" {2,}", line) for line in out.splitlines()]
    # 5 subjects with 2 sessions
    assert ["north", "images", "T1w", "10", "5", "2"] in rows
    assert ["south", "derivatives", "labels/dseg", "10", "5", "2"] in rows
