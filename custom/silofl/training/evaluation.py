"""The one evaluation: a model's predictions for a part of a site's data, and their score."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.base.errors import TrainingError
from silofl.core.findings import decide_findings, most_likely
from silofl.data.batches import evaluation_batches
from silofl.data.site_data import Examples
from silofl.data.volumes import Array, Volumes, central_slices
from silofl.study import Study
from silofl.training.extra_metrics import measure_extra_metric
from silofl.training.findings import findings_by_case
from silofl.training.metrics import Score, accuracy_by_case, dice_by_case, group_positions, leave_out_ignored
from silofl.training.surface import surface_by_case, surface_numbers


def evaluate(model: nn.Module, part: Examples, study: Study, device: torch.device) -> tuple[Array, Score]:
    """Return a model's predictions for a part, as `predict` does, and their score.

    Raises:
        TrainingError: It answers with what is no number.
    """
    size = study.training.batch_size
    if study.task == "segmentation":
        predictions = predict(model, part, size, device)
        return predictions, score_predictions(predictions, part, study)
    probabilities = compute_class_probabilities(model, part.images, size, device, study)
    _check_is_finite(torch.from_numpy(probabilities))
    predictions = decide_findings(probabilities) if study.is_multilabel else probabilities.argmax(axis=1)
    return predictions, score_predictions(predictions, part, study, probabilities)


def summarise_test(predictions: Array, result: Score, part: Examples, study: Study) -> dict[str, Any]:
    """Return the numbers of a test that leave the site: its score and patients; of label maps surfaces and extras."""
    numbers = count_patients(result, part)
    if study.task != "segmentation":
        return numbers
    regions = list(select_regions(part, study).values())
    if part.has_ignored:
        predictions = leave_out_ignored(predictions, part.targets)
    # One unit for all cases: a mean of mm and pixels means nothing.
    has_spacings = part.spacings.keys() >= {*part.cases}
    spacings = part.spacings if has_spacings else {}
    surface = surface_by_case(predictions, part.targets, part.cases, regions, spacings)
    numbers["surface"] = surface_numbers(surface, "mm" if has_spacings else "pixels")
    if study.extra_metrics:
        numbers["extra_metrics"] = {
            name: measure_extra_metric(name, predictions, part.targets, part.cases, regions)
            for name in study.extra_metrics
        }
    return numbers


def count_patients(result: Score, part: Examples) -> dict[str, Any]:
    """Return the numbers of a test with the patients of the cases that count."""
    numbers = result.numbers()
    return numbers | {"num_patients": part.patients_of(result.by_case if numbers["num_cases"] else ())}


def predict(model: nn.Module, part: Examples, batch_size: int, device: torch.device) -> Array:
    """Return label maps uint8 of the images' sizes, or classes (N,) int64, in the part's order.

    Raises:
        TrainingError: The model answers with what is no number.
    """
    dtype = torch.uint8 if part.targets.ndim > 1 else torch.int64
    pieces = []
    model.eval()
    with torch.inference_mode():
        for inputs, _ in evaluation_batches(part, batch_size, device):
            outputs = _check_is_finite(model(inputs))
            pieces.append(most_likely(outputs).to(dtype).cpu().numpy())
    return join_pieces(part.targets, pieces)


def _check_is_finite(outputs: Tensor) -> Tensor:
    """Return a model's answers, of which the largest would otherwise be a label that it never gave."""
    if not torch.isfinite(outputs).all():
        raise TrainingError("the model answered with NaN or infinity; lower training.learning_rate")
    return outputs


def join_pieces(targets: Array, pieces: Sequence[NDArray[Any]]) -> Array:
    """Join the pieces of a prediction, which are in the targets' order, in the targets' form: an array, or volumes.

    Args:
        targets: Of a part of a site's data.
        pieces: (n, *spatial) or (n,), each of as many examples as were predicted together; of volumes one each.
    """
    if isinstance(targets, Volumes):
        return Volumes(tuple(chain.from_iterable(pieces)))
    return np.concatenate(pieces)


def compute_outputs(
    function: Callable[[Tensor], Tensor], images: Array, batch_size: int, device: torch.device
) -> NDArray[Any]:
    """Return a function of images (N, C, *spatial), in their order, computed in batches and without gradients."""
    outputs = []
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            batch = np.array(images[start : start + batch_size], dtype=np.float32)
            outputs.append(function(torch.from_numpy(batch).to(device)).cpu().numpy())
    # One volume's outputs are not copied: they may be most of the memory.
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def compute_softmax(network: nn.Module, images: Array, batch_size: int, device: torch.device) -> NDArray[np.float64]:
    """Return a classifier's probabilities (N, outputs) of images (N, C, *spatial)."""
    network.eval()
    # In float64: float32 rounds sure scores to exactly 1, and equal scores are ties to an AUROC.
    return compute_outputs(lambda batch: network(batch).double().softmax(dim=1), images, batch_size, device)


def compute_class_probabilities(
    network: nn.Module, images: Array, batch_size: int, device: torch.device, study: Study
) -> NDArray[np.float64]:
    """Return a study's model's probabilities (N, labels) of images (N, C, *spatial): of classes, or of findings."""
    if not study.is_multilabel:
        return compute_softmax(network, images, batch_size, device)
    network.eval()
    # In float64, for the reason that `compute_softmax` gives.
    return compute_outputs(lambda batch: network(batch).double().sigmoid(), images, batch_size, device)


def yield_pieces(part: Examples) -> Iterator[Array]:
    """Yield what a classifier sees of a part, in its order: all images at once, or slices of each volume."""
    if part.has_volumes:
        yield from map(central_slices, part.images)
    else:
        yield part.images


def scores_by_case(
    network: nn.Module, part: Examples, batch_size: int, device: torch.device
) -> dict[str, NDArray[Any]]:
    """Return each case's scores by a classifier, (n, outputs): of its slices, of a volume the central ones."""
    scores = [compute_softmax(network, images, batch_size, device) for images in yield_pieces(part)]
    if part.has_volumes:
        return dict(zip(part.cases, scores, strict=True))
    return {case: scores[0][rows] for case, rows in group_positions(part.cases).items()}


def score_predictions(
    predictions: Array, part: Examples, study: Study, probabilities: NDArray[Any] | None = None
) -> Score:
    """Return the study's metric of predictions for a part.

    Args:
        predictions: Label maps, classes or sets of findings, in the part's order.
        part: The truth, and whose it is.
        study: Names task, metric and what is scored: labels, or regions of several.
        probabilities: (N, classes) for a classification; without them its score has no AUROC.
    """
    if study.is_multilabel:
        return findings_by_case(predictions, part.targets, part.cases, study.labels, study.metric, probabilities)
    if study.task == "classification":
        return accuracy_by_case(predictions, part.targets, part.cases, study.metric, probabilities)
    has_background = study.metric == "dice_with_background"
    if part.has_ignored:
        predictions = leave_out_ignored(predictions, part.targets)
    return dice_by_case(
        predictions, part.targets, part.cases, select_regions(part, study), has_background, annotated=part.annotated
    )


def select_regions(part: Examples, study: Study) -> dict[int | str, tuple[int, ...]]:
    """Return what a part is scored by: all of the study's labels or regions whose labels its label maps show."""
    shown = study.labels if part.annotated is None else part.annotated
    return {name: labels for name, labels in study.scored.items() if {*labels} <= {*shown}}
