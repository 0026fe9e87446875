import json
import shutil

import nibabel
import numpy as np
import pytest

from silofl.base.errors import ConfigError, DataError
from silofl.data.site_data import load_site_data
from silofl.importing.importers import ImportOptions, import_layout
from tests.conftest import records_of

pytestmark = pytest.mark.usefixtures("decoded_here")
AFFINE = np.diag([-1.0, -1, 1, 1])
SIZE = (6, 6, 3)
CONTRASTS = {"_": ("t1", "t1ce", "t2", "flair"), "-": ("t1n", "t1c", "t2w", "t2f")}
LABELS = {1: "necrotic core", 2: "oedema", 3: "enhancing tumour"}


def write_case(folder, separator="_", size=SIZE):
    """Write a case as BraTS ships it, in the form of 2021 (_) or of 2023 (-)."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([*folder.name.encode()])
    for name in CONTRASTS[separator]:
        volume = nibabel.Nifti1Image(rng.integers(0, 900, size, dtype=np.int16), AFFINE)
        nibabel.save(volume, folder / f"{folder.name}{separator}{name}.nii.gz")
    mask = rng.choice(np.uint8([0, 1, 2, 4 if separator == "_" else 3]), size)
    nibabel.save(nibabel.Nifti1Image(mask, AFFINE), folder / f"{folder.name}{separator}seg.nii.gz")


@pytest.fixture
def source(tmp_path):
    """Two sites of three cases each in the form of 2021."""
    for number in range(6):
        write_case(tmp_path / "source" / ("north" if number < 3 else "south") / f"BraTS2021_{number:05}")
    return tmp_path / "source"


@pytest.fixture
def newer(tmp_path):
    """Two sites of three patients with two scans each in the form of 2023."""
    for first, site in ((0, "north"), (3, "south")):
        for number in range(first, first + 3):
            for scan in range(2):
                write_case(tmp_path / "newer" / site / f"BraTS-GLI-{number:05}-{scan:03}", "-")
    return tmp_path / "newer"


@pytest.fixture
def institutions(tmp_path):
    """Eight cases of FeTS beside the table of their institutions, which names one more."""
    for number in range(8):
        write_case(tmp_path / "fets" / f"FeTS2022_{number:05}")
    rows = [f"{2 if number % 2 else 10},FeTS2022_{number:05}" for number in range(9)]
    (tmp_path / "fets" / "partitioning_1.csv").write_text("\n".join(["Partition_ID,Subject_ID", *rows]))
    return tmp_path / "fets"


@pytest.fixture
def run(tmp_path):
    """Import a source and return the summary and the dataset.json of each site."""

    def go(source, **options):
        summary = import_layout("brats", source, tmp_path / "target", ImportOptions(**options))
        contents = (tmp_path / "target" / site / "dataset.json" for site in summary.examples)
        return summary, {path.parent.name: json.loads(path.read_text()) for path in contents}

    return go


def stored(path):
    return np.asanyarray(nibabel.load(path).dataobj)


def test_a_case_is_a_patient_with_four_contrasts_and_three_labels(run, source):
    summary, contents = run(source)
    # of 3: round(3 * 0.2) = 1 test, round(2 * 0.2) = 0 but at least 1 validation
    assert summary.examples == {site: {"training": 1, "validation": 1, "test": 1} for site in ("north", "south")}
    assert (summary.patients, summary.notes) == ({"north": 3, "south": 3}, ())
    content = contents["south"]
    assert content["channel_names"] == ["T1", "T1Gd", "T2", "FLAIR"]
    assert content["labels"] == {str(number): name for number, name in LABELS.items()}
    # Whole tumour, tumour core and enhancing tumour; 1 is the necrotic core, 2 the oedema.
    assert content["regions"] == {"WT": [1, 2, 3], "TC": [1, 3], "ET": [3]}
    case = "BraTS2021_00004"
    assert records_of(content)[case] == {
        "image": [f"images/{case}/{case}_{name}.nii.gz" for name in ("t1", "t1ce", "t2", "flair")],
        "label": f"masks/{case}.nii.gz",
        "patient": case,
        "case": case,
    }


@pytest.mark.parametrize("form", ["source", "newer"])
def test_a_study_that_names_the_contrasts_loads_a_site(run, request, study, tmp_path, form):
    source, separator = request.getfixturevalue(form), "_" if form == "source" else "-"
    run(source)
    names = ["FLAIR", "T1", "T1Gd", "T2"]
    wanted = study(labels=LABELS, channels=4, channel_names=names, intensity="raw")
    data = load_site_data(tmp_path / "target" / "north", wanted, tmp_path / "cache")
    case = data.test.cases[0]
    t1, t1gd, t2, flair = (
        stored(source / "north" / case / f"{case}{separator}{name}.nii.gz") for name in CONTRASTS[separator]
    )
    np.testing.assert_array_equal(data.test.images[1], np.stack([flair, t1, t1gd, t2])[..., 1])
    mask = stored(source / "north" / case / f"{case}{separator}seg.nii.gz")
    # the enhancing tumour is 4 in 2021
    np.testing.assert_array_equal(data.test.targets[1], np.where(mask == 4, 3, mask)[..., 1])
    assert {1, 2, 3} <= {*np.unique(data.training.targets)}


def test_all_time_points_of_a_patient_come_into_one_part(run, newer):
    summary, contents = run(newer)
    assert summary.patients == {"north": 3, "south": 3}
    for content in contents.values():
        for part in ("training", "validation", "test"):
            # one patient with both scans
            assert [record["case"][-3:] for record in content[part]] == ["000", "001"]
            assert len({record["patient"] for record in content[part]}) == 1
    assert records_of(contents["north"])["BraTS-GLI-00001-000"]["patient"] == "BraTS-GLI-00001"


def test_the_table_of_fets_says_which_institution_a_case_is_from(run, institutions):
    summary, contents = run(institutions)
    # in the order of the institutions' numbers
    assert list(summary.patients.items()) == [("site-2", 4), ("site-10", 4)]
    assert set(records_of(contents["site-2"])) == {f"FeTS2022_{number:05}" for number in (1, 3, 5, 7)}
    assert summary.notes == ("cases of partitioning_1.csv that have no folder are left out: 1",)
    assert contents["site-2"]["labels"]["3"] == "enhancing tumour"


def test_a_contrast_that_a_case_lacks_is_counted(run, source):
    (source / "north" / "BraTS2021_00001" / "BraTS2021_00001_flair.nii.gz").unlink()
    summary, contents = run(source)
    assert summary.notes == (
        "north: 1 of 3 cases have no FLAIR; dataset.json has null there, for which networks see zeros",
    )
    assert records_of(contents["north"])["BraTS2021_00001"]["image"][3] is None


def test_labels_may_have_other_names(run, source):
    with pytest.raises(ConfigError, match="labels must name 3 labels, instead of necrotic core, oedema,.* not 1"):
        run(source, labels=("tumour",))
    assert run(source, labels=("NCR", "ED", "ET"))[1]["north"]["labels"] == {"1": "NCR", "2": "ED", "3": "ET"}


@pytest.mark.parametrize(("form", "value"), [("source", 3), ("newer", 4)])
def test_a_value_of_the_other_form_is_refused(run, request, form, value):
    source = request.getfixturevalue(form)
    mask = next((source / "north").glob("*00002*/*seg.nii.gz"))
    nibabel.save(nibabel.Nifti1Image(np.full(SIZE, value, np.uint8), AFFINE), mask)
    sentence = f"{mask.parent.name}/{mask.name} must hold the label values 0 .*, not {value}; download it"
    with pytest.raises(DataError, match=f"site 'north': {sentence}"):
        run(source)


def test_a_case_without_a_mask_cases_without_a_site_and_those_of_both_forms_are_refused(run, source):
    write_case(source / "south" / "BraTS-GLI-00000-000", "-")
    with pytest.raises(DataError, match="must hold cases in the form of one year, not of 2021 and 2023, which may be"):
        run(source)
    shutil.rmtree(source / "south" / "BraTS-GLI-00000-000")
    (source / "north" / "BraTS2021_00001" / "BraTS2021_00001_seg.nii.gz").unlink()
    with pytest.raises(DataError, match="site 'north' must have masks for BraTS2021_00001"):
        run(source)
    with pytest.raises(DataError, match="north must hold a folder for each site.* partitioning_1.csv"):
        run(source / "north")


@pytest.mark.parametrize("name", ["notes", "BraTS2021_00099"])
def test_a_folder_that_holds_no_case_is_refused_rather_than_left_out(run, source, name):
    (source / "north" / name).mkdir()
    (source / "north" / name / "BraTS2021_00042_t1.nii.gz").touch()
    sentence = f"north must hold folders of cases alone, with files as {name}/{name}_t1.nii.gz, not {name}; remove"
    with pytest.raises(DataError, match=sentence):
        run(source)


@pytest.mark.parametrize(("form", "name"), [("source", "BraTS2021_00002"), ("newer", "BraTS-GLI-00002-007")])
def test_a_patient_at_two_sites_is_refused(run, request, form, name):
    source = request.getfixturevalue(form)
    write_case(source / "south" / name, "_" if form == "source" else "-")
    patient = name.removesuffix("-007")
    with pytest.raises(DataError, match=f"patient '{patient}' must be at one site, not at 'north' and 'south'"):
        run(source)


HEAD = "Partition_ID,Subject_ID"
TWO_OF_ONE = [f"{site},FeTS2022_{number:05}" for number in range(8) for site in (1, 1 + number // 7)]
ALONE = [f"{1 if number else 3},FeTS2022_{number:05}" for number in range(8)]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([HEAD, "1,FeTS2022_00000"], "partitioning_1.csv must name the Partition_ID of FeTS2022_00001"),
        (["Partition,Subject_ID", "1,x"], "partitioning_1.csv must have the columns Subject_ID and Partition_ID"),
        ([HEAD, *TWO_OF_ONE], "partitioning_1.csv must name one Partition_ID of FeTS2022_00007, not 1, 2; correct"),
        ([HEAD, *ALONE], "site 'site-3' must have at least 2 patients"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(run, institutions, rows, sentence):
    (institutions / "partitioning_1.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=sentence):
        run(institutions)
