import itertools

import nibabel
import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.data.contrasts import build_source
from silofl.data.preparation import build_preparation
from silofl.data.prepared_image import prepare_with_inverse
from silofl.inference.geometry import check_images, decide_on_input

TURNS = [(order, signs) for order in itertools.permutations(range(3)) for signs in itertools.product((1, -1), repeat=3)]


def affine_of(order=(0, 1, 2), signs=(1, 1, 1), spacing=(1.0, 1.0, 1.0)):
    affine = np.eye(4)
    affine[:3, :3] = np.diag(signs)[:, order] * spacing
    affine[:3, 3] = (10, -20, 30)
    return affine


def blobs(shape):
    """Return a label map with a box of label 1 that touches no edge and one of label 2 inside it."""
    truth = np.zeros(shape, np.uint8)
    truth[tuple(slice(n // 5, n - n // 6) for n in shape)] = 1
    truth[tuple(slice(n // 3, n - n // 3) for n in shape)] = 2
    return truth


def there_and_back(path, study):
    """Prepare a label map as if it were an image, and bring the one-hot probabilities of what comes out back."""
    steps = build_preparation(study, has_label_map=False)
    prepared = prepare_with_inverse(build_source(path, study.data), steps)
    labels = np.rint(prepared.images[:, 0])
    one_hot = np.stack([labels == number for number in range(3)], axis=1).astype(np.float32)
    return decide_on_input(one_hot, prepared, steps)


@pytest.fixture
def returned(tmp_path, make_study):
    def run(truth, affine=None, **data):
        study = make_study(data={"intensity": "raw", **data})
        if affine is None:
            path = tmp_path / "truth.png"
            Image.fromarray(truth).save(path)
        else:
            path = tmp_path / "truth.nii"
            nibabel.save(nibabel.Nifti1Image(truth, affine), path)
        return there_and_back(path, study)

    return run


def test_a_label_map_on_its_own_grid_comes_back_unchanged(returned):
    spacing = [{"Spacing": {"pixdim": [1, 1, 3]}}]
    for shape, affine, steps in (
        ((9, 14), None, []),
        ((9, 14, 5), affine_of(), []),
        ((9, 14, 5), affine_of(spacing=(1, 1, 3)), spacing),
    ):
        truth = blobs(shape)
        np.testing.assert_array_equal(returned(truth, affine, volume_transforms=steps), truth)


# Every way in which a volume's axes can lie in the body is six orders by eight directions.
@pytest.mark.parametrize(("order", "signs"), TURNS[::5])
def test_turned_axes_come_back_as_they_were(returned, order, signs):
    truth = blobs((9, 14, 6))
    truth[1, 2, 1] = 2  # no symmetry
    affine = affine_of(order, signs, (0.5, 0.75, 3))
    label_map = returned(truth, affine, volume_transforms=[{"Orientation": {"axcodes": "LPS"}}])
    np.testing.assert_array_equal(label_map, truth)


@pytest.mark.parametrize(
    "step",
    [
        {"ResizeWithPadOrCrop": {"spatial_size": [16, 16]}},
        {"SpatialPad": {"spatial_size": [24, 24]}},
        {"Resize": {"spatial_size": [27, 42], "mode": "nearest"}},
        {"Resize": {"spatial_size": [27, 42], "mode": "bilinear"}},
        {"Resize": {"spatial_size": [27, 42], "mode": "area"}},
    ],
    ids=str,
)
def test_what_was_padded_or_enlarged_comes_back_unchanged(returned, step):
    truth = (blobs((9, 14)) > 0).astype(np.uint8)
    np.testing.assert_array_equal(returned(truth, transforms=[step]), truth)


def test_what_was_cropped_away_is_background_and_so_are_slices(returned):
    truth = np.full((12, 20), 2, np.uint8)
    label_map = returned(truth, transforms=[{"CenterSpatialCrop": {"roi_size": [8, 10]}}])
    wanted = np.zeros_like(truth)
    wanted[2:10, 5:15] = 2
    np.testing.assert_array_equal(label_map, wanted)
    step = {"CenterSpatialCrop": {"roi_size": [8, 9, 2]}}
    label_map = returned(np.full((8, 9, 6), 1, np.uint8), affine_of(), volume_transforms=[step])
    assert label_map[..., 2:4].all() and not label_map[..., :2].any() and not label_map[..., 4:].any()


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (np.zeros((1, 1, 8, 9)), r"must have shape \(n, 1, 8, 8\) as in training, not \(1, 1, 8, 9\)"),
        (np.zeros((0, 1, 8, 8)), "must have shape"),
        (np.zeros((1, 8, 8)), "must have shape"),
        (np.full((1, 1, 8, 8), np.nan), "must be finite"),
    ],
)
def test_images_of_another_form_are_refused(images, reason):
    with pytest.raises(DataError, match=reason):
        check_images(images, (1, 8, 8))
