"""The contents of a super model: its models, the rule that picks among them, and the rule's selector."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, quote_value
from silofl.core.operating_point import LEAST_TEMPERATURE, MOST_PROBABLE, MOST_TEMPERATURE, OperatingPoint
from silofl.data.data_profile import DataProfile
from silofl.data.transforms import MOST_VOXELS
from silofl.inference.names import HOME_STATISTICS
from silofl.inference.reference_statistics import ReferenceStatistics
from silofl.models.roles import GLOBAL, SELECTOR
from silofl.study import Study

if TYPE_CHECKING:
    from torch import Tensor

# A bias of log-odds that a site chooses is far below this.
MOST_BIAS = 10
RULES = ("only", "selector", "mean")
# Names of models become names of files: no separator, no leading dot.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Contents:
    """The contents of a super model.

    Attributes:
        study: The study that trained it: its network, its labels, and how it prepares images.
        image_shape: (C, *spatial) of the training images, or of their patches.
        models: ``global`` and sites' names -> the complete state dict of `silofl.models.build_model`.
        rule: ``only`` (one model), ``selector`` (it chooses among the models, or weighs them), or ``mean`` (of all
            sites' models).
        selector: The state dict of `silofl.models.selector.build_selector`, for the rule ``selector``.
        outputs: The models that the selector's outputs choose, in order.
        threshold: The paper's gamma, in [0, 1]; None where the most probable output always answers.
        facts: Plain values that are kept with the model: rounds, metrics.
        data_profile: The images that the models learnt from.
        bias: What is added to the log-odds of the foreground in every answer; 0 in a classification.
        operating_point: How a classification's probabilities are read.
        own_operating_points: Model of a site -> how its answers are read, as the site chose; others' as all are.
        reference_statistics: Hospital -> what is usual of the answers to its own cases; empty where unknown.

    Raises:
        ConfigError: The parts do not fit together.
    """

    study: Study
    image_shape: tuple[int, ...]
    models: dict[str, dict[str, Tensor]]
    rule: str
    selector: dict[str, Tensor] | None = None
    outputs: tuple[str, ...] = ()
    threshold: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    data_profile: DataProfile = DataProfile()
    bias: float = 0.0
    operating_point: OperatingPoint = MOST_PROBABLE
    own_operating_points: Mapping[str, OperatingPoint] = field(default_factory=dict)
    reference_statistics: Mapping[str, ReferenceStatistics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        _check_model_names(self)
        _check_shape(self)
        _check_rule(self)
        _check_numbers(self)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that have a model of their own, in the order of their names."""
        return tuple(sorted(name for name in self.models if name != GLOBAL))

    @property
    def home_statistics(self) -> str:
        """Whose images its home statistics are of, as a sentence; empty where it takes none."""
        if self.study.model.normalization != "batch_home":
            return ""
        if taken := self.facts.get(HOME_STATISTICS):
            return f"Its BatchNorm statistics are of the images of the hospital that uses it ({taken['images']})."
        for state in self.models.values():
            # A layer that has counted no batch still has the statistics that it was made with.
            if not all(int(state[name]) for name in state if name.endswith("num_batches_tracked")):
                return (
                    "It has no BatchNorm statistics and answers nothing before silofl home-statistics has taken them."
                )
        return (
            "Its BatchNorm statistics are of the training images of the hospital that kept it. Another hospital takes "
            "its own by silofl home-statistics."
        )

    @property
    def is_ensemble(self) -> bool:
        """Whether the answer is the mean of the selector's models, weighted by its scores."""
        return self.rule == "selector" and self.study.recipe.weighs_models

    @property
    def is_choice(self) -> bool:
        """Whether the selector chooses one model for each case."""
        return self.rule == "selector" and not self.is_ensemble

    def shares(self, scores: NDArray[np.float64]) -> dict[str, float]:
        """Return each model's weight in a mean of all: its score, or equal weights without a selector.

        Args:
            scores: The selector's probability of each output, shape (outputs,); (0,) without a selector.
        """
        if self.rule == "selector":
            return dict(zip(self.outputs, (scores / scores.sum()).tolist(), strict=True))
        # The global model is no hospital's: it takes no part in the mean of theirs.
        names = self.sites if self.rule == "mean" else tuple(self.models)
        return dict.fromkeys(names, 1 / len(names))


def pack_operating_point(operating_point: OperatingPoint, study: Study) -> dict[str, Any]:
    """Return how probabilities are read as plain values; nothing where they are as the networks give them."""
    if operating_point == MOST_PROBABLE:
        return {}
    thresholds = {study.labels[number]: threshold for number, threshold in operating_point.thresholds.items()}
    return {"temperature": operating_point.temperature, "thresholds": thresholds}


def unpack_operating_point(plain: Mapping[str, Any], study: Study) -> OperatingPoint:
    """Return what `pack_operating_point` packed; of another kind a key raises KeyError, TypeError or AttributeError."""
    # By name in a file, as JSON has no numbers as keys; a name of no label is refused there.
    names = dict(zip(study.labels.values(), study.labels, strict=True))
    thresholds = {names[name]: threshold for name, threshold in plain.get("thresholds", {}).items()}
    return OperatingPoint(plain.get("temperature", 1.0), thresholds)


def _check_model_names(contents: Contents) -> None:
    for name in contents.models:
        if not PLAIN_NAME.fullmatch(name) or name == SELECTOR:
            raise ConfigError(
                f"a site of a super model must be named by letters, digits, '.', '_' and '-', and not {SELECTOR!r}, "
                f"not {quote_value(name)}; rename it"
            )


def _check_shape(contents: Contents) -> None:
    shape = contents.image_shape
    data = contents.study.data
    is_shape = len(shape) == 1 + data.dimensions and all(type(size) is int and size > 0 for size in shape)
    if not is_shape or shape[0] != data.in_channels or math.prod(shape) > MOST_VOXELS:
        axes = "H, W" if data.dimensions == 2 else "X, Y, Z"
        raise ConfigError(
            f"image_shape must be ({data.in_channels}, {axes}) of the training images, of at most {MOST_VOXELS} pixels "
            f"or voxels, not {quote_value(tuple(shape))}; take the super model as it was written"
        )


def _check_rule(contents: Contents) -> None:
    outputs = contents.outputs
    models = contents.models
    # Each rule needs these, and the outputs of a selector are different models.
    is_whole = {
        "only": len(models) == 1,
        "mean": bool(contents.sites),
        "selector": contents.selector is not None and GLOBAL in models and bool(outputs),
    }
    if not is_whole.get(contents.rule, False) or len({*outputs}) != len(outputs) or not {*outputs} <= models.keys():
        raise ConfigError(
            f"the super model's rule {quote_value(contents.rule)} needs other contents than {sorted(models)} and "
            f"outputs {list(outputs)} (rules are {', '.join(RULES)}: one model, sites' models, or the global model and "
            "a selector of different models); take the super model as it was written"
        )


def _check_numbers(contents: Contents) -> None:
    points = [contents.operating_point, *contents.own_operating_points.values()]
    study = contents.study
    if study.task == "segmentation":
        is_of_task = points == [MOST_PROBABLE]
    else:
        is_of_task = not contents.bias and all(point.thresholds.keys() <= {*study.called} for point in points)
    if not is_of_task or not contents.own_operating_points.keys() <= contents.models.keys():
        raise ConfigError(
            "the super model has a bias though it is no segmentation, or an operating point that is not of a "
            "classification's findings or second class; take the super model as it was written"
        )
    _check_number("bias", contents.bias, -MOST_BIAS, MOST_BIAS)
    for point in points:
        _check_number("temperature", point.temperature, LEAST_TEMPERATURE, MOST_TEMPERATURE)
        for number, threshold in point.thresholds.items():
            _check_number(f"threshold of {study.labels[number]}", threshold, 0, 1)
    check_threshold(contents.threshold)


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, not {quote_value(value)}")


def check_threshold(threshold: float | None) -> None:
    """Refuse a threshold that is no number in [0, 1]; at 0 the nearest site answers, at 1 the global model."""
    if threshold is not None:
        _check_number("threshold", threshold, 0, 1)
