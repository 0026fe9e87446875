"""The contents of a super model: its models, the rule that picks among them, and the rule's selector."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, quote_value, suggest_nearest
from silofl.core.operating_point import LEAST_TEMPERATURE, MOST_PROBABLE, MOST_TEMPERATURE, OperatingPoint
from silofl.data.domain import Domain
from silofl.data.transforms import MOST_VOXELS
from silofl.inference import HOME_STATISTICS
from silofl.inference.usual import Usual
from silofl.models.roles import GLOBAL, SELECTOR
from silofl.study import Study

if TYPE_CHECKING:
    from torch import Tensor

# Of log-odds; far above what a site chooses.
MOST_BIAS = 10
RULES = ("only", "selector", "mean")
# Of the facts, by site: what warnings come from.
SCORES = ("test", "validation")
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
        domain: The images that the models learnt from.
        bias: What is added to the log-odds of the foreground in every answer; 0 in a classification.
        calling: How a classification's probabilities are read.
        usual: Hospital -> what is usual of the answers to its own cases; empty where nobody has measured it.

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
    domain: Domain = Domain()
    bias: float = 0.0
    calling: OperatingPoint = MOST_PROBABLE
    usual: Mapping[str, Usual] = field(default_factory=dict)

    def has_learnt_at(self, site: str, digest: str) -> bool:
        """Return whether a site took part in the training, by its name there or by the digest of its dataset.json."""
        tables = [self.facts.get(name) or {} for name in ("data", *SCORES)]
        digests = [one.get("digest") for one in tables[0].values()]
        return digest in digests or any(site in table for table in tables)

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        _check_model_names(self)
        _check_shape(self)
        _check_rule(self)
        _check_bias(self)
        _check_calling(self)
        _check_facts(self.facts)

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
        states = self.models.values()
        counts = [int(state[name]) for state in states for name in state if name.endswith("num_batches_tracked")]
        if not all(counts):
            return "It has no BatchNorm statistics and answers nothing before silofl home-statistics has taken them."
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
        names = self.sites if self.rule == "mean" else tuple(self.models)
        return dict.fromkeys(names, 1 / len(names))


def pack_calling(contents: Contents) -> dict[str, Any]:
    """Return how probabilities are read as plain values; nothing where they are as the networks give them."""
    calling, labels = contents.calling, contents.study.labels
    if calling == MOST_PROBABLE:
        return {}
    thresholds = {labels[number]: one for number, one in calling.thresholds.items()}
    return {"temperature": calling.temperature, "thresholds": thresholds}


def unpack_calling(plain: Mapping[str, Any], study: Study) -> OperatingPoint:
    """Return what `pack_calling` packed; of another kind, a key raises KeyError, TypeError or AttributeError."""
    numbers = {name: number for number, name in study.labels.items()}
    thresholds = {numbers[name]: one for name, one in plain.get("thresholds", {}).items()}
    return OperatingPoint(plain.get("temperature", 1.0), thresholds)


def _check_model_names(contents: Contents) -> None:
    if contents.rule not in RULES:
        raise ConfigError(
            f"the rule of a super model must be one of {', '.join(RULES)}, not {quote_value(contents.rule)}"
            f"{suggest_nearest(contents.rule, RULES)}"
        )
    for name in contents.models:
        if not PLAIN_NAME.fullmatch(name) or name == SELECTOR:
            raise ConfigError(
                f"a site of a super model must be named by letters, digits, '.', '_' and '-', and not {SELECTOR!r}, "
                f"not {quote_value(name)}; rename it"
            )


def _check_shape(contents: Contents) -> None:
    shape, data = contents.image_shape, contents.study.data
    is_shape = len(shape) == 1 + data.dimensions and all(type(size) is int and size > 0 for size in shape)
    if not is_shape or shape[0] != data.in_channels:
        axes = "H, W" if data.dimensions == 2 else "X, Y, Z"
        raise ConfigError(
            f"image_shape must be ({data.in_channels}, {axes}) of the training images, not {tuple(shape)}"
        )
    if math.prod(shape) > MOST_VOXELS:
        raise ConfigError(
            f"image_shape must have at most {MOST_VOXELS} pixels or voxels of all channels, not "
            f"{quote_value(tuple(shape))}; take the super model as it was written"
        )


def _check_rule(contents: Contents) -> None:
    outputs, models = contents.outputs, contents.models
    if contents.rule == "only" and len(models) != 1:
        raise ConfigError(f"a super model with rule 'only' must hold one model, not {sorted(models)}")
    if contents.rule == "mean" and not contents.sites:
        raise ConfigError(f"a super model with rule 'mean' must hold sites' models, not {sorted(models)}")
    if contents.rule != "selector":
        return
    if contents.selector is None:
        raise ConfigError("a super model with rule 'selector' must hold a selector; it has none: add it")
    if GLOBAL not in models:
        raise ConfigError("a super model with rule 'selector' must hold the global model; it has none: add it")
    if not outputs or len(set(outputs)) != len(outputs) or not set(outputs) <= set(models):
        raise ConfigError(
            f"outputs must name different models of the super model, {sorted(models)}, not {list(outputs)}"
        )
    check_threshold(contents.threshold)


def _check_bias(contents: Contents) -> None:
    bias = contents.bias
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= MOST_BIAS:
        raise ConfigError(f"bias must be a number from -{MOST_BIAS} to {MOST_BIAS}, not {bias!r}")
    if bias and contents.study.task != "segmentation":
        raise ConfigError(f"bias must be 0 in a classification, which has no background, not {bias!r}")


def _check_calling(contents: Contents) -> None:
    calling, study = contents.calling, contents.study
    if calling != MOST_PROBABLE and study.task == "segmentation":
        raise ConfigError("calling must be left out in a segmentation, whose labels need none")
    if not calling.thresholds.keys() <= {*study.called}:
        raise ConfigError("calling must have thresholds of findings, or of the second of two classes, and of no others")
    ranges = [("temperature", calling.temperature, LEAST_TEMPERATURE, MOST_TEMPERATURE)]
    ranges += [(f"the threshold of {study.labels[number]}", one, 0, 1) for number, one in calling.thresholds.items()]
    for name, value, low, high in ranges:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, not {quote_value(value)}")


def _check_facts(facts: object) -> None:
    """Refuse scores from which no warning could be read; of what else is known only people read."""
    known = _require_table(facts, "facts")
    tables = {f"facts.{part}": _require_table(known.get(part) or {}, f"facts.{part}") for part in SCORES}
    scores = {f"{place}.{site}": score for place, table in tables.items() for site, score in table.items()}
    # What one site keeps holds its own test, without a name of a site.
    for place, score in (scores := scores | {"facts": known}).items():
        calling = _require_table(_require_table(score, place).get("calling") or {}, f"{place}.calling")
        for name in ("thresholds", "sensitivity", "specificity"):
            for key, value in _require_table(calling.get(name) or {}, f"{place}.calling.{name}").items():
                if not key.isdecimal() or isinstance(value, bool) or not isinstance(value, int | float):
                    raise ConfigError(
                        f"{place}.calling.{name} must have numbers of labels, not {quote_value(value)} of "
                        f"{quote_value(key)}; copy the folder again"
                    )
    for place, score in scores.items():
        labels = _require_table(_require_table(score, place).get("labels") or {}, f"{place}.labels")
        temperature = (score.get("calling") or {}).get("temperature") or 1.0
        for key, value in {"value": score.get("value") or 0.0, "temperature": temperature, **labels}.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(
                    f"{place} must have a number for {key}, not {quote_value(value)}; copy the folder again"
                )


def _require_table(value: object, place: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ConfigError(f"{place} must be keys and values, not {quote_value(value)}; copy the folder again")


def check_threshold(threshold: float | None) -> None:
    """Refuse a threshold outside [0, 1].

    Raises:
        ConfigError: It is no number in [0, 1].
    """
    if threshold is None:
        return
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool) and math.isfinite(threshold)
    if not is_number or not 0 <= threshold <= 1:
        raise ConfigError(
            f"threshold must lie in [0, 1], not {quote_value(threshold)}; 0 has the nearest site answer, 1 the "
            "global model"
        )
