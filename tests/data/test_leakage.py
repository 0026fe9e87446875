import shutil
from itertools import count
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from silofl.data import records
from silofl.data.contrasts import read_images
from silofl.data.leakage import Contents, check_parts, digest_content
from silofl.data.manifest import read_manifest
from silofl.data.records import Record
from silofl.errors import DataError
from silofl.study.data_settings import DataSettings


def check_contents(manifest, parts=None):
    contents = Contents(manifest.places, manifest.split_unit)
    for part, found in (parts or manifest.parts).items():
        for record in found:
            images = read_images(manifest.source(record), DataSettings())
            digests = {file: digest_content(i.array, i.affine) for file, i in zip(record.files, images, strict=True)}
            contents.add(part, record, digests)


@pytest.mark.parametrize(
    ("first", "second"), [("training", "test"), ("training", "validation"), ("validation", "test")]
)
def test_a_patient_in_two_parts_is_refused(site, study, first, second):
    site.content[first][0]["patient"] = site.content[second][0]["patient"] = "p7"
    with pytest.raises(DataError, match=f"patient 'p7' must stand in one part, not in {first} and {second}"):
        read_manifest(site.write(), study())


def test_a_patient_who_is_written_in_two_ways_is_one(site, study):
    pairs = [
        ("M\u00fcller", "Mu\u0308ller"),
        ("P1", "P1\u200b"),
        ("P1", "\uff301"),
        ("P 1", "P\u00a0 1"),
        ("p7", " p7 "),
    ]
    for first, second in pairs:
        site.content["training"][0]["patient"], site.content["test"][0]["patient"] = first, second
        with pytest.raises(DataError, match=f"patient {first!r} must stand in one part, not in training and test"):
            read_manifest(site.write(), study())
        site.content["test"][0]["patient"] = "e"
        site.content["training"][1]["patient"] = second
        assert read_manifest(site.write(), study()).training[1].patient == first
        site.content["training"][1]["patient"] = "b"


def test_a_recording_that_is_written_in_two_ways_is_one(recorded, study):
    recorded.content["test"][0]["recording"] = "\uff521\u200b"
    with pytest.raises(DataError, match="recording 'r1' of patient 'p7' must stand in one part"):
        read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))


def test_a_patient_whose_name_nobody_sees_is_refused(site, study):
    site.content["training"][0]["patient"] = "\u200b"
    with pytest.raises(DataError, match=r"patient of case 'a' must be a text, not .* '.u200b'"):
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
    with pytest.raises(DataError, match="patient 'p7' must stand in one part.*both dataset.json and the study"):
        read_manifest(site.write(split_unit=of_data), study(split_unit=of_study))


def test_where_some_patients_are_unknown_those_who_are_named_are_kept_apart(site, study):
    del site.content["training"][1]["patient"]
    manifest = read_manifest(site.write(split_unit="unknown"), study(split_unit="unknown"))
    assert [record.patient for record in manifest.training] == ["a", None, "c"]
    site.content["training"][0]["patient"] = site.content["test"][0]["patient"] = "p7"
    with pytest.raises(DataError, match="patient 'p7' must stand in one part, not in training and test"):
        read_manifest(site.write(split_unit="unknown"), study(split_unit="unknown"))


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
    with pytest.raises(DataError, match="recording 'r1' of patient 'p7' .* not in training and test .case 'e'"):
        read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))


def test_recordings_of_two_patients_may_have_one_name(recorded, study):
    recorded.content["test"][0]["patient"] = "p8"
    manifest = read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))
    assert manifest.split_unit == "recordings"


def test_a_record_without_its_recording_is_refused_where_recordings_are_kept_apart(recorded, study):
    del recorded.content["validation"][0]["recording"]
    with pytest.raises(DataError, match="case 'd' must have a 'recording', which split_unit 'recordings' keeps apart"):
        read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))


@pytest.mark.parametrize("part", ["training", "test"])
@pytest.mark.parametrize("label", ["a.png", "./a.png", "link.png"])
def test_an_image_that_is_a_mask_of_its_own_or_of_another_case_is_refused(site, study, part, label):
    (site.folder / "link.png").symlink_to(site.folder / "a.png")
    site.content[part][0]["label"] = label
    first = f"case 'a' in training and case '{site.content[part][0]['image'][0]}' in {part}"
    with pytest.raises(DataError, match=f"{label} must be an image or a mask, not both .{first}.; correct"):
        read_manifest(site.write(), study())


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


def test_a_mask_of_two_patients_is_refused(site, study):
    """As of a line that was copied: one patient would be tested on another one's mask."""
    first, second = site.content["training"][0], site.content["test"][0]
    second["label"] = first["label"]
    with pytest.raises(DataError, match=rf"{first['label']} must belong to one patient, not to .*; correct"):
        read_manifest(site.write(), study())


def test_an_image_of_two_patients_is_refused(site, study):
    volume(site, "test", [5, 9], patient="somebody else")
    site.content["training"][0]["slices"] = [0, 4]
    with pytest.raises(DataError, match="a.png must belong to one patient, not to 'a' and 'somebody else'"):
        read_manifest(site.write(), study())


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_case_name_that_stands_twice_is_refused(site, study, part):
    site.content["training"][0]["case"] = site.content[part][1]["case"] = "scan"
    with pytest.raises(DataError, match=f"case 'scan' must stand once .* in training and again in {part}"):
        read_manifest(site.write(), study())


@pytest.mark.parametrize("twin", ["b.png", "e.png"])
def test_the_same_content_under_two_names_is_refused(site, study, twin):
    shutil.copyfile(site.folder / "a.png", site.folder / twin)
    manifest = read_manifest(site.write(), study())
    with pytest.raises(DataError, match=f"case '{twin[0]}' must be another image .* {twin} and a.png hold the same"):
        check_contents(manifest)


def test_one_content_for_two_contrasts_of_a_case_is_refused_as_such(site, study):
    shutil.copyfile(site.folder / "a.png", site.folder / "again.png")
    site.content["training"][0]["image"] = ["a.png", "again.png"]
    manifest = read_manifest(site.write(channel_names=["T1", "T2"]), study(channels=2, channel_names=["T1", "T2"]))
    sentence = "case 'a' must have a file of its own for each contrast; again.png and a.png hold the same content: "
    with pytest.raises(DataError, match=sentence):
        check_contents(manifest, {"training": manifest.training[:1]})


def test_slices_of_one_file_are_no_twins(site, study):
    volume(site, "training", [5, 9])
    site.content["training"][0]["slices"] = [0, 4]
    manifest = read_manifest(site.write(), study())
    assert check_contents(manifest) is None


@pytest.mark.parametrize("has_patients", [True, False])
def test_the_slices_of_a_volume_are_compared_once_each_whatever_their_number(monkeypatch, has_patients):
    looked_at = count()

    def counted(slices):
        for number in slice_numbers(slices):
            next(looked_at)
            yield number

    slice_numbers = records.slice_numbers
    monkeypatch.setattr(records, "slice_numbers", counted)
    parts = {
        part: tuple(
            Record(f"{part}{i}", ("v.nii",), "m.nii", "p" if has_patients else None, (i, i))
            for i in range(first, first + 10_000)
        )
        for part, first in (("training", 0), ("test", 10_000))
    }
    check_parts(parts, {name: Path(name) for name in ("v.nii", "m.nii")}, "slices")
    # Pairs of 20,000 would be 200 million.
    assert next(looked_at) == 20_000


def save_volume(site, part, name, array, affine=None, patient=None, text=""):
    image = nibabel.Nifti1Image(array, np.diag([1, 1, 3, 1.0]) if affine is None else affine)
    image.header["descrip"] = text.encode()
    nibabel.save(image, site.folder / name)
    site.mask(f"{name}-mask.png")
    record = {"image": name, "label": f"{name}-mask.png", "patient": patient or name, "case": name}
    site.content[part].append(record)


def turned(array):
    """Return a volume with its rows running the other way, and the affine that puts it where the other one lies."""
    affine = np.diag([1, -1, 3, 1.0])
    affine[1, 3] = array.shape[1] - 1
    return array[:, ::-1], affine


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("v.nii", lambda array: (array, None, "")),
        ("other.nii.gz", lambda array: (array, None, "second export")),
        ("float.nii.gz", lambda array: (array.astype(np.float32), None, "")),
        ("wide.nii.gz", lambda array: (array.astype(np.int32), None, "")),
        ("turned.nii.gz", lambda array: (*turned(array), "")),
        ("axes.nii.gz", lambda array: (array.transpose(1, 0, 2), np.diag([1, 1, 3, 1.0])[:, [1, 0, 2, 3]], "")),
    ],
)
def test_the_same_voxels_saved_in_another_way_are_refused(site, study, name, change):
    array = site.rng.integers(0, 900, (5, 6, 3)).astype(np.int16)
    save_volume(site, "training", "v.nii.gz", array)
    changed, affine, text = change(array)
    save_volume(site, "test", name, changed, affine, text=text)
    manifest = read_manifest(site.write(), study())
    with pytest.raises(DataError, match=f"case '{name}' must be another image than case 'v.nii.gz'"):
        check_contents(manifest)


@pytest.mark.parametrize("name", ["again.tif", "again.png"])
def test_the_same_pixels_in_another_format_are_refused(site, study, name):
    # Another compression than that of a.png.
    Image.open(site.folder / "a.png").save(site.folder / name, compress_level=0)
    site.content["test"][0]["image"] = name
    manifest = read_manifest(site.write(), study())
    with pytest.raises(DataError, match=f"must be another image than case 'a'; {name} and a.png hold the same content"):
        check_contents(manifest)


def test_images_that_differ_in_one_pixel_are_two(site, study):
    array = site.rng.integers(0, 900, (5, 6, 3)).astype(np.int16)
    save_volume(site, "training", "v.nii.gz", array)
    array[2, 2, 2] += 1
    save_volume(site, "test", "w.nii.gz", array)
    save_volume(site, "test", "flat.nii.gz", array.reshape(6, 5, 3))
    assert check_contents(read_manifest(site.write(), study())) is None


def test_images_on_which_nothing_is_are_no_twins(site, study):
    for name in "ae":
        site.picture(f"{name}.png", np.full((8, 8), 7, np.uint8))
    site.picture("b.png", np.full((8, 8, 3), (1, 2, 3), np.uint8))
    site.picture("f.png", np.full((8, 8, 3), (1, 2, 3), np.uint8))
    assert check_contents(read_manifest(site.write(), study())) is None


def write_indexed(site, patients):
    """Write an npz file whose last image, in the test, is the first one, in the training."""
    images = site.rng.integers(0, 255, (4, 8, 8), dtype=np.uint8)
    images[3] = images[0]
    np.savez(site.folder / "all.npz", images=images, labels=images > 99)
    site.content |= {"training": [], "validation": [], "test": []}
    for number, part in enumerate(["training"] * 3 + ["test"]):
        patient = {} if patients is None else {"patient": patients[number]}
        site.content[part].append({"image": "all.npz", "label": "all.npz", "index": number, **patient})


def test_one_picture_at_two_indexes_is_refused_with_both(site, study):
    write_indexed(site, "abcd")
    manifest = read_manifest(site.write(), study())
    both = "all.npz at index 3 and all.npz at index 0 hold the same content"
    with pytest.raises(DataError, match=f"case 'all#3' must be another image than case 'all#0'; {both}"):
        check_contents(manifest)


def test_one_picture_at_two_indexes_is_two_views_of_one_patient_in_one_part(site, study):
    write_indexed(site, "abca")
    site.content["training"].append(site.content["test"].pop() | {"patient": "a"})
    site.add("test", "f")
    assert check_contents(read_manifest(site.write(), study())) is None


def test_twins_of_a_public_set_that_knows_no_patients_are_its_own(site, study):
    write_indexed(site, None)
    assert check_contents(read_manifest(site.write(split_unit="unknown"), study(split_unit="unknown"))) is None


@pytest.mark.parametrize(
    ("values", "dtypes"),
    [
        ([0, 1, 255], ["u1", "i2", "u4", "f4", "f8"]),
        ([-1, 0, 32767], ["i2", "i4", "f4", "f8"]),
        ([0, 1, 32768], ["u2", "i4", "f4"]),
        ([0.0, -0.0, 1.5], ["f2", "f4", "f8"]),
        ([0, 1, 1e30], ["f4", "f8"]),
    ],
)
def test_the_same_numbers_have_one_digest_in_every_type(values, dtypes):
    digests = {digest_content(np.array(values, dtype).reshape(1, 1, -1), None) for dtype in dtypes}
    others = {digest_content(np.array(values, dtype).reshape(1, -1, 1), None) for dtype in dtypes}
    assert len(digests) == len(others) == 1
    assert digests != others
    changed = np.array([*values[:-1], values[-1] / 2], dtypes[-1]).reshape(1, 1, -1)
    assert {digest_content(changed, None)} != digests
