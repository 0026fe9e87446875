"""Batches of plain tensors from prepared examples; the same seed gives the same batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from silofl.base.errors import ConfigError
from silofl.data.parts import Examples
from silofl.data.transforms import metadata_tracking
from silofl.data.volumes import Array, PatchSampler, Volumes

if TYPE_CHECKING:
    from monai.transforms.compose import Compose

Batch = tuple[Tensor, Tensor]


@dataclass
class Position:
    """Where an epoch begins or, once it has begun, what draws its patches and augmentations.

    Attributes:
        taken: The number of batches that are left out.
        states: The states of the generators after them; empty for their first ones.
        generators: The generators.
    """

    taken: int = 0
    states: dict[int, Any] = field(default_factory=dict)
    generators: Sequence[np.random.RandomState] = ()

    def describe(self) -> dict[int, Any]:
        """Return the generators' states as they are now."""
        return {number: generator.get_state(legacy=False) for number, generator in enumerate(self.generators)}


def training_batches(
    part: Examples,
    batch_size: int,
    augment: Compose | None,
    seed: int,
    device: torch.device | str,
    drawn: Sequence[np.ndarray] | None = None,
    sampler: Literal["shuffled", "balanced"] = "shuffled",
    position: Position | None = None,
) -> Iterator[Batch]:
    """Yield one epoch in an order, and with patches and augmentations, that depend on the seed alone.

    A last batch of one example joins the batch before it: BatchNorm cannot learn from one value.

    Args:
        batch_size: Examples, or patches of them, a batch, at least 1.
        augment: The study's augmentation, from `silofl.data.transforms.build_augmentation`; it is not changed.
        seed: Not negative; a site gives each epoch its own.
        drawn: The examples of each batch, one of which may have none; as the seed has it where None.
        position: Where to begin, which learns of the generators; at the first batch where None.
        sampler: ``shuffled`` yields each example once; ``balanced`` as many, each class equally often on average.

    Yields:
        Inputs float32 (B, C, *spatial) and targets int64, (B, *spatial) label maps or (B,) classes.

    Raises:
        ConfigError: An augmentation changes the size of an image, or makes a label no whole number.
    """
    if drawn is None:
        drawn = _cut_batches(_draw_order(part, seed, sampler), batch_size)
    augment = _seed_augmentation(augment, seed)
    patches = PatchSampler(part.patches, seed) if part.patches else None
    position = position or Position()
    # A saved position numbers the generators in this order: those of the patches come first.
    position.generators = _find_generators([patches and patches.generator, augment])
    for number, state in position.states.items():
        position.generators[number].set_state(state)
    for rows in drawn[position.taken :]:
        if not len(rows):
            yield torch.zeros((0, *part.image_shape), device=device), torch.zeros(0, dtype=torch.long, device=device)
            continue
        if patches:
            drawn_patches = [patches.draw(part.images[row], part.targets[row]) for row in rows]
            images, targets = map(np.stack, zip(*drawn_patches, strict=True))
        else:
            images = np.asarray(part.images[rows])
            targets = np.asarray(part.targets[rows])
        # Not `if augment`: asking a Compose for its truth counts its transforms, which seeds them anew at random.
        if augment is None:
            yield _to_tensors(images, targets, device)
        else:
            yield _augment_batch(images, targets, augment, device)


def _find_generators(value: object) -> list[np.random.RandomState]:
    """Return the generators of MONAI's transforms, which may hold others, in an order of their own."""
    if isinstance(value, np.random.RandomState):
        return [value]
    if hasattr(value, "randomize"):
        value = list(vars(value).values())
    if not isinstance(value, list | tuple):
        return []
    return list(chain.from_iterable(map(_find_generators, value)))


def _draw_order(part: Examples, seed: int, sampler: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    examples = _list_epoch_examples(part)
    if sampler != "balanced":
        return rng.permutation(examples)
    # An example's probability is 1 / (number of classes * size of its class): all classes have the same one.
    _, classes, counts = np.unique(np.asarray(part.targets), return_inverse=True, return_counts=True)
    return rng.choice(examples, len(examples), p=1 / (len(counts) * counts[classes]))


def num_batches(part: Examples, batch_size: int) -> int:
    """Return the number of batches of one epoch of `training_batches`."""
    return len(_cut_batches(_list_epoch_examples(part), batch_size))


def evaluation_batches(part: Examples, batch_size: int, device: torch.device | str) -> Iterator[Batch]:
    """Yield all examples in stored order; forms as `training_batches`, but each volume whole, and alone.

    Args:
        batch_size: Examples a batch, at least 1; the last batch may be smaller.
    """
    size = limit_batch_size(part.images, batch_size)
    for start in range(0, len(part), size):
        rows = slice(start, start + size)
        # They are copied, because torch must not share memory with a read-only memory map.
        yield _to_tensors(np.array(part.images[rows]), np.array(part.targets[rows]), device)


def limit_batch_size(images: Array, batch_size: int) -> int:
    """Return how many examples are looked at together: volumes of different sizes one by one."""
    return 1 if isinstance(images, Volumes) else batch_size


def _list_epoch_examples(part: Examples) -> np.ndarray:
    return np.repeat(np.arange(len(part)), part.patches.per_volume if part.patches else 1)


def _cut_batches(order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    groups = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2:] = [np.concatenate(groups[-2:])]
    return groups


def _seed_augmentation(augment: Compose | None, seed: int) -> Compose | None:
    if augment is None:
        return None
    # MONAI's generators take seeds of 32 bits; ours may have more.
    short_seed = np.random.SeedSequence(seed).generate_state(1)[0]
    return copy.deepcopy(augment).set_random_state(seed=int(short_seed))


def _to_tensors(images: np.ndarray, targets: np.ndarray, device: torch.device | str) -> Batch:
    return torch.from_numpy(images).to(device), torch.from_numpy(targets).to(device).long()


def _augment_batch(images: np.ndarray, targets: np.ndarray, augment: Compose, device: torch.device | str) -> Batch:
    # Metadata cost time, and nothing brings a training image back to its file's grid.
    with metadata_tracking(False):
        pairs = [_augment_example(augment, image, target) for image, target in zip(images, targets, strict=True)]
    for image, _ in pairs:
        if image.shape != images.shape[1:]:
            raise ConfigError(
                f"data.augment changes an image's size from {images.shape[2:]} to {tuple(image.shape[1:])}; make "
                "images square with Resize in data.transforms, or rotate by other means than RandRotate90"
            )
    inputs, labels = zip(*pairs, strict=True)
    return torch.stack(inputs).to(device), torch.stack(labels).to(device).long()


def _augment_example(augment: Compose, image: np.ndarray, target: np.ndarray) -> Batch:
    if target.ndim == 0:
        return augment({"image": torch.from_numpy(image)})["image"], torch.tensor(target)
    moved = augment({"image": torch.from_numpy(image), "label": torch.from_numpy(target[None].astype(np.float32))})
    label = moved["label"]
    if not torch.equal(label, label.round()):
        # MONAI's own transforms take the nearest pixel's label; a package's may forget it.
        fraction = label[label != label.round()][0]
        raise ConfigError(
            f"data.augment makes fractions in a label map, as {fraction:g}; have the package's transform take the "
            "nearest pixel's label"
        )
    return moved["image"], label[0]
