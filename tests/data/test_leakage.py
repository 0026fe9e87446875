import shutil

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.contrasts import read_images
from silofl.data.leakage import SeenImages, digest_content
from silofl.data.manifest import read_manifest
from silofl.study.data_settings import DataSettings

from .conftest import add_volume


def check_contents(manifest, parts=None):
    contents = SeenImages(manifest.places, manifest.split_unit)
    for part, found in (parts or manifest.parts).items():
        for record in found:
            images = read_images(manifest.source(record), DataSettings())
            digests = {file: digest_content(i.array, i.affine) for file, i in zip(record.files, images, strict=True)}
            contents.add(part, record, digests)


def change(site, changes):
    """Change records by their part and number, as `test 1`; one behind the last is another record of the first."""
    for place, keys in changes.items():
        part, number = place.split()
        if int(number) == len(site.content[part]):
            site.content[part].append({"image": "a.png", "label": "a-mask.png", "patient": "a"})
        site.content[part][int(number)] |= keys
    return site


P7 = {"patient": "p7"}
TWO_PARTS = {"training 0": P7, "test 0": P7}
RECORDED = {f"{part} {n}": {"recording": "r1"} for part, count in (("training", 3), ("test", 2)) for n in range(count)}
ONE_PART = "patient 'p7' is in two parts,"
CAPITALS = "patient 'P7' .case '.'. and 'p7' .case 'a'. differ in capitals or a . at the end only"
TWICE = "png stands twice in dataset.json .case 'again' in training"


def slices(first, second):
    return {"training 0": {"slices": first}, "test 2": {"slices": second, "case": "second"}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (TWO_PARTS, f"{ONE_PART} training and test"),
        ({"training 0": P7, "validation 0": P7}, f"{ONE_PART} training and validation"),
        ({"validation 0": P7, "test 0": P7}, f"{ONE_PART} validation and test"),
        ({"training 0": {"patient": "\u200b"}}, "case 'a' has no 'patient'"),
        ({"training 0": P7, "test 1": {"patient": "P7"}}, CAPITALS),
        ({"training 0": P7, "training 1": {"patient": "P7"}}, CAPITALS),
        ({"training 0": P7, "test 1": {"patient": "p7^"}}, CAPITALS.replace("P7", "p7\\^")),
        # As of a line that was copied: one patient would be tested on another one's mask.
        ({"test 0": {"label": "a-mask.png"}}, "a-mask.png is listed for two patients, .*; correct"),
        (
            {"training 0": {"slices": [0, 4]}, "test 2": {"slices": [5, 9], "patient": "f"}},
            "a.png is listed for two patients, 'a' and 'f'",
        ),
        ({"training 0": {"case": "b"}}, "case 'b' stands in training and again in training"),
        ({"training 0": {"case": "f"}}, "case 'f' stands in training and again in test"),
        ({"training 3": {"case": "again"}}, f"a.{TWICE}"),
        ({"training 3": {"case": "again", "slices": [0, 3]}}, f"a.{TWICE}"),
        ({"training 3": {"case": "again", "image": "./a.png"}}, f"a.{TWICE}"),
        ({"training 3": {"case": "again", "image": "link.png"}}, TWICE),
    ],
)
def test_what_would_let_a_part_see_another_is_refused(site, study, changes, sentence):
    (site.folder / "link.png").symlink_to("a.png")
    with pytest.raises(DataError, match=sentence):
        read_manifest(change(site, changes).write(), study())


@pytest.mark.parametrize(
    ("of_study", "of_data"),
    [("slices", "patient"), ("patient", "slices"), ("recordings", "patient"), ("slices", "recordings")],
)
def test_one_side_alone_cannot_let_patients_stand_in_several_parts(site, study, of_study, of_data):
    with pytest.raises(DataError, match="patient 'p7' is in two parts.*both dataset.json and the study"):
        read_manifest(change(site, TWO_PARTS).write(split_unit=of_data), study(split_unit=of_study))


@pytest.mark.parametrize(
    ("first", "second"), [([0, 5], [5, 9]), ([0, 9], [2, 3]), ([6, 9], [0, 6]), ([0, 9, 2], [4, 4])]
)
def test_slices_that_overlap_are_refused_even_when_splitting_by_slices(site, study, first, second):
    with pytest.raises(DataError, match="slice . of a.png stands twice.*ranges that do not overlap"):
        read_manifest(change(site, slices(first, second)).write(split_unit="slices"), study(split_unit="slices"))


def test_slices_that_do_not_overlap_may_be_in_two_parts(site, study):
    change(site, slices([0, 4], [5, 9]))
    manifest = read_manifest(site.write(split_unit="slices"), study(split_unit="slices"))
    assert manifest.test[-1].slices == (5, 9) and check_contents(manifest) is None


@pytest.mark.parametrize("unit", ["patient", "unknown"])
def test_a_patient_who_is_written_in_two_ways_is_one(site, study, unit):
    # How many more ways there are is test_patient_names.py's.
    first, second = "M\u00fcller", " Mu\u0308ller\u200b"
    site.content["training"][0]["patient"], site.content["test"][0]["patient"] = first, second
    del site.content["training"][1]["patient"]
    if unit == "patient":
        site.content["training"][1]["patient"] = second
    with pytest.raises(DataError, match=f"patient {first!r} is in two parts, training and test"):
        read_manifest(site.write(split_unit=unit), study(split_unit=unit))
    site.content["test"][0]["patient"] = "e"
    records = read_manifest(site.write(split_unit=unit), study(split_unit=unit)).training
    assert [record.patient for record in records] == [first, first if unit == "patient" else None, "c"]


@pytest.fixture
def recorded(site):
    """A site in which patient p7 stands in training and test; all records have a recording."""
    return change(change(site, RECORDED | {"validation 0": {"recording": "r1"}}), TWO_PARTS)


@pytest.mark.parametrize("changes", [{"recording": "r2"}, {"patient": "p8"}])
def test_other_recordings_may_be_in_another_part(recorded, study, changes):
    recorded.content["test"][0] |= changes
    manifest = read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))
    assert manifest.split_unit == "recordings"
    assert manifest.training[0].recording == "r1" and manifest.test[0].recording == changes.get("recording", "r1")


@pytest.mark.parametrize("written", ["r1", "\uff521\u200b", None])
def test_a_recording_in_two_parts_or_none_is_refused(recorded, study, written):
    sentence = "recording 'r1' of patient 'p7' is in two parts, training and test .case 'e'"
    if written:
        recorded.content["test"][0]["recording"] = written
    else:
        del recorded.content["validation"][0]["recording"]
        sentence = "case 'd' has no 'recording', by which parts are kept apart"
    with pytest.raises(DataError, match=sentence):
        read_manifest(recorded.write(split_unit="recordings"), study(split_unit="recordings"))


@pytest.mark.parametrize(
    ("part", "number", "twin"),
    [("training", 1, "copy.png"), ("test", 0, "copy.png"), ("test", 0, "again.png"), ("test", 0, "again.tif")],
)
def test_the_same_content_in_two_formats_is_refused(site, study, part, number, twin):
    if twin == "copy.png":
        shutil.copyfile(site.folder / "a.png", site.folder / twin)
    else:
        # Another compression than that of a.png.
        Image.open(site.folder / "a.png").save(site.folder / twin, compress_level=0)
    site.content[part][number]["image"] = twin
    manifest = read_manifest(site.write(), study())
    with pytest.raises(DataError, match=f"shows the image of case 'a': {twin} and a.png hold the same content"):
        check_contents(manifest)


GRID = np.diag([1, 1, 3, 1.0])


def turned(array):
    """Return a volume with its rows running the other way, and the affine that puts it where the other one lies."""
    affine = np.diag([1, -1, 3, 1.0])
    affine[1, 3] = array.shape[1] - 1
    return array[:, ::-1], affine


@pytest.mark.parametrize(
    "change",
    [
        lambda array: (array, None),
        lambda array: (array.astype(np.float32), None),
        lambda array: (array.astype(np.int32), None),
        turned,
        lambda array: (array.transpose(1, 0, 2), GRID[:, [1, 0, 2, 3]]),
    ],
    ids=["as they are", "fractions", "wide", "turned", "axes"],
)
def test_the_same_voxels_saved_in_another_way_are_refused(site, study, change):
    array = site.rng.integers(0, 900, (5, 6, 3)).astype(np.int16)
    add_volume(site, "training", "v", array, GRID)
    changed, affine = change(array)
    add_volume(site, "test", "w", changed, GRID if affine is None else affine)
    manifest = read_manifest(site.write(), study())
    with pytest.raises(DataError, match="case 'w' shows the image of case 'v'"):
        check_contents(manifest)


def test_one_pixel_makes_another_image_and_empty_ones_none(site, study):
    array = site.rng.integers(0, 900, (5, 6, 3)).astype(np.int16)
    add_volume(site, "training", "v", array)
    array[2, 2, 2] += 1
    add_volume(site, "test", "w", array)
    add_volume(site, "test", "flat", array.reshape(6, 5, 3))
    for names, value in (("ae", 7), ("bf", (1, 2, 3))):
        for name in names:
            site.picture(f"{name}.png", np.full((8, 8, 3) if name in "bf" else (8, 8), value, np.uint8))
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


def test_a_picture_at_two_indexes_is_allowed_for_one_patient(site, study):
    write_indexed(site, None)
    assert check_contents(read_manifest(site.write(split_unit="unknown"), study(split_unit="unknown"))) is None
    write_indexed(site, "abca")
    site.content["training"].append(site.content["test"].pop() | {"patient": "a"})
    site.add("test", "f")
    assert check_contents(read_manifest(site.write(), study())) is None
