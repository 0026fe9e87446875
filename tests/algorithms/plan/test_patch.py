import numpy as np
import pytest

from silofl.algorithms.plan.patch import (
    BUDGET,
    FEATURES,
    NetworkForm,
    PlannedPatch,
    estimate_memory,
    fit_batch_size,
    fit_patch,
    halvings,
)
from silofl.base.errors import ConfigError

UNET = NetworkForm.of("unet", (32, 32, 64, 128, 256), is_classifying=False, dimensions=3)
DYNUNET = NetworkForm.of("DynUNet", FEATURES, is_classifying=False, dimensions=3)
ONE_MM = np.ones(3)


def fitted(network, shape, spacing=ONE_MM, **options):
    return fit_patch(network, np.array(shape, float), np.array(spacing, float), **options)


def test_the_budget_is_that_of_two_large_patches_in_six_levels():
    # 32 + 64 / 8 + 128 / 64 + 256 / 512 + 320 / 4096 + 320 / 32768 = 42.587890625 by voxel
    assert BUDGET == 2 * 128**3 * 42.587890625
    assert estimate_memory((4, 4), [[1, 1], [2, 1]], (3, 5)) == 3 * 16 + 5 * 8


def test_equal_voxels_are_halved_alike_until_a_side_would_have_less_than_four():
    strides, kernels = halvings((64, 64, 32), (1, 1, 1))
    # 64 -> 32 -> 16 -> 8 -> 4; 32 -> 16 -> 8 -> 4
    assert strides == [[1, 1, 1], [2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 1]]
    assert kernels == [[3, 3, 3]] * 5


def test_thick_slices_are_halved_once_the_others_have_nearly_their_thickness():
    strides, kernels = halvings((256, 256, 16), (0.6, 0.6, 3))
    # 0.6 and 1.2 mm are less than half of 3 mm, 2.4 mm is more; 256 is halved five times at most, 16 twice
    assert strides == [[1, 1, 1], [2, 2, 1], [2, 2, 1], [2, 2, 2], [2, 2, 2], [2, 2, 1]]
    assert [kernel[2] for kernel in kernels] == [1, 1, 3, 3, 3, 3]
    assert all(kernel[:2] == [3, 3] for kernel in kernels)


def test_a_plane_is_halved_too():
    assert halvings((16, 8), (1, 1))[0] == [[1, 1], [2, 2], [2, 1]]


def test_a_median_image_that_fits_is_rounded_up_to_what_the_network_halves():
    assert fitted(UNET, (60, 50, 27)).size == (64, 64, 32)
    assert fitted(UNET, (64, 64, 9)).size == (64, 64, 16)


def test_a_dynunet_keeps_few_slices_few():
    # 9 slices of 3 mm: halved once, from 9 to 5, since 5 are fewer than 8
    patch = fitted(DYNUNET, (64, 64, 9), (0.6, 0.6, 3))
    assert patch.size == (64, 64, 10) and np.prod(patch.strides, axis=0).tolist() == [16, 16, 2]


def test_what_does_not_fit_is_shrunk_side_by_side():
    # at most BUDGET / 2 / 37.3125 = 2393662 voxels: 160^3 are 4096000, 144^3 2985984, 128 x 144 x 144 2654208,
    # 128 x 128 x 144 2359296
    assert fitted(UNET, (160, 160, 160)).size == (128, 128, 144)


def test_the_side_that_is_largest_for_its_image_is_shrunk_first():
    # 176 is 1.09 times the image's 161: first 160, 0.99 times; then of two equal sides the longer 144, then 128;
    # 160 x 112 x 128 are 2293760 voxels
    assert fitted(UNET, (161, 128, 144)).size == (160, 112, 128)


def test_a_smaller_network_takes_a_larger_patch():
    small = NetworkForm.of("unet", (8, 8, 16, 32, 64), is_classifying=False, dimensions=3)
    assert fitted(small, (160, 160, 160)).size == (160, 160, 160)


def test_images_that_are_turned_are_square():
    assert fitted(UNET, (60, 40, 27), is_square=True).size == (48, 48, 32)


def test_networks_have_their_least_sides():
    assert fitted(NetworkForm.of("SwinUNETR", FEATURES, is_classifying=False, dimensions=3), (40, 8, 33)).size == (
        64,
        32,
        64,
    )
    plane = NetworkForm.of("alexnet", FEATURES, is_classifying=True, dimensions=2)
    assert fit_patch(plane, np.array([28.0, 28]), np.ones(2)).size == (64, 64)


def test_every_patch_fits_and_can_be_halved():
    rng = np.random.default_rng(0)
    for network in (UNET, DYNUNET):
        for _ in range(150):
            shape, spacing = rng.integers(1, 900, 3), np.exp(rng.uniform(-2, 2, 3))
            patch = fitted(network, shape, spacing)
            assert 2 * patch.memory <= BUDGET and max(patch.size) <= 512
            steps = np.prod(patch.strides, axis=0)
            assert (np.array(patch.size) % steps == 0).all() and (np.array(patch.size) - shape < steps).all()


def test_small_volumes_are_padded_to_what_the_network_halves():
    # four halvings of 16, and with levels of its own two of 4
    assert fitted(UNET, (21, 21, 20)).size == (32, 32, 32) and fitted(DYNUNET, (21, 21, 20)).size == (24, 24, 20)


def test_features_that_fit_nowhere_are_refused():
    network = NetworkForm.of("unet", (10**6,) * 5, is_classifying=False, dimensions=3)
    with pytest.raises(ConfigError, match="model.features must be such that two patches of the least size fit"):
        fitted(network, (160, 160, 160))


def test_a_batch_holds_what_the_budget_and_the_cases_allow():
    patch = PlannedPatch((10, 10), ((1, 1),), ((3, 3),), memory=BUDGET / 7.5)
    # 5 % of 40 000 voxels are 20 patches of 100, of 12 000 6, of 100 none
    assert [fit_batch_size(patch, voxels) for voxels in (40_000, 12_000, 100)] == [7, 6, 2]
