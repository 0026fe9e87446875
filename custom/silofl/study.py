"""What a study lead decides: the settings in study.yaml, read once and checked as one."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from silofl.core.findings import MOST_FINDINGS, name_absence
from silofl.core.presets import find_recipe
from silofl.core.recipe import Recipe
from silofl.errors import ConfigError, quote_value
from silofl.extensions import LOSSES, METRICS, NETWORKS, TRANSFORMS, Extension, is_extension
from silofl.settings import Name, Natural, Section, Whole, describe_validation_error, load_settings
from silofl.study_sections import (
    FITTING,
    AlgorithmSettings,
    DataSettings,
    DoNotUseSettings,
    FederationSettings,
    ModelSettings,
    OperatingPointSettings,
    PrivacySettings,
    TrainingSettings,
)

# More threads than that are on no machine.
Threads = Annotated[Whole, Field(gt=0, le=1024)]
# Of SiloFL's own networks.
IN_3D = ("unet", "densenet121")
# Names of regions are keys of what sites send, and names of labels are in every table.
LONGEST_NAME = 100
# The context of a study whose run has begun: it is read even where a newer version would refuse to begin it.
STORED = "stored"


def _check_label_numbers(labels: object) -> object:
    """Refuse one number with two names, which it may have as text too: JSON has no other keys."""
    keys = [str(key) for key in labels] if isinstance(labels, dict) else []
    numbers = [int(key) for key in keys if re.fullmatch(r"\d{1,9}", key, re.ASCII)]
    if len({*numbers}) < len(numbers):
        raise ValueError("one name for each number")
    return labels


class Study(Section):
    """One study: the same file for the server and every site.

    Attributes:
        name: Part of file names.
        continue_run: Id of an unfinished run to continue.
        task: A label per pixel, one per example, or any number of findings per example (``multilabel``).
        labels: Number -> name; from 1 for segmentation (0 is background), otherwise from 0.
        regions: Segmentation: name -> labels whose union is scored instead of single labels, as ``{disc: [1, 2], cup:
            [2]}`` where label 1 is the disc's rim.
        rounds: Communication rounds; 0 in a job of ``silofl evaluation-job``.
        seed: Fixes the initial weights and everything random at a site.
        device: ``auto`` takes a GPU where there is one.
        torch_threads: Threads of torch at every site; other numbers give other rounding. ``auto`` takes all cores of a
            site, or as many as ``OMP_NUM_THREADS`` says there: the weights then depend on the machines.
        guard: Whether each site with validation data also trains a model alone, and keeps what these data favour.
        evaluate_every_round: Whether each round's model is also scored on test data, for curves.
        metric: What models are chosen and reported by: mean Dice over cases, without or with the background; share of
            right cases; its mean over the classes; or the area under the ROC curve or under precision over recall, mean
            over the classes. With ``multilabel`` each finding, and its absence, is a class.
        extra_metrics: Segmentation: up to 8 metrics of packages, as ``[package==1.2.0/name]``, for the test only.
    """

    name: Name
    continue_run: Name | None = None
    task: Literal["segmentation", "classification", "multilabel"]
    labels: Annotated[dict[int, str], BeforeValidator(_check_label_numbers), Field(min_length=1)]
    regions: Annotated[dict[str, tuple[Whole, ...]], Field(min_length=1)] | None = None
    rounds: Natural
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    torch_threads: Threads | Literal["auto"] = 1
    guard: bool = True
    evaluate_every_round: bool = False
    metric: Literal["dice", "dice_with_background", "accuracy", "balanced_accuracy", "auroc", "auprc"] = "dice"
    extra_metrics: Annotated[tuple[Extension, ...], Field(max_length=8)] = ()
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    algorithm: AlgorithmSettings
    federation: FederationSettings = FederationSettings()
    privacy: PrivacySettings = PrivacySettings()
    # Left out where it is empty, so that studies without it keep their digest.
    do_not_use: DoNotUseSettings | None = Field(default=None, exclude_if=operator.not_)
    operating_point: OperatingPointSettings | None = Field(default=None, exclude_if=operator.not_)

    @cached_property
    def recipe(self) -> Recipe:
        """The algorithm's five answers, from its preset and the study's own choices."""
        try:
            return find_recipe(self.algorithm.name, self.algorithm.preset, self.algorithm.model_extra or {})
        except ValidationError as error:
            raise ConfigError(f"algorithm.{describe_validation_error(error, Study)}") from None

    @model_validator(mode="after")
    def _check_settings(self, info: ValidationInfo) -> Study:
        self._check_labels()
        self._check_regions()
        self._check_volumes()
        self._check_task()
        self._check_extra_metrics()
        self._check_classes()
        self._check_inputs()
        self._check_rounds()
        if self.rounds and info.context != STORED:
            self._check_course()
        return self

    def _check_course(self) -> None:
        """Refuse what no run may begin with."""
        self._check_patience()
        self._check_average()
        self._check_privacy()
        self._check_use()
        for one in self.recipe.ingredients:
            one.check_study(self)

    def _check_labels(self) -> None:
        """Refuse labels that no label map holds, or that results and pages cannot tell apart by their names."""
        # Label maps are uint8.
        if len(self.labels) > 254:
            # 255 is silofl.data.targets.IGNORED.
            raise ConfigError(
                f"labels must be at most 254, the numbers that a label map can hold, not {len(self.labels)}"
            )
        first = 1 if self.task == "segmentation" else 0
        wanted, numbers = list(range(first, first + len(self.labels))), sorted(self.labels)
        if numbers != wanted:
            raise ConfigError(
                f"labels must be numbered {quote_value(wanted)} for {self.task}, not {quote_value(numbers)}"
            )
        # Results are kept by name: of two equal ones only one would be seen.
        names = [name.strip() for name in self.labels.values()]
        if "" in names or len({*names}) < len(names):
            raise ConfigError(
                f"labels must have a name of its own each, not {quote_value([*self.labels.values()])}; rename one"
            )
        # Terminals and pages show them: control characters would hide what stands before or after.
        odd = [name for name in self.labels.values() if not name.isprintable() or len(name) > LONGEST_NAME]
        if odd:
            raise ConfigError(
                f"the name of a label must have at most {LONGEST_NAME} characters that can be printed, not "
                f"{quote_value(odd[0])}; rename it"
            )
        if self.task != "segmentation" and len(self.labels) < 2:
            raise ConfigError(f"labels must be at least 2 for {self.task}, not {len(self.labels)}")
        if self.is_multilabel:
            self._check_findings()

    def _check_findings(self) -> None:
        """Refuse more findings than a target holds, and one that is called as another's absence is."""
        if len(self.labels) > MOST_FINDINGS:
            raise ConfigError(f"labels must be at most {MOST_FINDINGS} for multilabel, not {len(self.labels)}")
        absent = {name_absence(name) for name in self.labels.values()}
        for name in self.labels.values():
            if name in absent:
                raise ConfigError(
                    f"the name of a label must not be that of another's absence, {quote_value(name)}; remove it, "
                    "because an example without findings has no label"
                )

    def _check_regions(self) -> None:
        """Refuse regions that are no unions of the study's labels, or have names that results cannot hold."""
        if self.regions is not None and self.task != "segmentation":
            raise ConfigError(
                f"regions must be left out for {self.task}, which scores each class, not "
                f"{quote_value([*self.regions])}; remove them"
            )
        for name, labels in (self.regions or {}).items():
            is_text = name == name.strip() and name.isprintable() and len(name) <= LONGEST_NAME
            if not (name[:1].isalpha() and is_text):
                raise ConfigError(
                    f"the name of a region must begin with a letter and have at most {LONGEST_NAME} letters, not "
                    f"{quote_value(name)}; rename it"
                )
            unknown = sorted({*labels} - self.labels.keys())
            if not labels or unknown or len({*labels}) < len(labels):
                raise ConfigError(
                    f"regions.{name} must hold labels among {quote_value(sorted(self.labels))}, at least one and each "
                    f"once, not {quote_value(list(labels))}; correct it"
                )

    def _check_volumes(self) -> None:
        """Refuse volumes without the network, or the patches, that take them."""
        settings, is_map = self.data, self.task == "segmentation"
        if settings.dimensions == 2:
            return
        if not self.model.network and self.model.name not in IN_3D:
            raise ConfigError(
                f"model.name must be one of {', '.join(IN_3D)} with data.dimensions 3, not "
                f"{quote_value(self.model.name)}; or "
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

    def _check_task(self) -> None:
        """Refuse a metric, a network or a loss of the other task."""
        fits = FITTING[self.task]
        network = {"model.network": self.model.network} if self.model.network else {"model.name": self.model.name}
        chosen = {"metric": self.metric, **network, "training.loss": self.training.loss}
        for key, value in chosen.items():
            is_open = key in ("model.network", "training.loss")
            if value not in fits[key] and not (is_open and is_extension(value)):
                raise ConfigError(
                    f"{key} must be one of {', '.join(fits[key])} for {self.task}, not {quote_value(value)}"
                )

    def _check_extra_metrics(self) -> None:
        """Refuse metrics of packages for classes, and those that tables cannot tell apart."""
        names = self.extra_metrics
        if names and self.task != "segmentation":
            raise ConfigError(
                f"extra_metrics must be left out for {self.task}, as they compare label maps, not "
                f"{quote_value([*names])}; remove them"
            )
        if len({name.rpartition("/")[2] for name in names}) < len(names):
            raise ConfigError(
                "extra_metrics must each have another name after the slash, by which tables show them, not "
                f"{quote_value([*names])}; remove one"
            )

    def _check_classes(self) -> None:
        """Refuse weights and draws of classes where there are none, or where their numbers would leak."""
        settings, names = self.training, {*self.labels.values()}
        given = {"class_weights": settings.class_weights, "sampler": settings.sampler}
        chosen = [key for key, value in given.items() if value not in (None, "shuffled")]
        if chosen and self.task == "segmentation":
            raise ConfigError(
                f"training.{chosen[0]} must be left out for segmentation, which has no classes; remove it"
            )
        if "sampler" in chosen and self.is_multilabel:
            raise ConfigError(
                "training.sampler must be shuffled for multilabel, whose examples have several labels or none, not "
                "balanced; give training.class_weights"
            )
        if isinstance(settings.class_weights, dict) and settings.class_weights.keys() != names:
            raise ConfigError(
                f"training.class_weights must name each class once, {', '.join(sorted(names))}, not "
                f"{', '.join(sorted(settings.class_weights)) or 'none'}; correct it"
            )
        counted = [key for key in chosen if given[key] == "balanced"]
        if counted and self.is_private:
            raise ConfigError(
                f"training.{counted[0]} must not be balanced with privacy.dp_sgd, whose noise does not cover the "
                "numbers of examples of each class; give class_weights by class"
            )

    def _check_inputs(self) -> None:
        """Refuse images, and weights to start from, that the network or the algorithm cannot use."""
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
                f"{quote_value(self.model.weights)}; leave it out, or choose start_from_pretrained: false, and "
                "statistics.source: "
                "running where sites are compared"
            )

    def _check_patience(self) -> None:
        """Refuse patience where the last rounds, which may not come, are others than those before."""
        for key in ("average_last", "extra_rounds"):
            if self.federation.patience is not None and getattr(self.recipe, key):
                raise ConfigError(
                    f"federation.patience must be null with algorithm.{key}, whose rounds come last and may then not "
                    f"come, not {self.federation.patience}; remove one of both"
                )

    def _check_average(self) -> None:
        """Refuse a share of the last rounds that is a single one, whose mean is its own model."""
        share, rounds = self.recipe.average_last, self.training_rounds
        if share and not self.closing_rounds:
            raise ConfigError(
                f"algorithm.average_last must be above 1/{rounds} with {rounds} round{'s' * (rounds != 1)}, of which "
                f"the mean needs two, not {share:g}; give a larger share or more rounds, or leave it out"
            )

    def _check_privacy(self) -> None:
        """Refuse what would leak past the noise of `privacy`."""
        if not self.is_private:
            return
        others = [one.section for one in self.recipe.ingredients if not one.is_of_steps]
        if others:
            raise ConfigError(
                "algorithm.name must be one of which nothing but models leaves with privacy.dp_sgd, not "
                f"{quote_value(self.algorithm.name)} with {', '.join(others)}; take fedavg"
            )
        if "batch" in self.model.normalization:
            raise ConfigError(
                "model.normalization must be instance or group with privacy.dp_sgd, not "
                f"{self.model.normalization!r}, by which images see each other; change it"
            )
        if self.training.has_batch_dice:
            raise ConfigError(
                "training.has_batch_dice must be false with privacy.dp_sgd, so that each image has its own gradient"
            )
        if self.training.measures_drift:
            raise ConfigError(
                "training.measures_drift must be false with privacy.dp_sgd; nothing but models leaves then"
            )
        if self.is_guarded:
            raise ConfigError("guard must be false with privacy.dp_sgd; its local model learns from whole batches")

    def _check_use(self) -> None:
        """Refuse a rule on a selector's fallback where there is none, and a point where nothing is called."""
        super_model, selector = map(self.recipe.ingredient, ("super_model", "selector"))
        falls_back = super_model is not None and super_model.falls_back(self.recipe)
        if self.do_not_use and self.do_not_use.on_fallback and not falls_back:
            chosen = f" with labels {selector.labels} and answer {super_model.answer}" if super_model else ""
            raise ConfigError(
                "do_not_use.on_fallback must go with a selector that falls back to a global model, as fedsm's with "
                f"labels site and answer choice, not {quote_value(self.algorithm.name)}{chosen}; remove it"
            )
        if self.operating_point and not self.called:
            raise ConfigError(
                "operating_point must go with two classes or with multilabel, whose answers have a threshold, not with "
                f"{self.task} of {len(self.labels)} labels; remove it"
            )

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

    def _check_rounds(self) -> None:
        """Refuse a study that trains nothing, and has no model that the hospitals agreed to test."""
        if not self.rounds and self.model.pretrained_sha256 is None:
            raise ConfigError(
                "rounds must be at least 1, not 0, without model.pretrained_sha256; a job that only tests a model is "
                "written by silofl evaluation-job"
            )

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
        """The SHA-256 of all that the study decides, however its file is written; `continue_run` is none of it.

        Presets and defaults count with their values, so that another version of SiloFL may give another digest.
        """
        settings = self.model_dump(mode="json", exclude={"continue_run"}) | {"recipe": self.recipe.choices()}
        text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
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
    def cautions(self) -> list[str]:
        """What whoever runs the study must know of its recipe, and of a normalisation that does not fit it."""
        normalization, found = self.model.normalization, list(self.recipe.cautions)
        if self.recipe.stays_home == "batchnorm" and normalization != "batch":
            found.append(
                f"a network with model.normalization {normalization} has no BatchNorm to keep at home: all of it "
                "travels; take batch, or another preset"
            )
        if self.training.frozen and not self.starts_from_file:
            found.append(
                f"training.frozen keeps the seed's random weights of {', '.join(self.training.frozen)}, which have "
                "learnt nothing; give --weights, or choose start_from_pretrained: true"
            )
        if normalization == "batch_stateless":
            found.append(
                "with model.normalization batch_stateless an answer depends on the other images of its batch: scores "
                "hold for batches as in the test, and silofl predict refuses a single image; take batch, group or "
                "instance for use"
            )
        return found

    @property
    def extensions(self) -> list[tuple[str, str, str]]:
        """The parts of packages that the study names: key, group of entry points, and name."""
        named = [("model.network", NETWORKS, self.model.network), ("training.loss", LOSSES, self.training.loss)]
        for kind in ("transforms", "augment"):
            named += [(f"data.{kind}", TRANSFORMS, one.name) for one in getattr(self.data, kind)]
        named += [("extra_metrics", METRICS, name) for name in self.extra_metrics]
        return [(key, group, name) for key, group, name in named if is_extension(name)]

    @property
    def model_file(self) -> str | None:
        """The file beside study.yaml that the server reads, a pretrained model or weights; None where it reads none."""
        is_needed = self.recipe.needs_pretrained or not self.rounds
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
    def unfrozen(self) -> Study:
        """The same study without frozen parameters."""
        return self.model_copy(update={"training": self.training.model_copy(update={"frozen": ()})})

    @property
    def has_fresh_optimizer(self) -> bool:
        """Whether a site's optimisers begin every round empty: by the study's choice, or because an answer needs it."""
        is_needed = any("fresh_optimizer" in one.needs for one in self.recipe.ingredients)
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
        absent = [name_absence(name) for name in self.labels.values()] if self.is_multilabel else ()
        return dict(self.regions or {number: (number,) for number in sorted(self.labels)}) | dict.fromkeys(absent, ())

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

    @property
    def closing_rounds(self) -> range:
        """The last rounds of training, whose models are averaged; none where it would be a single one."""
        rounds = self.training_rounds
        # Rounded first: 0.1 * 30 is above 3 in floating point.
        count = math.ceil(round(self.recipe.average_last * rounds, 9))
        return range(rounds - count + 1, rounds + 1) if count > 1 else range(0)

    def learning_roles(self, number: int) -> tuple[str, ...]:
        """Return the roles of the models that learn in a round; a personal one may wait for the extra rounds."""
        recipe = self.recipe
        return recipe.traveling_roles if recipe.tunes_personal and number <= self.rounds else recipe.roles

    @property
    def is_guarded(self) -> bool:
        """Whether sites compare the federated model with one of their own; there is none where all train alone."""
        return self.guard and self.rounds > 0 and self.recipe.stays_home != "everything"

    @property
    def answers_together(self) -> bool:
        """Whether sites also answer by several models at once: in the guard's choice, or in a super model's test."""
        return self.is_guarded or self.recipe.collects_personal

    @property
    def total_rounds(self) -> int:
        """All rounds, the extra ones included."""
        return self.rounds and self.rounds + self.recipe.extra_rounds

    @property
    def out_channels(self) -> int:
        """Channels of the network's output: one for a single label (sigmoid), else background and labels (softmax)."""
        if self.task != "segmentation":
            return len(self.labels)
        return 1 if len(self.labels) == 1 else len(self.labels) + 1


def load_study(path: Path, context: object = None) -> Study:
    """Read and check a study.yaml; the errors of `silofl.settings.load_settings`, and of a folder in its place.

    Args:
        path: The file.
        context: `STORED`, or None of a study that is to begin.
    """
    inside = path / "app" / "config" / "study.yaml"
    if inside.is_file():
        raise ConfigError(f"{path} must be a study.yaml, not a job folder; name {inside}")
    return load_settings(Study, path, context)
