"""MOON: a step that draws a site's representation of its images to the received model's, away from its own last one's.

    server  sends the model x
    site i  z, z_g, z_p = representations of the batch by the model in training, by x and by its own last model
            contrast = mean of -log(e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau)))
            from y_i = x, for each batch: a step down loss + mu * contrast; in its first round down the loss alone
            sends y_i - x; keeps y_i, its last model of the next round
    server  takes the weighted mean, as in FedAvg

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv:2103.16257, Eqs. 2 to 4. The paper puts a
projection head between encoder and output layer. Here there is one only where it is asked for, as by the presets
``paper`` and ``reference``, so that the network is that of all other methods.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from silofl.base.errors import ConfigError
from silofl.base.settings import NotNegative, Positive, Width
from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.mixing import Arrays
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.core.steps import Batch, Loss, Step
from silofl.models import build_plain_model
from silofl.models.features import feature_layer, pool_features, record_inputs
from silofl.parts.part import ClientState, Part
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.local_model import copy_state

ROLE = "contrast"


class Contrast(AlgorithmOption):
    """A step that compares the site's model with the received one and with the site's last one.

    Attributes:
        mu: Weight of the contrastive loss.
        temperature: The paper's tau, by which similarities are divided.
        projection_head: Width of a projection head of two layers before the output layer; 0: none, as always with
            ``unet``.
    """

    section: ClassVar[str] = "moon"
    implementation: ClassVar[str] = __name__
    mu: NotNegative = 1.0
    temperature: Positive = 0.5
    # Not among `deciding`: the weights, which decide, hold the head.
    projection_head: Width = 0

    @property
    def traits(self) -> Traits:
        """The projection head, and that the network is then another than the other methods'."""
        caution = ""
        if self.projection_head:
            caution = (
                f"the network has a projection head of width {self.projection_head}: it is another than that of "
                "methods without."
            )
        return Traits(projection_head=self.projection_head, caution=caution, looks_inside=True)

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse a projection head in a U-Net, and MONAI's networks of which nobody has said where to contrast."""
        model = study.model
        if model.is_segmenting and (model.network or "").startswith("monai."):
            raise ConfigError(
                "model.network must be left out where models' representations of label maps' images are contrasted, "
                f"not {model.network!r}, in which nobody has said where they are: take model.name unet"
            )
        if self.projection_head and model.is_segmenting:
            raise ConfigError(
                f"{model.network or model.name} has no vector between encoder and output, only maps, for "
                f"algorithm.moon.projection_head {self.projection_head}; set it to 0, and the mean of the deepest maps "
                "is contrasted"
            )

    def conflict(self, recipe: Recipe) -> str | None:
        """A site's model is drawn to the one of all sites."""
        if not recipe.trains_one_model:
            return "moon contrasts with one model of all sites; choose mixing: shared"
        return None

    def sentence(self) -> str:
        """Describe the answer for the report."""
        z = f"the output of a head of {self.projection_head}" if self.projection_head else "an image's representation"
        return (
            f"Contrastive (MOON): the loss plus mu = {self.mu:g} times a contrast, tau = {self.temperature:g}, which "
            f"draws {z} to the received model's, away from that of the site's own last model; a site's first round has "
            "none."
        )


def contrastive_loss(
    z: Tensor | NDArray[Any], z_global: Tensor | NDArray[Any], z_previous: Tensor | NDArray[Any], temperature: float
) -> Tensor:
    """Return the mean of ``-log(e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau)))`` (Eq. 3).

    Args:
        z: Representations by the model in training, (B, C).
        z_global: By the received model, the same shape.
        z_previous: By the site's own last model, the same shape.
        temperature: tau, above 0.
    """
    z = torch.as_tensor(z)
    to_global = functional.cosine_similarity(z, torch.as_tensor(z_global), eps=1e-8)
    to_previous = functional.cosine_similarity(z, torch.as_tensor(z_previous), eps=1e-8)
    # With two terms -log(e^a / (e^a + e^b)) is log(1 + e^(b - a)), the softplus of b - a, which cannot overflow.
    return functional.softplus((to_previous - to_global) / temperature).mean()


def contrastive_step(
    step: Step,
    others: Sequence[nn.Module],
    layer_of: Callable[[nn.Module], nn.Module],
    mu: float,
    temperature: float,
) -> Step:
    """Return a step down ``loss + mu * contrast`` (Eq. 4).

    Args:
        step: The step that computes the loss, once or twice.
        others: The received model and the site's own last one, frozen and in evaluation mode, so that they normalise by
            their running statistics and move none.
        layer_of: Model -> the layer whose input is the representation; a map is averaged over its spatial axes.
        mu: Weight of the contrast.
        temperature: Its tau.
    """

    def contrasted(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        representations = []
        for fixed in others:
            with torch.no_grad(), record_inputs(layer_of(fixed)) as seen:
                fixed(batch[0])
            representations.append(pool_features(seen[-1]))
        z_global, z_previous = representations
        # The model's own representation is taken in the pass in which the step computes the loss: it costs no other.
        with record_inputs(layer_of(model)) as seen:

            def total(output: Tensor, targets: Tensor) -> Tensor:
                contrast = contrastive_loss(pool_features(seen[-1]), z_global, z_previous, temperature)
                return loss(output, targets) + mu * contrast

            return step(model, optimizer, total, batch)

    return contrasted


@dataclass(frozen=True)
class ContrastPart(Part):
    """The server half, through which nothing travels.

    Attributes:
        study: The study.
    """

    study: Study
    role: str = ROLE

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before the first round; the errors of `feature_layer`."""
        # Checked before the run: sites need the layer in their second round, and the network may be a package's.
        feature_layer(build_plain_model(study, study.seed))
        return [cls(study)]


class SiteContrast(SitePart):
    """A site's own model at the end of the last round that its update went into."""

    name = ROLE

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return what `kept` holds, the same after every round."""
        return (ClientState("its own model", is_required=True, is_for_training=True, num_models=1),)

    def step(self, role: str, step: Step) -> Step:
        """Contrast the model in training with the received and the last one; in the first round there is no last."""
        self._model = self.work.models[role]
        kept = self.work.kept.get(self.name)
        # The paper's start of the last model is the received one: a loss of log 2 for all weights, without a gradient.
        if not kept:
            return step
        received = self._copy_frozen()
        previous = self._copy_frozen()
        previous.load_state_dict(kept["state"])
        constants = self.work.study.recipe.option("moon")
        return contrastive_step(step, (received, previous), feature_layer, constants.mu, constants.temperature)

    def kept(self) -> dict[str, Any]:
        """Return the trained model, BatchNorm's statistics too."""
        return {"state": copy_state(self._model)}

    def _copy_frozen(self) -> nn.Module:
        # A copy, because training changes the model in place.
        return copy.deepcopy(self._model).eval().requires_grad_(False)


PART, SITE = ContrastPart, SiteContrast
# The authors' code has the paper's constants and its head.
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(step=Contrast(projection_head=256))) | {
    "recommended": Recipe(step=Contrast())
}
