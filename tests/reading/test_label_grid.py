import itertools
from contextlib import nullcontext

import nibabel
import numpy as np
import pytest
import SimpleITK

from silofl.base.errors import DataError
from silofl.reading.image import Image
from silofl.reading.images import read_label
from silofl.reading.label_grid import lay_on_image

# Voxels of 0.8 x 0.7 x 2.5 mm, the first one at (10, 20, 5); columns run to the left, rows to the back.
AFFINE = np.array([[-0.8, 0, 0, 10], [0, -0.7, 0, 20], [0, 0, 2.5, 5], [0, 0, 0, 1]])
SHAPE = (4, 5, 6)
MARKED = np.random.default_rng(0).integers(0, 3, SHAPE).astype(np.int32)


def moved_by(*voxels, affine=AFFINE):
    """Return a grid whose first voxel is at this place of another grid."""
    moved = affine.copy()
    moved[:3, 3] = (affine @ [*voxels, 1])[:3]
    return moved


def volume(array, affine=AFFINE):
    return Image(np.asarray(array)[None], affine, None)


def lay(label, image=None, files=()):
    return lay_on_image(label, image or volume(np.zeros(SHAPE)), "m.nii", files)


def move(array, order, flips, affine=AFFINE):
    """Store the same voxels with other axes first and some axes reversed; each keeps its place."""
    turned, moved = np.eye(4), array.transpose(order)
    turned[:3, :3] = np.eye(3)[:, list(order)]
    for axis in flips:
        turned[:3, axis] *= -1
        turned[:3, 3] -= turned[:3, axis] * (moved.shape[axis] - 1)
    return volume(np.flip(moved, flips), affine @ turned)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("flips", [(), (1,), (0, 2)], ids=str)
def test_axes_in_another_order_are_turned_to_the_images(order, flips):
    laid = lay(move(MARKED, order, flips))
    np.testing.assert_array_equal(laid.array[0], MARKED)
    np.testing.assert_array_equal(laid.affine, AFFINE)


@pytest.mark.parametrize("rounding", [1, 1.00001])
def test_a_mask_on_its_images_grid_stays_as_it_is(rounding):
    label = volume(MARKED, AFFINE * rounding)
    assert lay(label) is label


@pytest.mark.parametrize(("order", "flips"), [((0, 1, 2), ()), ((2, 0, 1), (1,))])
def test_a_cropped_mask_is_padded_with_background(order, flips):
    laid = lay(move(MARKED[1:3, :4, 2:], order, flips, moved_by(1, 0, 2))).array[0]
    wanted = np.zeros_like(MARKED)
    wanted[1:3, :4, 2:] = MARKED[1:3, :4, 2:]
    np.testing.assert_array_equal(laid, wanted)
    assert laid.dtype == np.int32


# 0.35 mm and 0.14 mm along rows of 0.7 mm; far beside the image; reaching beyond it by a voxel at each end.
@pytest.mark.parametrize("place", [(1, 0.5, 0), (1, 0.2, 0), (1, 1e3, 0), (-1, 0, 0), (3, 0, 0)])
def test_a_cropped_mask_outside_of_its_image_is_refused(place):
    with pytest.raises(DataError, match="m.nii has the size .2, 3, 3., and its image .4, 5, 6."):
        lay(volume(MARKED[:2, :3, :3], moved_by(*place)))


@pytest.mark.parametrize(
    "changed", [np.diag([1, 1, 1.5, 1]), np.diag([1.01, 1, 1, 1]) + 0.5 * np.eye(4, k=3), np.eye(4) + np.eye(4, k=1)]
)
def test_a_mask_of_other_voxels_is_refused(changed):
    with pytest.raises(DataError, match="m.nii lies up to .* mm away from its image .*; resample it"):
        lay(volume(MARKED, AFFINE @ changed))


FINE = np.diag([0.02, 0.02, 0.02, 1]) + np.eye(4, k=3)


def test_a_mask_aside_of_small_voxels_is_refused():
    image = volume(np.zeros(SHAPE), FINE)
    near, far = (volume(MARKED, moved_by(0, voxels, 0, affine=FINE)) for voxels in (0.05, 0.5))
    assert lay(near, image) is near
    with pytest.raises(DataError, match="m.nii lies up to 0.01 mm away .*; resample"):
        lay(far, image)


# 0.08 mm: a tenth of 0.8, less of 2.5 and more of 0.7.
@pytest.mark.parametrize(("axis", "is_same"), [(0, True), (1, False), (2, True)])
def test_a_tenth_of_a_voxel_counts_along_each_axis(axis, is_same):
    moved = AFFINE.copy()
    moved[axis, 3] += 0.0799
    with nullcontext() if is_same else pytest.raises(DataError, match="lies up to 0.08 mm away"):
        assert lay(label := volume(MARKED, moved)) is label


def save(path, array, affine, code=1):
    image = nibabel.Nifti1Image(array.astype(np.uint8), affine)
    image.set_sform(affine, code)
    image.set_qform(affine, code)
    nibabel.save(image, path)
    return path


@pytest.mark.parametrize("unknown", ["mask", "image"])
def test_a_mask_is_turned_where_both_headers_state_axes(tmp_path, unknown):
    # Without its codes NIfTI's grid is made up by the reader, here as an exact flip of the other one.
    affine = np.diag([1.0, 1, 1, 1])
    affine[:3, 3] = -(np.array(SHAPE) - 1) / 2
    files = [save(tmp_path / f"{name}.nii", MARKED, affine, name != unknown) for name in ("mask", "image")]
    label, image = map(read_label, files)
    assert (label.affine[0, 0] < 0) == (unknown == "mask")
    called = "m.nii" if unknown == "mask" else "the image of m.nii"
    with pytest.raises(DataError, match=f"^{called} states no place in its header"):
        lay(label, image, files)
    # What no header leaves open is turned: the very same numbers.
    assert np.array_equal(lay(label, image).array, label.array[:, ::-1])


@pytest.mark.parametrize("is_mask", [True, False])
def test_a_grid_that_is_none_is_refused(is_mask):
    flat, whole = volume(MARKED, AFFINE @ np.diag([1, 1, 0, 1])), volume(MARKED)
    with pytest.raises(DataError, match="m.nii has"):
        lay(*((flat, whole) if is_mask else (whole, flat)))


# -------- headers that state no place

NIFTI_EYE, ITK_EYE, SIZED = np.eye(4), np.diag([-1.0, -1, 1, 1]), np.diag([0.8, 0.7, 2.5, 1])


def save_itk(path, array, affine=None):
    """Save a volume by SimpleITK; without an affine, as from an array of numbers alone."""
    image = SimpleITK.GetImageFromArray(array.astype(np.uint8).T)
    if affine is not None:
        spacing = np.linalg.norm(affine[:3, :3], axis=0)
        image.SetSpacing(spacing.tolist())
        image.SetOrigin((affine[:3, 3] * (-1, -1, 1)).tolist())
        image.SetDirection((np.diag([-1, -1, 1]) @ affine[:3, :3] / spacing).ravel().tolist())
    SimpleITK.WriteImage(image, path)
    return path


PLACELESS = {
    "identity": lambda folder, array: save(folder / "m.nii.gz", array, NIFTI_EYE),
    "identity with sizes": lambda folder, array: save(folder / "m.nii.gz", array, SIZED),
    "no codes": lambda folder, array: save(folder / "m.nii.gz", array, AFFINE, code=0),
    "nifti of an array": lambda folder, array: save_itk(folder / "m.nii.gz", array),
    "metaimage of an array": lambda folder, array: save_itk(folder / "m.mha", array),
    "nrrd of an array": lambda folder, array: save_itk(folder / "m.nrrd", array),
}


def give_place(own, other):
    """Do what the message says: give one file the place of another."""
    mask, image = SimpleITK.ReadImage(own), SimpleITK.ReadImage(other)
    mask.CopyInformation(image)
    SimpleITK.WriteImage(mask, own)


@pytest.mark.parametrize("kind", PLACELESS)
@pytest.mark.parametrize(("lacks", "called"), [(0, ""), (1, "the image of ")])
def test_what_has_no_place_is_refused_until_it_has_one(tmp_path, kind, lacks, called):
    files = [save(tmp_path / "other.nii.gz", MARKED, AFFINE)]
    files.insert(lacks, PLACELESS[kind](tmp_path, MARKED))
    with pytest.raises(DataError, match=f"^{called}m.nii states no place in its header; .* voxel on voxel, give it"):
        lay(*map(read_label, files), files)
    give_place(files[lacks], files[1 - lacks])
    np.testing.assert_array_equal(lay(*map(read_label, files), files).array[0], MARKED)


@pytest.mark.parametrize("kind", PLACELESS)
def test_a_smaller_mask_without_a_place_is_not_laid(tmp_path, kind):
    files = [PLACELESS[kind](tmp_path, MARKED[:2]), save(tmp_path / "image.nii.gz", MARKED, AFFINE)]
    with pytest.raises(DataError, match="export both from the same grid$"):
        lay(*map(read_label, files), files)


@pytest.mark.parametrize("affine", [NIFTI_EYE, ITK_EYE, SIZED], ids=["identity", "as ITK", "sizes alone"])
def test_mask_and_image_with_the_identity_are_voxel_on_voxel(affine):
    label = volume(MARKED, affine)
    assert lay(label, volume(np.zeros(SHAPE), affine)) is label


def test_a_cropped_mask_with_the_identity_is_not_laid_anywhere():
    with pytest.raises(DataError, match="has the size .* its image"):
        lay(volume(MARKED[:2], NIFTI_EYE), volume(np.zeros(SHAPE), NIFTI_EYE))
