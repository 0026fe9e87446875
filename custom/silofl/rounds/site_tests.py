"""What a site measures: validation in a round, and the test of the chosen model or of the whole super model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.config import Study
from silofl.data.batches import evaluation_batches
from silofl.data.parts import Part
from silofl.data.site_data import SiteData
from silofl.files import write_atomically
from silofl.inference import SuperModel
from silofl.inference.contents import Contents
from silofl.inference.directory import read, write
from silofl.inference.geometry import decide
from silofl.models import HarmonizedModel
from silofl.models.members import GLOBAL, PERSONAL, Members
from silofl.rounds.message import Message
from silofl.rounds.pictures import write_pictures, write_scores
from silofl.rounds.site_selector import SiteSelector
from silofl.rounds.super_message import contents_of, holds_global
from silofl.training.evaluation import outputs_of, predict, score, softmax_of
from silofl.training.losses import make_loss
from silofl.training.metrics import Score, members_of

FOLDER = "supermodel"


def validate(
    members: Members, selector: SiteSelector | None, part: Part, study: Study, site: str, device: torch.device
) -> dict[str, Any]:
    """Return the score of a site's models on its validation part.

    With a selector the value is what the super model would come to as far as the site can see it: a case that the
    selector gives to this site is answered by its personalised model, any other by the global one.
    """
    scores = {
        role: score(predict(model, part, study.training.batch_size, device), part, study)
        for role, model in members.models.items()
    }
    own = scores.get(PERSONAL) or scores[""]
    if len(scores) == 1:
        return numbers(own)
    models = {role: numbers(result)["value"] for role, result in scores.items()}
    if selector is None:
        return numbers(own) | {"models": models}
    sites = softmax_of(selector.model, part.images, study.training.batch_size, device)
    index = selector.outputs.index(site)
    is_own = {case: sites[rows].mean(axis=0).argmax() == index for case, rows in members_of(part.cases).items()}
    by_case = {case: scores[PERSONAL if is_own[case] else GLOBAL].by_case.get(case) for case in is_own}
    accuracy = float(np.mean(sites.argmax(axis=1) == index))
    return numbers(Score.of(by_case)) | {"models": models, "selector_accuracy": accuracy}


def numbers(result: Score) -> dict[str, Any]:
    """Return what of a score leaves the site: no case is named."""
    value = result.value if result.num_cases else None
    labels = {str(label): mean for label, mean in result.by_label.items()}
    return {"value": value, "num_cases": result.num_cases, "num_excluded": result.num_excluded, "labels": labels}


@dataclass(frozen=True)
class CaseResult:
    """What the models of a super model make of one case.

    Attributes:
        scores: The selector's probability of each output, shape (outputs,).
        measured: Model, or ``ensemble`` (all models, weighted by the scores) -> its score on this case.
        predictions: Model, or ``ensemble`` -> label maps (n, H, W) or classes (n,).
        slices: Output -> how many of the case's slices it would get alone.
    """

    scores: NDArray[np.float64]
    measured: dict[str, Score]
    predictions: dict[str, NDArray]
    slices: Counter[str]

    @property
    def values(self) -> dict[str, float | None]:
        """Model -> its value; None where truth and prediction are empty."""
        return {name: score.value if score.num_cases else None for name, score in self.measured.items()}


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
        predictions = predict(model, part, self.study.training.batch_size, self.device)
        result = score(predictions, part, self.study)
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        contents = Contents(self.study, tuple(part.images.shape[1:]), {site: state}, "only", facts=numbers(result))
        write(self.folder / FOLDER, contents)
        self._keep(result, predictions, model)
        return numbers(result)

    def assemble(self, message: Message, image_shape: tuple[int, ...]) -> list[list[float]]:
        """Keep a received super model; return [sum of values, counted cases] on validation data by threshold."""
        known = {} if holds_global(message) else read(self.folder / FOLDER).models
        contents = contents_of(message, self.study, tuple(image_shape), known)
        write(self.folder / FOLDER, contents)
        (self.folder / "best_models.npy").unlink(missing_ok=True)
        thresholds = message.meta["thresholds"]
        if contents.selector is None or len(self.data.validation) == 0:
            return []
        model = SuperModel.of(contents, self.device)
        results = case_results(model, self.data.validation, self.study)
        return [_sum_and_count(_answered(model, results, gamma)) for gamma in thresholds]

    def test_super_model(self, message: Message) -> dict[str, Any]:
        """Test the kept super model, with all its models beside it; keep scores, pictures and selector features."""
        if message.arrays:
            self.assemble(message, self.data.training.images.shape[1:])
        contents = replace(read(self.folder / FOLDER), threshold=message.meta["threshold"], facts=message.meta["facts"])
        write(self.folder / FOLDER, contents)
        model, part = SuperModel.of(contents, self.device), self.data.test
        results = case_results(model, part, self.study)
        chosen = _choices(model, results, contents.threshold)
        answers = dict.fromkeys(results, "ensemble") if contents.is_ensemble else chosen
        result = Score.merged({case: results[case].measured[name] for case, name in answers.items()})
        self._keep_features(model)
        rows = members_of(part.cases)
        predictions = np.zeros(part.targets.shape, dtype=np.int64)
        for case, name in answers.items():
            predictions[rows[case]] = results[case].predictions[name]
        self._keep(result, predictions, model.network(GLOBAL))
        return numbers(result) | {
            "models": _by_model(results, answers),
            "choices": dict(Counter(chosen.values())),
            "selector": {
                "cases": dict(Counter(contents.outputs[int(r.scores.argmax())] for r in results.values())),
                "slices": dict(sum((r.slices for r in results.values()), Counter())),
            },
            "by_threshold": [_sum_and_count(_answered(model, results, g)) for g in message.meta["thresholds"]],
        }

    def with_best_models(self, part: Part, outputs: Sequence[str]) -> Part:
        """Return the part with the index of the best model for each image as its class (Eq. 1: argmin_k L(h_k, y))."""
        path = self.folder / "best_models.npy"
        if not path.is_file():
            model = SuperModel.of(read(self.folder / FOLDER), self.device)
            losses = np.stack([self._losses(model.network(name), part) for name in outputs])
            write_atomically(path, lambda stream: np.save(stream, losses.argmin(axis=0)))
        return replace(part, targets=np.load(path, allow_pickle=False))

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
        size, network = self.study.training.batch_size, model.selector
        features = outputs_of(network.network.features, images, size, self.device)
        arrays = {"features": features, "scores": softmax_of(network, images, size, self.device)}
        outputs = np.array(model.contents.outputs)
        write_atomically(
            self.folder / "selector.npz", lambda stream: np.savez_compressed(stream, **arrays, outputs=outputs)
        )


def case_results(model: SuperModel, part: Part, study: Study) -> dict[str, CaseResult]:
    """Return what every model, and all of them together, make of each case of a part."""
    size = study.training.batch_size
    return {case: _case_result(model, part.taken(rows), study, size) for case, rows in members_of(part.cases).items()}


def _case_result(model: SuperModel, part: Part, study: Study, size: int) -> CaseResult:
    images, outputs = np.asarray(part.images), model.contents.outputs
    slices = softmax_of(model.selector, images, size, model.device)
    scores = model.scores(images, size)
    said = {name: model.probabilities(name, images, size) for name in model.contents.models}
    shares = scores / scores.sum()
    said["ensemble"] = sum(np.float32(share) * said[name] for name, share in zip(outputs, shares, strict=True))
    predictions = {name: decide(values) for name, values in said.items()}
    measured = {name: score(maps, part, study) for name, maps in predictions.items()}
    return CaseResult(scores, measured, predictions, Counter(outputs[i] for i in slices.argmax(axis=1)))


def _choices(model: SuperModel, results: dict[str, CaseResult], threshold: float | None) -> dict[str, str]:
    return {case: model.choose(result.scores, threshold) for case, result in results.items()}


def _answered(model: SuperModel, results: dict[str, CaseResult], threshold: float) -> list[float]:
    """Return the values of the chosen models, of the cases that count."""
    chosen = _choices(model, results, threshold)
    values = [results[case].values[name] for case, name in chosen.items()]
    return [value for value in values if value is not None]


def _by_model(results: dict[str, CaseResult], answers: dict[str, str]) -> dict[str, float | None]:
    """Return the mean value of each model, of their ensemble, and of the super model's own answers."""
    names = next(iter(results.values())).values if results else ()
    tables = {name: {case: result.values[name] for case, result in results.items()} for name in names}
    tables["super"] = {case: results[case].values[name] for case, name in answers.items()}
    return {name: numbers(Score.of(table))["value"] for name, table in tables.items()}


def _sum_and_count(values: list[float]) -> list[float]:
    return [float(sum(values)), len(values)]
