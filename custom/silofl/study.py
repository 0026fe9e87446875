"""What a study lead decides: the settings in study.yaml, read once and checked as one."""

from __future__ import annotations

import hashlib
import json
import math
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from silofl.algorithms.recipe import Recipe, find_recipe
from silofl.errors import ConfigError, shown
from silofl.extensions import LOSSES, NETWORKS, TRANSFORMS, Extension, is_extension
from silofl.settings import (
    BelowOne,
    Count,
    Fraction,
    Name,
    Natural,
    NotNegative,
    Positive,
    Section,
    Whole,
    load,
    sentence_of,
)

SplitUnit = Literal["patient", "recordings", "slices", "examples", "unknown"]
# More would fill the memory before anything could be said about it.
MOST_CHANNELS = 4096
Channels = Annotated[Whole, Field(gt=0, le=MOST_CHANNELS)]
# In a command NAME=FILE,NAME=FILE gives the files of a case.
CHANNEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9 _.+-]{0,31}$"
ChannelName = Annotated[str, Field(pattern=CHANNEL_NAME)]
# A patch's side; a larger one would fill the memory.
Side = Annotated[Whole, Field(ge=1, le=512)]
Neighbours = Annotated[Whole, Field(ge=0, le=8)]
Features = Annotated[Whole, Field(gt=0, le=1024)]
# More threads than that are on no machine; a wait of months is a slip of the pen.
Threads = Annotated[Whole, Field(gt=0, le=1024)]
Seconds = Annotated[Positive, Field(le=10**7)]
# DICOM's codes for the images of the studies that hospitals ask for; DX stands for CR too.
Modality = Literal["CT", "MR", "PT", "NM", "US", "DX", "MG", "XA", "RF", "OP", "OPT", "SM", "GM", "ES", "XC"]


def _sha256(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError("the 64 digits of the file's SHA-256, as sha256sum prints them")
    return value


def _monai(*names: str) -> tuple[str, ...]:
    return tuple(f"monai.networks.nets.{name}" for name in names)


# What each task allows; a key that is in neither table fits both tasks.
SEGMENTATION_ONLY = {
    "metric": ("dice", "dice_with_background"),
    "model.name": ("unet",),
    "model.network": _monai("UNet", "DynUNet", "SegResNet", "SwinUNETR", "HighResNet", "VNet"),
    "training.loss": ("dice_ce", "dice", "cross_entropy"),
}
CLASSIFICATION_ONLY = {
    "metric": ("accuracy", "balanced_accuracy"),
    "model.name": ("densenet121", "lenet5", "alexnet", "activity_cnn"),
    "model.network": _monai("DenseNet169", "DenseNet201", "DenseNet264", "ResNet", "EfficientNetBN"),
    "training.loss": ("cross_entropy",),
}
IN_3D = ("unet", "densenet121")
WITHOUT_DROPOUT = ("lenet5", "activity_cnn")
# Names of regions are keys of what sites send.
LONGEST_NAME = 100


class Transform(Section):
    """One transform that a study names, of MONAI as ``Resize: {spatial_size: [128, 128]}``, or of a package."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and len(value) == 1 and "name" not in value:
            ((name, options),) = value.items()
            return {"name": name, "options": options or {}}
        return value


class PatchSettings(Section):
    """The patches of volumes that a network learns from, and looks through whole volumes by.

    Attributes:
        size: Voxels along X, Y and Z, as ``[96, 96, 32]``; the network must be able to halve them as often as it does.
            A smaller volume is padded with zeros.
        per_volume: Patches of each training volume in an epoch, each drawn anew (MONAI's RandCropByPosNegLabel).
        foreground: Share of them whose centre is a voxel with a label; of the others it is one without.
        overlap: Share of a patch's side that neighbouring windows have in common when a whole volume is looked through
            (MONAI's sliding_window_inference, weighted by a Gaussian). More is slower, and smoother.
    """

    size: tuple[Side, Side, Side]
    per_volume: Count = 2
    foreground: Fraction = 0.5
    overlap: Annotated[float, Field(ge=0, le=0.9)] = 0.25


class DataSettings(Section):
    """How a site's image files become batches.

    Attributes:
        dimensions: 2 cuts volumes into slices, each an example; with 3 a whole volume is one, seen by a network in 3D.
        patches: With ``dimensions`` 3, for label maps: the patches in which the network sees a volume. A classifier
            sees the whole of it instead; Resize or ResizeWithPadOrCrop then make all of one size.
        channels: Channels of an image. A picture has 1 or 3: grey is repeated, colour becomes luminance, an alpha
            channel is dropped. A window of a time series has as many as are stored.
        channel_names: Names of the channels in the order of the network, as ``[T1, T2]``, as many as ``channels``.
            Each is then scaled on its own, and none is converted. A site's dataset.json says which of them its files
            hold; of one that is not there the network sees zeros.
        resample: Whether a volume of a case that lies on another grid than the first of its contrasts is resampled to
            it (MONAI's ResampleToMatch, linear; beyond its edge the nearest voxel); refused otherwise.
        neighbours: Slices before and after each slice of a volume that the network sees with it, as further channels:
            with 1, three slices. Beyond the ends of a volume, or of the ``slices`` of a record, the nearest is
            repeated. Labels are those of the middle slice. Pictures and windows have no slices: only 0 takes them.
        modality: DICOM's code of what made the images, as ``MR``, ``CT``, ``DX`` (radiography) or ``XC`` (a camera);
            the super model then refuses DICOM images of another one. By default the code in the sites' DICOM images.
        intensity: ``dtype`` maps the file's integer range to [0, 1]; ``percentiles`` the case's 0.5 to 99.5
            percentile; ``zscore`` gives each case mean 0 and deviation 1; ``raw`` keeps the stored values.
        volume_transforms: MONAI transforms of a whole volume before it is cut into slices, as
            ``Orientation: {axcodes: RAS}``.
        transforms: MONAI transforms of each 2D image and its label, once, before they are cached, as
            ``Resize: {spatial_size: [128, 128]}``; each slice on its own, before its neighbours join it. With
            ``dimensions`` 3, of each whole volume after ``volume_transforms``. Also a part of a package that keeps the
            size, as ``package==1.2.0/name: {}``; as ``augment`` too.
        augment: MONAI random transforms of each training image, or patch, anew in every epoch, as
            ``RandRotate90: {prob: 0.75, max_k: 3}``.
        split_unit: What training, validation and test data of a site must not share: a ``patient``; or, where one
            patient is in several of them on purpose, ``recordings``, ``slices`` of a volume, or only ``examples``.
            ``unknown`` where nobody knows the patients of some site's data: one may be in several of them, unseen.
    """

    dimensions: Literal[2, 3] = 2
    patches: PatchSettings | None = None
    channels: Channels = 1
    channel_names: tuple[ChannelName, ...] = ()
    resample: bool = False
    neighbours: Neighbours = 0
    modality: Modality | None = None
    intensity: Literal["dtype", "percentiles", "zscore", "raw"] = "dtype"
    volume_transforms: tuple[Transform, ...] = ()
    transforms: tuple[Transform, ...] = ()
    augment: tuple[Transform, ...] = ()
    split_unit: SplitUnit = "patient"

    @property
    def in_channels(self) -> int:
        """Channels of the network's input: for each offset from -neighbours to neighbours those of that slice."""
        return self.channels * (2 * self.neighbours + 1)

    @property
    def shown(self) -> slice:
        """The channels that a picture shows, among those of the network's input: the slice itself, of contrasts one."""
        first = self.channels * self.neighbours
        return slice(first, first + (1 if self.channel_names else self.channels))

    @model_validator(mode="after")
    def _names_each_channel(self) -> DataSettings:
        names = self.channel_names
        if names and (len(names) != self.channels or len({*names}) < len(names)):
            raise ConfigError(
                f"data.channel_names must be data.channels, {self.channels}, different names, not {shown([*names])}; "
                "set data.channels to their number, and name each once"
            )
        if self.resample and not names:
            raise ConfigError("data.resample must go with channel_names, whose files may differ; leave it out")
        return self

    @model_validator(mode="after")
    def _cuts_what_it_has(self) -> DataSettings:
        if self.dimensions == 3 and self.neighbours:
            raise ConfigError(
                f"data.neighbours must be 0 with data.dimensions 3, whose volumes are not cut, not {self.neighbours}; "
                "remove it"
            )
        if self.dimensions == 2 and self.patches:
            raise ConfigError("data.patches must go with data.dimensions 3, which cuts no slices; remove one of both")
        return self

    @model_validator(mode="after")
    def _fits_into_memory(self) -> DataSettings:
        if self.in_channels > MOST_CHANNELS:
            raise ConfigError(
                f"data.channels must be at most {MOST_CHANNELS} together with those of the neighbours, not "
                f"{self.in_channels}; lower data.neighbours"
            )
        return self


class ModelSettings(Section):
    """The network, the same at every site.

    Attributes:
        name: ``unet`` (MONAI BasicUNet) for segmentation; ``densenet121`` (MONAI), ``lenet5``, ``alexnet`` or, for
            sensors over time, ``activity_cnn`` for classification; of them ``unet`` and ``densenet121`` in 3D too.
        network: A network of MONAI instead, with the study's dimensions, channels and normalisation: its class in
            ``monai.networks.nets``, as ``monai.networks.nets.SegResNet``. For label maps ``UNet``, ``DynUNet``,
            ``SegResNet``, ``SwinUNETR``, ``HighResNet``, ``VNet``; for classes ``DenseNet169``, ``DenseNet201``,
            ``DenseNet264``, ``ResNet``, ``EfficientNetBN``. ``features`` and ``dropout`` are not used. Or a network of
            a package that every machine has installed and allowed, as ``package==1.2.0/name``.
        arguments: Further arguments of that class, as ``{init_filters: 16}``.
        normalization: The network's normalisation layer; ``batch_stateless`` is BatchNorm without parameters and
            without running statistics, so that a prediction depends on the other images of its batch. After a fully
            connected layer ``instance`` and ``group`` are both a GroupNorm of one group.
        features: Channels of the U-Net's levels, six numbers.
        dropout: Probability of dropout; ``lenet5`` and ``activity_cnn`` have none.
        precision: Of the networks: ``bfloat16`` (autocast), ``float32``, or ``auto``, which is bfloat16 on a GPU and
            float32 elsewhere. Losses, gradients' norms and what travels are float32 in any case.
        pretrained: File of a pretrained model next to study.yaml, for an algorithm that needs one; ``silofl pretrain``
            writes it and ``--pretrained`` brings it there.
        weights: File of weights next to study.yaml, ``.pt`` or ``.safetensors``, from which everybody starts instead of
            random ones; ``--weights`` brings it there. They are matched by name and shape, and what the file lacks
            starts from the seed. Only the server reads it.
        weights_sha256: The SHA-256 of that file, so that the study's digest, which sites pin, settles what is in it.
    """

    name: Literal["unet", "densenet121", "lenet5", "alexnet", "activity_cnn"] = "unet"
    network: str | None = None
    arguments: dict[str, Any] = {}
    normalization: Literal["batch", "batch_stateless", "instance", "group"] = "batch"
    features: Annotated[tuple[Features, ...], Field(min_length=6, max_length=6)] = (32, 32, 64, 128, 256, 32)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    pretrained: Name = "pretrained.pt"
    weights: Name | None = None
    weights_sha256: Annotated[str, AfterValidator(_sha256)] | None = None

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
            raise ConfigError("model.arguments must go with model.network, whose arguments they are; leave them out")
        defaults = {key: ModelSettings.model_fields[key].default for key in ("name", "features", "dropout")}
        for key, value in defaults.items() if self.network else ():
            if getattr(self, key) != value:
                raise ConfigError(
                    f"model.{key} must be left out with model.network, not {getattr(self, key)}; give what the class "
                    "has of it in model.arguments"
                )
        return self

    @model_validator(mode="after")
    def _settles_its_weights(self) -> ModelSettings:
        if (self.weights is None) != (self.weights_sha256 is None):
            given, missing = ("weights", "weights_sha256") if self.weights else ("weights_sha256", "weights")
            raise ConfigError(
                f"model.{given} must go with model.{missing}, so that the study's digest settles what everybody starts "
                "from; give both, as --weights does, or none"
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
        loss: ``dice_ce`` (Dice plus cross entropy, binary for one label), ``dice`` or ``cross_entropy``; or one of a
            package that every site has installed and allowed, as ``package==1.2.0/name``.
        has_batch_dice: Dice of all images of a batch together, for labels that many images lack; else of each image.
        optimizer: The base optimiser of every step.
        optimizer_state: Momentum and Adam's moments, which never travel: ``kept`` at the site from round to round, or
            ``fresh`` in each round, as papers have it. FedNova, and SCAFFOLD with momentum, need fresh ones in any
            case; FedSM's selector has an optimiser of its own.
        learning_rate: Of the base optimiser, in the first round.
        schedule: How the learning rate falls from round to round: ``constant`` not at all; ``poly`` by
            ``(1 - (r - 1) / R)^0.9`` in round r of R; ``cosine`` by half a period. Constants of an algorithm do not
            fall with it.
        momentum: Of ``sgd``.
        is_nesterov: Whether the momentum of ``sgd`` is Nesterov's.
        betas: Of ``adam`` and ``adamw``.
        weight_decay: Of the base optimiser.
        batch_size: Images in a batch; a last batch of one image joins the one before it.
        drop_channels: Probability with which each of ``data.channel_names`` becomes zeros in a training image, drawn
            anew each time, so that the network learns to do without it where a site or a patient lacks one; an image
            keeps at least one of those that it has (Wagner et al., WACV 2025, arXiv:2406.11636).
        local_epochs: Passes over the site's training data in a round, the papers' E.
    """

    loss: Literal["dice_ce", "dice", "cross_entropy"] | Extension = "dice_ce"
    has_batch_dice: bool = False
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    optimizer_state: Literal["kept", "fresh"] = "kept"
    learning_rate: Positive = 1e-3
    schedule: Literal["constant", "poly", "cosine"] = "constant"
    momentum: Fraction = 0.9
    is_nesterov: bool = False
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: NotNegative = 0.0
    batch_size: Count = 8
    drop_channels: Annotated[float, Field(ge=0, lt=1)] = 0.0
    local_epochs: Count = 1

    @model_validator(mode="after")
    def _has_a_momentum_to_look_ahead_with(self) -> TrainingSettings:
        if self.is_nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            found = self.optimizer if self.optimizer != "sgd" else "sgd with momentum 0"
            raise ConfigError(f"training.is_nesterov must go with sgd and a momentum, not with {found}; leave it out")
        return self


class AlgorithmSettings(BaseModel):
    """An algorithm, one of its presets, and what the study changes in it.

    Attributes:
        name: The algorithm.
        preset: The named choice of every value that is not given here: ``paper``, ``reference`` (the authors' own
            code) or ``recommended``.
    """

    # An algorithm's own keys are checked by `Study.recipe`: this file must not load any algorithm that the study
    # does not name.
    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    preset: str = "recommended"


class FederationSettings(Section):
    """How many sites the server needs, and how long it waits for them.

    Attributes:
        sites: Sites that the first round waits for; those that are there when the job starts where not given.
        min_sites: Sites that must answer for a round to count.
        max_missed_rounds: Rounds a site may miss before the run is called INCOMPLETE.
        task_timeout_s: Seconds the server waits for a site's answer in a round; in the first one, the sites' processes
            load their libraries and read their data in this time.
        join_timeout_s: Seconds the server waits for the sites to appear before the first round.
        max_update_ratio: An update of a model is refused whose norm by step is more than so many times the median of
            the other sites'; null refuses none.
        min_sites_for_ratio: Answers of a round from which on their updates are compared so.
    """

    sites: Count | None = None
    min_sites: Count = 1
    max_missed_rounds: Natural = 0
    task_timeout_s: Seconds = 3600.0
    join_timeout_s: Seconds = 600.0
    max_update_ratio: Positive | None = 100.0
    min_sites_for_ratio: Count = 3


class Study(Section):
    """One study: the same file for the server and every site.

    Attributes:
        name: The study's name, part of file names.
        continue_run: Id of an unfinished run to continue, on a server that keeps its runs.
        task: What the network learns: a label of each pixel, or one of each example.
        labels: Number -> name; from 1 for segmentation (0 is background), from 0 for classification.
        regions: Of a segmentation: name -> the labels whose union is scored, in place of the single labels, as
            ``{disc: [1, 2], cup: [2]}`` where label 1 is the rim of the disc around the cup. They may overlap; a label
            of none of them does not count. The network learns and answers with the labels all the same, one for each
            pixel: its outputs exclude each other, as overlapping regions do not.
        rounds: Communication rounds.
        seed: Of the initial weights, and with site and round of everything random at a site.
        device: ``auto`` takes a GPU where there is one.
        torch_threads: Threads of torch at every site; other numbers give other rounding.
        guard: Whether each site that has validation data also trains a model alone, in the same rounds and without
            traffic, and in the end keeps the model that its own validation data favour.
        evaluate_every_round: Whether each round's model is also scored on the sites' test data, for curves of
            convergence; these scores choose nothing.
        metric: What models are chosen and reported by: the mean Dice over cases, of the foreground or with the
            background, as some printed tables have it; the share of cases that are right; or the mean of that share
            over the classes present.
    """

    name: Name
    continue_run: Name | None = None
    task: Literal["segmentation", "classification"]
    labels: Annotated[dict[int, str], Field(min_length=1)]
    regions: Annotated[dict[str, tuple[Whole, ...]], Field(min_length=1)] | None = None
    rounds: Count
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    torch_threads: Threads = 1
    guard: bool = True
    evaluate_every_round: bool = False
    metric: Literal["dice", "dice_with_background", "accuracy", "balanced_accuracy"] = "dice"
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    algorithm: AlgorithmSettings
    federation: FederationSettings = FederationSettings()

    @cached_property
    def recipe(self) -> Recipe:
        """The algorithm's five answers, from its preset and the study's own choices."""
        try:
            return find_recipe(self.algorithm.name, self.algorithm.preset, self.algorithm.model_extra or {})
        except ValidationError as error:
            raise ConfigError(f"algorithm.{sentence_of(error, Study)}") from None

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        # Label maps are uint8.
        if len(self.labels) > 255:
            raise ConfigError(
                f"labels must be at most 255, the numbers that a label map can hold, not {len(self.labels)}"
            )
        first = 1 if self.task == "segmentation" else 0
        wanted, numbers = list(range(first, first + len(self.labels))), sorted(self.labels)
        if numbers != wanted:
            raise ConfigError(f"labels must be numbered {shown(wanted)} for {self.task}, not {shown(numbers)}")
        # Results are kept by name: of two equal ones only one would be seen.
        names = [name.strip() for name in self.labels.values()]
        if "" in names or len({*names}) < len(names):
            raise ConfigError(
                f"labels must have a name of its own each, not {shown([*self.labels.values()])}; rename one"
            )
        if self.task == "classification" and len(self.labels) < 2:
            raise ConfigError(f"labels must be at least 2 for classification, not {len(self.labels)}")
        self._check_regions()
        self._check_volumes()
        fits = {"segmentation": SEGMENTATION_ONLY, "classification": CLASSIFICATION_ONLY}[self.task]
        network = {"model.network": self.model.network} if self.model.network else {"model.name": self.model.name}
        chosen = {"metric": self.metric, **network, "training.loss": self.training.loss}
        for key, value in chosen.items():
            is_open = key in ("model.network", "training.loss")
            if value not in fits[key] and not (is_open and is_extension(value)):
                raise ConfigError(f"{key} must be one of {', '.join(fits[key])} for {self.task}, not {value!r}")
        if self.data.neighbours and self.model.name == "activity_cnn":
            raise ConfigError(
                "data.neighbours must be 0 for activity_cnn, whose windows have no slices, not "
                f"{self.data.neighbours}; remove it"
            )
        if self.training.drop_channels and not self.data.channel_names:
            raise ConfigError(
                f"training.drop_channels must be 0 without data.channel_names, not {self.training.drop_channels}; name "
                "the channels"
            )
        if self.model.weights and self.recipe.needs_pretrained:
            raise ConfigError(
                "model.weights must be left out with an algorithm that needs a pretrained model, not "
                f"{self.model.weights!r}; leave it out, or choose start_from_pretrained: false, and statistics.source: "
                "running where sites are compared"
            )
        self._check_shared_rounds()
        for answer in self.recipe.answers:
            answer.check_training(self.training)
            answer.check_model(self.model)
        return self

    def _check_regions(self) -> None:
        """Refuse regions that are no unions of the study's labels, or have names that results cannot hold."""
        if self.regions is not None and self.task == "classification":
            raise ConfigError(
                f"regions must be left out for classification, which scores each class, not {shown([*self.regions])}; "
                "remove them"
            )
        for name, labels in (self.regions or {}).items():
            is_text = name == name.strip() and name.isprintable() and len(name) <= LONGEST_NAME
            if not (name[:1].isalpha() and is_text):
                raise ConfigError(
                    f"the name of a region must begin with a letter and have at most {LONGEST_NAME} letters, not "
                    f"{shown(name)}; rename it"
                )
            unknown = sorted({*labels} - self.labels.keys())
            if not labels or unknown or len({*labels}) < len(labels):
                raise ConfigError(
                    f"regions.{name} must hold labels among {shown(sorted(self.labels))}, at least one and each once, "
                    f"not {shown(list(labels))}; correct it"
                )

    def _check_volumes(self) -> None:
        """Refuse volumes without the network, or the patches, that take them."""
        settings, is_map = self.data, self.task == "segmentation"
        if settings.dimensions == 2:
            return
        if not self.model.network and self.model.name not in IN_3D:
            raise ConfigError(
                f"model.name must be one of {', '.join(IN_3D)} with data.dimensions 3, not {self.model.name!r}; or "
                "name a model.network"
            )
        if bool(settings.patches) != is_map:
            raise ConfigError(
                "data.patches must be given for a segmentation in 3D, as {size: [96, 96, 32]}; it is missing: add it"
                if is_map
                else "data.patches must be left out for a classification, which sees whole volumes; remove it"
            )
        if is_map and self.model.normalization == "batch_stateless":
            raise ConfigError(
                "model.normalization must be another than batch_stateless with data.patches: an answer would depend on "
                "the other patches of a volume; take batch, instance or group"
            )

    def _check_shared_rounds(self) -> None:
        """Refuse a study in which no round is left for the mixing that it asks for."""
        mixing = self.recipe.mixing
        if mixing is not None and mixing.shared_rounds(self.rounds) >= self.rounds:
            raise ConfigError(
                f"rounds must be more than the {mixing.shared_rounds(self.rounds)} before sites listen to each other "
                f"by {mixing.section}, not {self.rounds}; give more rounds, or lower algorithm.{mixing.section}.rounds"
            )

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all that the study decides, however its file is written; `continue_run` is none of it.

        Presets and defaults count with their values, so that another version of SiloFL may give another digest.
        """
        settings = self.model_dump(mode="json", exclude={"continue_run"})
        recipe = {key: value for key, value in self.recipe.as_dict().items() if key not in ("questions", "cautions")}
        text = json.dumps(settings | {"recipe": recipe}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def description(self) -> dict[str, Any]:
        """Return the facts of the study that every result repeats, as plain values."""
        return {
            "study": self.name,
            "digest": self.digest,
            "algorithm": self.algorithm.name,
            "preset": self.algorithm.preset,
            "recipe": self.recipe.as_dict(),
            "seed": self.seed,
            "rounds": self.rounds,
            "metric": self.metric,
            "labels": {str(number): name for number, name in sorted(self.labels.items())},
            **({"regions": self.regions} if self.regions else {}),
            "normalization": self.model.normalization,
            "split_unit": self.data.split_unit,
        }

    @property
    def extensions(self) -> list[tuple[str, str, str]]:
        """The parts of packages that the study names: key, group of entry points, and name."""
        named = [("model.network", NETWORKS, self.model.network), ("training.loss", LOSSES, self.training.loss)]
        for kind in ("transforms", "augment"):
            named += [(f"data.{kind}", TRANSFORMS, one.name) for one in getattr(self.data, kind)]
        return [(key, group, name) for key, group, name in named if is_extension(name)]

    @property
    def model_file(self) -> str | None:
        """The file beside study.yaml that the server reads, a pretrained model or weights; None where it reads none."""
        return self.model.pretrained if self.recipe.needs_pretrained else self.model.weights

    @property
    def starts_from_file(self) -> bool:
        """Whether everybody starts from a file's weights, and not from those that the seed gives."""
        return self.recipe.start_from_pretrained or self.model.weights is not None

    @property
    def has_fresh_optimizer(self) -> bool:
        """Whether a site's optimisers begin every round empty: by the study's choice, or because an answer needs it."""
        is_needed = any(answer.needs_fresh_optimizer for answer in self.recipe.answers)
        return is_needed or self.training.optimizer_state == "fresh"

    @property
    def scored(self) -> dict[int | str, tuple[int, ...]]:
        """What answers are scored by: a region's name -> its labels; without regions each label's number -> itself."""
        return dict(self.regions or {number: (number,) for number in sorted(self.labels)})

    def steps_an_epoch(self, num_examples: int) -> int:
        """Return the most training steps of an epoch; a last batch of one example joins the one before it."""
        patches = self.data.patches
        return math.ceil(num_examples * (patches.per_volume if patches else 1) / self.training.batch_size)

    @property
    def training_rounds(self) -> int:
        """Rounds in which models learn: the study's, and in fine-tuning those in which every site trains alone."""
        # Where a part has the extra rounds, no model changes in them: its selector learns which of the fixed models is
        # the best for an image, a question without an answer while they change.
        return self.rounds if self.recipe.has_parts_rounds else self.total_rounds

    def learning_roles(self, number: int) -> tuple[str, ...]:
        """Return the roles of the models that learn in a round; a personal one may wait for the extra rounds."""
        recipe = self.recipe
        return recipe.traveling_roles if recipe.tunes_personal and number <= self.rounds else recipe.roles

    @property
    def is_guarded(self) -> bool:
        """Whether sites compare the federated model with one of their own; there is none where all train alone."""
        return self.guard and self.recipe.stays_home != "everything"

    @property
    def total_rounds(self) -> int:
        """All rounds, the extra ones included."""
        return self.rounds + self.recipe.extra_rounds

    @property
    def out_channels(self) -> int:
        """Channels of the network's output: one for a single label (sigmoid), else background and labels (softmax)."""
        if self.task == "classification":
            return len(self.labels)
        return 1 if len(self.labels) == 1 else len(self.labels) + 1


def load_study(path: Path) -> Study:
    """Read and check a study.yaml; the errors of `silofl.settings.load`."""
    return load(Study, path)
