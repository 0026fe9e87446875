"""The score of a case with every decision bias of a model, which `silofl.core.baseline_rule` tries.

With a bias b a voxel is foreground where ``m + b > 0``, with its margin m, the log of the largest foreground
probability minus that of the background; which label is the largest does not hang on b. So all biases come from one
count of the voxels by margin, predicted and true label.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.core.baseline_rule import BIASES
from silofl.core.findings import unpack_findings
from silofl.data.targets import IGNORED
from silofl.training.metrics import Label, compare_overlaps

# Voxels whose probabilities are read at once.
PIECE = 1 << 18


def score_label_maps(
    probabilities: NDArray[np.float32],
    truth: NDArray[np.uint8],
    regions: dict[Label, tuple[int, ...]],
    has_background: bool,
    annotated: tuple[int, ...] | None,
) -> NDArray[np.float64]:
    """Return the value of a case, as `Score.by_case` has it, with every bias: shape (biases,); NaN without one.

    Args:
        probabilities: The model's of the case's images, (n, out_channels, *spatial).
        truth: Label maps (n, *spatial).
        regions: As for `compare_overlaps`, like the others.
        has_background: The same.
        annotated: The same.
    """
    return compare_overlaps(_count_overlaps(probabilities, truth), regions, has_background, annotated)


def score_classes(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability of the true class, mean over a case's examples: shape (1,), as there is no bias.

    Args:
        probabilities: The model's, (n, classes).
        truth: Classes (n,).
    """
    # A mean of probabilities may be rounded to a hair above 1.
    return np.atleast_1d(probabilities[np.arange(len(truth)), truth].mean().clip(0, 1))


def score_findings(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability that each finding is there, or not, as in truth; the mean and shape of `score_classes`.

    Args:
        probabilities: The model's, (n, findings).
        truth: Sets of findings (n,).
    """
    is_there = unpack_findings(truth, probabilities.shape[1])
    return np.atleast_1d(np.where(is_there, probabilities, 1 - probabilities).mean().clip(0, 1))


def yield_probabilities(probabilities: NDArray[Any]) -> Iterator[tuple[int, slice, NDArray[Any]]]:
    """Yield an image's number, some of its voxels, and their probabilities (channels, voxels).

    Piece by piece, since what is made of a volume's probabilities takes as much memory as they do.
    """
    for image, voxels in enumerate(probabilities.reshape(*probabilities.shape[:2], -1)):
        for start in range(0, voxels.shape[1], PIECE):
            piece = slice(start, start + PIECE)
            yield image, piece, voxels[:, piece]


def _count_overlaps(probabilities: NDArray[Any], truth: NDArray[Any]) -> NDArray[np.int64]:
    """Count a case's voxels by bias, predicted and true label: shape (biases, labels, labels)."""
    num_labels = max(probabilities.shape[1], 2)
    # No label is above the network's, but a file may hold one that the study does not know.
    num_true = max(num_labels, int(truth[truth != IGNORED].max(initial=0)) + 1)
    counts = np.zeros(num_labels * num_true * (len(BIASES) + 1), np.int64)
    true = truth.reshape(len(truth), -1)
    for image, piece, voxels in yield_probabilities(probabilities):
        label, first_bias = _find_first_bias(voxels)
        is_annotated = true[image, piece] != IGNORED
        # One number for each triple of predicted label, true label and first bias, so that one count is enough.
        triple = (label * num_true + true[image, piece]) * (len(BIASES) + 1) + first_bias
        counts += np.bincount(triple[is_annotated], minlength=len(counts))
    # From its first bias on a voxel is foreground; before it, and with a count that no bias reaches, background.
    table = counts.reshape(num_labels, num_true, -1)
    overlaps = np.zeros((len(BIASES), num_true, num_true), np.int64)
    overlaps[:, :num_labels] = np.moveaxis(table[..., :-1].cumsum(axis=-1), -1, 0)
    overlaps[:, 0] += table.sum(axis=(0, 2)) - overlaps.sum(axis=1)
    return overlaps


def _find_first_bias(probabilities: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each voxel's most probable foreground label, and the number of the first bias with which it is that one.

    Args:
        probabilities: (out_channels, voxels).
    """
    # A network with a single output gives the foreground's probability alone.
    if len(probabilities) == 1:
        foreground = probabilities
        background = 1 - probabilities[0]
    else:
        foreground = probabilities[1:]
        background = probabilities[0]
    label = foreground.argmax(axis=0) + 1
    with np.errstate(divide="ignore"):
        margin = np.log(foreground.max(axis=0)) - np.log(background)
    # m + b > 0 from the first b above -m on. Counted in tenths, of which the biases are whole numbers.
    first_bias = np.floor(-10 * margin.astype(np.float64)) - np.round(10 * BIASES[0]) + 1
    return label, np.clip(np.nan_to_num(first_bias), 0, len(BIASES)).astype(np.int64)
