"""The losses that a study may name, from MONAI and torch."""

from __future__ import annotations

from torch import Tensor, nn

from silofl.algorithms.steps import Loss
from silofl.study import Study


def make_loss(study: Study) -> Loss:
    """Return the study's loss of logits and integer targets.

    ``dice_ce`` is Dice plus cross entropy, ``dice`` Dice alone; background does not count in the Dice part. With a
    single label the network has one output: sigmoid and binary cross entropy. Otherwise softmax over background
    and labels.
    """
    if study.task == "classification" or (study.training.loss == "cross_entropy" and study.out_channels > 1):
        return nn.functional.cross_entropy
    return _segmentation_loss(study)


def _segmentation_loss(study: Study) -> Loss:
    from monai.losses import DiceCELoss, DiceLoss

    is_binary = study.out_channels == 1
    options = {"sigmoid": is_binary, "softmax": not is_binary, "to_onehot_y": not is_binary}
    # With a single output MONAI's "background", channel 0, is the label itself.
    options |= {"include_background": is_binary, "batch": study.training.has_batch_dice}
    losses = {
        "dice_ce": lambda: DiceCELoss(**options),
        "dice": lambda: DiceLoss(**options),
        "cross_entropy": nn.BCEWithLogitsLoss,
    }
    criterion = losses[study.training.loss]()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        # MONAI wants label maps with a channel axis, (B, 1, H, W).
        targets = targets.unsqueeze(1)
        return criterion(logits, targets.to(logits.dtype) if is_binary else targets)

    return loss
