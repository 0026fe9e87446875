"""The checks of a study as one: which of its settings do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from silofl.base.errors import ConfigError, quote_value, suggest_nearest
from silofl.base.naming import check_name, check_text
from silofl.core.findings import MOST_FINDINGS, name_absence
from silofl.setup.extensions import is_extension
from silofl.study.sections import FITTING

if TYPE_CHECKING:
    from silofl.study import Study

# Of SiloFL's own networks.
IN_3D = ("unet", "densenet121")


def check_names(study: Study) -> None:
    """Refuse names of labels and regions that other programs take for commands.

    Raises:
        ConfigError: Quotes the name.
    """
    for what, names in (("a label", study.labels.values()), ("a region", study.regions or ())):
        for name in names:
            check_name(name, what, ConfigError)


def check_settings(study: Study) -> None:
    """Refuse settings that do not fit one another, in a study of any age.

    Raises:
        ConfigError: Names the key.
    """
    _check_labels(study)
    _check_regions(study)
    _check_volumes(study)
    _check_task(study)
    _check_extra_metrics(study)
    _check_classes(study)
    _check_inputs(study)
    _check_codes(study)
    _check_rounds(study)


def check_course(study: Study) -> None:
    """Refuse what no run may begin with.

    Raises:
        ConfigError: Names the key.
    """
    _check_home(study)
    _check_home_statistics(study)
    _check_patience(study)
    _check_privacy(study)
    _check_use(study)
    for one in study.recipe.options:
        one.check(study)


def _check_labels(study: Study) -> None:
    """Refuse labels that no label map holds, or that results and pages cannot tell apart by their names."""
    # Label maps are uint8.
    if len(study.labels) > 254:
        # 255 is silofl.data.targets.IGNORED.
        raise ConfigError(f"labels must be at most 254, the numbers that a label map can hold, not {len(study.labels)}")
    first = 1 if study.task == "segmentation" else 0
    wanted, numbers = list(range(first, first + len(study.labels))), sorted(study.labels)
    if numbers != wanted:
        raise ConfigError(f"labels must be numbered {quote_value(wanted)} for {study.task}, not {quote_value(numbers)}")
    # Results are kept by name: of two equal ones only one would be seen.
    names = [name.strip() for name in study.labels.values()]
    if "" in names or len({*names}) < len(names):
        raise ConfigError(
            f"labels must have a name of its own each, not {quote_value([*study.labels.values()])}; rename one"
        )
    for name in study.labels.values():
        check_text(name, "a label", ConfigError)
    if study.task != "segmentation" and len(study.labels) < 2:
        raise ConfigError(f"labels must be at least 2 for {study.task}, not {len(study.labels)}")
    if study.is_multilabel:
        _check_findings(study)


def _check_findings(study: Study) -> None:
    """Refuse more findings than a target holds, and one that is called as another's absence is."""
    if len(study.labels) > MOST_FINDINGS:
        raise ConfigError(f"labels must be at most {MOST_FINDINGS} for multilabel, not {len(study.labels)}")
    absent = {name_absence(name) for name in study.labels.values()}
    for name in study.labels.values():
        if name in absent:
            raise ConfigError(
                f"the name of a label must not be that of another's absence, {quote_value(name)}; remove it, "
                "because an example without findings has no label"
            )


def _check_regions(study: Study) -> None:
    """Refuse regions that are no unions of the study's labels, or have names that results cannot hold."""
    if study.regions is not None and study.task != "segmentation":
        raise ConfigError(
            f"regions must be left out for {study.task}, which scores each class, not "
            f"{quote_value([*study.regions])}; remove them"
        )
    for name, labels in (study.regions or {}).items():
        # The wire tells regions from labels, which are numbers there.
        if check_text(name, "a region", ConfigError) != name or not name[:1].isalpha():
            raise ConfigError(f"the name of a region must begin with a letter, not {quote_value(name)}; rename it")
        unknown = sorted({*labels} - study.labels.keys())
        if not labels or unknown or len({*labels}) < len(labels):
            raise ConfigError(
                f"regions.{name} must hold labels among {quote_value(sorted(study.labels))}, at least one and each "
                f"once, not {quote_value(list(labels))}; correct it"
            )


def _check_volumes(study: Study) -> None:
    """Refuse volumes without the network, or the patches, that take them."""
    settings, is_map = study.data, study.task == "segmentation"
    if settings.dimensions == 2:
        return
    if not study.model.network and study.model.name not in IN_3D:
        raise ConfigError(
            f"model.name must be one of {', '.join(IN_3D)} with data.dimensions 3, not "
            f"{quote_value(study.model.name)}; or "
            "name a model.network"
        )
    if bool(settings.patches) != is_map:
        raise ConfigError(
            "data.patches must be given for a segmentation in 3D, as {size: [96, 96, 32]}; it is missing: add it"
            if is_map
            else "data.patches must be left out for a classification, which sees whole volumes; remove it"
        )
    if is_map and study.model.normalization == "batch_stateless":
        raise ConfigError(
            "model.normalization must be another than batch_stateless with data.patches: an answer would depend on "
            "the other patches of a volume; take batch, instance or group"
        )


def _check_task(study: Study) -> None:
    """Refuse a metric, a network or a loss of the other task."""
    fits = FITTING[study.task]
    network = {"model.network": study.model.network} if study.model.network else {"model.name": study.model.name}
    chosen = {"metric": study.metric, **network, "training.loss": study.training.loss}
    for key, value in chosen.items():
        is_open = key in ("model.network", "training.loss")
        if value not in fits[key] and not (is_open and is_extension(value)):
            raise ConfigError(f"{key} must be one of {', '.join(fits[key])} for {study.task}, not {quote_value(value)}")


def _check_extra_metrics(study: Study) -> None:
    """Refuse metrics of packages for classes, and those that tables cannot tell apart."""
    names = study.extra_metrics
    if names and study.task != "segmentation":
        raise ConfigError(
            f"extra_metrics must be left out for {study.task}, as they compare label maps, not "
            f"{quote_value([*names])}; remove them"
        )
    if len({name.rpartition("/")[2] for name in names}) < len(names):
        raise ConfigError(
            "extra_metrics must each have another name after the slash, by which tables show them, not "
            f"{quote_value([*names])}; remove one"
        )


def _check_classes(study: Study) -> None:
    """Refuse weights and draws of classes where there are none, or where their numbers would leak."""
    settings, names = study.training, {*study.labels.values()}
    given = {"class_weights": settings.class_weights, "sampler": settings.sampler}
    chosen = [key for key, value in given.items() if value not in (None, "shuffled")]
    if chosen and study.task == "segmentation":
        raise ConfigError(f"training.{chosen[0]} must be left out for segmentation, which has no classes; remove it")
    if "sampler" in chosen and study.is_multilabel:
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
    if counted and study.is_private:
        raise ConfigError(
            f"training.{counted[0]} must not be balanced with privacy.dp_sgd, whose noise does not cover the "
            "numbers of examples of each class; give class_weights by class"
        )


def _check_inputs(study: Study) -> None:
    """Refuse images, and weights to start from, that the network or the algorithm cannot use."""
    if study.data.neighbours and study.model.name == "activity_cnn":
        raise ConfigError(
            "data.neighbours must be 0 for activity_cnn, whose windows have no slices, not "
            f"{study.data.neighbours}; remove it"
        )
    if study.training.drop_channels and not study.data.channel_names:
        raise ConfigError(
            f"training.drop_channels must be 0 without data.channel_names, not {study.training.drop_channels}; name "
            "the channels"
        )
    if study.model.weights and study.recipe.start_from_pretrained:
        raise ConfigError(
            "model.weights must be left out with algorithm.start_from_pretrained, not "
            f"{quote_value(study.model.weights)}; leave it out, or choose start_from_pretrained: false"
        )


def _check_patience(study: Study) -> None:
    """Refuse patience where the planned number of rounds decides what each of them does."""
    patience, schedule = study.federation.patience, study.training.schedule
    if patience is not None and study.training.has_falling_rate:
        raise ConfigError(
            f"training.schedule {schedule!r} lowers the rate over all rounds, and federation.patience may end the "
            "training before it is low. Remove federation.patience, or choose training.schedule: constant."
        )


def _check_home(study: Study) -> None:
    """Refuse a study whose only answer is to keep BatchNorm at home, and whose network has none."""
    recipe, normalization = study.recipe, study.model.normalization
    if recipe.stays_home == "batchnorm" and not recipe.options and not study.model.has_own_batchnorm:
        raise ConfigError(
            f"model.normalization must be batch or batch_home if only BatchNorm stays at home "
            f"({study.algorithm.name}), not {normalization}; choose one of them, or fedavg, which is the same then"
        )


def _check_home_statistics(study: Study) -> None:
    """Refuse home statistics where models of other hospitals answer here, without the statistics that they keep."""
    if study.model.normalization == "batch_home" and study.recipe.pairs_models:
        raise ConfigError(
            f"model.normalization must be batch, group or instance with {study.algorithm.name}, which has hospitals "
            "answer by each other's models, not batch_home, whose statistics stay at a hospital; change it"
        )


def _check_privacy(study: Study) -> None:
    """Refuse what would leak past the noise of `privacy`."""
    if not study.is_private:
        return
    others = [one.section for one in study.recipe.options if not one.traits.is_of_steps]
    if others:
        raise ConfigError(
            "algorithm.name must be one that sends nothing but models with privacy.dp_sgd, not "
            f"{quote_value(study.algorithm.name)} with {', '.join(others)}; take fedavg"
        )
    if "batch" in study.model.normalization:
        raise ConfigError(
            "model.normalization must be instance or group with privacy.dp_sgd, not "
            f"{study.model.normalization!r}, by which images see each other; change it"
        )
    if study.training.has_batch_dice:
        raise ConfigError(
            "training.has_batch_dice must be false with privacy.dp_sgd, so that each image has its own gradient"
        )
    if study.training.measures_drift:
        raise ConfigError("training.measures_drift must be false with privacy.dp_sgd; nothing but models leaves then")
    if study.is_guarded:
        raise ConfigError("guard must be false with privacy.dp_sgd; its local model learns from whole batches")


def _check_use(study: Study) -> None:
    """Refuse a rule on a selector's fallback where there is none, and a point where nothing is called."""
    if study.do_not_use and study.do_not_use.on_fallback and not study.recipe.threshold:
        raise ConfigError(
            "do_not_use.on_fallback must go with a selector that falls back to a global model, as fedsm's with "
            f"labels site and answer choice, not {quote_value(study.algorithm.name)}; remove it"
        )
    if study.operating_point and not study.called:
        raise ConfigError(
            "operating_point must go with two classes or with multilabel, whose answers have a threshold, not with "
            f"{study.task} of {len(study.labels)} labels; remove it"
        )


def _check_codes(study: Study) -> None:
    """Refuse the code of a label that the study has not."""
    names = [*study.labels.values()] if study.task == "segmentation" else []
    for name in study.codes:
        if name not in names:
            raise ConfigError(
                f"codes must name labels of a segmentation, not {quote_value(name)}{suggest_nearest(name, names)}; "
                "correct or remove it"
            )


def _check_rounds(study: Study) -> None:
    """Refuse a study that trains nothing, and has no model that the hospitals agreed to test."""
    if not study.rounds and not study.asks_alone and study.model.pretrained_sha256 is None:
        raise ConfigError(
            "rounds must be at least 1, not 0, without model.pretrained_sha256; a job that only tests a model is "
            "written by silofl evaluation-job"
        )
    if study.rounds and study.subgroups:
        raise ConfigError("subgroups must go with rounds 0, in a job of silofl evaluation-job --by; remove them")
