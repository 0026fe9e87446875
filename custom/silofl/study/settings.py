"""The settings in study.yaml, and what follows from them; `silofl.study.Study` has them checked as one."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from silofl.base.errors import ConfigError
from silofl.base.naming import normalise_texts
from silofl.base.settings import Finite, Name, Natural, Section, Whole, describe_validation_error
from silofl.core.algorithm_option import SecondModel
from silofl.core.findings import name_absence
from silofl.core.presets import find_recipe
from silofl.core.recipe import Recipe
from silofl.core.training_end import PATIENCE
from silofl.setup.extensions import LOSSES, METRICS, NETWORKS, TRANSFORMS, Extension, is_extension
from silofl.study.data_settings import DataSettings
from silofl.study.former_keys import rename_former_keys
from silofl.study.sections import (
    AlgorithmSettings,
    CardSettings,
    CodeSettings,
    DoNotUseSettings,
    FederationSettings,
    ModelSettings,
    OperatingPointSettings,
    PrivacySettings,
    TrainingSettings,
)

# No machine has more threads than that.
Threads = Annotated[Whole, Field(gt=0, le=1024)]


def _check_label_numbers(labels: object) -> object:
    # A number may be text, since JSON has no other keys: "01" and 1 are one number.
    keys = map(str, labels) if isinstance(labels, dict) else ()
    numbers = [int(key) for key in keys if re.fullmatch(r"\d{1,9}", key, re.ASCII)]
    if len({*numbers}) < len(numbers):
        raise ValueError("one name for each number")
    return labels


class StudySettings(Section):
    """The settings of one study, each checked by itself.

    Attributes:
        name: Part of file names.
        continue_run: Id of an unfinished run to continue.
        rehearsal: Set by ``silofl run --rehearse`` alone.
        task: A label per pixel, one per example, or any number of findings per example.
        labels: Number -> name; from 1 for segmentation (0 is background), otherwise from 0.
        regions: Segmentation: name -> labels whose union is scored instead of single labels, as ``{disc: [1, 2], cup:
            [2]}``.
        rounds: Communication rounds; 0 if nothing is trained.
        seed: Start of all random numbers.
        device: ``auto`` takes a GPU if there is one.
        torch_threads: Threads of torch at every site. ``auto`` takes all cores of a site; the weights then depend on
            the machines.
        baseline_comparison: Whether each site with validation data also trains a model alone, and keeps the better one
            by these data; in local training: whether to its end.
        evaluate_every_round: Whether each round's model is also scored on test data, for curves.
        metric: Score by which models are chosen and reported: mean Dice over cases, without or with the background;
            share of right cases, or its mean over the classes; area under the ROC curve, or under precision over
            recall, mean over the classes. With ``multilabel`` each finding, and its absence, is a class.
        subgroups: In a job of ``silofl evaluation-job``: what test cases are also scored by, as ``{sex: [F, M], age:
            [40, 65]}``; values, or limits of numbers.
        codes: Segmentation: label's name -> its SNOMED CT code in DICOM files, as ``{liver: {code: "10200004", meaning:
            Liver}}``.
        extra_metrics: Segmentation: up to 8 metrics of packages, as ``[package==1.2.0/name]``, for the test only.
    """

    name: Name
    continue_run: Name | None = None
    rehearsal: Annotated[bool, Field(exclude_if=operator.not_)] = False
    task: Literal["segmentation", "classification", "multilabel"]
    labels: Annotated[dict[int, str], BeforeValidator(_check_label_numbers), Field(min_length=1)]
    regions: Annotated[dict[str, tuple[Whole, ...]], Field(min_length=1)] | None = None
    rounds: Natural
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    torch_threads: Threads | Literal["auto"] = 1
    baseline_comparison: bool = True
    evaluate_every_round: bool = False
    metric: Literal["dice", "dice_with_background", "accuracy", "balanced_accuracy", "auroc", "auprc"] = "dice"
    extra_metrics: Annotated[tuple[Extension, ...], Field(max_length=8)] = ()
    # What is empty is left out, so that studies without it keep their digest.
    subgroups: Annotated[
        dict[Name, Annotated[tuple[Finite, ...] | tuple[Name, ...], Field(min_length=1, max_length=10)]],
        Field(max_length=8, exclude_if=operator.not_),
    ] = {}
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    algorithm: AlgorithmSettings
    federation: FederationSettings = FederationSettings()
    privacy: PrivacySettings = PrivacySettings()
    codes: Annotated[dict[str, CodeSettings], Field(exclude_if=operator.not_)] = {}
    do_not_use: DoNotUseSettings | None = Field(default=None, exclude_if=operator.not_)
    operating_point: OperatingPointSettings | None = Field(default=None, exclude_if=operator.not_)
    card: CardSettings | None = Field(default=None, exclude_if=operator.not_)
    # How a run goes is no setting, and none of the digest.
    _joint_rounds: int | None = PrivateAttr(default=None)
    # A sentence for each key of the file that has another name now.
    _former_keys: tuple[str, ...] = PrivateAttr(default=())

    @cached_property
    def recipe(self) -> Recipe:
        """The algorithm's five answers, from its preset and the study's own choices."""
        try:
            return find_recipe(self.algorithm.name, self.algorithm.preset, self.algorithm.model_extra or {})
        except ValidationError as error:
            raise ConfigError(f"algorithm.{describe_validation_error(error, type(self))}") from None

    @model_validator(mode="wrap")
    @classmethod
    def _read_keys(cls, values: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        normalised = normalise_texts(values)
        if not isinstance(normalised, Mapping):
            return handler(normalised)
        renamed, sentences = rename_former_keys(normalised)
        study = handler(renamed)
        study._former_keys = tuple(sentences)
        return study

    @property
    def called(self) -> tuple[int, ...]:
        """The labels that a threshold decides: the second of two classes, or all findings."""
        numbers = tuple(sorted(self.labels))
        if self.is_multilabel:
            return numbers
        return numbers[1:] if self.task == "classification" and len(numbers) == 2 else ()

    @property
    def is_multilabel(self) -> bool:
        """Whether an example has any number of labels, each of which the network answers by itself."""
        return self.task == "multilabel"

    @property
    def is_private(self) -> bool:
        """Whether models learn with differential privacy, so that nothing else of their training may leave."""
        return self.privacy.dp_sgd is not None

    @property
    def promise(self) -> tuple[float, str] | None:
        """The delta at which differential privacy holds, and for whom; None without it."""
        settings = self.privacy.dp_sgd
        return None if settings is None else (settings.delta, settings.unit)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all that the study decides, however its file is written; how it is run now is none of it.

        Presets and defaults count with their values, so that another version of SiloFL may give another digest.
        """
        undecided = {"continue_run", "rehearsal"}
        # With patience `rounds` is only the most: hospitals that pin the study let its run go on with more. With
        # differential privacy each round spends epsilon, to which they agree too.
        if self.ends_early and not self.is_private:
            undecided.add("rounds")
        settings = self.model_dump(mode="json", exclude=undecided)
        settings["recipe"] = self.recipe.choices()
        text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def description(self) -> dict[str, Any]:
        """Return the facts of the study that every result repeats, as plain values."""
        return {
            "study": self.name,
            "task": self.task,
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
    def cautions(self) -> list[str]:
        """What whoever runs the study must know of its recipe, and of a normalisation that does not fit it."""
        cautions = [*self._former_keys, *self.recipe.cautions]
        if self.recipe.stays == "batchnorm" and not self.model.has_own_batchnorm:
            cautions.append(
                f"a network with model.normalization {self.model.normalization} has no BatchNorm to keep at home: all "
                "of it travels; take batch, or another preset"
            )
        if self.training.frozen and not self.starts_from_file:
            cautions.append(
                f"training.frozen keeps the seed's random weights of {', '.join(self.training.frozen)}, which have "
                "learnt nothing; give --weights, or choose start_from_pretrained: true"
            )
        if self.model.normalization == "batch_stateless":
            cautions.append(
                "with model.normalization batch_stateless an answer depends on the other images of its batch: scores "
                "hold for batches as in the test, and silofl predict refuses a single image; take batch, group or "
                "instance for use"
            )
        if self.compares_with_baseline and self.training_rounds <= self.patience:
            many = "rounds allow" if self.training_rounds != 1 else "round allows"
            cautions.append(
                f"{self.training_rounds} {many} no verdict on joining, as a model is trained to its end only if its "
                f"last {self.patience} rounds do not raise it; take more, as with --set rounds={2 * self.patience}"
            )
        return cautions

    @property
    def extensions(self) -> list[tuple[str, str, str]]:
        """The parts of packages that the study names: key, group of entry points, and name."""
        named = [
            ("model.network", NETWORKS, self.model.network),
            ("training.loss", LOSSES, self.training.loss),
            *[("data.transforms", TRANSFORMS, transform.name) for transform in self.data.transforms],
            *[("data.augment", TRANSFORMS, transform.name) for transform in self.data.augment],
            *[("extra_metrics", METRICS, name) for name in self.extra_metrics],
        ]
        return [(key, group, name) for key, group, name in named if name and is_extension(name)]

    @property
    def asks_alone(self) -> bool:
        """Whether a run trains and tests nothing, but asks every site once; the data need not fit the study."""
        return not self.rounds and any(traits.asks_alone for traits in self.recipe.traits)

    @property
    def model_file(self) -> str | None:
        """The file beside study.yaml that the server reads, a pretrained model or weights; None where it reads none."""
        is_needed = self.recipe.needs_pretrained or not (self.rounds or self.asks_alone)
        return self.model.pretrained if is_needed else self.model.weights

    @property
    def needed_parts(self) -> tuple[str, ...]:
        """The parts of a site's data that must hold a case."""
        return ("training", "test") if self.rounds else ("test",)

    @property
    def starts_from_file(self) -> bool:
        """Whether everybody starts from a file's weights, and not from those that the seed gives."""
        return self.recipe.start_from_pretrained or self.model.weights is not None

    @property
    def unfrozen(self) -> Self:
        """The same study without frozen parameters."""
        return self.model_copy(update={"training": self.training.model_copy(update={"frozen": ()})})

    @property
    def has_fresh_optimizer(self) -> bool:
        """Whether a site's optimisers begin every round empty: by the study's choice, or because an answer needs it."""
        is_needed = any("fresh_optimizer" in traits.needs for traits in self.recipe.traits)
        return is_needed or self.training.optimizer_state == "fresh"

    @property
    def keeps_optimizers(self) -> bool:
        """Whether a site's optimisers keep anything from round to round; plain SGD has nothing to keep."""
        is_plain = self.training.optimizer == "sgd" and self.training.momentum == 0
        return not (self.has_fresh_optimizer or is_plain)

    @property
    def scored(self) -> dict[int | str, tuple[int, ...]]:
        """What answers are scored by: a region's name -> its labels; without regions each label's number -> itself.

        The absence of a finding is scored too, and of no label.
        """
        labels: Any = self.regions or {number: (number,) for number in sorted(self.labels)}
        absences = {name_absence(name): () for name in self.labels.values()} if self.is_multilabel else {}
        return {**labels, **absences}

    def name_label(self, key: int | str) -> str:
        """Return the name of what answers are scored by: of a label's number its name, of a region its own."""
        return key if isinstance(key, str) else self.labels.get(key, str(key))

    def steps_an_epoch(self, num_examples: int) -> int:
        """Return the most training steps of an epoch; a last batch of one example joins the one before it."""
        # Of each volume an epoch has several patches.
        patches = self.data.patches
        return math.ceil(num_examples * (patches.per_volume if patches else 1) / self.training.batch_size)

    def ended_after(self, number: int | None) -> Self:
        """Return the study of a run that ended its joint rounds after an earlier one than planned; None: as planned."""
        study = self.model_copy()
        study._joint_rounds = number
        return study

    @property
    def joint_rounds(self) -> int:
        """Rounds before the extra ones: the study's, or fewer in a run that `federation.patience` ended early."""
        return self.rounds if self._joint_rounds is None else self._joint_rounds

    @property
    def training_rounds(self) -> int:
        """The most rounds in which models learn: the study's, and in fine-tuning those in which sites train alone."""
        # Where a part has the extra rounds, no model changes in them: its selector learns which of the fixed models is
        # the best for an image, a question without an answer while they change.
        if self.recipe.extra_tasks or not self.rounds:
            return self.rounds
        return self.rounds + self.recipe.extra_rounds

    @property
    def last_training(self) -> int:
        """The last round in which models learn: `training_rounds`, or fewer in a run that ended early."""
        return self.joint_rounds if self.recipe.extra_tasks else self.total_rounds

    def learning_roles(self, number: int) -> tuple[str, ...]:
        """Return the roles of the models that learn in a round; a personal one may wait for the extra rounds."""
        if self.recipe.second_model == SecondModel.FINE_TUNED and number <= self.joint_rounds:
            return self.recipe.traveling_roles
        return self.recipe.roles

    @property
    def compares_with_baseline(self) -> bool:
        """Whether sites compare the federated model with one of their own; there is none where all train alone."""
        return self.baseline_comparison and self.rounds > 0 and self.recipe.stays != "everything"

    @property
    def patience(self) -> int:
        """Rounds that must not raise a model for it to be trained to its end: the study's, or the usual ones."""
        return self.federation.patience or PATIENCE

    @property
    def ends_early(self) -> bool:
        """Whether `rounds` is only the most."""
        return self.federation.patience is not None

    @property
    def length(self) -> str:
        """The number of rounds in words, as the most where training may end earlier."""
        at_most = "at most " if self.ends_early else ""
        return f"{at_most}{self.total_rounds} round{'' if self.total_rounds == 1 else 's'}"

    @property
    def quiet_rounds(self) -> int | None:
        """Rounds that raise nothing and so end a run; None if none do, others follow, or the first do not count."""
        is_plain = self.recipe.mixing is None or not self.recipe.shared_rounds(self.rounds)
        return self.federation.patience if is_plain and not self.recipe.extra_rounds else None

    @property
    def total_rounds(self) -> int:
        """All rounds, the extra ones included; fewer in a run that ended early."""
        return self.joint_rounds and self.joint_rounds + self.recipe.extra_rounds

    @property
    def out_channels(self) -> int:
        """Channels of the network's output: one for a single label (sigmoid), else background and labels (softmax)."""
        # Only label maps have a background, which a single label needs no channel for.
        if self.task != "segmentation":
            return len(self.labels)
        return 1 if len(self.labels) == 1 else len(self.labels) + 1
