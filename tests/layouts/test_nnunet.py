import json
import shutil

import nibabel
import numpy as np
import pytest
import SimpleITK
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl.importing.importers import ImportOptions, import_layout
from silofl.reading.images import read_label
from tests.conftest import records_of

pytestmark = pytest.mark.usefixtures("decoded_here")
AFFINE = np.diag([0.5, 0.5, 3, 1])
SECOND = {"channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "PZ": 1, "TZ": 2}}
SECOND |= {"numTraining": 4, "file_ending": ".nii.gz"}
FIRST = {"modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "background", "1": "PZ", "2": "TZ"}, "numTraining": 4}
CASES = ("prostate_00", "prostate_01", "prostate_02", "prostate_03")


def save(array, path):
    if path.suffix in (".png", ".tif"):
        Image.fromarray(array.astype(np.uint8)).save(path)
    elif path.suffix in (".mha", ".nrrd"):
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array.T), path)
    else:
        nibabel.save(nibabel.Nifti1Image(array, AFFINE), path)


def write_set(folder, description=SECOND, size=(8, 8, 3), numbers=(0, 1, 2), channels=2):
    """Write a data set of four cases as nnU-Net's documentation describes it."""
    rng = np.random.default_rng(len(folder.name))
    ending = description.get("file_ending", ".nii.gz")
    for kind in ("imagesTr", "labelsTr"):
        (folder / kind).mkdir(parents=True)
    for case in CASES:
        for channel in range(channels):
            pixels = rng.integers(0, 250, size, dtype=np.int16)
            save(pixels, folder / "imagesTr" / f"{case}_{channel:04}{ending}")
        save(
            rng.choice(np.int16(numbers), size[:3] if ending not in (".png", ".tif") else size[:2]),
            folder / "labelsTr" / f"{case}{ending}",
        )
    describe(folder, description)
    return folder


def describe(folder, description):
    (folder / "dataset.json").write_text(json.dumps(description))


@pytest.fixture
def source(tmp_path):
    return write_set(tmp_path / "Dataset005_Prostate")


@pytest.fixture
def run(source, tmp_path):
    """Import a source and return the content of a site's dataset.json."""

    def go(place=source, site="Dataset005_Prostate", **options):
        shutil.rmtree(tmp_path / "target", ignore_errors=True)
        import_layout("nnunet", place, tmp_path / "target", ImportOptions(**options))
        return json.loads((tmp_path / "target" / site / "dataset.json").read_text())

    return go


@pytest.fixture
def sites(tmp_path):
    """Write a set for each site, which changes in its description."""

    def write(numbers=(0, 1, 2), **changes):
        for site, changed in changes.items():
            write_set(tmp_path / "sites" / site, SECOND | changed, numbers=numbers)
        return tmp_path / "sites"

    return write


@pytest.fixture
def load(study, tmp_path):
    """Load an imported site in a study of these labels."""

    def go(site="Dataset005_Prostate", names=("T2", "ADC"), labels=None):
        settings = {"channels": 2, "channel_names": [*names], "intensity": "raw", "split_unit": "unknown"}
        wanted = study(labels=labels or {1: "PZ", 2: "TZ"}, **settings)
        return load_site_data(tmp_path / "target" / site, wanted, tmp_path / "cache")

    return go


def voxels_of(path):
    return np.asanyarray(nibabel.load(path).dataobj)


def test_one_set_is_one_site_with_its_contrasts_and_labels(run):
    content = run()
    assert (content["channel_names"], content["labels"]) == (["T2", "ADC"], {"1": "PZ", "2": "TZ"})
    records = records_of(content)
    assert set(records) == set(CASES)
    assert records["prostate_01"] == {
        "image": ["images/prostate_01_0000.nii.gz", "images/prostate_01_0001.nii.gz"],
        "label": "masks/prostate_01.nii.gz",
        "case": "prostate_01",
    }


@pytest.fixture
def listed(source):
    """The same set without its folders: dataset.json lists its files, which lie elsewhere under other names."""
    cases = {}
    for case in CASES:
        moved = source.parent / "archive" / case
        moved.mkdir(parents=True)
        for channel, name in enumerate(("t2", "adc")):
            (source / "imagesTr" / f"{case}_{channel:04}.nii.gz").rename(moved / f"{name}.nii.gz")
        (source / "labelsTr" / f"{case}.nii.gz").rename(moved / "seg.nii.gz")
        own = f"../archive/{case}"
        cases[case] = {
            "images": [f"{own}/t2.nii.gz", str(moved / "adc.nii.gz")],
            "label": f"$ARCHIVE/{case}/seg.nii.gz",
        }
    for kind in ("imagesTr", "labelsTr"):
        (source / kind).rmdir()
    describe(source, SECOND | {"dataset": cases})
    return cases


def test_files_that_dataset_json_lists_are_those_in_the_folders(run, tmp_path, source, monkeypatch, request):
    (source / "patients.csv").write_text("\n".join(["file,patient", *(f"{case},{case}" for case in CASES)]))
    whole = run()
    shutil.move(tmp_path / "target", tmp_path / "whole")
    request.getfixturevalue("listed")
    monkeypatch.setenv("ARCHIVE", str(tmp_path / "archive"))
    assert run() == whole and whole["split_unit"] == "patient"
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.nii.gz"))
    assert len(files) == 12
    for file in files:
        assert (tmp_path / "target" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


NO_LIST = "dataset in dataset.json of site '.*' must list"
OUTSIDE = {"../a": {"images": ["a.nii.gz"], "label": "a.nii.gz"}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"label": "../archive/no.nii.gz"},
            "dataset.json of site '.*' must list files that are there, not .*no.nii.gz",
        ),
        ({"label": None}, f"{NO_LIST} each case as .*, not 'prostate_00'"),
        *(({"images": images}, "with up to 2 images") for images in ([], ["a.nii.gz"] * 3)),
        ({"images": ["a.mha"]}, "paths that end in .nii.gz, not 'prostate_00'"),
        # Without cases, and with one that leaves its folder.
        ({}, NO_LIST),
        (OUTSIDE, NO_LIST),
    ],
)
def test_a_list_of_files_that_is_none_is_refused(run, source, listed, change, sentence):
    cases = change if change in ({}, OUTSIDE) else listed | {CASES[0]: listed[CASES[0]] | change}
    describe(source, SECOND | {"dataset": cases})
    with pytest.raises(DataError, match=sentence):
        run()


def test_a_study_that_names_the_contrasts_loads_the_site(run, source, load):
    run()
    data = load(names=("ADC", "T2"))
    # 4 cases: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation, 2 training; 3 slices each
    assert (len(data.training), len(data.validation), len(data.test)) == (6, 3, 3)
    case = data.test.cases[0]
    stored = [voxels_of(source / "imagesTr" / f"{case}_000{n}.nii.gz") for n in (1, 0)]
    np.testing.assert_array_equal(data.test.images[2], np.stack(stored)[..., 2])
    np.testing.assert_array_equal(data.test.targets[2], voxels_of(source / "labelsTr" / f"{case}.nii.gz")[..., 2])


def test_what_nobody_annotated_keeps_its_number_and_is_ignored(run, source, load):
    describe(source, SECOND | {"labels": {"background": 0, "PZ": 1, "ignore": 2}})
    content = run()
    assert content["labels"] == {"1": "PZ"} and content["ignore"] == 2 and "labels_annotated" not in content
    data = load(labels={1: "PZ"})
    mask = voxels_of(source / "labelsTr" / f"{data.test.cases[0]}.nii.gz")
    np.testing.assert_array_equal(data.test.targets[1], np.where(mask == 2, IGNORED, mask)[..., 1])
    assert data.training.has_ignored and data.test.has_ignored


def test_what_nobody_annotated_gets_a_number_that_is_no_label_at_another_site(run, sites, tmp_path):
    place = sites(north={}, south={"labels": {"PZ": 1, "ignore": 2}})
    assert "ignore" not in run(place, "north")
    content = run(place, "south")
    # 2 is TZ in the north.
    assert content["ignore"] == 255 and content["labels_annotated"] == [1]
    mask = voxels_of(place / "south" / "labelsTr" / f"{CASES[0]}.nii.gz")
    written = voxels_of(tmp_path / "target" / "south" / "masks" / f"{CASES[0]}.nii.gz")
    np.testing.assert_array_equal(written, np.where(mask == 2, 255, mask))


def test_regions_become_labels_and_their_unions(run, source):
    # As BraTS in nnU-Net's form, in which 3 is the enhancing tumour.
    labels = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}
    describe(source, SECOND | {"labels": labels, "regions_class_order": [1, 2, 3]})
    content = run()
    assert content["labels"] == {"1": "whole 1", "2": "core 2", "3": "enhancing"}
    assert content["regions"] == {"whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}


def test_regions_are_the_same_at_all_sites_whatever_their_numbers(run, sites):
    south = {"labels": {"whole": [1, 4], "core": 4}}
    place = sites((0, 1), north={"labels": {"whole": [1, 2], "core": 2}}, south=south)
    for site in ("north", "south"):
        content = run(place, site)
        assert content["labels"] == {"1": "whole 1", "2": "core"}
        assert content["regions"] == {"whole": [1, 2], "core": [2]}
    describe(place / "south", SECOND | {"labels": {"whole": [1, 2, 4], "core": 4}})
    with pytest.raises(DataError, match="site 'south' must have the labels of other sites in the region 'whole'"):
        run(place, "south")


def test_plans_of_nnunet_are_named_as_not_read(source, tmp_path):
    (source / "nnUNetResEncUNetLPlans.json").write_text("{}")
    note, *_ = import_layout("nnunet", source, tmp_path / "target").notes
    assert "nnUNetResEncUNetLPlans.json is not read" in note and "cascade" in note and "residual" in note


@pytest.mark.parametrize("ending", [".mha", ".nrrd", ".tif"])
def test_the_other_endings_of_nnunet_are_read(run, tmp_path, load, ending):
    size = (8, 8, 3) if ending != ".tif" else (8, 8)
    place = write_set(tmp_path / "sets" / "north", SECOND | {"file_ending": ending}, size)
    assert records_of(run(place, "north"))["prostate_01"]["label"].startswith("masks/prostate_01.")
    data = load("north")
    label = read_label(place / "labelsTr" / f"{data.test.cases[0]}{ending}").array[0]
    np.testing.assert_array_equal(data.test.targets[0], label[..., 0] if ending != ".tif" else label)


def test_both_versions_say_the_same_and_so_does_a_name_in_place_of_a_list(run, source):
    second = run()
    describe(source, SECOND | {"dataset": "Prostate"})
    assert run() == second
    describe(source, FIRST)
    # Hidden files and the images for a test are left out.
    (source / "imagesTr" / "._prostate_00_0000.nii.gz").touch()
    (source / "imagesTs").mkdir()
    (source / "imagesTs" / "prostate_09_0000.nii.gz").touch()
    assert run() == second


@pytest.fixture
def notes_of(sites, tmp_path):
    """Import sites by the names of their labels, and return what the import says of these names."""

    def go(names, **options):
        described = {site: {"labels": {name: n for n, name in enumerate(given, 1)}} for site, given in names.items()}
        notes = import_layout("nnunet", sites((0, 1), **described), tmp_path / "target", ImportOptions(**options)).notes
        assert not any("LABEL NAMES" in note for note in notes[1:])
        return notes[0]

    return go


ONE_NAME = "where they are one, give it one name in dataset.json of nnU-Net at all sites and import again"


@pytest.mark.parametrize("other", ["Tumour", " tumor", "TUMOR", "tumors"])
def test_a_mistyped_label_is_said_aloud_with_both_names_and_their_sites(notes_of, other):
    note = notes_of({"east": ["liver", "tumor"], "north": ["liver", other], "west": [other]})
    assert note == (
        f"LABEL NAMES NEARLY EQUAL: 'tumor' (east) and {other!r} (north, west) count as different labels, which nobody "
        f"drew at the other's sites; {ONE_NAME}"
    )


@pytest.mark.parametrize(
    ("east", "west", "labels"),
    [
        (["kidney left"], ["kidney right"], None),
        (["tumor"], ["tumor core"], None),
        # Who has both knows that they are two, and who names the labels has seen their names.
        (["lobe 1", "lobe 2"], ["lobe 2"], None),
        (["tumor"], ["tumour"], ("tumor", "tumour")),
    ],
)
def test_labels_that_are_two_are_not_said_to_be_nearly_one(notes_of, east, west, labels):
    assert notes_of({"east": east, "west": west}, labels=labels).startswith("PATIENTS UNKNOWN")


def test_a_contrast_that_sites_write_differently_is_said_aloud(sites, tmp_path):
    place = sites(east={}, west={"channel_names": {"0": "ADC", "1": "t2"}})
    note, *_ = import_layout("nnunet", place, tmp_path / "target", ImportOptions()).notes
    assert note == (
        "CONTRAST NAMES NEARLY EQUAL: 'T2' (east) and 't2' (west) count as different contrasts, of which networks see "
        f"zeros at the other's sites; {ONE_NAME}"
    )


def test_names_may_be_given_in_the_order_of_the_labels_numbers(run, source):
    describe(source, SECOND | {"labels": {"TZ": 2, "background": 0, "PZ": 1}})
    assert run(labels=("outer", "inner"))["labels"] == {"1": "outer", "2": "inner"}
    with pytest.raises(ConfigError, match="labels must name 2 labels, instead of PZ, TZ, not 1"):
        run(labels=("prostate",))


def test_patients_come_from_the_table_and_are_called_unknown_without_one(run, source, tmp_path):
    (note,) = import_layout("nnunet", source, tmp_path / "other").notes
    assert note.startswith("PATIENTS UNKNOWN: no patients.csv says whose the 4 images are (Dataset005_Prostate 4)")
    rows = [f"{case},p{place // 2}" for place, case in enumerate(CASES)]
    (source / "patients.csv").write_text("\n".join(["file,patient", *rows]))
    content = run()
    assert content["split_unit"] == "patient"
    patients = {case: record["patient"] for case, record in records_of(content).items()}
    assert patients == dict(zip(CASES, ("p0", "p0", "p1", "p1"), strict=True))


def test_pictures_in_colours_are_one_image_without_contrasts(run, tmp_path, study):
    colours = SECOND | {"channel_names": {"0": "R", "1": "G", "2": "B"}, "file_ending": ".png"}
    write_set(tmp_path / "png" / "site", colours, size=(8, 8, 3), channels=1)
    content = run(tmp_path / "png", "site")
    assert "channel_names" not in content
    assert records_of(content)[CASES[0]]["image"] == f"images/{CASES[0]}_0000.png"
    wanted = study(labels={1: "PZ", 2: "TZ"}, channels=3, split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "site", wanted, tmp_path / "cache")
    assert data.training.images.shape[1:] == (3, 8, 8)


def test_one_contrast_keeps_its_name(run, source):
    for path in (source / "imagesTr").glob("*_0001.nii.gz"):
        path.unlink()
    describe(source, SECOND | {"channel_names": {"0": "CT"}})
    content = run()
    assert content["channel_names"] == ["CT"]
    assert records_of(content)[CASES[0]]["image"] == f"images/{CASES[0]}_0000.nii.gz"


OWN_NUMBERS = "labels in .* must be names with a number of its own each"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": {"PZ": 1, "ignore": [2, 3]}}, "labels in .* must have one number as 'ignore', not .2, 3."),
        ({"labels": {"PZ": 1, "ignore": 1}}, OWN_NUMBERS),
        ({"labels": {"PZ": [1, 2], "ignore": 2}}, OWN_NUMBERS),
        ({"labels": {"background": 0}}, OWN_NUMBERS),
        ({"labels": {"PZ": 1, "TZ": 1}}, OWN_NUMBERS),
        ({"labels": ["PZ", "TZ"]}, OWN_NUMBERS),
        ({"labels": {"PZ": [0, 2]}}, "a list of numbers from 1, not 'PZ': .0, 2."),
        ({"labels": {"PZ": []}}, "a list of numbers from 1, not 'PZ': "),
        ({"labels": {"PZ": [1, "2"]}}, "a list of numbers from 1, not 'PZ': "),
        ({"labels": {"PZ": "one"}}, "labels in .* must be a number from 0 each, .*, not 'PZ': 'one'"),
        ({"labels": {"PZ": -1}}, "labels in .* must be a number from 0 each, .*, not 'PZ': -1"),
        ({"labels": {"PZ": True}}, "labels in .* must be a number from 0 each, .*, not 'PZ': True"),
        ({"labels": {"PZ": 1 << 40}}, "labels in .* must be a number from 0 each, .*, not 'PZ': 1099"),
        ({"channel_names": {"0": "T2", "2": "ADC"}}, 'channel_names in .* must be as {"0": "T1", "1": "T2"}, not'),
        ({"channel_names": ["T2", "ADC"]}, "channel_names in .* must be as"),
        ({"channel_names": {"0": "zscore", "1": "zscore"}}, "contrast a name of its own.*'zscore' twice"),
        ({"channel_names": {"0": "T2", "1": "T2/FLAIR"}}, "must give each contrast a name of its own.* not 'T2/FLAIR'"),
        ({"file_ending": ".bmp"}, "file_ending in .* must be one of .png, .*, not '.bmp'"),
        ({"file_ending": [".png"]}, "file_ending in .* must be one of .png"),
    ],
)
def test_a_description_that_no_study_can_follow_is_refused(run, source, changes, sentence):
    describe(source, SECOND | changes)
    with pytest.raises((ConfigError, DataError), match=sentence):
        run()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("imagesTr/prostate_02_0001.nii.gz", "must have .*_0001.nii.gz .ADC. .* missing of prostate_02"),
        ("labelsTr/prostate_02.nii.gz", "must have masks for prostate_02"),
        ("dataset.json", "must have dataset.json, imagesTr, labelsTr of nnU-Net; dataset.json missing"),
    ],
)
def test_a_missing_file_is_refused(run, source, name, sentence):
    (source / name).unlink()
    with pytest.raises(DataError, match=f"site 'Dataset005_Prostate' {sentence}"):
        run()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("imagesTr/BRATS_001.nii.gz", "{case}_0000.nii.gz to {case}_0001.nii.gz, one contrast"),
        ("imagesTr/prostate_00_0002.nii.gz", "{case}_0000.nii.gz to {case}_0001.nii.gz, one contrast a file"),
        ("imagesTr/prostate_00_0000.nii", "{case}_0000.nii.gz to {case}_0001.nii.gz, one contrast a file"),
        ("labelsTr/prostate_00.mha", "{case}.nii.gz; rename or remove it"),
    ],
)
def test_a_file_of_another_name_is_refused_rather_than_left_out(run, source, name, wanted):
    (source / name).touch()
    with pytest.raises(DataError, match=f"site 'Dataset005_Prostate': {name} must be named as {wanted}"):
        run()


def test_a_value_that_dataset_json_does_not_name_is_refused(run, source):
    save(np.full((8, 8, 3), 3, np.int16), source / "labelsTr" / "prostate_02.nii.gz")
    sentence = "labelsTr/prostate_02.nii.gz must hold the label values .*, 2 .TZ., not 3; correct the mask, or labels"
    with pytest.raises(DataError, match=f"site 'Dataset005_Prostate': {sentence}"):
        run()


@pytest.mark.parametrize(
    ("labels", "at_south", "written", "renumbered", "annotated"),
    [
        # South has the same labels by other numbers.
        (None, {"TZ": 1, "PZ": 2}, ["PZ", "TZ"], [0, 2, 1], None),
        (None, {"TZ": 1}, ["PZ", "TZ"], [0, 2], [2]),
        (None, {"lesion": 1, "PZ": 2}, ["PZ", "TZ", "lesion"], [0, 3, 1], [1, 3]),
        (("lesion", "TZ", "PZ"), {"TZ": 1}, ["lesion", "TZ", "PZ"], [0, 2], [2]),
        (("TZ", "PZ"), {"TZ": 1, "PZ": 2}, ["TZ", "PZ"], [0, 1, 2], None),
        (("outer", "inner"), {"TZ": 1}, ["outer", "inner"], [0, 2], [2]),
    ],
)
def test_sites_labels_are_joined_by_name(run, sites, load, tmp_path, labels, at_south, written, renumbered, annotated):
    place = sites(tuple(range(len(renumbered))), north={}, south={"labels": {"background": 0} | at_south})
    content = run(place, "south", labels=labels)
    assert [*content["labels"].values()] == written and content.get("labels_annotated") == annotated
    for case in CASES:
        before = voxels_of(place / "south" / "labelsTr" / f"{case}.nii.gz")
        after = voxels_of(tmp_path / "target" / "south" / "masks" / f"{case}.nii.gz")
        np.testing.assert_array_equal(after, np.take(renumbered, before))
    assert load("south", labels=content["labels"]).training.annotated == (annotated and tuple(annotated))
    assert run(place, "north", labels=labels)["labels"] == content["labels"]


def test_the_import_says_which_labels_a_site_did_not_draw(sites, tmp_path):
    place = sites((0, 1), north={}, south={"labels": {"background": 0, "tz": 1}})
    notes = import_layout("nnunet", place, tmp_path / "target", ImportOptions()).notes
    assert "south: nobody drew PZ, TZ; labels_annotated in dataset.json says so" in notes
    assert "north: nobody drew tz; labels_annotated in dataset.json says so" in notes


def test_values_in_labels_are_refused_because_dataset_json_has_them(run):
    with pytest.raises(ConfigError, match="values in labels must not be given with layout 'nnunet'"):
        run(labels=("PZ", "TZ"), label_values=(1, 2))
