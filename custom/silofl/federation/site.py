"""A site's part of a run: train on its data, validate and test what the server sends, keep what stays at home."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from silofl.algorithms.adafed import collect_statistics, running_statistics
from silofl.algorithms.steps import Batch, make_step
from silofl.data.batches import evaluation_batches, training_batches
from silofl.data.parts import Part
from silofl.data.site_data import SiteData, load_site_data
from silofl.data.transforms import augmentation
from silofl.errors import ConfigError, DataError, SiloFLError, TrainingError
from silofl.federation.message import Message
from silofl.federation.selector import is_selectors
from silofl.federation.similarity import statistics_arrays
from silofl.federation.site_selector import SiteSelector
from silofl.federation.site_tests import SiteTests, validate
from silofl.federation.state import SiteState
from silofl.models.members import GLOBAL, PERSONAL, SELECTOR, Members, role_of
from silofl.models.parts import AMPLITUDE
from silofl.site import Site
from silofl.study import Study
from silofl.training.device import choose_device, keep_freed_memory, seed_of
from silofl.training.loop import Learner, TrainingResult, make_optimizer, train
from silofl.training.losses import make_loss

if TYPE_CHECKING:
    from monai.transforms import Compose

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """What a task begins from: the models of a finished round, their optimisers, and the selector if it takes part."""

    members: Members
    optimizers: dict[str, torch.optim.Optimizer]
    selector: SiteSelector | None

    def optimizer_states(self) -> dict[str, Any]:
        """Return the optimisers' states by role."""
        states = {role: optimizer.state_dict() for role, optimizer in self.optimizers.items()}
        if self.selector is not None and self.selector.optimizer is not None:
            states[SELECTOR] = self.selector.optimizer.state_dict()
        return states


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
    def _augmentations(self) -> dict[bool, Compose | None]:
        """The study's random transforms by whether a label map is to be moved along with the image."""
        return {has_label_map: augmentation(self.study, has_label_map) for has_label_map in (True, False)}

    def answer(self, task: str, message: Message) -> Message:
        """Carry out a task of the server, one of ``TASKS``.

        Returns:
            The site's answer; where the task could not be done, no arrays and ``meta["error"]`` with a reason that
            names no case. The full reason is in the site's own log.
        """
        try:
            return getattr(self, TASKS[task])(message)
        except Exception as error:  # whatever fails here must be told at once, or the server waits in vain
            is_known = isinstance(error, SiloFLError)
            logger.error("%s of round %s failed: %s", task, message.meta.get("round"), error, exc_info=not is_known)
            return message.failed(public_reason(error))

    def train(self, message: Message) -> Message:
        """Validate the received models of the round before, then train one round from them."""
        number, run = message.meta["round"], message.meta["run"]
        start = self._start(message, number - 1)
        metrics = {}
        if number > 1:
            metrics["validation"] = self._validation(start)
        names = start.members.traveling_names(self.study.recipe)
        before = start.members.read(names)
        results = self._train(self._learners(start), self.data.training, number)
        if self.study.recipe.stays_home == "everything" and number == 1:
            start.members.fix_amplitude()
        self._state(run).save(number, self._kept(start, message), message.meta.get("best_round"))
        update = {name: value - before[name] for name, value in start.members.read(names).items()}
        if message.meta.get("wants_amplitude"):
            update[AMPLITUDE] = start.members.amplitude()
        if start.selector is not None:
            update |= start.selector.update()
        return Message(update, self._meta(number, results, metrics))

    def share_statistics(self, message: Message) -> Message:
        """Collect the statistics that sites are compared by (AdaFed), unless there are too few examples for it.

        They come from the received pretrained model's layers fed with the training data, or from this site's own
        BatchNorm layers after its last round.
        """
        number, recipe, part = message.meta["round"], self.study.recipe, self.data.training
        if len(part) < self.site.min_examples:
            return Message(meta={"round": number, "withheld": f"fewer than {self.site.min_examples} training examples"})
        if recipe.statistics == "running" and not self._state(message.meta["run"]).rounds():
            raise TrainingError(f"site {self.name!r} must have trained a round before it has statistics to share")
        model = self._start(message, number).members.own
        if recipe.statistics == "running":
            statistics = running_statistics(model)
        else:
            batches = evaluation_batches(part, self.study.training.batch_size, self.device)
            statistics = collect_statistics(model, (images for images, _ in batches), recipe.statistics_layers)
        return Message(statistics_arrays(statistics), {"round": number})

    def learn_selector(self, message: Message) -> Message:
        """Take one more pass over the training data with the selector alone."""
        number, step = message.meta["round"], message.meta["step"]
        selector = SiteSelector(self.study, message, self.device, self._selector_optimizer(message, number))
        part, site = self.data.training, self.name
        if self.study.recipe.learns_best_model:
            part, site = self._tests(message).with_best_models(part, selector.outputs), None
        results = self._train({"": selector.learner(site)}, part, number, "selector", step)
        if selector.optimizer is not None:
            state = {"home": {}, "optimizer": {SELECTOR: selector.optimizer.state_dict()}}
            self._state(message.meta["run"]).save(number, state, message.meta.get("best_round"))
        return Message(selector.update(), self._meta(number, results, {}))

    def validate(self, message: Message) -> Message:
        """Validate the received models of a finished round."""
        number = message.meta["round"]
        return Message(
            meta={"round": number, "metrics": {"validation": self._validation(self._start(message, number))}}
        )

    def test(self, message: Message) -> Message:
        """Test the received model of the chosen round, and keep it with scores and pictures at the site."""
        number = message.meta["round"]
        model = self._start(message, number).members.own
        return Message(meta={"round": number, "metrics": {"test": self._tests(message).test_model(model, self.name)}})

    def assemble(self, message: Message) -> Message:
        """Keep all sites' models and the selector as the site's super model; count what each threshold would give."""
        counts = self._tests(message).assemble(message)
        return Message(meta={"round": message.meta["round"], "by_threshold": counts})

    def test_super_model(self, message: Message) -> Message:
        """Test the kept super model with the threshold that the sites found together."""
        test = self._tests(message).test_super_model(message)
        return Message(meta={"round": message.meta["round"], "metrics": {"test": test}})

    def _start(self, message: Message, number: int) -> Start:
        """Return the models of a finished round: received arrays over what this site kept at home."""
        members = Members.build(self.study, self.data.training.images.shape[1:]).to(self.device)
        optimizers = {role: make_optimizer(self.study.training, model) for role, model in members.models.items()}
        states = self._state(message.meta["run"])
        if message.meta.get("holds") and message.meta["holds"] not in states.rounds():
            raise TrainingError(
                f"site {self.name!r} must hold its own model of round {message.meta['holds']}, which is not on its "
                "disk any more; the server sends it again in the next round"
            )
        state = states.load(number)
        if state is not None:
            members.restore(state["home"])
            for role, optimizer in optimizers.items():
                optimizer.load_state_dict(state["optimizer"][role])
        members.write({name: array for name, array in message.arrays.items() if not is_selectors(name)})
        selector = None
        if "outputs" in message.meta:
            kept = state and state["optimizer"].get(SELECTOR)
            selector = SiteSelector(self.study, message, self.device, kept)
        return Start(members, optimizers, selector)

    def _learners(self, start: Start) -> dict[str, Learner]:
        recipe, loss = self.study.recipe, make_loss(self.study)
        learners = {
            role: Learner(model, start.optimizers[role], loss, make_step(recipe))
            for role, model in start.members.models.items()
        }
        return learners | ({} if start.selector is None else {SELECTOR: start.selector.learner(self.name)})

    def _train(self, learners: dict[str, Learner], part: Part, number: int, *what: object) -> dict[str, TrainingResult]:
        try:
            return train(learners, self._epochs(part, number, *what))
        except TrainingError as error:
            raise TrainingError(f"site {self.name!r}, round {number}: {error}") from None

    def _epochs(self, part: Part, number: int, *what: object) -> Iterator[Iterator[Batch]]:
        settings, augment = self.study.training, self._augmentations[part.targets.ndim > 1]
        for epoch in range(1, settings.local_epochs + 1):
            seed = seed_of(self.study.seed, self.name, number, epoch, *what)
            torch.manual_seed(seed)
            yield training_batches(part, settings.batch_size, augment, seed, self.device)

    def _validation(self, start: Start) -> dict[str, Any] | None:
        if len(self.data.validation) == 0:
            return None
        return validate(start.members, start.selector, self.data.validation, self.study, self.name, self.device)

    def _meta(self, number: int, results: dict[str, TrainingResult], metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers of a round: loss and drift of the site's own model, and the losses of those beside it."""
        own = results.get(PERSONAL) or results[""]
        others = {f"loss_{role}": result.loss for role, result in results.items() if result is not own}
        return {
            "round": number,
            "num_examples": len(self.data.training),
            "image_shape": list(self.data.training.images.shape[1:]),
            "metrics": metrics | {"loss": own.loss, "drift": own.drift} | others,
            "steps": own.steps,
        }

    def _kept(self, start: Start, message: Message) -> dict[str, Any]:
        """Return what stays at home after a round: all that the server does not send, and the optimisers."""
        recipe = self.study.recipe
        # A model that nobody else listens to may not travel back.
        has_own = recipe.mixing != "shared" or recipe.extra_rounds > 0
        travels = set(start.members.traveling_names(recipe)) & message.arrays.keys()
        sent = {name for name in travels if not (has_own and role_of(name) != GLOBAL)}
        home = {name: value.cpu() for name, value in start.members.state().items() if name not in sent}
        return {"home": home, "optimizer": start.optimizer_states()}

    def _selector_optimizer(self, message: Message, number: int) -> dict[str, Any] | None:
        state = self._state(message.meta["run"]).load(number)
        return state and state["optimizer"].get(SELECTOR)

    def _tests(self, message: Message) -> SiteTests:
        return SiteTests(self.study, self.data, self._folder(message.meta["run"]), self.device)

    def _folder(self, run: str) -> Path:
        return self.site.run_folder(self.study.name, self.name, run)

    def _state(self, run: str) -> SiteState:
        return SiteState(self._folder(run) / "rounds")


TASKS = {
    "train": "train",
    "statistics": "share_statistics",
    "selector": "learn_selector",
    "validate": "validate",
    "test": "test",
    "assemble": "assemble",
    "test_super_model": "test_super_model",
}


def public_reason(error: Exception) -> str:
    """Return the reason that may leave the site: what may name a case or a path stays in the site's own log."""
    if isinstance(error, (DataError, ConfigError)):
        return f"the site's {'data' if isinstance(error, DataError) else 'settings'} have a fault; its own log names it"
    if isinstance(error, SiloFLError):
        return str(error)
    return f"an unexpected {type(error).__name__}; the site's own log has it"
