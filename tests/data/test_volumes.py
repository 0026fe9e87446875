from dataclasses import replace

import numpy as np
import pytest

from silofl.data.batches import num_batches, training_batches
from silofl.data.parts import Examples, take_central_slices
from silofl.data.targets import IGNORED
from silofl.data.volumes import PatchSampler, Volumes, central_slices, pad_to_size
from silofl.study.data_settings import PatchSettings

SIZES = ((8, 6, 5), (4, 9, 3), (10, 10, 10))


def volumes(sizes=SIZES, channels=2):
    """Return volumes whose voxels say where they are: volume, x, y and z are the digits of a number."""
    images = []
    for number, size in enumerate(sizes):
        x, y, z = np.meshgrid(*map(np.arange, size), indexing="ij")
        images.append(np.stack([1000 * number + 100 * x + 10 * y + z] * channels).astype(np.float32))
    return Volumes(tuple(images))


def part_of(sizes=SIZES, **patches):
    images = volumes(sizes)
    targets = Volumes(tuple((image[0] % 10 == 2).astype(np.uint8) for image in images))
    names = tuple(f"case{i}" for i in range(len(sizes)))
    settings = {"size": (4, 4, 4), "per_volume": 3} | patches
    return Examples(images, targets, names, (None,) * len(sizes), names, patches=PatchSettings(**settings))


def test_a_flat_array_is_cut_without_a_copy():
    flat = np.arange(2 * 3 + 4 * 1.0)
    found = Volumes.of(flat, [(2, 3), (4, 1)])
    assert [array.shape for array in found] == [(2, 3), (4, 1)]
    assert all(np.shares_memory(array, flat) for array in found)
    assert found[1].ravel().tolist() == [6, 7, 8, 9]


def test_a_smaller_array_gets_zeros_on_both_sides():
    found = pad_to_size(np.ones((1, 2, 5)), (5, 3))
    # 3 rows are lacking: one before and two behind, as in MONAI's sliding window; no column is
    assert found.shape == (1, 5, 5)
    assert found[0, :, 0].tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(("depth", "wanted"), [(9, (3, 4, 5)), (3, (0, 1, 2)), (2, (0, 1, 1)), (1, (0, 0, 0))])
def test_a_volume_is_recognised_by_the_slices_in_its_middle(depth, wanted):
    image = np.broadcast_to(np.arange(depth, dtype=np.float32), (2, 8, 6, depth))
    found = central_slices(image)
    assert found.shape == (3, 2, 96, 96)
    np.testing.assert_allclose(found[:, 0, 40, 40], wanted, atol=1e-5)


def test_an_epoch_has_as_many_slices_as_patches():
    part = part_of(per_volume=4)
    found = take_central_slices(replace(part, targets=np.array([2, 0, 1])))
    assert found.images.shape == (12, 2, 96, 96) and found.patches is None
    assert found.targets.tolist() == [2] * 4 + [0] * 4 + [1] * 4
    assert found.cases[:5] == ("case0", "case0", "case0", "case0", "case1")
    # the middle one first, and again after all three
    np.testing.assert_array_equal(found.images[:4], central_slices(volumes()[0])[[1, 2, 0, 1]])
    assert take_central_slices(part).targets.tolist() == [0] * 12


def test_a_patch_and_its_label_map_lie_at_one_place():
    part = part_of()
    for inputs, labels in training_batches(part, 2, None, 5, "cpu"):
        assert inputs.shape[1:] == (2, 4, 4, 4)
        is_marked = ((inputs[:, 0] % 10 == 2) & (inputs[:, 0] > 0)).long()
        # where a volume is padded there is no label
        assert (labels == is_marked).all()


def test_an_epoch_has_its_patches_of_every_volume():
    part = part_of(per_volume=4)
    batches = list(training_batches(part, 5, None, 0, "cpu"))
    assert [len(inputs) for inputs, _ in batches] == [5, 5, 2]
    assert num_batches(part, 5) == 3
    numbers = np.concatenate([inputs.amax(dim=(1, 2, 3, 4)).numpy() // 1000 for inputs, _ in batches])
    assert np.bincount(numbers.astype(int)).tolist() == [4, 4, 4]


@pytest.mark.parametrize(("share", "wanted"), [(1.0, 1.0), (0.0, 0.0)])
def test_patches_lie_around_labels_as_often_as_asked(share, wanted):
    target = np.zeros((20, 20, 20), np.uint8)
    target[10, 10, 10] = 1
    sampler = PatchSampler(PatchSettings(size=(3, 3, 3), foreground=share), 0)
    found = [sampler.draw(np.zeros((1, 20, 20, 20), np.float32), target)[1] for _ in range(40)]
    # around a voxel without a label, a patch of 3 x 3 x 3 shows the only one in 26 of 7,999 draws
    assert np.mean([patch[1, 1, 1] for patch in found]) == wanted


def test_patches_do_not_lie_around_what_nobody_annotated():
    target = np.full((20, 20, 20), IGNORED, np.uint8)
    target[3, 4, 5] = 1
    sampler = PatchSampler(PatchSettings(size=(3, 3, 3), foreground=1.0), 0)
    found = [sampler.draw(np.zeros((1, 20, 20, 20), np.float32), target)[1] for _ in range(5)]
    assert all(patch[1, 1, 1] == 1 for patch in found)
