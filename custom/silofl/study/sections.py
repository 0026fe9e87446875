"""The sections of a study.yaml besides `data`: the network, the training, privacy, and the federation."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from silofl.base.errors import ConfigError
from silofl.base.settings import (
    SHA256,
    BelowOne,
    Count,
    Finite,
    Fraction,
    Name,
    Natural,
    NotNegative,
    Positive,
    Section,
    Whole,
)
from silofl.setup.extensions import Extension, is_extension
from silofl.study.data_settings import Options

Normalization = Literal["batch", "batch_stateless", "batch_home", "instance", "group"]
Features = Annotated[Whole, Field(gt=0, le=1024)]
# A wait of months is a slip of the pen.
Seconds = Annotated[Positive, Field(le=10**7)]
# A model card has one line of each, without what Markdown or MONAI would take for more than text.
Said = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f<>|`$%@][^\x00-\x1f\x7f<>|`$%]*$")]
# Less noise has an epsilon beyond the numbers of an answer, and in a shorter clip float32 has no room for noise.
Countable = Annotated[Finite, Field(ge=1e-5)]


def _check_sha256(value: str) -> str:
    if not re.fullmatch(SHA256, value):
        raise ValueError("the 64 digits of the file's SHA-256, as sha256sum prints them")
    return value


def _sort_names(names: tuple[str, ...]) -> tuple[str, ...]:
    # The digest must not depend on how they are listed.
    if len({*names}) < len(names):
        raise ValueError("each name once")
    return tuple(sorted(names))


def _name_monai_networks(*names: str) -> tuple[str, ...]:
    return tuple(f"monai.networks.nets.{name}" for name in names)


# These metrics rank all cases by their probabilities: a single case has none.
RANKED = ("auroc", "auprc")
# These metrics are means over the classes that there are.
CLASS_MEANS = ("balanced_accuracy", *RANKED)
# What each task allows; a key that is in neither table fits both tasks.
SEGMENTATION_ONLY = {
    "metric": ("dice", "dice_with_background"),
    "model.name": ("unet",),
    "model.network": _name_monai_networks("UNet", "DynUNet", "SegResNet", "SwinUNETR", "HighResNet", "VNet"),
    "training.loss": ("dice_ce", "dice", "cross_entropy"),
}
CLASSIFICATION_ONLY = {
    "metric": ("accuracy", *CLASS_MEANS),
    "model.name": ("densenet121", "lenet5", "alexnet", "activity_cnn"),
    "model.network": _name_monai_networks("DenseNet169", "DenseNet201", "DenseNet264", "ResNet", "EfficientNetBN"),
    "training.loss": ("cross_entropy",),
}
FITTING = {
    "segmentation": SEGMENTATION_ONLY,
    "classification": CLASSIFICATION_ONLY,
    "multilabel": CLASSIFICATION_ONLY,
}
WITHOUT_DROPOUT = ("lenet5", "activity_cnn")


class ModelSettings(Section):
    """The network, the same at every site.

    Attributes:
        name: Segmentation: ``unet`` (MONAI's BasicUNet). Classification: ``densenet121`` (MONAI), ``lenet5``,
            ``alexnet`` or, for sensors over time, ``activity_cnn``.
        network: Another network of MONAI, as ``monai.networks.nets.SegResNet``. Label maps: ``UNet``, ``DynUNet``,
            ``SegResNet``, ``SwinUNETR``, ``HighResNet``, ``VNet``. Classes: ``DenseNet169``, ``DenseNet201``,
            ``DenseNet264``, ``ResNet``, ``EfficientNetBN``. Or a package's, as ``package==1.2.0/name``.
        arguments: Further arguments of that class, as ``{init_filters: 16}``.
        normalization: ``batch_stateless`` is BatchNorm without parameters and running statistics: a prediction then
            depends on the other images of its batch. ``batch_home`` learns by batches too; before each use one pass
            over the hospital's own training images fixes its statistics, and each image is answered alone.
        features: Channels of the U-Net's levels.
        dropout: Dropout probability; not for ``lenet5`` and ``activity_cnn``.
        precision: ``auto`` is bfloat16 (autocast) on a GPU and float32 elsewhere.
        pretrained: File of a pretrained model next to study.yaml, which ``silofl pretrain`` writes.
        pretrained_sha256: SHA-256 of that file, so that the study's digest covers it.
        weights: File of initial weights next to study.yaml, ``.pt`` or ``.safetensors``, matched by name and shape.
        weights_sha256: SHA-256 of that file.
    """

    name: Literal["unet", "densenet121", "lenet5", "alexnet", "activity_cnn"] = "unet"
    network: str | None = None
    arguments: Options = {}
    normalization: Normalization = "batch"
    features: Annotated[tuple[Features, ...], Field(min_length=6, max_length=6)] = (32, 32, 64, 128, 256, 32)
    dropout: BelowOne = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    pretrained: Name = "pretrained.pt"
    pretrained_sha256: Annotated[str, AfterValidator(_check_sha256)] | None = None
    weights: Name | None = None
    weights_sha256: Annotated[str, AfterValidator(_check_sha256)] | None = None

    @property
    def has_own_batchnorm(self) -> bool:
        """Whether the network has BatchNorm with arrays of its own, which may stay at a site."""
        return self.normalization in ("batch", "batch_home")

    @property
    def is_segmenting(self) -> bool:
        """Whether the network answers each pixel, and not the image."""
        # A package's network does not say; whoever asks relies on layers that classifiers have.
        if is_extension(self.network):
            return True
        return (self.network or self.name) in (*SEGMENTATION_ONLY["model.name"], *SEGMENTATION_ONLY["model.network"])

    @model_validator(mode="after")
    def _names_one_network(self) -> ModelSettings:
        if self.network is None and self.arguments:
            raise ConfigError(
                "model.arguments are those of model.network, which is missing; leave them out, or name it"
            )
        for key in ("name", "features", "dropout"):
            value = getattr(self, key)
            # These describe SiloFL's own networks: another one would silently do without.
            if self.network and value != ModelSettings.model_fields[key].default:
                raise ConfigError(
                    f"model.{key} must be left out with model.network, not {value}; give what the class "
                    "has of it in model.arguments"
                )
        return self

    @model_validator(mode="after")
    def _settles_its_weights(self) -> ModelSettings:
        if (self.weights is None) != (self.weights_sha256 is None):
            raise ConfigError(
                "one of model.weights and model.weights_sha256 is missing; give both, as --weights does, so that the "
                "study's digest settles what everybody starts from, or none"
            )
        return self

    @model_validator(mode="after")
    def _has_what_it_drops(self) -> ModelSettings:
        if self.dropout > 0 and self.name in WITHOUT_DROPOUT:
            raise ConfigError(f"model.dropout must be 0 for {self.name}, which has none, not {self.dropout}; remove it")
        return self


class TrainingSettings(Section):
    """How a site trains within one round.

    Attributes:
        loss: ``dice_ce`` is Dice plus cross entropy. Or a package's, as ``package==1.2.0/name``.
        class_weights: Classification: weight of each class in the loss, as ``{healthy: 1, sick: 19}``; with
            ``balanced`` all classes of a site have the same total weight. With ``multilabel``: weight of an example
            with a finding.
        sampler: Classification: ``shuffled`` draws each example once; ``balanced`` draws all classes equally often.
        batch_dice: Whether the Dice loss treats a batch as one image, for labels that many images lack.
        optimizer: The optimiser.
        optimizer_state: Momentum and Adam's moments: ``kept`` from round to round, or ``fresh`` in each. FedNova, and
            SCAFFOLD with momentum, start fresh.
        learning_rate: Learning rate of the optimiser in the first round.
        schedule: How the learning rate falls: ``poly``: times ``(1 - (r - 1) / R)^0.9`` in round r of R; ``cosine``: by
            half a period.
        momentum: Momentum of ``sgd``.
        nesterov: Whether this momentum is Nesterov's.
        betas: Betas of ``adam`` and ``adamw``.
        weight_decay: Weight decay of the optimiser.
        batch_size: Images in a batch.
        drop_channels: Probability that a channel of ``data.channel_names`` becomes zeros in a training image; one is
            always kept.
        local_epochs: Passes over the site's training data per round, the papers' E.
        measures_drift: Whether to measure the drift of the sites (HarmoFL, Eq. 9) and how much their updates differ.
        frozen: Patterns of parameters that do not change and do not travel, as ``[features.*]`` to train only the head.
    """

    loss: Literal["dice_ce", "dice", "cross_entropy"] | Extension = "dice_ce"
    class_weights: Literal["balanced"] | dict[str, Positive] | None = None
    sampler: Literal["shuffled", "balanced"] = "shuffled"
    batch_dice: bool = False
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    optimizer_state: Literal["kept", "fresh"] = "kept"
    learning_rate: Positive = 1e-3
    schedule: Literal["constant", "poly", "cosine"] = "constant"
    momentum: Fraction = 0.9
    nesterov: bool = False
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: NotNegative = 0.0
    batch_size: Count = 8
    drop_channels: BelowOne = 0.0
    local_epochs: Count = 1
    measures_drift: bool = False
    # Left out where it is empty, so that studies without it keep their digest.
    frozen: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()

    @property
    def has_falling_rate(self) -> bool:
        """Whether the learning rate falls over the study's rounds."""
        return self.schedule != "constant"

    @model_validator(mode="after")
    def _has_a_momentum_to_look_ahead_with(self) -> TrainingSettings:
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ConfigError(
                f"training.nesterov has no effect with {self.optimizer} and momentum {self.momentum:g}, only with sgd "
                "and a momentum; leave it out"
            )
        return self


class DpSgdSettings(Section):
    """Training with differential privacy at every site: DP-SGD, by Opacus (``pip install 'silofl[dp]'``).

    What it promises holds for what leaves a site of its training: the models. Validation and test scores, and the
    numbers of patients and examples, are sent as they are.

    Attributes:
        noise: Standard deviation of the noise in the sum of a batch's gradients, in multiples of ``clip``.
        clip: Norm to which the gradient of each patient (or example) in a batch is clipped.
        delta: The probability with which epsilon need not hold; below 1 / n, for n patients (or examples) at the
            smallest site.
        unit: What is protected: a ``patient``, with at most one example per step, or an ``example``.
    """

    noise: Countable
    clip: Countable
    delta: Annotated[Positive, Field(lt=1)] = 1e-5
    unit: Literal["patient", "example"] = "patient"


class PrivacySettings(Section):
    """Formal privacy; none by default.

    Attributes:
        dp_sgd: As ``{noise: 1.0, clip: 1.0}``. Training losses stay at the site, and equal seeds give other weights
            each time. Only for algorithms that send nothing but models, as ``fedavg``, ``fedopt``, ``fedper`` and
            ``softpull``; not with BatchNorm, ``training.batch_dice`` or ``baseline_comparison``.
    """

    dp_sgd: DpSgdSettings | None = None


class CodeSettings(Section):
    """What a label is in DICOM's segmentations and reports, by SNOMED CT.

    Attributes:
        code: The concept's number, as ``10200004``; in quotes.
        meaning: Its name, as ``Liver``.
        is_abnormal: Whether it is a finding, as a tumour, and no part of a healthy body.
    """

    code: Annotated[str, Field(pattern=r"^[0-9]{6,18}$")]
    meaning: Annotated[str, Field(min_length=1, max_length=64)]
    is_abnormal: bool = False


class DoNotUseSettings(Section):
    """Answers of the finished model that must not be used; by default none. ``silofl predict`` says so, and why.

    Attributes:
        on_fallback: Answers of the global model because no hospital's score is above the selector's threshold.
        on_unlike_image: Answers to an image that differs from the training images.
        label_below: Answers of a model with a label, region or class whose Dice or recall is below this value or
            unknown.
    """

    on_fallback: bool = False
    on_unlike_image: bool = False
    label_below: Fraction | None = None

    @model_validator(mode="after")
    def _states_a_rule(self) -> DoNotUseSettings:
        if not (self.on_fallback or self.on_unlike_image or self.label_below):
            raise ConfigError("do_not_use states no rule; add one, as {label_below: 0.7}, or remove it")
        return self


class CardSettings(Section):
    """What only people know of the finished model; its card and its bundle say it, and nothing is trained otherwise.

    Attributes:
        version: Version of the model, as 1.0.0.
        date: Date of that version, as 2026-11-29.
        responsible: The person or body that answers for the model, with an address.
        licence: Licence of the model, as CC-BY-4.0.
        intended_use: What the model is for, by whom it is used, and for which decisions it must not be.
        population: Patients and images that the model is for.
    """

    version: Said | None = None
    date: Said | None = None
    responsible: Said | None = None
    licence: Said | None = None
    intended_use: Said | None = None
    population: Said | None = None


class OperatingPointSettings(Section):
    """Decision threshold for a finding, or for the second of two classes; by default a probability of 0.5.

    Each site chooses the threshold on its validation data; the super model has the sites' median. ``predict`` and
    ``evaluate`` use it; the choice and comparison of models do not.

    Attributes:
        specificity: Minimum specificity; the threshold with the highest sensitivity is taken. Or:
        sensitivity: Minimum sensitivity; the threshold with the highest specificity is taken.
    """

    specificity: Fraction | None = None
    sensitivity: Fraction | None = None

    @model_validator(mode="after")
    def _asks_for_one(self) -> OperatingPointSettings:
        if (self.specificity is None) == (self.sensitivity is None):
            raise ConfigError(
                "operating_point asks for both or neither of sensitivity and specificity; give one, as "
                "{specificity: 0.9}"
            )
        return self

    @property
    def wish(self) -> str:
        """What is asked for, in words."""
        ((name, least),) = self.model_dump(exclude_none=True).items()
        return f"a {name} of {least:g}"


class AlgorithmSettings(BaseModel):
    """An algorithm, one of its presets, and what the study changes in it.

    Attributes:
        name: The algorithm.
        preset: Chooses every value not given here: ``paper``, ``reference`` (the authors' code) or ``recommended``.
    """

    # An algorithm's own keys are checked by `Study.recipe`: this file must not load any algorithm that the study
    # does not name.
    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    preset: str = "recommended"


class FederationSettings(Section):
    """How many sites the server needs, and how long it waits for them.

    Attributes:
        sites: The hospitals by name, as ``[north, south]``: nobody else takes part, and who is missing at the end makes
            the run INCOMPLETE. By default those that are there when the job starts.
        min_sites: Sites that must answer for a round to count.
        max_missed_rounds: Rounds a site may miss before the run is called INCOMPLETE.
        may_miss: Named sites that a COMPLETE run may lack at its start or end.
        patience: Training ends when its last so many rounds raised the sites' validation by no more than 0.005, as the
            median of their changes. Extra rounds follow.
        sites_left: Sites that have left a continued run: their absence does not make it INCOMPLETE.
        task_timeout_s: Seconds the server waits for a site's answer. By default an hour at first; later five times the
            longest answer, at least ten minutes.
        join_timeout_s: Seconds to wait for the sites before the first round.
        max_update_ratio: An update is refused if its norm per step is more than this many times the median of the other
            sites'; null refuses none.
        min_sites_for_ratio: Answers that a round needs before updates and image ranges are compared.
        precision: Precision of sent numbers. ``float16`` halves the bytes: three digits, and numbers below 6e-8 become
            0. Arrays with numbers above 65504, and AdaFed's statistics, are not rounded.
    """

    sites: Count | Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_sort_names)] | None = None
    # With one site nothing is mixed, and the study's model is that of its patients.
    min_sites: Count = 2
    max_missed_rounds: Natural = 0
    # Left out where it is 0, so that studies without it keep their digest.
    may_miss: Annotated[Natural, Field(exclude_if=operator.not_)] = 0
    patience: Count | None = None
    sites_left: tuple[Name, ...] = ()
    task_timeout_s: Seconds | None = None
    join_timeout_s: Seconds = 600.0
    max_update_ratio: Positive | None = 100.0
    min_sites_for_ratio: Count = 3
    precision: Literal["float32", "float16"] = "float32"

    @property
    def named(self) -> tuple[str, ...]:
        """The names of the sites; none where the study gives their number alone, or nothing."""
        return self.sites if isinstance(self.sites, tuple) else ()

    @property
    def num_sites(self) -> int | None:
        """How many sites the first round waits for; None where the study leaves it open."""
        return self.sites if isinstance(self.sites, int) else len(self.named) or None

    @model_validator(mode="after")
    def _has_sites_enough(self) -> FederationSettings:
        if self.named and self.min_sites > len(self.named):
            raise ConfigError(
                f"federation.min_sites must be at most {len(self.named)}, the hospitals that federation.sites names, "
                f"not {self.min_sites}; lower it, or name more"
            )
        if self.may_miss > max(0, len(self.named) - self.min_sites):
            raise ConfigError(
                f"federation.may_miss, {self.may_miss} of the {len(self.named)} hospitals that federation.sites names, "
                "leaves fewer than federation.min_sites; name them, or lower it"
            )
        return self
