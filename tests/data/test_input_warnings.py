import nibabel
import numpy as np
import pytest
from PIL import ExifTags, Image

from silofl.data.site_data import load_site_data
from silofl.reading.images import read_image
from silofl_hospital.site.input_warnings import count_labels, find_label_warnings, find_warnings
from tests.data.conftest import edit

pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture
def asked(empty_site, study, tmp_path):
    """The warnings of the site in a study with some data settings."""

    def ask(of=find_warnings, labels=None, **data):
        empty_site.write(labels={str(number): name for number, name in (labels or {1: "nucleus"}).items()})
        small = study(labels=labels, **data)
        return of(load_site_data(empty_site.folder, small, tmp_path / "cache"), small)

    return ask


def label_warnings(data, study):
    return find_label_warnings(data, study, count_labels(data.training, study))


# Pictures are not turned or resampled, and need no grid.
@pytest.mark.parametrize("step", [[], [{"Orientation": {"axcodes": "RAS"}}], [{"Spacing": {"pixdim": [1, 1, 3]}}]])
def test_ordinary_pictures_give_no_warning(site, asked, step):
    assert asked(volume_transforms=step) == [] and asked(label_warnings) == []


def turn(path):
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = 3
    with Image.open(path) as picture:
        picture.save(path, exif=tags)


def test_images_turned_by_a_camera_are_counted_unless_masks_are(site, asked):
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
        (
            "p0 p1 p0",
            "1 of 2 PatientIDs in DICOM headers stand for several",
            "1 of 2 patients whom DICOM headers name (PatientID)",
        ),
        ("p0 p0 p0", "1 of 1 PatientIDs in DICOM headers stand for several", None),
    ],
)
def test_a_patient_of_several_names_is_counted_and_not_named(
    series, empty_site, asked, patients, of_names, of_nobody, names
):
    series(*patients.split(), names=names)
    unit = {} if names else {"split_unit": "unknown"}
    empty_site.content |= unit
    found, words = asked(intensity="percentiles", **unit), of_names if names else of_nobody
    assert len(found) == (words is not None)
    assert all(words in sentence and "p0" not in sentence for sentence in found)


def test_twelve_bits_in_sixteen_are_faint_to_the_network(site, asked):
    for name in "abcdef":
        site.picture(f"{name}.png", site.rng.integers(0, 4096, (8, 8)).astype(np.uint16))
    (sentence,) = asked()
    # 4095 / 65535
    assert "the brightest training image reaches 0.062 of" in sentence
    assert asked(intensity="percentiles") == []


def test_a_label_that_no_training_case_has_is_named(site, asked):
    assert asked(label_warnings, labels={1: "nucleus", 2: "spot"}) == [
        "no training case has spot; look at the labels, or, where nobody drew it, list the others alone as "
        "labels_annotated in dataset.json"
    ]
