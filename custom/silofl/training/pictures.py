"""Files for people at a site after the test: scores by case, and pictures of some cases."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.data.parts import Examples
from silofl.files import write_atomically, write_text
from silofl.models import HarmonizedModel
from silofl.training.metrics import Score


def keep_test(
    folder: Path, result: Score, predictions: NDArray, model: HarmonizedModel, part: Examples, shown: slice
) -> None:
    """Write a test's scores by case and, of a segmentation, pictures of some cases to the site's folder of the run.

    Args:
        folder: The site's folder of the run.
        result: The scores.
        predictions: In the part's order.
        model: Its input normalisation is shown.
        part: The test's examples.
        shown: The channels of an image itself, among those of its neighbours.
    """
    write_scores(folder / "scores.csv", result.by_case)
    if part.targets.ndim > 1:
        write_pictures(folder / "pictures.npz", model, part, predictions, result.by_case, shown)


def write_scores(path: Path, by_case: Mapping[str, float]) -> None:
    """Write each test case's value as a table."""
    text = io.StringIO()
    csv.writer(text).writerows([("case", "value"), *by_case.items()])
    write_text(path, text.getvalue())


def write_pictures(
    path: Path,
    model: HarmonizedModel,
    part: Examples,
    predictions: NDArray,
    by_case: Mapping[str, float],
    shown: slice,
) -> None:
    """Write the largest slice of the worst, the median and the best case: image, input, truth, prediction.

    Arguments as `keep_test`; ``by_case`` is each case's value.
    """
    ordered = sorted(by_case, key=lambda case: (by_case[case], case))
    if not ordered:
        return
    cases = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    chosen = [_largest_slice(part, case) for case in cases]
    images = np.stack([part.images[i] for i in chosen])
    device = next(model.parameters()).device
    with torch.inference_mode():
        normalized = model.eval().input_norm(torch.from_numpy(images).to(device)).cpu().numpy()
    pictures = {
        "images": images[:, shown],
        "normalized": normalized[:, shown],
        "truths": np.stack([part.targets[i] for i in chosen]),
        "predictions": predictions[chosen],
    }
    if part.slices[chosen[0]] is not None:
        # A volume's first axis runs across the body: rows and columns change places for the eye.
        pictures = {name: np.swapaxes(array, -1, -2) for name, array in pictures.items()}
    values = np.array([by_case[case] for case in cases])
    write_atomically(path, lambda stream: np.savez_compressed(stream, **pictures, values=values, cases=np.array(cases)))


def _largest_slice(part: Examples, case: str) -> int:
    members = [i for i, name in enumerate(part.cases) if name == case]
    return max(members, key=lambda i: int(np.count_nonzero(part.targets[i])))
