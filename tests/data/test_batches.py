import itertools

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose

from silofl.base.errors import ConfigError
from silofl.data.batches import evaluation_batches, num_batches, training_batches
from silofl.data.parts import Examples
from silofl.data.transforms import build_augmentation


def part_of(count, size=(8, 8), is_segmentation=True):
    """Return examples whose pixels and targets are their number."""
    numbers = np.arange(count)
    images = np.broadcast_to(numbers[:, None, None, None], (count, 1, *size)).astype(np.float32)
    targets = images[:, 0].astype(np.uint8) if is_segmentation else numbers.astype(np.int64)
    names = tuple(map(str, numbers))
    return Examples(images, targets, names, (None,) * count, names)


def pattern(count=4):
    """Return examples whose label is where the image is bright."""
    images = np.random.default_rng(0).random((count, 1, 16, 16), dtype=np.float32)
    names = tuple(map(str, range(count)))
    return Examples(images, (images[:, 0] > 0.5).astype(np.uint8), names, (None,) * count, names)


def numbers_of(batches):
    return [inputs[:, 0, 0, 0].int().tolist() for inputs, _ in batches]


@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"),
    [(8, 4, [4, 4]), (9, 4, [4, 5]), (10, 4, [4, 4, 2]), (1, 4, [1]), (3, 1, [1, 2]), (2, 1, [2]), (0, 4, [])],
)
def test_a_last_batch_of_one_joins_the_batch_before_it(count, batch_size, sizes):
    batches = numbers_of(training_batches(part_of(count), batch_size, None, 0, "cpu"))
    assert list(map(len, batches)) == sizes and num_batches(part_of(count), batch_size) == len(sizes)
    assert sorted(itertools.chain(*batches)) == list(range(count))


@pytest.mark.parametrize("is_segmentation", [True, False])
def test_batches_are_plain_tensors_of_the_promised_types(study, is_segmentation):
    part = part_of(4, is_segmentation=is_segmentation)
    augment = build_augmentation(study("segmentation" if is_segmentation else "classification", augment=["RandFlip"]))
    epochs = (training_batches(part, 4, None, 0, "cpu"), training_batches(part, 4, augment, 0, torch.device("cpu")))
    for batches in (*epochs, evaluation_batches(part, 4, "cpu")):
        ((inputs, targets),) = batches
        assert type(inputs) is type(targets) is torch.Tensor and not isinstance(inputs, MetaTensor)
        assert (inputs.dtype, targets.dtype, inputs.shape) == (torch.float32, torch.int64, (4, 1, 8, 8))
        assert targets.shape == ((4, 8, 8) if is_segmentation else (4,))
        assert targets.reshape(4, -1)[:, 0].tolist() == inputs[:, 0, 0, 0].int().tolist()


AUGMENT = "RandRotate90 RandFlip RandRotate RandZoom RandAffine RandGaussianNoise RandAdjustContrast".split()
OPTIONS = {"RandRotate": {"range_x": 0.4}, "RandAffine": {"translate_range": [3, 3]}}


def test_the_same_seed_gives_the_same_batches_bit_by_bit(study):
    settings = study(augment=[{name: OPTIONS.get(name, {}) | {"prob": 0.7}} for name in AUGMENT])
    shared = build_augmentation(settings)
    torch.manual_seed(1)
    first = list(training_batches(pattern(), 3, shared, 5, "cpu"))
    torch.manual_seed(2)
    np.random.seed(2)
    again = list(training_batches(pattern(), 3, shared, 5, "cpu"))
    fresh = list(training_batches(pattern(), 3, build_augmentation(settings), 5, "cpu"))
    for other in (again, fresh):
        for (inputs, targets), (other_inputs, other_targets) in zip(first, other, strict=True):
            assert torch.equal(inputs, other_inputs) and torch.equal(targets, other_targets)


def test_an_augmentation_that_resizes_or_blurs_a_label_is_refused(study):
    augment = build_augmentation(study(augment=[{"RandRotate90": {"prob": 1.0, "max_k": 1}}]))
    for size in ((8, 10), (12, 8)):
        with pytest.raises(ConfigError, match="data.augment changes an image's size .*; make images square with Re"):
            list(training_batches(part_of(2, size), 2, augment, 0, "cpu"))
    ((inputs, _),) = training_batches(pattern(1), 1, augment, 0, "cpu")
    np.testing.assert_array_equal(inputs[0, 0], np.rot90(pattern(1).images[0, 0]))
    blur = Compose([lambda data: {**data, "label": data["label"] / 2}])
    with pytest.raises(ConfigError, match="data.augment makes fractions in a label map, as 0.5; "):
        list(training_batches(pattern(), 2, blur, 0, "cpu"))


def test_a_balanced_sampler_draws_all_classes_equally_often():
    targets = np.array([0] * 190 + [1] * 10)
    rows = np.arange(200, dtype=np.float32).reshape(-1, 1, 1, 1)
    part = Examples(rows, targets, tuple(map(str, range(200))), (None,) * 200, (None,) * 200)
    epochs = [[*training_batches(part, 8, None, seed, "cpu", sampler="balanced")] for seed in (0, 0, 1)]
    classes = [torch.cat([labels for _, labels in epoch]) for epoch in epochs]
    assert [len(drawn) for drawn in classes] == [200, 200, 200]
    # 200 draws of a half each: the mean is 100, the deviation sqrt(200 / 4) = 7.07; within 5 of these.
    assert all(abs(int(drawn.sum()) - 100) < 5 * 7.07 for drawn in classes)
    seen = [torch.cat([images.flatten() for images, _ in epoch]) for epoch in epochs]
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    assert all(torch.equal((images >= 190).long(), labels) for images, labels in zip(seen, classes, strict=True))
