"""The score of a case with every share and decision bias of two models' mean, which `silofl.core.guard_rule` tries.

With a bias b a voxel is foreground where ``m + b > 0``, with its margin m, the log of the largest foreground
probability minus that of the background; which label is the largest does not hang on b. So all biases of a share come
from one count of the voxels by margin, predicted and true label.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from silofl.core.findings import unpack_findings
from silofl.core.guard_rule import BIASES, SHARES
from silofl.data.targets import IGNORED
from silofl.training.metrics import Label, compare_overlaps

# Voxels whose means of two models' probabilities are in memory at once.
PIECE = 1 << 18


def score_label_maps(
    federated: NDArray[np.float32],
    local: NDArray[np.float32],
    truth: NDArray[np.uint8],
    regions: dict[Label, tuple[int, ...]],
    has_background: bool,
    annotated: tuple[int, ...] | None,
) -> NDArray[np.float64]:
    """Return what a case counts, as `Score.compared` has it, with every share and bias: shape (shares, biases).

    Args:
        federated: One model's probabilities of the case's images, (n, out_channels, *spatial).
        local: The other's.
        truth: Label maps (n, *spatial).
        regions: As for `compare_overlaps`, like the others.
        has_background: The same.
        annotated: The same.
    """
    scored = regions, has_background, annotated
    return np.stack([compare_overlaps(_count_overlaps(federated, local, truth, share), *scored) for share in SHARES])


def score_classes(
    federated: NDArray[np.float64], local: NDArray[np.float64], truth: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the probability of the true class, mean over a case's examples, with every share: shape (shares, 1).

    Args:
        federated: One model's probabilities, (n, classes).
        local: The other's.
        truth: Classes (n,).
    """
    return _weigh_means(*(found[np.arange(len(truth)), truth].mean() for found in (federated, local)))


def score_findings(
    federated: NDArray[np.float64], local: NDArray[np.float64], truth: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the probability that each finding is there, or not, as in truth; the means and shape of `score_classes`.

    Args:
        federated: One model's probabilities, (n, findings).
        local: The other's.
        truth: Sets of findings (n,).
    """
    is_there = unpack_findings(truth, federated.shape[1])
    return _weigh_means(*(np.where(is_there, found, 1 - found).mean() for found in (federated, local)))


def _weigh_means(theirs: float, ours: float) -> NDArray[np.float64]:
    # A sum of probabilities may round to a hair above 1.
    return ((1 - SHARES) * theirs + SHARES * ours).clip(0, 1)[:, None]


def yield_means(federated: NDArray, local: NDArray, share: float) -> Iterator[tuple[int, slice, NDArray]]:
    """Yield both models' mean as `SuperModel.answer` weighs it: an image's number, its voxels, and (channels, voxels).

    Piece by piece, since a volume's mean takes as much memory as one of both.
    """
    theirs, ours = (found.reshape(*found.shape[:2], -1) for found in (federated, local))
    for image in range(len(theirs)):
        for start in range(0, theirs.shape[2], PIECE):
            piece = slice(start, start + PIECE)
            mean = theirs[image, :, piece] * np.float32(1 - share) + ours[image, :, piece] * np.float32(share)
            yield image, piece, mean


def _count_overlaps(federated: NDArray, local: NDArray, truth: NDArray, share: float) -> NDArray[np.int64]:
    """Count a case's voxels by bias, predicted and true label, with one share: shape (biases, labels, labels)."""
    num_labels = max(federated.shape[1], 2)
    # No label is above the network's, but a file may hold one that the study does not know.
    num_true = max(num_labels, int(truth[truth != IGNORED].max(initial=0)) + 1)
    counts = np.zeros(num_labels * num_true * (len(BIASES) + 1), np.int64)
    true = truth.reshape(len(truth), -1)
    for image, piece, mean in yield_means(federated, local, share):
        label, first = _find_first_bias(mean)
        is_known = true[image, piece] != IGNORED
        place = (label * num_true + true[image, piece]) * (len(BIASES) + 1) + first
        counts += np.bincount(place[is_known], minlength=len(counts))
    # From its first bias on a voxel is foreground; before it, and with a count that no bias reaches, background.
    found = counts.reshape(num_labels, num_true, -1)
    overlaps = np.zeros((len(BIASES), num_true, num_true), np.int64)
    overlaps[:, :num_labels] = np.moveaxis(found[..., :-1].cumsum(axis=-1), -1, 0)
    overlaps[:, 0] += found.sum(axis=(0, 2)) - overlaps.sum(axis=1)
    return overlaps


def _find_first_bias(probabilities: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each voxel's most probable foreground label, and the number of the first bias with which it is that one.

    Args:
        probabilities: (out_channels, voxels).
    """
    foreground = probabilities if len(probabilities) == 1 else probabilities[1:]
    background = 1 - probabilities[0] if len(probabilities) == 1 else probabilities[0]
    label = foreground.argmax(axis=0) + 1
    with np.errstate(divide="ignore"):
        margin = np.log(foreground.max(axis=0)) - np.log(background)
    # m + b > 0 from the first b above -m on. Counted in tenths, of which the biases are whole numbers.
    first = np.floor(-10 * margin.astype(np.float64)) - np.round(10 * BIASES[0]) + 1
    return label, np.clip(np.nan_to_num(first), 0, len(BIASES)).astype(np.int64)
