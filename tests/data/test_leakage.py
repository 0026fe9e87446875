import shutil

import pytest

from silofl.data.leakage import check_contents
from silofl.data.manifest import read_manifest
from silofl.errors import DataError


@pytest.mark.parametrize(
    ("first", "second"), [("training", "test"), ("training", "validation"), ("validation", "test")]
)
def test_a_patient_in_two_parts_is_refused(site, study, first, second):
    site.content[first][0]["patient"] = site.content[second][0]["patient"] = "p7"
    with pytest.raises(DataError, match=f"patient 'p7' must stand in one part, not in {first} and {second}"):
        read_manifest(site.write(), study())


def test_blanks_make_no_other_patient(site, study):
    site.content["training"][0]["patient"], site.content["test"][0]["patient"] = "p7", " p7 "
    with pytest.raises(DataError, match="patient 'p7' must stand in one part, not in training and test"):
        read_manifest(site.write(), study())


@pytest.mark.parametrize(("first", "second"), [("training", "test"), ("training", "training")])
def test_patients_that_differ_in_capitals_alone_are_refused(site, study, first, second):
    site.content[first][0]["patient"], site.content[second][1]["patient"] = "p7", "P7"
    sentence = "patient 'P7' .case '.'. must be written as 'p7' .case 'a'., or differ from it in more than capitals"
    with pytest.raises(DataError, match=sentence):
        read_manifest(site.write(), study())


def test_a_patient_may_have_several_images_in_one_part(site, study):
    site.content["training"][0]["patient"] = site.content["training"][1]["patient"] = "p7"
    assert len(read_manifest(site.write(), study()).training) == 3


@pytest.mark.parametrize(
    ("of_study", "of_data"),
    [("slices", "patient"), ("patient", "slices"), ("recordings", "patient"), ("slices", "recordings")],
)
def test_one_side_alone_cannot_let_patients_stand_in_several_parts(site, study, of_study, of_data):
    site.content["training"][0]["patient"] = site.content["test"][0]["patient"] = "p7"
    with pytest.raises(
        DataError, match="patient 'p7' must stand in one part.*in both dataset.json and the study's data"
    ):
        read_manifest(site.write(split_unit=of_data), study(split_unit=of_study))


@pytest.mark.parametrize("unit", ["slices", "examples"])
def test_study_and_data_together_may_split_by_slices_or_examples(site, study, unit):
    site.content["training"][0]["patient"] = site.content["test"][0]["patient"] = "p7"
    manifest = read_manifest(site.write(split_unit=unit), study(split_unit=unit))
    assert manifest.split_unit == unit


@pytest.fixture
def recorded(site):
    """A site in which patient p7 stands in training and test; the other records have a recording too."""
    for part in ("training", "validation", "test"):
        for record in site.content[part]:
            record["recording"] = "r1"
    site.content["training"][0]["patient"] = site.content["test"][0]["patient"] = "p7"
    return site


def test_one_patients_recordings_may_stand_in_several_parts(recorded, study):
    recorded.content["test"][0]["recording"] = "r2"
    manifest = read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))
    assert [record.recording for record in (manifest.training[0], manifest.test[0])] == ["r1", "r2"]


def test_a_recording_in_two_parts_is_refused(recorded, study):
    with pytest.raises(
        DataError, match="recording 'r1' of patient 'p7' must stand in one part, not in training and test .case 'e'"
    ):
        read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))


def test_recordings_of_two_patients_may_have_one_name(recorded, study):
    recorded.content["test"][0]["patient"] = "p8"
    manifest = read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))
    assert manifest.split_unit == "recordings"


def test_a_record_without_its_recording_is_refused_where_recordings_are_kept_apart(recorded, study):
    del recorded.content["validation"][0]["recording"]
    with pytest.raises(DataError, match="case 'd' must have a 'recording', which split_unit 'recordings' keeps apart"):
        read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))


def volume(site, part, slices, **changes):
    record = {"image": "a.png", "label": "a-mask.png", "patient": "a"} | changes
    site.content[part].append(record if slices is None else record | {"slices": slices})


@pytest.mark.parametrize(
    ("of_training", "of_test"),
    [([0, 5], [5, 9]), ([0, 9], [2, 3]), ([4, 4], [4, 4]), ([6, 9], [0, 6]), ([0, 9, 2], [4, 4])],
)
def test_slices_that_overlap_are_refused_even_when_splitting_by_slices(site, study, of_training, of_test):
    site.content["training"].pop(0)
    volume(site, "training", of_training, case="first")
    volume(site, "test", of_test, case="second")
    with pytest.raises(DataError, match="a.png must have slices in one record only.*which overlap"):
        read_manifest(site.write(split_unit="slices"), study(split_unit="slices"))


def test_slices_that_do_not_overlap_may_stand_in_two_parts(site, study):
    site.content["training"].pop(0)
    volume(site, "training", [0, 4])
    volume(site, "test", [5, 9])
    manifest = read_manifest(site.write(split_unit="slices"), study(split_unit="slices"))
    assert manifest.test[-1].slices == (5, 9)


@pytest.mark.parametrize("slices", [None, [0, 3]])
def test_an_image_that_stands_twice_is_refused(site, study, slices):
    volume(site, "training", slices, case="again")
    with pytest.raises(DataError, match="a.png must stand once in dataset.json, not twice .case 'again' in training"):
        read_manifest(site.write(), study())


@pytest.mark.parametrize("path", ["./a.png", "link.png"])
def test_an_image_that_stands_twice_under_other_paths_is_refused(site, study, path):
    (site.folder / "link.png").symlink_to("a.png")
    volume(site, "training", None, case="again", image=path)
    with pytest.raises(DataError, match="must stand once in dataset.json, not twice"):
        read_manifest(site.write(), study())


def test_an_image_of_two_patients_is_refused(site, study):
    volume(site, "test", [5, 9], patient="somebody else")
    site.content["training"][0]["slices"] = [0, 4]
    with pytest.raises(DataError, match="a.png must belong to one patient, not to 'a' and 'somebody else'"):
        read_manifest(site.write(), study())


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_case_name_that_stands_twice_is_refused(site, study, part):
    site.content["training"][0]["case"] = site.content[part][1]["case"] = "scan"
    with pytest.raises(
        DataError, match=f"case 'scan' must stand once in dataset.json, not in training and again in {part}"
    ):
        read_manifest(site.write(), study())


@pytest.mark.parametrize("twin", ["b.png", "e.png"])
def test_the_same_content_under_two_names_is_refused(site, study, twin):
    shutil.copyfile(site.folder / "a.png", site.folder / twin)
    manifest = read_manifest(site.write(), study())
    with pytest.raises(
        DataError, match=f"case '{twin[0]}' must be another image than case 'a'; {twin} and a.png hold the same"
    ):
        check_contents(manifest.parts, manifest.places)


def test_one_content_for_two_contrasts_of_a_case_is_refused_as_such(site, study):
    shutil.copyfile(site.folder / "a.png", site.folder / "again.png")
    site.content["training"][0]["image"] = ["a.png", "again.png"]
    manifest = read_manifest(site.write(channel_names=["T1", "T2"]), study(channels=2, channel_names=["T1", "T2"]))
    sentence = "case 'a' must have a file of its own for each contrast; again.png and a.png hold the same content: "
    with pytest.raises(DataError, match=sentence):
        check_contents({"training": manifest.training[:1]}, manifest.places)


def test_slices_of_one_file_are_no_twins(site, study):
    volume(site, "training", [5, 9])
    site.content["training"][0]["slices"] = [0, 4]
    manifest = read_manifest(site.write(), study())
    assert check_contents(manifest.parts, manifest.places) is None
