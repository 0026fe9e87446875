"""Per-FedAvg's model at a site: what the site validates, tests and keeps is the received one after steps of its own.

The same batches adapt the models of all rounds, so that two rounds' scores differ by their models alone. These steps
are plain training: BatchNorm's statistics move with them. Nothing travels for it. A global model beside it, FedSM's, is
used as it is.
"""

import copy
from collections.abc import Iterable, Iterator
from itertools import count, islice

import torch

from silofl.core.steps import Batch, Loss, OwnDraws, Step, plain_step
from silofl.data.batches import num_batches, training_batches
from silofl.data.transforms import build_augmentation
from silofl.errors import TrainingError
from silofl.methods.work import SitePart, Work
from silofl.models import HarmonizedModel
from silofl.models.seeds import seed_torch
from silofl.training.device import derive_seed
from silofl.training.loop import Learner, train

ROLE = "meta_step"


class SiteMetaStep(SitePart):
    """A site's own steps, by which the shared model becomes its own."""

    name = ROLE

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        # The model draws its dropout as if it were alone.
        self._draws = OwnDraws(work.device)

    def epoch(self) -> None:
        """Let it begin an epoch with the random numbers that every model begins it with."""
        self._draws.begin()

    def step(self, role: str, step: Step) -> Step:
        """Refuse a round in which there would be no step, because one takes several batches.

        Raises:
            TrainingError: The round has fewer batches.
        """
        settings, needed = self.work.study.training, self.work.study.recipe.answer(ROLE).num_batches
        batches = settings.local_epochs * num_batches(self.work.data.training, settings.batch_size)
        if batches < needed:
            raise TrainingError(
                f"site {self.work.site!r} must have at least {needed} batches a round, those of one meta-step, not "
                f"{batches}; raise training.local_epochs or lower training.batch_size"
            )
        return self._draws.step(step) if self._is_own(role) else step

    def deployed(self, role: str, model: HarmonizedModel) -> HarmonizedModel:
        """Return a copy of the site's own model after its own steps."""
        if not self._is_own(role):
            return model
        work, constants = self.work, self.work.study.recipe.answer(ROLE)
        batches = islice(self._draw_batches(), constants.deployed_steps)
        try:
            return adapt_model(model, work.loss, batches, constants.alpha)
        except TrainingError as error:
            raise TrainingError(f"site {work.site!r}, steps to its own model: {error}") from None

    def _is_own(self, role: str) -> bool:
        return role == self.work.study.recipe.roles[-1]

    def _draw_batches(self) -> Iterator[Batch]:
        """Yield batches of the training data, epoch after epoch without an end."""
        work, study = self.work, self.work.study
        examples, size = work.data.training, study.training.batch_size
        augment = build_augmentation(study, examples.targets.ndim > 1)
        for epoch in count(1):
            seed = derive_seed(study.seed, work.site, ROLE, epoch)
            # For dropout, as in training.
            seed_torch(seed)
            yield from training_batches(examples, size, augment, seed, work.device)


def adapt_model(model: HarmonizedModel, loss: Loss, batches: Iterable[Batch], alpha: float) -> HarmonizedModel:
    """Return a copy of a model after plain SGD of length alpha, a step a batch.

    Raises:
        TrainingError: The loss or a parameter is not finite.
    """
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), alpha)
    train({"model": Learner(model, optimizer, loss, plain_step)}, [batches])
    return model


PART, SITE = None, SiteMetaStep
