"""Files for people at a site after the test: scores by case, and pictures of some cases."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.base.csv_text import encode_csv
from silofl.base.files import write_atomically, write_text
from silofl.data.parts import Examples
from silofl.data.targets import IGNORED, find_labelled
from silofl.data.volumes import Array, pad_to_size
from silofl.models import HarmonizedModel
from silofl.training.metrics import Label, Score

# In a site's folder of a run; only release 0.4 wrote the last one, with a selector.
SCORES, PICTURES, FEATURES = "scores.csv", "pictures.npz", "selector.npz"


def write_test_files(
    folder: Path, result: Score, predictions: Array, model: HarmonizedModel, part: Examples, shown: slice
) -> None:
    """Write a test's scores by case and, of a segmentation, pictures of some cases to the site's folder of the run.

    Args:
        folder: The site's folder of the run.
        predictions: In the part's order.
        model: Its input normalisation is shown.
        shown: The channels of an image itself, among those of its neighbours.
    """
    write_scores(folder / SCORES, result.by_case)
    if part.targets.ndim > 1:
        write_pictures(folder / PICTURES, model, part, predictions, result.by_case, shown, result.labels_by_case)


def write_scores(path: Path, by_case: Mapping[str, float]) -> None:
    """Write each test case's value as a table."""
    write_text(path, encode_csv([("case", "value"), *by_case.items()]))


def write_pictures(
    path: Path,
    model: HarmonizedModel,
    part: Examples,
    predictions: Array,
    by_case: Mapping[str, float],
    shown: slice,
    by_label: Mapping[Label, Mapping[str, float]] | None = None,
) -> None:
    """Write the slice with the most labels of four cases: image, input, truth, prediction.

    They are the worst, the median and the best case of this model, and one that is the same for every model.
    Arguments as `write_test_files`; ``by_case`` is each case's value, ``by_label`` those of each label, or region.
    """
    ordered = sorted(by_case, key=lambda case: (by_case[case], case))
    if not ordered:
        return
    cases = [ordered[0], ordered[len(ordered) // 2], ordered[-1], _typical_case(part, by_case)]
    # The last case is chosen by the data alone, whatever this model's value of it.
    is_ranked = np.array([True, True, True, False])
    panes = [_draw_panes(model, part, predictions, find_largest_slice(part, case), shown) for case in cases]
    pictures: dict[str, Any] = {name: _stack_padded([pane[name] for pane in panes]) for name in panes[0]}
    values = np.array([by_case[case] for case in cases])
    pictures |= {"values": values, "cases": np.array(cases), "is_ranked": is_ranked}
    if by_label:
        pictures["scored"] = np.array([str(label) for label in by_label])
        by_picture = [[of_cases.get(case, np.nan) for of_cases in by_label.values()] for case in cases]
        pictures["label_values"] = np.array(by_picture)
    write_atomically(path, lambda stream: np.savez_compressed(stream, **pictures))


def add_own(path: Path, part: Examples, predictions: Array, by_case: Mapping[str, float]) -> None:
    """Add to a file of pictures what a site's own model predicts, as ``own`` and ``local_values``.

    Args:
        path: As `write_pictures` wrote it; without it nothing is done.
        predictions: The own model's, in the part's order.
        by_case: Its value of each case; NaN is written of a case without one.
    """
    if not path.is_file():
        return
    with np.load(path, allow_pickle=False) as arrays:
        pictures = dict(arrays.items())
    cases = pictures["cases"].tolist()
    rows = [find_largest_slice(part, case) for case in cases]
    shown = [show_plane(predictions[row], part, row) for row in rows]
    pictures["own"] = _stack_padded(shown)
    pictures["local_values"] = np.array([by_case.get(case, np.nan) for case in cases])
    write_atomically(path, lambda stream: np.savez_compressed(stream, **pictures))


def _draw_panes(
    model: HarmonizedModel, part: Examples, predictions: Array, chosen: int, shown: slice
) -> dict[str, NDArray[Any]]:
    """Return the pictures of one example: itself, or the slice of a volume with the most labels."""
    image = part.images[chosen]
    truth = part.targets[chosen]
    device = next(model.parameters()).device
    with torch.inference_mode():
        batch = torch.from_numpy(np.array(image))[None].to(device)
        normalized = model.eval().normalized(batch)[0].cpu().numpy()
    panes = {
        "images": image[shown],
        "normalized": normalized[shown],
        # What nobody annotated looks like the background.
        "truths": np.where(truth == IGNORED, 0, truth),
        "predictions": predictions[chosen],
    }
    return {name: show_plane(array, part, chosen) for name, array in panes.items()}


def show_plane(array: NDArray[Any], part: Examples, chosen: int) -> NDArray[Any]:
    """Return an array of one example (..., *spatial) as it is shown: of a volume its slice with the most labels."""
    truth = part.targets[chosen]
    is_volume = truth.ndim == 3
    if is_volume:
        array = array[..., int(np.count_nonzero(find_labelled(truth), axis=(0, 1)).argmax())]
    # A volume's first axis runs across the body: rows and columns change places for the eye.
    if is_volume or part.slices[chosen] is not None:
        return np.swapaxes(array, -1, -2)
    return array


def _stack_padded(panes: list[NDArray[Any]]) -> NDArray[Any]:
    """Return pictures of several sizes as one array, with zeros around the smaller ones."""
    size = np.max([pane.shape[-2:] for pane in panes], axis=0)
    return np.stack([pad_to_size(pane, size) for pane in panes])


def _typical_case(part: Examples, cases: Collection[str]) -> str:
    """Return the case with the median number of labelled pixels, by the data alone, so that models can be compared."""
    sizes = dict.fromkeys(cases, 0)
    for case, target in zip(part.cases, part.targets, strict=True):
        if case in sizes:
            sizes[case] += int(np.count_nonzero(find_labelled(target)))
    # A case without any label counts with some models alone.
    labelled = [case for case in sizes if sizes[case]] or list(sizes)
    return sorted(labelled, key=lambda case: (sizes[case], case))[len(labelled) // 2]


def find_largest_slice(part: Examples, case: str) -> int:
    """Return the row of a case with the most labels."""
    rows = [row for row, name in enumerate(part.cases) if name == case]
    return max(rows, key=lambda row: int(np.count_nonzero(find_labelled(part.targets[row]))))
