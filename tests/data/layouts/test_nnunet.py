import json
import shutil

import nibabel
import numpy as np
import pytest
import SimpleITK
from PIL import Image

from silofl.data.images import read_label
from silofl.data.importers import ImportOptions, import_layout
from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl.errors import ConfigError, DataError

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


def records_of(content):
    return {record["case"]: record for part in ("training", "validation", "test") for record in content[part]}


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


def test_a_study_that_names_the_contrasts_loads_the_site(run, source, study, tmp_path):
    run()
    wanted = study(
        labels={1: "PZ", 2: "TZ"}, channels=2, channel_names=["ADC", "T2"], intensity="raw", split_unit="unknown"
    )
    data = load_site_data(tmp_path / "target" / source.name, wanted, tmp_path / "cache")
    # 4 cases: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation, 2 training; 3 slices each
    assert (len(data.training), len(data.validation), len(data.test)) == (6, 3, 3)
    case = data.test.cases[0]
    stored = [np.asanyarray(nibabel.load(source / "imagesTr" / f"{case}_000{n}.nii.gz").dataobj) for n in (1, 0)]
    np.testing.assert_array_equal(data.test.images[2], np.stack(stored)[..., 2])
    mask = np.asanyarray(nibabel.load(source / "labelsTr" / f"{case}.nii.gz").dataobj)
    np.testing.assert_array_equal(data.test.targets[2], mask[..., 2])


def test_what_nobody_annotated_keeps_its_number_and_is_ignored(run, source, study, tmp_path):
    describe(source, SECOND | {"labels": {"background": 0, "PZ": 1, "ignore": 2}})
    content = run()
    assert content["labels"] == {"1": "PZ"} and content["ignore"] == 2 and "labels_annotated" not in content
    wanted = study(labels={1: "PZ"}, channels=2, channel_names=["T2", "ADC"], intensity="raw", split_unit="unknown")
    data = load_site_data(tmp_path / "target" / source.name, wanted, tmp_path / "cache")
    mask = np.asanyarray(nibabel.load(source / "labelsTr" / f"{data.test.cases[0]}.nii.gz").dataobj)
    np.testing.assert_array_equal(data.test.targets[1], np.where(mask == 2, IGNORED, mask)[..., 1])
    assert data.training.has_ignored and data.test.has_ignored


def test_what_nobody_annotated_gets_a_number_that_is_no_label_at_another_site(run, tmp_path):
    write_set(tmp_path / "sites" / "north", SECOND)
    write_set(tmp_path / "sites" / "south", SECOND | {"labels": {"PZ": 1, "ignore": 2}})
    assert "ignore" not in run(tmp_path / "sites", "north")
    content = run(tmp_path / "sites", "south")
    # 2 is TZ in the north.
    assert content["ignore"] == 255 and content["labels_annotated"] == [1]
    written = nibabel.load(tmp_path / "target" / "south" / "masks" / f"{CASES[0]}.nii.gz")
    original = nibabel.load(tmp_path / "sites" / "south" / "labelsTr" / f"{CASES[0]}.nii.gz")
    mask = np.asanyarray(original.dataobj)
    np.testing.assert_array_equal(np.asanyarray(written.dataobj), np.where(mask == 2, 255, mask))


def test_regions_become_labels_and_their_unions(run, source):
    # As BraTS in nnU-Net's form, in which 3 is the enhancing tumour.
    labels = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}
    describe(source, SECOND | {"labels": labels, "regions_class_order": [1, 2, 3]})
    content = run()
    assert content["labels"] == {"1": "whole 1", "2": "core 2", "3": "enhancing"}
    assert content["regions"] == {"whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}


def test_regions_are_the_same_at_all_sites_whatever_their_numbers(run, tmp_path):
    write_set(tmp_path / "sites" / "north", SECOND | {"labels": {"whole": [1, 2], "core": 2}})
    south = write_set(
        tmp_path / "sites" / "south", SECOND | {"labels": {"whole": [1, 4], "core": 4}}, numbers=(0, 1, 4)
    )
    with pytest.raises(DataError, match="site 'south' must have the labels of other sites in the region 'whole'"):
        describe(south, SECOND | {"labels": {"whole": [1, 2, 4], "core": 4}})
        run(tmp_path / "sites", "south")
    describe(south, SECOND | {"labels": {"whole": [1, 4], "core": 4}})
    for site in ("north", "south"):
        content = run(tmp_path / "sites", site)
        assert content["labels"] == {"1": "whole 1", "2": "core"}
        assert content["regions"] == {"whole": [1, 2], "core": [2]}


def test_plans_of_nnunet_are_named_as_not_read(source, tmp_path):
    (source / "nnUNetResEncUNetLPlans.json").write_text("{}")
    note, *_ = import_layout("nnunet", source, tmp_path / "target").notes
    assert "nnUNetResEncUNetLPlans.json is not read" in note and "cascade" in note and "residual" in note


@pytest.mark.parametrize("ending", [".mha", ".nrrd", ".tif"])
def test_the_other_endings_of_nnunet_are_read(run, tmp_path, study, ending):
    size = (8, 8, 3) if ending != ".tif" else (8, 8)
    place = write_set(tmp_path / "sets" / "north", SECOND | {"file_ending": ending}, size)
    assert records_of(run(place, "north"))["prostate_01"]["label"].startswith("masks/prostate_01.")
    wanted = study(
        labels={1: "PZ", 2: "TZ"}, channels=2, channel_names=["T2", "ADC"], intensity="raw", split_unit="unknown"
    )
    data = load_site_data(tmp_path / "target" / "north", wanted, tmp_path / "cache")
    label = read_label(place / "labelsTr" / f"{data.test.cases[0]}{ending}").array[0]
    np.testing.assert_array_equal(data.test.targets[0], label[..., 0] if ending != ".tif" else label)


def test_a_volume_as_tif_is_refused_with_the_way_to_save_it(run, tmp_path):
    place = write_set(tmp_path / "sets" / "north", SECOND | {"file_ending": ".tif"}, (8, 8))
    for path in [*place.rglob("*.tif")]:
        page = Image.open(path).copy()
        page.save(path, save_all=True, append_images=[page] * 2)
    with pytest.raises(DataError, match="prostate_00.* must hold one picture, not 3; .* a volume as .nii.gz"):
        run(place, "north")


def test_both_versions_say_the_same(run, source):
    second = run()
    describe(source, FIRST)
    assert run() == second


def test_a_folder_with_a_set_for_each_site(run, tmp_path):
    for site, numbers in (("north", (0, 1, 2)), ("south", (0, 1, 5))):
        labels = {"background": 0, "PZ": 1, "TZ": numbers[2]}
        write_set(tmp_path / "sites" / site, SECOND | {"labels": labels}, numbers=numbers)
    for site in ("north", "south"):
        assert run(tmp_path / "sites", site)["labels"] == {"1": "PZ", "2": "TZ"}
    written = nibabel.load(tmp_path / "target" / "south" / "masks" / f"{CASES[0]}.nii.gz")
    original = nibabel.load(tmp_path / "sites" / "south" / "labelsTr" / f"{CASES[0]}.nii.gz")
    # 5 is TZ, label 2
    mask = np.asanyarray(original.dataobj)
    np.testing.assert_array_equal(np.asanyarray(written.dataobj), np.where(mask == 5, 2, mask))


@pytest.fixture
def notes_of(tmp_path):
    """Import sites by the names of their labels, and return what the import says of these names."""

    def go(sites, **options):
        for site, names in sites.items():
            numbers = {name: number for number, name in enumerate(names, start=1)}
            described = SECOND | {"labels": {"background": 0} | numbers}
            write_set(tmp_path / "sites" / site, described, numbers=range(len(names) + 1))
        notes = import_layout("nnunet", tmp_path / "sites", tmp_path / "target", ImportOptions(**options)).notes
        assert not any("LABEL NAMES" in note for note in notes[1:])
        return notes[0]

    return go


@pytest.mark.parametrize("other", ["Tumour", "tumour", " tumor", "TUMOR", "tumors"])
def test_a_mistyped_label_is_said_aloud_with_both_names_and_their_sites(notes_of, other):
    note = notes_of({"east": ["liver", "tumor"], "north": ["liver", other], "west": [other]})
    assert note == (
        f"LABEL NAMES NEARLY EQUAL: 'tumor' (east) and {other!r} (north, west) count as different labels, which nobody "
        "drew at the other's sites; where they are one, give it one name in dataset.json of nnU-Net at all sites and "
        "import again"
    )


@pytest.mark.parametrize(
    ("east", "west"),
    [
        (["liver"], ["spleen"]),
        (["kidney left"], ["kidney right"]),
        (["tumor"], ["tumor core"]),
        # Who has both knows that they are two.
        (["lobe 1", "lobe 2"], ["lobe 2"]),
    ],
)
def test_labels_that_are_two_are_not_said_to_be_nearly_one(notes_of, east, west):
    assert notes_of({"east": east, "west": west}).startswith("PATIENTS UNKNOWN")


def test_a_contrast_that_sites_write_differently_is_said_aloud(tmp_path):
    for site, names in {"east": ("T2", "ADC"), "west": ("ADC", "t2")}.items():
        write_set(tmp_path / "sites" / site, SECOND | {"channel_names": dict(zip("01", names, strict=True))})
    notes = import_layout("nnunet", tmp_path / "sites", tmp_path / "target", ImportOptions()).notes
    assert notes[0] == (
        "CONTRAST NAMES NEARLY EQUAL: 'T2' (east) and 't2' (west) count as different contrasts, of which networks see "
        "zeros at the other's sites; where they are one, give it one name in dataset.json of nnU-Net at all sites and "
        "import again"
    )


def test_who_names_the_labels_has_seen_their_names(notes_of):
    note = notes_of({"east": ["tumor"], "west": ["tumour"]}, labels=("tumor", "tumour"))
    assert note.startswith("PATIENTS UNKNOWN")


def test_names_may_be_given_in_the_order_of_the_labels_numbers(run, source):
    describe(source, SECOND | {"labels": {"TZ": 2, "background": 0, "PZ": 1}})
    assert run(labels=("outer", "inner"))["labels"] == {"1": "outer", "2": "inner"}
    with pytest.raises(ConfigError, match="labels must name 2 labels, instead of PZ, TZ, not 1"):
        run(labels=("prostate",))


def test_patients_come_from_the_table_and_are_called_unknown_without_one(run, source, tmp_path):
    summary = import_layout("nnunet", source, tmp_path / "other")
    (note,) = summary.notes
    assert note.startswith("PATIENTS UNKNOWN: no patients.csv says whose the 4 images are (Dataset005_Prostate 4)")
    rows = [f"{case},p{place // 2}" for place, case in enumerate(CASES)]
    (source / "patients.csv").write_text("\n".join(["file,patient", *rows]))
    content = run()
    assert content["split_unit"] == "patient"
    assert {case: record["patient"] for case, record in records_of(content).items()} == {
        "prostate_00": "p0",
        "prostate_01": "p0",
        "prostate_02": "p1",
        "prostate_03": "p1",
    }


def test_volumes_of_other_forms_are_read(run, tmp_path):
    write_set(tmp_path / "mha" / "site", SECOND | {"file_ending": ".mha"})
    assert records_of(run(tmp_path / "mha", "site"))[CASES[0]]["label"] == f"masks/{CASES[0]}.mha"


def test_pictures_in_colours_are_one_image_without_contrasts(run, tmp_path, study):
    colours = SECOND | {"channel_names": {"0": "R", "1": "G", "2": "B"}, "file_ending": ".png"}
    write_set(tmp_path / "png" / "site", colours, size=(8, 8, 3), channels=1)
    content = run(tmp_path / "png", "site")
    assert "channel_names" not in content
    assert records_of(content)[CASES[0]]["image"] == f"images/{CASES[0]}_0000.png"
    wanted = study(labels={1: "PZ", 2: "TZ"}, channels=3, split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "site", wanted, tmp_path / "cache")
    assert data.training.images.shape[1:] == (3, 8, 8)


def test_pictures_of_several_contrasts_are_files_of_their_own(run, tmp_path):
    write_set(tmp_path / "png" / "site", SECOND | {"file_ending": ".png"}, size=(8, 8))
    content = run(tmp_path / "png", "site")
    assert content["channel_names"] == ["T2", "ADC"] and len(records_of(content)[CASES[0]]["image"]) == 2


def test_one_contrast_keeps_its_name(run, source):
    for path in (source / "imagesTr").glob("*_0001.nii.gz"):
        path.unlink()
    describe(source, SECOND | {"channel_names": {"0": "CT"}})
    content = run()
    assert content["channel_names"] == ["CT"]
    assert records_of(content)[CASES[0]]["image"] == f"images/{CASES[0]}_0000.nii.gz"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": {"PZ": 1, "ignore": [2, 3]}}, "labels in .* must have one number as 'ignore', not .2, 3."),
        ({"labels": {"PZ": 1, "ignore": 1}}, "labels in .* must be names with a number of its own each"),
        ({"labels": {"PZ": [1, 2], "ignore": 2}}, "labels in .* must be names with a number of its own each"),
        ({"labels": {"PZ": [0, 2]}}, "a list of numbers from 1, not 'PZ': .0, 2."),
        ({"labels": {"PZ": []}}, "a list of numbers from 1, not 'PZ': "),
        ({"labels": {"PZ": [1, "2"]}}, "a list of numbers from 1, not 'PZ': "),
        ({"labels": {"background": 0, "PZ": "one"}}, "labels in .* must be a number from 0 each, .*, not 'PZ': 'one'"),
        ({"labels": {"background": 0, "PZ": -1}}, "labels in .* must be a number from 0 each, .*, not 'PZ': -1"),
        ({"labels": {"background": 0, "PZ": True}}, "labels in .* must be a number from 0 each, .*, not 'PZ': True"),
        ({"labels": {"background": 0, "PZ": 1 << 40}}, "labels in .* must be a number from 0 each, .*, not 'PZ': 1099"),
        ({"labels": {"background": 0}}, "labels in .* must be names with a number of its own each"),
        ({"labels": {"background": 0, "PZ": 1, "TZ": 1}}, "labels in .* must be names with a number of its own each"),
        ({"labels": ["PZ", "TZ"]}, "labels in .* must be names with a number of its own each"),
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


def test_a_hidden_file_and_the_test_images_are_left_out(run, source):
    (source / "imagesTr" / "._prostate_00_0000.nii.gz").touch()
    (source / "imagesTs").mkdir()
    (source / "imagesTs" / "prostate_09_0000.nii.gz").touch()
    assert set(records_of(run())) == set(CASES)


def test_a_value_that_dataset_json_does_not_name_is_refused(run, source):
    save(np.full((8, 8, 3), 3, np.int16), source / "labelsTr" / "prostate_02.nii.gz")
    sentence = (
        r"site 'Dataset005_Prostate': labelsTr/prostate_02.nii.gz must hold the label values 0 \(background\), "
        r"1 \(PZ\), 2 \(TZ\), not 3; correct the mask, or labels in its dataset.json"
    )
    with pytest.raises(DataError, match=sentence):
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
def test_sites_labels_are_joined_by_name(run, study, tmp_path, labels, at_south, written, renumbered, annotated):
    write_set(tmp_path / "sites" / "north")
    described = SECOND | {"labels": {"background": 0} | at_south}
    write_set(tmp_path / "sites" / "south", described, numbers=tuple(range(len(renumbered))))
    content = run(tmp_path / "sites", "south", labels=labels)
    assert [*content["labels"].values()] == written and content.get("labels_annotated") == annotated
    assert run(tmp_path / "sites", "north", labels=labels)["labels"] == content["labels"]
    for case in CASES:
        before = nibabel.load(tmp_path / "sites" / "south" / "labelsTr" / f"{case}.nii.gz")
        after = nibabel.load(tmp_path / "target" / "south" / "masks" / f"{case}.nii.gz")
        np.testing.assert_array_equal(np.asanyarray(after.dataobj), np.take(renumbered, np.asanyarray(before.dataobj)))
    wanted = study(labels=content["labels"], channels=2, channel_names=["T2", "ADC"], split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "south", wanted, tmp_path / "cache")
    assert data.training.annotated == (annotated and tuple(annotated))


def test_one_site_takes_the_labels_of_a_study_of_which_it_has_some(run, source):
    content = run(labels=("lesion", "TZ", "PZ"))
    assert content["labels"] == {"1": "lesion", "2": "TZ", "3": "PZ"} and content["labels_annotated"] == [2, 3]


def test_the_import_says_which_labels_a_site_did_not_draw(tmp_path):
    write_set(tmp_path / "sites" / "north")
    write_set(tmp_path / "sites" / "south", SECOND | {"labels": {"background": 0, "tz": 1}}, numbers=(0, 1))
    notes = import_layout("nnunet", tmp_path / "sites", tmp_path / "target", ImportOptions()).notes
    assert "south: nobody drew PZ, TZ; labels_annotated in dataset.json says so" in notes
    assert "north: nobody drew tz; labels_annotated in dataset.json says so" in notes


def test_a_folder_that_is_no_set_is_refused_among_sites(run, tmp_path):
    write_set(tmp_path / "sites" / "north")
    (tmp_path / "sites" / "notes").mkdir()
    with pytest.raises(DataError, match="site 'notes' must have dataset.json, imagesTr, labelsTr of nnU-Net; dataset"):
        run(tmp_path / "sites", "north")


def test_values_in_labels_are_refused_because_dataset_json_has_them(run):
    with pytest.raises(ConfigError, match="values in labels must not be given with layout 'nnunet'"):
        run(labels=("PZ", "TZ"), label_values=(1, 2))
