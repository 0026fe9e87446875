import nibabel
import numpy as np
import pytest
import SimpleITK
from PIL import Image

from silofl.base.errors import DataError
from silofl.reading.images import read_label
from silofl_hospital.importing.masks import Values, plan_mask, split_ending

AFFINE = np.array([[-0.6, 0, 0, 10], [0, -0.6, 0, 20], [0, 0, 3.6, -30], [0, 0, 0, 1]])
BRAIN = Values({4: "lesion", 1: "organ"}, "name each value")
KEPT = Values({1: "organ", 2: "vessel", 3: "duct", 4: "lesion"})
NUMBERS = np.random.default_rng(0).choice([0, 1, 4], (6, 5, 4)).astype(np.int16)
# 0, 1 and 4 become 0, 1 and 2.
WANTED = np.where(NUMBERS == 4, 2, NUMBERS)


@pytest.fixture
def volume(tmp_path):
    """Write a label map by the ending of its file."""

    def write(ending, numbers=NUMBERS):
        path = tmp_path / f"seg{ending}"
        if ending.startswith(".nii"):
            image = nibabel.Nifti1Image(numbers, AFFINE)
            nibabel.save(image, path)
        else:
            image = SimpleITK.GetImageFromArray(numbers.T)
            image.SetSpacing((0.6, 0.6, 3.6))
            image.SetOrigin((-10, -20, -30))
            SimpleITK.WriteImage(image, path)
        return path

    return write


@pytest.fixture
def write(tmp_path):
    """Write a mask as a site's and return its path; the image is the mask itself where none is given."""

    def run(mask, values, image=None):
        name, writer = plan_mask(mask, image or mask, "p1", values, "site 'north': p1/seg")
        target = tmp_path / "target" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        writer(target)
        return target

    return run


@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".mha", ".nrrd"])
def test_a_renumbered_volume_becomes_nifti_on_its_grid(volume, write, ending):
    mask = volume(ending)
    target = write(mask, BRAIN)
    before, after = read_label(mask), read_label(target)
    assert target.name == "p1.nii.gz"
    np.testing.assert_array_equal(after.array[0], WANTED)
    np.testing.assert_allclose(after.affine, before.affine, atol=1e-6)


@pytest.mark.parametrize("ending", [".nii.gz", ".mha"])
def test_a_volume_with_the_sites_numbers_is_copied(volume, write, ending):
    mask = volume(ending, np.int16([[[0, 1], [2, 1]]]))
    target = write(mask, Values({1: "organ", 2: "lesion"}))
    assert target.name == f"p1{ending}" and target.read_bytes() == mask.read_bytes()


@pytest.mark.parametrize(
    ("stored", "names", "wanted"),
    [
        (np.uint16([[0, 300], [7, 300]]), {300: "lesion", 7: "organ"}, [[0, 2], [1, 2]]),
        (np.uint8([[0, 1]]), {1: "x"}, [[0, 1]]),
        # 255 is the only label of a picture.
        (np.uint8([[0, 255]]), {1: "x"}, [[0, 1]]),
    ],
)
def test_a_picture_is_renumbered_as_png(tmp_path, write, stored, names, wanted):
    Image.fromarray(stored).save(tmp_path / "seg.tif")
    target = write(tmp_path / "seg.tif", Values(names))
    np.testing.assert_array_equal(np.asarray(Image.open(target)), wanted)
    assert target.name == "p1.png"


@pytest.mark.parametrize("ending", [".nii.gz", ".mha", ".png"])
@pytest.mark.parametrize(("names", "known"), [({1: "organ"}, ""), ({1: "organ", 3: "lesion"}, r", 3 \(lesion\)")])
def test_a_value_without_a_name_is_refused(volume, write, tmp_path, ending, names, known):
    mask = tmp_path / "seg.png" if ending == ".png" else volume(ending)
    if ending == ".png":
        Image.fromarray(NUMBERS[0].astype(np.uint8)).save(mask)
    sentence = rf"holds 4, but the labels are 0 \(background\), 1 \(organ\){known}; name each value"
    with pytest.raises(DataError, match=f"^site 'north': p1/seg {sentence}$"):
        write(mask, Values(names, "name each value"))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("a.npz", "convert it to one of these"), ("a.webp", "save it as PNG"), ("a", "convert it, or name DICOM a.dcm")],
)
def test_an_ending_that_names_no_single_image_is_refused(tmp_path, name, remedy):
    sentence = f"^masks/{name} must end in one of .png, .*, not '.*'; {remedy}, or remove it"
    with pytest.raises(DataError, match=sentence):
        split_ending(tmp_path / name, f"masks/{name}")


@pytest.mark.parametrize("ending", [".nii.gz", ".nrrd"])
@pytest.mark.parametrize("values", [BRAIN, KEPT])
def test_a_mask_beside_its_image_is_refused(volume, write, tmp_path, ending, values):
    image = tmp_path / "image.nii.gz"
    nibabel.save(nibabel.Nifti1Image(NUMBERS[:5], AFFINE), image)
    with pytest.raises(DataError, match=r"north': p1/seg has the size .6, 5, 4., and its image .5, 5, 4."):
        write(volume(ending), values, image)
    shifted = AFFINE + 0.0
    shifted[2, 3] += 7.2
    nibabel.save(nibabel.Nifti1Image(NUMBERS, shifted), image)
    with pytest.raises(DataError, match="p1/seg lies up to 7.2 mm away from its image"):
        write(volume(ending), values, image)
