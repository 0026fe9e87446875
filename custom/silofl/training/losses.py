"""The losses that a study may name, from MONAI and torch."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.base.errors import ConfigError, error_text
from silofl.core.findings import unpack_findings
from silofl.core.steps import Loss
from silofl.data.targets import IGNORED
from silofl.data.volumes import Array
from silofl.setup.extensions import LOSSES, is_extension, load_extension
from silofl.study import Study

# Of a loss that weighs no classes by their counts.
NO_TARGETS = np.zeros(0, np.int64)


def make_loss(
    study: Study, annotated: Sequence[int] | None = None, has_ignored: bool = False, targets: Array = NO_TARGETS
) -> Loss:
    """Return the study's loss of logits and integer targets.

    ``dice_ce`` is Dice plus cross entropy, ``dice`` Dice alone; background does not count in the Dice part. With a
    single label the network has one output: sigmoid and binary cross entropy. Otherwise softmax over background
    and labels. Of findings it is the binary cross entropy, mean over all of them. A loss of a package is called like
    these, ``part(logits, targets)``, and returns a scalar; the targets of findings are 0 or 1, (B, findings). In a
    study with differential privacy a loss is asked for one example at a time.

    Args:
        annotated: The labels that a site's label maps show, in rising order, where those are not all of the study's:
            the others count as background then, in the targets and in the network's answer.
        has_ignored: Whether pixels of the targets may be `IGNORED`, which are left out.
        targets: The classes of the examples that are learnt from, (N,), for ``training.class_weights: balanced``.
    """
    if study.training.class_weights is not None:
        return _weigh_classes(_choose_loss(study), weigh_classes(study, targets))
    # The order matters: pixels are left out of what is merged, and of each level of a network's answers.
    loss = _choose_loss(study)
    if annotated is not None:
        loss = _marginalise(loss, annotated)
    if has_ignored:
        loss = _leave_out(loss, study.training.batch_dice)
    if study.model.arguments.get("deep_supervision"):
        loss = _supervise_deeply(loss)
    return loss


def weigh_classes(study: Study, targets: Array) -> list[float]:
    """Return what an example of each class weighs, in the order of the network's answers.

    ``balanced`` is N / (C n_c) for n_c of N examples in class c of the C that there are; 1 for a class without any. Of
    a finding it is (N - n_c) / n_c, so that its presence weighs as much as its absence; 1 where all have it, or nobody.

    Args:
        study: The study, with ``training.class_weights``.
        targets: The classes, or sets of findings, of the site's training examples, (N,).
    """
    given = study.training.class_weights
    if isinstance(given, dict):
        return [given[study.labels[number]] for number in sorted(study.labels)]
    counts = count_classes(study, targets)
    if study.is_multilabel:
        total = len(targets)
        return [(total - count) / count if 0 < count < total else 1.0 for count in counts.tolist()]
    present = np.count_nonzero(counts)
    return [float(counts.sum() / (present * count)) if count else 1.0 for count in counts]


def count_classes(study: Study, targets: Array) -> NDArray[np.int64]:
    """Return how many examples, or pixels of label maps, have each class; of findings how many examples have each.

    Args:
        targets: As of `silofl.data.parts.Examples`; pixels that are `IGNORED` do not count.

    Returns:
        The count of class, label or finding k at position k; of label maps that of the background at position 0.
    """
    if study.is_multilabel:
        return np.asarray(unpack_findings(targets, study.out_channels).sum(axis=0), np.int64)
    length = max(study.labels) + 1
    counts = np.zeros(length, np.int64)
    # Label maps one at a time, because they may be large volumes of several sizes.
    for target in targets if targets.ndim > 1 else [targets]:
        counts += np.bincount(np.ravel(target), minlength=length)[:length]
    return counts


def check_loss(study: Study, image_shape: Sequence[int]) -> None:
    """Refuse a package's loss that gives no number for a study's answers and labels, by trying it once.

    Args:
        image_shape: (C, *spatial) of the images, or patches.

    Raises:
        ExtensionError: The loss may not run here, or cannot be imported.
        ConfigError: It gives none that has a gradient.
    """
    name = study.training.loss
    if not is_extension(name):
        return
    loss = _choose_loss(study)
    size = tuple(image_shape[1:]) if study.task == "segmentation" else ()
    logits = torch.zeros(2, study.out_channels, *size, requires_grad=True)
    # All labels are tried, and the background where there is one.
    numbers = sorted({0, *study.labels})
    targets = torch.tensor(numbers).repeat(2 * math.prod(size) // len(numbers) + 1)[: 2 * math.prod(size)]
    try:
        loss(logits, targets.reshape(2, *size)).backward()  # type: ignore[no-untyped-call]  # of torch
    except Exception as error:  # whatever the package raises
        raise ConfigError(
            f"training.loss {name} gave no single number with a gradient for logits {tuple(logits.shape)} and targets "
            f"of this study: {error_text(error)}; repair its package, or take another loss"
        ) from None


def _choose_loss(study: Study) -> Loss:
    if is_extension(study.training.loss):
        loss = load_extension("training.loss", LOSSES, study.training.loss)
        # A package sees of each finding whether it is there, and no packed set.
        return _unpack_targets(loss) if study.is_multilabel else loss
    if study.is_multilabel:
        return _unpack_targets(_cross_entropy_of_findings)
    if study.task == "classification" and study.is_private:
        return _mean_cross_entropy
    if study.task == "classification" or (study.training.loss == "cross_entropy" and study.out_channels > 1):
        return nn.functional.cross_entropy
    return _segmentation_loss(study)


def _mean_cross_entropy(logits: Tensor, targets: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the cross entropy, divided by the examples and not by their weights.

    Torch's mean of a single example, for which a private step asks, is the same whatever the example weighs.
    """
    return nn.functional.cross_entropy(logits, targets, weight, reduction="none").mean()


def _unpack_targets(loss: Loss) -> Loss:
    """Return a loss of sets of findings (B,), from one of 0 or 1 for each finding (B, findings)."""

    def unpacked(logits: Tensor, targets: Tensor, **options: Tensor) -> Tensor:
        numbers = torch.arange(logits.shape[1], device=targets.device)
        return loss(logits, (targets[:, None] >> numbers & 1).to(logits.dtype), **options)

    return unpacked


def _cross_entropy_of_findings(logits: Tensor, targets: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the binary cross entropy; the weights are of the findings' presence."""
    return nn.functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight)


def _weigh_classes(loss: Callable[..., Tensor], weights: Sequence[float]) -> Loss:
    """Return a loss of classes, the mean over a batch's examples by the weights of their classes."""

    def weighed(logits: Tensor, targets: Tensor) -> Tensor:
        return loss(logits, targets, weight=torch.tensor(weights, dtype=logits.dtype, device=logits.device))

    return weighed


def _supervise_deeply(loss: Loss) -> Loss:
    """Return the loss of all answers of a network in training, (B, levels, outputs, *spatial), the finest first.

    The level k weighs 2^-k, together 1 (Isensee et al., nnU-Net, Nature Methods 2021, Methods).
    """

    def supervised(logits: Tensor, targets: Tensor) -> Tensor:
        if logits.ndim == targets.ndim + 1:
            # In evaluation mode the network gives the finest answer alone.
            return loss(logits, targets)
        weights = [0.5**level for level in range(logits.shape[1])]
        losses = [weight * loss(logits[:, level], targets) for level, weight in enumerate(weights)]
        return sum(losses[1:], losses[0]) / sum(weights)

    return supervised


def _marginalise(loss: Loss, annotated: Sequence[int]) -> Loss:
    """Return a loss to which a label that is not annotated is background (marginal loss: Shi et al., MedIA 2021).

    Where nobody drew the liver, a pixel of background may be liver: the network may call it either, so that the
    probability of background is the sum of both. The logarithm of a sum of exponentials of logits has that softmax.
    """

    def merged(logits: Tensor, targets: Tensor) -> Tensor:
        merged_channels = [channel for channel in range(logits.shape[1]) if channel not in annotated]
        background = logits[:, merged_channels].logsumexp(dim=1, keepdim=True)
        # The annotated labels are numbered anew from 1, because the merged background is channel 0.
        numbers = torch.zeros(logits.shape[1], dtype=targets.dtype, device=targets.device)
        numbers[list(annotated)] = torch.arange(1, len(annotated) + 1, dtype=targets.dtype, device=targets.device)
        return loss(torch.cat([background, logits[:, list(annotated)]], dim=1), numbers[targets])

    return merged


def _leave_out(loss: Loss, is_of_batch: bool) -> Loss:
    """Return a loss that sees the pixels that somebody annotated, and no others, of each image as one row.

    Args:
        loss: Takes logits (B, outputs, pixels) and targets (B, pixels).
        is_of_batch: Whether it sees the pixels of all images as one row, as Dice over a batch needs.
    """

    def left_out(logits: Tensor, targets: Tensor) -> Tensor:
        if is_of_batch:
            logits = logits.transpose(0, 1).flatten(1)[None]
            targets = targets.flatten()[None]
        losses = []
        for answer, truth in zip(logits, targets, strict=True):
            is_annotated = truth != IGNORED
            if is_annotated.any():
                losses.append(loss(answer[:, is_annotated][None], truth[is_annotated][None]))
            else:
                # An image without such pixels has a value of 0 that has a gradient.
                losses.append(0 * answer.sum())
        return sum(losses[1:], losses[0]) / len(losses)

    return left_out


def _segmentation_loss(study: Study) -> Loss:
    from monai.losses.dice import DiceCELoss, DiceLoss

    is_binary = study.out_channels == 1
    options = {"sigmoid": is_binary, "softmax": not is_binary, "to_onehot_y": not is_binary}
    # With a single output MONAI's "background", channel 0, is the label itself.
    options |= {"include_background": is_binary, "batch": study.training.batch_dice}
    criterion: nn.Module
    if study.training.loss == "cross_entropy":
        criterion = nn.BCEWithLogitsLoss()
    else:
        criterion = {"dice_ce": DiceCELoss, "dice": DiceLoss}[study.training.loss](**options)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        # MONAI wants label maps with a channel axis, (B, 1, H, W).
        targets = targets.unsqueeze(1)
        value: Tensor = criterion(logits, targets.to(logits.dtype) if is_binary else targets)
        return value

    return loss
