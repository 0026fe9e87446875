"""A site's part of a run: train on its data, validate and test what the server sends, keep what stays at home."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.transforms import Compose

from silofl.algorithms.harmofl import AmplitudeNorm
from silofl.algorithms.steps import Batch, make_step
from silofl.config import Site, Study
from silofl.data.batches import training_batches
from silofl.data.site_data import Part, SiteData, load_site_data
from silofl.data.transforms import augmentation
from silofl.errors import ConfigError, DataError, SiloFLError, TrainingError
from silofl.models import HarmonizedModel, build_model
from silofl.models.parts import AMPLITUDE, amplitude_names, read_arrays, traveling_names, write_arrays
from silofl.rounds.files import save_tensors, write_atomically, write_text
from silofl.rounds.message import Message
from silofl.rounds.site_state import SiteState
from silofl.training.device import choose_device, keep_freed_memory, seed_of
from silofl.training.evaluation import predict, score
from silofl.training.loop import TrainingResult, make_optimizer, train
from silofl.training.losses import make_loss
from silofl.training.metrics import Score

logger = logging.getLogger(__name__)


class SiteRounds:
    """One site in one study; every task begins from the state on disk, so a lost process loses one round at most.

    Args:
        name: The site's name.
        study: The study.
        site: The site's own settings.
    """

    def __init__(self, name: str, study: Study, site: Site) -> None:
        self.name, self.study, self.site = name, study, site
        self.device = choose_device(site.device or study.device)
        torch.set_num_threads(study.torch_threads)
        keep_freed_memory()

    @cached_property
    def data(self) -> SiteData:
        """The site's data, decoded once."""
        return load_site_data(
            self.site.data_folder(self.study.name, self.name),
            self.study,
            self.site.cache_folder(self.study.name, self.name),
            self.site.has_progress,
        )

    @cached_property
    def _augment(self) -> Compose | None:
        return augmentation(self.study)

    def answer(self, task: str, message: Message) -> Message:
        """Carry out a task of the server: ``train``, ``validate`` or ``test``.

        Returns:
            The site's answer; where the task could not be done, no arrays and ``meta["error"]`` with a reason that
            names no case. The full reason is in the site's own log.
        """
        tasks = {"train": self.train, "validate": self.validate, "test": self.test}
        try:
            return tasks[task](message)
        except Exception as error:  # whatever fails here must be told at once, or the server waits in vain
            is_known = isinstance(error, SiloFLError)
            logger.error("%s of round %s failed: %s", task, message.meta.get("round"), error, exc_info=not is_known)
            return Message(meta={"round": message.meta.get("round"), "error": public_reason(error)})

    def train(self, message: Message) -> Message:
        """Validate the received model of the round before, then train one round from it."""
        number, run = message.meta["round"], message.meta["run"]
        model, optimizer = self._load(message, number - 1)
        metrics = {}
        if number > 1:
            metrics["validation"] = self._evaluate(model, self.data.validation)
        result = self._train(model, optimizer, number)
        if self.study.recipe.stays_home == "everything" and number == 1:
            self._fix_own_amplitude(model)
        self._state(run).save(number, _kept(model, optimizer, message.arrays), message.meta.get("best_round"))
        metrics |= {"loss": result.loss, "drift": result.drift}
        meta = {"round": number, "num_examples": len(self.data.training), "metrics": metrics, "steps": result.steps}
        return Message(self._update(model, message), meta)

    def validate(self, message: Message) -> Message:
        """Validate the received model of a finished round."""
        number = message.meta["round"]
        model, _ = self._load(message, number)
        return Message(meta={"round": number, "metrics": {"validation": self._evaluate(model, self.data.validation)}})

    def test(self, message: Message) -> Message:
        """Test the received model of the chosen round, and keep it with scores and pictures at the site."""
        number = message.meta["round"]
        model, _ = self._load(message, number)
        part = self.data.test
        predictions = predict(model, part, self.study.training.batch_size, self.device)
        result = score(predictions, part, self.study)
        folder = self._folder(message.meta["run"])
        save_tensors(folder / "model.pt", {name: value.cpu() for name, value in model.state_dict().items()})
        _write_scores(folder / "scores.csv", result)
        if self.study.task == "segmentation":
            _write_pictures(folder / "pictures.npz", model, part, predictions, result, self.device)
        return Message(meta={"round": number, "metrics": {"test": _numbers(result)}})

    def _load(self, message: Message, number: int) -> tuple[HarmonizedModel, torch.optim.Optimizer]:
        """Return the model of a finished round: received arrays over what this site kept at home."""
        model = build_model(self.study, self.data.training.images.shape[1:], self.study.seed).to(self.device)
        optimizer = make_optimizer(self.study.training, model)
        state = self._state(message.meta["run"]).load(number)
        if state is not None:
            model.load_state_dict(state["home"], strict=False)
            optimizer.load_state_dict(state["optimizer"])
        arrays = dict(message.arrays)
        amplitude = arrays.pop(AMPLITUDE, None)
        if amplitude is not None:
            model.input_norm.fix(amplitude)
        write_arrays(model, arrays)
        return model, optimizer

    def _train(self, model: HarmonizedModel, optimizer: torch.optim.Optimizer, number: int) -> TrainingResult:
        try:
            return train(model, self._epochs(number), optimizer, make_loss(self.study), make_step(self.study.recipe))
        except TrainingError as error:
            raise TrainingError(f"site {self.name!r}, round {number}: {error}") from None

    def _epochs(self, number: int) -> Iterator[Iterator[Batch]]:
        settings = self.study.training
        for epoch in range(1, settings.local_epochs + 1):
            seed = seed_of(self.study.seed, self.name, number, epoch)
            torch.manual_seed(seed)
            yield training_batches(self.data.training, settings.batch_size, self._augment, seed, self.device)

    def _evaluate(self, model: HarmonizedModel, part: Part) -> dict[str, Any] | None:
        if len(part) == 0:
            return None
        return _numbers(score(predict(model, part, self.study.training.batch_size, self.device), part, self.study))

    def _update(self, model: HarmonizedModel, message: Message) -> dict[str, np.ndarray]:
        names = traveling_names(model, self.study.recipe)
        update = {name: value - message.arrays[name] for name, value in read_arrays(model, names).items()}
        if message.meta.get("wants_amplitude"):
            update[AMPLITUDE] = model.input_norm.band_amplitude().cpu().numpy()
        return update

    def _fix_own_amplitude(self, model: HarmonizedModel) -> None:
        if isinstance(model.input_norm, AmplitudeNorm):
            model.input_norm.fix(model.input_norm.running_amplitude)

    def _folder(self, run: str) -> Path:
        if not run or Path(run).name != run:
            raise ConfigError(f"the server's run id must be a plain name, not {run!r}")
        return self.site.state_folder(self.study.name, self.name) / run

    def _state(self, run: str) -> SiteState:
        return SiteState(self._folder(run) / "rounds")


def public_reason(error: Exception) -> str:
    """Return the reason that may leave the site: what may name a case or a path stays in the site's own log."""
    if isinstance(error, (DataError, ConfigError)):
        return f"the site's {'data' if isinstance(error, DataError) else 'settings'} have a fault; its own log names it"
    if isinstance(error, SiloFLError):
        return str(error)
    return f"an unexpected {type(error).__name__}; the site's own log has it"


def _kept(model: HarmonizedModel, optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> dict[str, Any]:
    """Return what stays at home after a round: all that the server does not send, and the optimiser."""
    sent = set(received) - amplitude_names(model)
    home = {name: value.cpu() for name, value in model.state_dict().items() if name not in sent}
    return {"home": home, "optimizer": optimizer.state_dict()}


def _numbers(result: Score) -> dict[str, Any]:
    value = result.value if result.num_cases else None
    return {"value": value, "num_cases": result.num_cases, "num_excluded": result.num_excluded}


def _write_scores(path: Path, result: Score) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("case", "value"), *result.by_case.items()])
    write_text(path, text.getvalue())


def _write_pictures(
    path: Path, model: HarmonizedModel, part: Part, predictions: np.ndarray, result: Score, device: torch.device
) -> None:
    """Keep the worst, the median and the best case's largest slice: image, what the network sees, truth, prediction."""
    ordered = sorted(result.by_case, key=lambda case: (result.by_case[case], case))
    if not ordered:
        return
    cases = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    chosen = [_largest_slice(part, case) for case in cases]
    images = np.stack([part.images[i] for i in chosen])
    with torch.inference_mode():
        normalized = model.eval().input_norm(torch.from_numpy(images).to(device)).cpu().numpy()
    pictures = {
        "images": images,
        "normalized": normalized,
        "truths": np.stack([part.targets[i] for i in chosen]),
        "predictions": predictions[chosen],
    }
    if part.slices[chosen[0]] is not None:
        # A volume's first axis runs across the body: rows and columns change places for the eye.
        pictures = {name: np.swapaxes(array, -1, -2) for name, array in pictures.items()}
    values = np.array([result.by_case[case] for case in cases])
    write_atomically(path, lambda stream: np.savez_compressed(stream, **pictures, values=values, cases=np.array(cases)))


def _largest_slice(part: Part, case: str) -> int:
    members = [i for i, name in enumerate(part.cases) if name == case]
    return max(members, key=lambda i: int(np.count_nonzero(part.targets[i])))
