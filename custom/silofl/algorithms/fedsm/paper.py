"""FedSM's settings and formulas: SoftPull (Eq. 11), the selector's loss and Adam, and the choice of gamma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.algorithms.softpull import SoftPull
from silofl.base.errors import ConfigError, DataError
from silofl.base.settings import Count, Fraction, Positive
from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits
from silofl.core.mixing import Arrays
from silofl.core.recipe import Recipe
from silofl.core.steps import Loss
from silofl.study import Study

# Five poolings halve an image five times.
SMALLEST_IMAGE = 32
# Candidates for the paper's gamma: 0 always takes a site's model, 1 always the global one; dense towards 1, where a
# softmax has its scores.
THRESHOLDS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)


class Selector(AlgorithmOption):
    """A classifier that learns, in the same pass as the models, which model suits an image.

    Attributes:
        learning: ``gradients``: sites send mean gradients, the server steps; ``moments``: one full-batch Adam step at
            each site, its moments averaged too.
        network: ``light`` (GroupNorm, global pooling) or ``vgg11``.
        labels: What it learns about an image: its ``site``; or in the extra rounds the ``best_model`` (FedSM-extra), or
            weights of the ``ensemble``.
        learning_rate: Learning rate of the selector's Adam.
        steps: Steps of the ``gradients`` selector in a round, each with one exchange with every site.
    """

    section: ClassVar[str] = "selector"
    implementation: ClassVar[str] = "silofl.algorithms.fedsm.selector"
    only_with: ClassVar = {"steps": ("learning", ("gradients",))}
    learning: Literal["gradients", "local_steps", "moments"] = "gradients"
    network: Literal["light", "vgg11"] = "light"
    labels: Literal["site", "best_model", "ensemble"] = "site"
    learning_rate: Positive = 1e-3
    steps: Count = 1

    @property
    def learns_site(self) -> bool:
        """Whether it learns in every training round which site an image is from (Eq. 2)."""
        return self.labels == "site"

    @property
    def traits(self) -> Traits:
        """In extra rounds it learns which model is the best for an image (Eq. 1); sites may know one label each."""
        caution = ""
        if self.learning == "local_steps" and self.learns_site:
            caution = (
                "selector.learning: local_steps teaches each site's selector the one label that the site has, and the "
                "mean of these may choose at chance: look at its accuracy, and see selector.learning: gradients."
            )
        return Traits(
            caution=caution,
            deciding=("network",),
            second_model=SecondModel.PAIRED,
            selector=self.network,
            takes_extra_rounds=not self.learns_site,
        )

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The candidates for the paper's gamma; none where the global model is one of its outputs."""
        return THRESHOLDS if self.learns_site else ()

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse images of which VGG's five poolings would leave nothing, and volumes for a selector that mixes."""
        if len(shape) == 4 and self.labels == "ensemble":
            raise DataError(
                "selector.labels must be site or best_model for volumes, not ensemble: the selector sees slices of a "
                "whole volume, and the models its patches; leave it out"
            )
        if len(shape) == 3 and min(shape[1:]) < SMALLEST_IMAGE:
            size = " x ".join(map(str, shape[1:]))
            raise DataError(
                f"images of {size} pixels are too small for a selector, which needs {SMALLEST_IMAGE} along each axis; "
                "add a Resize to the study's data.transforms, or choose an algorithm without a selector"
            )

    def conflict(self, recipe: Recipe) -> str | None:
        """Refuse recipes without complete models of the sites, which the selector hands out."""
        if not (isinstance(recipe.mixing, SoftPull) or recipe.collects_personal):
            return (
                "a selector chooses among sites' models, and this study makes none; choose mixing: softpull, or an "
                "algorithm that keeps a personal model at each site, fine-tunes one or takes steps to one"
            )
        if recipe.stays != "nothing":
            return (
                f"stays must be nothing where a selector hands out the sites' models, not {recipe.stays!r}; "
                "choose a normalisation without BatchNorm"
            )
        if recipe.robust and recipe.robust.rule != "clipped":
            return (
                "robust must be clipped with a selector, which each site teaches something else, not "
                f"{recipe.robust.rule}"
            )
        if self.learns_site and recipe.extra_rounds and recipe.second_model != SecondModel.FINE_TUNED:
            return (
                "extra_rounds has no use with selector.labels: site and mixed models, only with best_model or "
                "ensemble, or with mixing: shared, where each site fine-tunes the global model in them; leave it out"
            )
        if not self.learns_site and not recipe.extra_rounds:
            return "extra_rounds must be at least 1 where the selector learns after the models, not 0"
        if self.labels == "ensemble" and recipe.option("super_model").answer != "ensemble":
            return "super_model.answer must be ensemble where the selector learns from the ensemble's loss, not choice"
        return None

    def sentence(self) -> str:
        """Describe the answer for the report."""
        learns = {
            "site": "which site an image is from",
            "best_model": "which model is the best for an image",
            "ensemble": "how to weigh all models for an image",
        }[self.labels]
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        ways = {
            "gradients": f"sites send mean gradients, and the server takes {steps} of Adam a round",
            "local_steps": "sites take local steps with Adam, and the server averages the weights (FedSM, Algorithm 1)",
            "moments": "sites take one full-batch Adam step, and the server averages the weights and Adam's moments",
        }
        return f"A selector learns {learns}: {ways[self.learning]}."


class SuperModel(AlgorithmOption):
    """All models with the selector, which every site gets at the end to answer new cases.

    Attributes:
        threshold: The paper's gamma, or ``tuned`` on the sites' validation data.
        answer: ``choice``: the selector's model answers; ``ensemble``: all models answer.
    """

    section: ClassVar[str] = "super_model"
    implementation: ClassVar[str] = "silofl.algorithms.fedsm.assembly"
    only_with: ClassVar = {"threshold": ("answer", ("choice",))}
    threshold: Literal["tuned"] | Fraction = "tuned"
    answer: Literal["choice", "ensemble"] = "choice"

    @property
    def traits(self) -> Traits:
        """The selector's scores may weigh the models; else its threshold lets the global one answer."""
        return Traits(
            deciding=("answer",),
            threshold="tuned" if self.threshold == "tuned" else "fixed",
            weighs_models=self.answer == "ensemble",
        )

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse a rule on the fallback where the selector knows the global model too."""
        if study.do_not_use and study.do_not_use.on_fallback and not self.falls_back(study.recipe):
            raise ConfigError(
                f"selector.labels {study.recipe.option('selector').labels} with super_model.answer {self.answer} never "
                "falls back to the global model; remove do_not_use.on_fallback, or choose site and choice"
            )

    def falls_back(self, recipe: Recipe) -> bool:
        """Return whether the global model answers where no score is above the threshold."""
        return self.answer == "choice" and recipe.option("selector").learns_site

    def conflict(self, recipe: Recipe) -> str | None:
        """Refuse a threshold of a study's own where no case falls back to the global model."""
        if self.threshold != "tuned" and not self.falls_back(recipe):
            return "super_model.threshold has no use without a selector that learns the site; leave it out"
        return None

    def sentence(self) -> str:
        """Describe the answer for the report."""
        answering = "the model that the selector chooses"
        if self.answer == "ensemble":
            answering = "all models, weighted by the selector"
        return f"In the end all models go to every site, and {answering} answers a new case."


def tune_threshold(
    sums: Sequence[Sequence[Sequence[float]]],
    thresholds: Sequence[float] = THRESHOLDS,
) -> float:
    """Return the threshold under which the sites' validation cases are answered best, with doubt for how few they are.

    A threshold below all scores of n cases changes none of their answers, and still one new case in n + 1 is expected
    to score lower. So each site counts one case more, which the global model answers with its mean value, except at 0,
    where no case is the global model's. Among equals the smallest is taken: the selector decides. The sites' median
    difference to threshold 0 decides, so that from three sites on one's invented sums do not; it is never negative.

    Args:
        sums: For each site, and each threshold in it, the sum of the cases' values and the number of cases.
        thresholds: Candidates, ascending: the first is 0, where a site's model always answers, the last 1, where the
            global model does.

    Returns:
        The threshold; 1 without any case, since nobody could measure the selector's choice.
    """
    table = np.asarray(sums, dtype=np.float64)
    # A site without a counted case under some threshold says nothing about it.
    table = table[(table[:, :, 1] > 0).all(axis=1)]
    if not len(table):
        return float(thresholds[-1])
    totals = table[:, :, 0]
    cases = table[:, :, 1]
    values = totals / cases
    gains = np.median(values - values[:, :1], axis=0)
    doubted = np.median((totals + values[:, -1:]) / (cases + 1) - values[:, :1], axis=0)
    doubted[0] = 0
    # Equal values may differ by rounding, so both comparisons leave room for it.
    doubted[gains < -1e-12] = -np.inf
    return float(thresholds[int(np.flatnonzero(doubted >= doubted.max() - 1e-12)[0])])


def site_loss(label: int) -> Loss:
    """Return the selector's loss at a site (Eq. 2): cross entropy of the logits (B, K) with the site's own index.

    Args:
        label: The site's index among the selector's outputs, from 0; the targets of a batch play no part.
    """

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, logits.new_full((len(logits),), label, dtype=torch.long))

    return loss


class AdamState(NamedTuple):
    """Adam's running moments by parameter name, and how many steps made them."""

    mean: Arrays
    square: Arrays
    steps: int

    @classmethod
    def zero(cls, parameters: Arrays) -> AdamState:
        """Return the state before the first step."""
        zeros = {name: np.zeros_like(array) for name, array in parameters.items()}
        return cls(zeros, dict(zeros), 0)


def adam_step(
    parameters: Arrays, gradient: Mapping[str, NDArray[Any]], state: AdamState, learning_rate: float
) -> tuple[Arrays, AdamState]:
    """Take one step of torch's Adam, betas (0.9, 0.999), without changing what is given.

    Args:
        parameters: {name: array}.
        gradient: The same names and shapes.
        state: The moments before the step.
        learning_rate: The paper's eta_s.

    Returns:
        The new parameters and moments, in the parameters' own dtype.
    """
    # torch's own Adam with its state put in from outside, so that there is no second formula to keep equal.
    # Everything is copied: from_numpy shares memory, and the step works in place.
    tensors = {name: nn.Parameter(torch.from_numpy(np.array(array))) for name, array in parameters.items()}
    optimizer = torch.optim.Adam(tensors.values(), lr=learning_rate)
    for name, tensor in tensors.items():
        dtype = parameters[name].dtype
        tensor.grad = torch.from_numpy(np.array(gradient[name], dtype))
        optimizer.state[tensor] = {
            "exp_avg": torch.from_numpy(np.array(state.mean[name], dtype)),
            "exp_avg_sq": torch.from_numpy(np.array(state.square[name], dtype)),
            # torch keeps the count as a float tensor and refuses an int.
            "step": torch.tensor(float(state.steps)),
        }
    optimizer.step()
    new = {}
    mean = {}
    square = {}
    for name, tensor in tensors.items():
        new[name] = tensor.detach().numpy()
        mean[name] = optimizer.state[tensor]["exp_avg"].numpy()
        square[name] = optimizer.state[tensor]["exp_avg_sq"].numpy()
    return new, AdamState(mean, square, state.steps + 1)
