"""Per-FedAvg: a shared model that is trained to be good after one more step of a site's own.

    server  sends the model x
    site i  from w = x, for each 2 batches D, D' (FO) or 3 batches D, D', D'' (HF):
                inner = w - alpha g(w; D); q = g(inner; D')
                FO: w = w - beta q, beta the training's learning rate
                HF: w = w - beta (q - alpha h), h = (g(w + delta q; D'') - g(w - delta q; D'')) / (2 delta)
            sends w - x
            validates, tests and uses x after plain steps of length alpha on its own batches, the same in all rounds,
            in which BatchNorm's statistics move too; these steps stay
    server  takes the mean of the w, as in FedAvg

Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach, NeurIPS 2020, arXiv:2002.07948, Algorithm 1, with its two ways around the Hessian, FO and HF.
Where a network has kinks (ReLU, max pooling), HF's two gradients jump, and a small delta makes much of it. A global
model beside it, FedSM's, is used as it is.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from silofl.base.errors import TrainingError
from silofl.base.settings import Count, Positive
from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.core.steps import (
    Batch,
    Loss,
    OwnDraws,
    StatefulStep,
    Step,
    frozen_statistics,
    full_precision,
    move_parameters,
    plain_step,
    random_state,
    set_random_state,
)
from silofl.data.batches import num_batches, training_batches
from silofl.data.parts import Examples
from silofl.data.transforms import build_augmentation
from silofl.models import HarmonizedModel
from silofl.models.seeds import seed_torch
from silofl.parts.work import SitePart, Work
from silofl.training.device import derive_seed
from silofl.training.loop import Learner, train

ROLE = "meta_step"


class MetaStep(AlgorithmOption):
    """A step down the loss of the model after one more step; a site uses the model after such steps only.

    Attributes:
        alpha: Length of the inner steps. The paper's beta is ``training.learning_rate``.
        variant: ``fo`` leaves out the Hessian; ``hf`` takes it from two gradients.
        delta: Distance of these two gradients from the model, in multiples of the outer gradient.
        deployed_steps: Steps on the site's training data before it uses the model.
    """

    section: ClassVar[str] = "perfedavg"
    implementation: ClassVar[str] = __name__
    traits: ClassVar[Traits] = Traits(second_model=SecondModel.ADAPTED)
    only_with: ClassVar = {"delta": ("variant", ("hf",))}
    alpha: Positive = 0.01
    variant: Literal["fo", "hf"] = "fo"
    delta: Annotated[Positive, Field(ge=1e-4)] = 1e-3
    deployed_steps: Count = 1

    @property
    def num_batches(self) -> int:
        """Batches of one step."""
        return 2 if self.variant == "fo" else 3

    def make_step(self) -> Step:
        """Return `meta_step` of the variant."""
        return meta_step(self.alpha, self.delta if self.variant == "hf" else None)

    def conflict(self, recipe: Recipe) -> str | None:
        """A model of all sites is trained for the steps that each site takes from it; and a step is several batches."""
        if recipe.mixing is not None or recipe.personal is not None or recipe.stays == "everything":
            return "a meta-step needs one model of all sites; choose mixing: shared"
        if recipe.extra_rounds:
            return f"extra_rounds must be 0 with meta-steps, not {recipe.extra_rounds}; raise perfedavg.deployed_steps"
        if part := recipe.counting_steps:
            return f"{part} counts a step for every batch, and a meta-step takes several; leave {part} out of parts"
        return None

    def sentence(self) -> str:
        """Describe the answer for the report."""
        hessian = "without the Hessian" if self.variant == "fo" else f"the Hessian by differences, delta = {self.delta}"
        steps = "1 step" if self.deployed_steps == 1 else f"{self.deployed_steps} steps"
        return (
            f"Meta-step (Per-FedAvg, {self.variant.upper()}): down the loss after an inner step of alpha = "
            f"{self.alpha:g}, {hessian}, {self.num_batches} batches a step. A site uses the model after {steps} of "
            "alpha on its training data."
        )


def meta_step(alpha: float, delta: float | None = None) -> Step:
    """Return a step that moves the model at every second batch (FO), or with a delta at every third (HF).

    The optimiser steps from w with q (FO) or ``q - alpha h`` (HF), as above; h is the Hessian at w, and not at inner,
    times q. Between its batches the model is w. Running statistics move in the pass at w on D only. Batches left over
    when a round ends move no weights, so the step must serve one site's one round. It returns each batch's loss where
    that batch was passed: at w, at inner, and the mean of those at ``w +- delta q``.

    Args:
        alpha: Length of the inner step, above 0.
        delta: Half the distance of the two gradients, in multiples of q; None for FO.
    """
    num_batches = 2 if delta is None else 3
    memory: dict[str, list[list[Tensor]]] = {"found": []}

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        parameters = [p for p in model.parameters() if p.requires_grad]
        # The gradients of this step's batches so far: g(w), then q, then h.
        gradients = memory["found"]
        if not gradients:
            value, gradient = _gradient(model, parameters, loss, batch)
        elif len(gradients) == 1 or delta is None:
            with frozen_statistics(model), move_parameters(parameters, gradients[0], -alpha):
                value, gradient = _gradient(model, parameters, loss, batch)
        else:
            value, gradient = _hessian_times(gradients[1], model, parameters, loss, batch, delta)
        gradients.append(gradient)
        if len(gradients) == num_batches:
            # HF follows q - alpha h: by the chain rule the inner step's own derivative is I - alpha H.
            outer = gradients[1] if delta is None else torch._foreach_sub(gradients[1], gradients[2], alpha=alpha)
            for parameter, direction in zip(parameters, outer, strict=True):
                parameter.grad = direction
            optimizer.step()
            gradients.clear()
        return value

    return StatefulStep(step, memory)


def _hessian_times(
    direction: Sequence[Tensor], model: nn.Module, parameters: Sequence[Tensor], loss: Loss, batch: Batch, delta: float
) -> tuple[Tensor, list[Tensor]]:
    """Return a batch's loss and its Hessian times a direction, from the gradients on either side."""
    device = batch[0].device
    # Both passes must draw the same dropout, or the difference is mostly that of two networks; and bfloat16's three
    # digits would leave nothing of it.
    drawn = random_state(device)
    with frozen_statistics(model), full_precision(model):
        with move_parameters(parameters, direction, delta):
            above, after = _gradient(model, parameters, loss, batch)
        set_random_state(device, drawn)
        with move_parameters(parameters, direction, -delta):
            below, before = _gradient(model, parameters, loss, batch)
    return (above + below) / 2, list(torch._foreach_div(torch._foreach_sub(after, before), 2 * delta))


def _gradient(model: nn.Module, parameters: Sequence[Tensor], loss: Loss, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """Return a batch's loss, detached, and its gradient; the parameters' own ``grad`` is left alone."""
    inputs, targets = batch
    value = loss(model(inputs), targets)
    return value.detach(), list(torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True))


class SiteMetaStep(SitePart):
    """A site's own steps, by which the shared model becomes its own."""

    name = ROLE

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        # The model draws its dropout as if it were alone.
        self._draws = OwnDraws(work.device)

    def epoch(self, examples: Examples) -> None:
        """Let it begin an epoch with the random numbers that every model begins it with."""
        self._draws.begin()

    def state_dict(self) -> dict[str, Any]:
        """Return its random numbers."""
        return {"draws": self._draws.state}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take them back."""
        self._draws.state = saved["draws"]

    def step(self, role: str, step: Step) -> Step:
        """Refuse a round in which there would be no step, because one takes several batches.

        Raises:
            TrainingError: The round has fewer batches.
        """
        settings = self.work.study.training
        needed = self.work.study.recipe.option("perfedavg").num_batches
        batches = settings.local_epochs * num_batches(self.work.data.training, settings.batch_size)
        if batches < needed:
            raise TrainingError(
                f"site {self.work.site!r} has {batches} batches a round, fewer than the {needed} of one meta-step; "
                "raise training.local_epochs or lower training.batch_size"
            )
        return self._draws.step(step) if self._is_own(role) else step

    def deployed(self, role: str, model: HarmonizedModel) -> HarmonizedModel:
        """Return a copy of the site's own model after its own steps."""
        if not self._is_own(role):
            return model
        constants = self.work.study.recipe.option("perfedavg")
        batches = islice(self._draw_batches(), constants.deployed_steps)
        try:
            return adapt_model(model, self.work.loss, batches, constants.alpha)
        except TrainingError as error:
            raise TrainingError(f"site {self.work.site!r}, steps to its own model: {error}") from None

    def _is_own(self, role: str) -> bool:
        return role == self.work.study.recipe.roles[-1]

    def _draw_batches(self) -> Iterator[Batch]:
        """Yield batches of the training data, epoch after epoch without an end."""
        work = self.work
        examples = work.data.training
        settings = work.study.training
        augment = build_augmentation(work.study, examples.targets.ndim > 1)
        for epoch in count(1):
            seed = derive_seed(work.study.seed, work.site, ROLE, epoch)
            # Dropout draws from torch's own generator, as in training.
            seed_torch(seed)
            batches = training_batches(
                examples, settings.batch_size, augment, seed, work.device, sampler=settings.sampler
            )
            yield from batches


def adapt_model(model: HarmonizedModel, loss: Loss, batches: Iterable[Batch], alpha: float) -> HarmonizedModel:
    """Return a copy of a model after plain SGD of length alpha, a step a batch.

    Raises:
        TrainingError: The loss or a parameter is not finite.
    """
    # A copy, because the received model is what the next round begins from.
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), alpha)
    train({"model": Learner(model, optimizer, loss, plain_step)}, [batches])
    return model


PART, SITE = None, SiteMetaStep
# The paper averages sites uniformly; the authors released no code.
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(step=MetaStep(), weights="uniform")) | {
    "recommended": Recipe(step=MetaStep())
}
