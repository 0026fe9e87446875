import nibabel
import numpy as np
import pytest
from PIL import ExifTags, Image

from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data
from silofl.reading.images import read_image
from silofl_hospital.site.input_warnings import count_labels, find_doubts, find_label_doubts
from tests.data.conftest import edit

pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture
def asked(empty_site, study, tmp_path):
    """What is doubtful of the site in a study with some data settings."""

    def ask(of=find_doubts, labels=None, **data):
        empty_site.write(labels={str(number): name for number, name in (labels or {1: "nucleus"}).items()})
        small = study(labels=labels, **data)
        return of(load_site_data(empty_site.folder, small, tmp_path / "cache"), small)

    return ask


def label_doubts(data, study):
    return find_label_doubts(data, study, count_labels(data.training, study))


# Pictures are not turned or resampled, and need no grid.
@pytest.mark.parametrize("step", [[], [{"Orientation": {"axcodes": "RAS"}}], [{"Spacing": {"pixdim": [1, 1, 3]}}]])
def test_ordinary_pictures_are_beyond_doubt(site, asked, step):
    assert asked(volume_transforms=step) == [] and asked(label_doubts) == []


def add_volume(site, part, name, sizes=(1, 1, 3), unit=2):
    """Add a volume of 8 x 8 x 2."""
    voxels = site.rng.integers(1, 1000, (8, 8, 2)).astype(np.int16)
    for end, array in (("", voxels), ("-mask", (voxels > 500).astype(np.uint8))):
        image = nibabel.Nifti1Image(array, np.diag([*sizes, 1]))
        image.header["xyzt_units"] = unit
        nibabel.save(image, site.folder / f"{name}{end}.nii.gz")
    site.content[part].append({"image": f"{name}.nii.gz", "label": f"{name}-mask.nii.gz", "patient": name})


def test_contrasts_of_several_frames_of_reference_are_counted(site, asked, monkeypatch):
    monkeypatch.setattr("silofl_hospital.site.input_warnings.has_several_frames", lambda source: True)
    (sentence,) = asked()
    assert "those of 6 of 6 cases state several: see that they were registered" in sentence


def turn(path):
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = 3
    with Image.open(path) as picture:
        picture.save(path, exif=tags)


def test_images_that_a_camera_turned_are_counted_where_their_masks_are_not(site, asked):
    for name in ("a", "b", "b-mask", "e", "f-mask"):
        turn(site.folder / f"{name}.png")
    (sentence,) = asked()
    # a and e: of b the mask is turned too, of f the mask alone.
    assert "2 of 6 images are turned by their camera's tag (EXIF orientation), and their masks have no" in sentence


@pytest.fixture
def series(empty_site, write_dicom):
    """Add DICOM series by their PatientIDs; each is a patient of its own in dataset.json where names are given."""

    def add(*patients, names=True):
        for number, patient in enumerate(patients):
            volume = np.random.default_rng(number).integers(0, 900, (8, 8, 2)).astype(np.int16)
            folder = edit(write_dicom(empty_site.folder / f"c{number}", volume), PatientID=patient)
            mask = nibabel.Nifti1Image((volume > 500).astype(np.uint8), read_image(folder).affine)
            nibabel.save(mask, empty_site.folder / f"m{number}.nii")
            record = {"image": f"c{number}", "label": f"m{number}.nii"} | ({"patient": f"n{number}"} if names else {})
            empty_site.content["test" if number == len(patients) - 1 else "training"].append(record)

    return add


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize(
    ("patients", "of_names", "of_nobody"),
    [
        ("p0 p1 p2", None, None),
        # As an archive writes it.
        ("ANON ANON ANON", None, None),
        ("p0 p1 p0", "1 of 2 PatientIDs in DICOM headers stand for several", "does not, 1 of 2 stand in several"),
        ("p0 p0 p0", "1 of 1 PatientIDs in DICOM headers stand for several", None),
    ],
)
def test_a_patient_of_several_names_or_in_two_parts_is_counted_and_not_named(
    series, empty_site, asked, patients, of_names, of_nobody, names
):
    series(*patients.split(), names=names)
    unit = {} if names else {"split_unit": "unknown"}
    empty_site.content |= unit
    found, words = asked(intensity="percentiles", **unit), of_names if names else of_nobody
    assert len(found) == (words is not None)
    assert all(words in sentence and "p0" not in sentence for sentence in found)


def test_voxels_larger_than_any_scanners_are_counted(empty_site, asked):
    for number, (part, size) in enumerate({"training": 900, "validation": 1, "test": 50}.items()):
        add_volume(empty_site, part, f"v{number}", sizes=(size, size, 3))
    add_volume(empty_site, "training", "w")
    (sentence,) = asked(intensity="percentiles")
    assert sentence.startswith("voxels must measure at most 50 mm, as scanners have them; 1 of 4 cases have up to 900")


# 5 stands for no unit, 2 for millimetres; most writers leave it at 0.
@pytest.mark.parametrize(("unit", "is_doubtful"), [(5, True), (2, False), (0, False)])
def test_sizes_in_no_unit_are_worth_a_look_where_volumes_are_resampled_by_them(empty_site, asked, unit, is_doubtful):
    for part in ("training", "training", "test"):
        add_volume(empty_site, part, f"{part}{len(empty_site.content[part])}", unit=unit)
    assert asked(intensity="percentiles") == []
    found = asked(intensity="percentiles", volume_transforms=[{"Spacing": {"pixdim": [1, 1, 3]}}])
    said = [f"volumes must state the size of their voxels in mm, which Spacing goes by; {3} of 3 cases do not"]
    assert [sentence.partition(":")[0] for sentence in found] == said * is_doubtful


@pytest.mark.parametrize("count", [0, 2, 3])
def test_volumes_that_do_not_say_how_they_lie_are_worth_a_look_where_they_are_turned(empty_site, asked, count):
    for number, part in enumerate(("training", "training", "test")):
        add_volume(empty_site, part, f"v{number}")
    for number in range(count):
        for path in (empty_site.folder / f"v{number}.nii.gz", empty_site.folder / f"v{number}-mask.nii.gz"):
            image = nibabel.load(path)
            image.set_sform(None, 0)
            image.set_qform(None, 0)
            nibabel.save(nibabel.Nifti1Image(np.asanyarray(image.dataobj), None, image.header), path)
    assert asked(intensity="percentiles") == []
    found = asked(intensity="percentiles", volume_transforms=[{"Orientation": {"axcodes": "RAS"}}])
    said = [f"volumes must state how their axes lie in the body, which Orientation goes by; {count} of 3 cases do not"]
    assert [sentence.partition(":")[0] for sentence in found] == said * (count > 0)


def test_twelve_bits_in_sixteen_are_faint_to_the_network(site, asked):
    for name in "abcdef":
        site.picture(f"{name}.png", site.rng.integers(0, 4096, (8, 8)).astype(np.uint16))
    (sentence,) = asked()
    # 4095 / 65535
    assert "the brightest training image reaches 0.062 of it: set the study's data.intensity to percentiles" in sentence
    assert asked(intensity="percentiles") == []


def test_a_label_that_no_training_case_has_is_named(site, asked):
    assert asked(label_doubts, labels={1: "nucleus", 2: "spot"}) == [
        "every label must stand in a training case; spot stands in none: look at the labels, or where nobody "
        "drew it list the others alone as labels_annotated in dataset.json"
    ]


def test_a_finding_is_counted_in_each_example_that_has_it(study):
    small = study("multilabel", labels={0: "effusion", 1: "nodule", 2: "mass"})
    names = tuple("abcd")
    # both of the first two, the second alone, none, none
    part = Examples(np.zeros((4, 1, 8, 8), np.float32), np.array([3, 2, 0, 0]), names, names, names)
    assert count_labels(part, small) == {"effusion": 1, "nodule": 2, "mass": 0}
