"""Which of the models that the server sent last is the best for each image: what FedSM's selector learns to say."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.base.errors import StateError
from silofl.base.files import load_state, save_state
from silofl.data.batches import evaluation_batches
from silofl.data.cache import describe_source, fingerprint_preparation
from silofl.data.parts import Examples
from silofl.inference import SuperModel as Loaded
from silofl.inference.directory import FOLDER, read_model_folder
from silofl.parts.work import Work

# Which model is the best for each training image; made again where it is damaged or of another format.
BEST_MODELS, FORMAT = "best_models.pt", 4


def label_best_models(work: Work, part: Examples, outputs: Sequence[str]) -> Examples:
    """Return the part with the index of the best model for each image as its class (Eq. 1: argmin_k L(h_k, y))."""
    # A patient may have been forgotten since, or a mask corrected.
    manifest = work.data.manifest
    data = fingerprint_preparation(describe_source(manifest), work.study) if manifest else ""
    path = work.folder / BEST_MODELS
    belongs_to = {"run": work.folder.name, "site": work.site, "data": data}
    # Computed once and kept: the models stay as they are in all rounds in which the selector learns.
    try:
        best = load_state(path, FORMAT, belongs_to)["models"]
    except StateError:
        losses = [_measure_losses(work, model, part) for model in load_fixed_models(work, outputs)]
        best = torch.from_numpy(np.stack(losses).argmin(axis=0))
        save_state(path, FORMAT, belongs_to, {"models": best})
    return replace(part, targets=best.numpy())


def load_fixed_models(work: Work, outputs: Sequence[str]) -> list[nn.Module]:
    """Return the site's stored models of a selector's outputs, in evaluation mode."""
    model = Loaded(read_model_folder(work.folder / FOLDER), work.device)
    return [model.network(name) for name in outputs]


def _measure_losses(work: Work, network: nn.Module, part: Examples) -> NDArray[np.float64]:
    """Return a model's loss of each image, shape (N,)."""
    values = []
    with torch.inference_mode():
        for images, targets in evaluation_batches(part, work.study.training.batch_size, work.device):
            logits = network(images)
            # One image at a time, because a study's loss is the mean over its batch.
            values += [float(work.loss(logits[i : i + 1], targets[i : i + 1])) for i in range(len(images))]
    return np.array(values)
