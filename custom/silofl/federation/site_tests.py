"""What a site measures: validation in a round, and the test of the chosen model or of the whole super model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.data.batches import evaluation_batches
from silofl.data.parts import Part
from silofl.data.site_data import SiteData
from silofl.federation.case_results import CaseResult, by_model, case_results, choices, score_of, value_of
from silofl.federation.message import Message
from silofl.federation.pictures import write_pictures, write_scores
from silofl.federation.site_selector import SiteSelector
from silofl.federation.super_message import contents_of, holds_global
from silofl.files import write_atomically
from silofl.inference import SuperModel
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, read, write
from silofl.inference.super_model import ENSEMBLE
from silofl.models import HarmonizedModel
from silofl.models.members import GLOBAL, PERSONAL, Members
from silofl.study import Study
from silofl.training.evaluation import evaluate, outputs_of, softmax_of
from silofl.training.losses import make_loss
from silofl.training.metrics import Score, members_of


def validate(
    members: Members, selector: SiteSelector | None, part: Part, study: Study, site: str, device: torch.device
) -> dict[str, Any]:
    """Return the score of a site's models on its validation part.

    With a selector the value is what the super model would come to as far as the site can see it: a case that the
    selector gives to this site is answered by its personalised model, any other by the global one.
    """
    scores = {role: evaluate(model, part, study, device)[1] for role, model in members.models.items()}
    own = scores.get(PERSONAL) or scores[""]
    if len(scores) == 1:
        return numbers(own)
    models = {role: numbers(result)["value"] for role, result in scores.items()}
    if selector is None:
        return numbers(own) | {"models": models}
    sites = softmax_of(selector.model, part.images, study.training.batch_size, device)
    index = selector.outputs.index(site)
    is_own = {case: sites[rows].mean(axis=0).argmax() == index for case, rows in members_of(part.cases).items()}
    combined = Score.merged({case: scores[PERSONAL if own else GLOBAL] for case, own in is_own.items()})
    accuracy = float(np.mean(sites.argmax(axis=1) == index))
    return numbers(combined) | {"models": models, "selector_accuracy": accuracy}


def numbers(result: Score) -> dict[str, Any]:
    """Return what of a score leaves the site: no case is named."""
    value = result.value if result.num_cases else None
    labels = {str(label): mean for label, mean in result.by_label.items()}
    found = {"value": value, "num_cases": result.num_cases, "num_excluded": result.num_excluded, "labels": labels}
    also = result.also
    cases = {str(label): count for label, count in result.label_cases.items()}
    return found | {"also": also, "label_cases": cases} if also else found


class SiteTests:
    """The tests of one site.

    Args:
        study: The study.
        data: The site's data.
        folder: The site's folder of the run.
        device: Where to compute.
    """

    def __init__(self, study: Study, data: SiteData, folder: Path, device: torch.device) -> None:
        self.study, self.data, self.folder, self.device = study, data, folder, device

    def test_model(self, model: HarmonizedModel, site: str) -> dict[str, Any]:
        """Test a single model, and keep it as the site's own super model, which holds nothing else."""
        part = self.data.test
        predictions, result = evaluate(model, part, self.study, self.device)
        state, found = {name: value.cpu() for name, value in model.state_dict().items()}, numbers(result)
        contents = Contents(self.study, tuple(part.images.shape[1:]), {site: state}, "only", facts=found)
        write(self.folder / FOLDER, contents)
        self._keep(result, predictions, model)
        return found

    def assemble(self, message: Message) -> list[list[float]]:
        """Keep a received super model; return [sum of values, counted cases] on validation data by threshold."""
        contents = self._receive(message)
        if contents.selector is None or len(self.data.validation) == 0:
            return []
        model = SuperModel(contents, self.device)
        results = case_results(model, self.data.validation, self.study)
        return _by_threshold(model, results, message.meta["thresholds"])

    def test_super_model(self, message: Message) -> dict[str, Any]:
        """Test the kept super model, with all its models beside it; keep scores, pictures and selector features."""
        contents = self._settled(message)
        model, part = SuperModel(contents, self.device), self.data.test
        results = case_results(model, part, self.study)
        chosen = choices(model, results, contents.threshold)
        answers = dict.fromkeys(results, ENSEMBLE) if contents.is_ensemble else chosen
        result = score_of(results, answers)
        self._keep_features(model)
        self._keep(result, _predictions(part, results, answers), model.network(GLOBAL))
        return numbers(result) | {
            "models": by_model(results) | {"super": value_of(result)},
            "choices": dict(Counter(chosen.values())),
            "selector": _selector_counts(contents.outputs, results.values()),
            "by_threshold": _by_threshold(model, results, message.meta["thresholds"]),
        }

    def with_best_models(self, part: Part, outputs: Sequence[str]) -> Part:
        """Return the part with the index of the best model for each image as its class (Eq. 1: argmin_k L(h_k, y))."""
        path = self.folder / "best_models.npy"
        if not path.is_file():
            model = SuperModel(read(self.folder / FOLDER), self.device)
            losses = np.stack([self._losses(model.network(name), part) for name in outputs])
            write_atomically(path, lambda stream: np.save(stream, losses.argmin(axis=0)))
        return replace(part, targets=np.load(path, allow_pickle=False))

    def _receive(self, message: Message) -> Contents:
        """Keep a received super model; what follows from an older one's models goes."""
        known = {} if holds_global(message) else read(self.folder / FOLDER).models
        contents = contents_of(message, self.study, tuple(self.data.training.images.shape[1:]), known)
        write(self.folder / FOLDER, contents)
        (self.folder / "best_models.npy").unlink(missing_ok=True)
        return contents

    def _settled(self, message: Message) -> Contents:
        """Keep the super model with the threshold and the facts that the server settled on, received now or before."""
        if message.arrays:
            return self._receive(message)
        contents = replace(read(self.folder / FOLDER), threshold=message.meta["threshold"], facts=message.meta["facts"])
        write(self.folder / FOLDER, contents)
        return contents

    def _losses(self, network: nn.Module, part: Part) -> NDArray:
        """Return a model's loss of each image, shape (N,)."""
        loss, values = make_loss(self.study), []
        with torch.inference_mode():
            for images, targets in evaluation_batches(part, self.study.training.batch_size, self.device):
                logits = network(images)
                values += [float(loss(logits[i : i + 1], targets[i : i + 1])) for i in range(len(images))]
        return np.array(values)

    def _keep(self, result: Score, predictions: NDArray, model: HarmonizedModel) -> None:
        write_scores(self.folder / "scores.csv", result.by_case)
        if self.study.task == "segmentation":
            path = self.folder / "pictures.npz"
            write_pictures(path, model, self.data.test, predictions, result.by_case, self.device)

    def _keep_features(self, model: SuperModel) -> None:
        """Keep the selector's features and scores of the validation and test images, for the report's map."""
        images = np.concatenate([self.data.validation.images, self.data.test.images])
        if len(images) == 0:
            return
        size = self.study.training.batch_size
        features = outputs_of(model.selector.network.features, images, size, self.device)
        arrays = {"features": features, "scores": model.slice_scores(images, size)}
        outputs = np.array(model.contents.outputs)
        write_atomically(
            self.folder / "selector.npz", lambda stream: np.savez_compressed(stream, **arrays, outputs=outputs)
        )


def _predictions(part: Part, results: dict[str, CaseResult], answers: dict[str, str]) -> NDArray:
    """Return the answers' label maps (N, H, W), or classes (N,), in the part's order."""
    predictions = np.zeros(part.targets.shape, dtype=np.int64)
    for case, rows in members_of(part.cases).items():
        predictions[rows] = results[case].predictions[answers[case]]
    return predictions


def _selector_counts(outputs: Sequence[str], results: Iterable[CaseResult]) -> dict[str, dict[str, int]]:
    """Return how many cases, and how many slices alone, the selector takes for each output."""
    cases, slices = Counter(), Counter()
    for result in results:
        cases[outputs[int(result.scores.argmax())]] += 1
        slices += result.slices
    return {"cases": dict(cases), "slices": dict(slices)}


def _by_threshold(model: SuperModel, results: dict[str, CaseResult], thresholds: Sequence[float]) -> list[list[float]]:
    """Return [sum of values, counted cases] of the chosen models by threshold."""
    found = [score_of(results, choices(model, results, threshold)) for threshold in thresholds]
    return [[float(sum(result.by_case.values())), result.num_cases] for result in found]
