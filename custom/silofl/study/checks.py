"""The checks of a study as one: which of its settings do not go together."""

from silofl.base.errors import ConfigError, quote_value, suggest_nearest
from silofl.base.naming import check_name, check_text
from silofl.core.findings import MOST_FINDINGS, name_absence
from silofl.setup.extensions import is_extension
from silofl.study.sections import FITTING
from silofl.study.settings import StudySettings

# These of SiloFL's own networks take volumes.
IN_3D = ("unet", "densenet121")


def check_names(study: StudySettings) -> None:
    """Refuse names of labels and regions that other programs take for commands.

    Raises:
        ConfigError: Quotes the name.
    """
    for name in study.labels.values():
        check_name(name, "a label", ConfigError)
    for name in study.regions or ():
        check_name(name, "a region", ConfigError)


def check_settings(study: StudySettings) -> None:
    """Refuse settings that do not fit one another, in a study of any age.

    Raises:
        ConfigError: Names the key.
    """
    _check_labels(study)
    _check_maps_only(study)
    _check_regions(study)
    _check_volumes(study)
    _check_task(study)
    _check_classes(study)
    _check_inputs(study)
    _check_codes(study)
    _check_rounds(study)


def check_course(study: StudySettings) -> None:
    """Refuse what no run may begin with.

    Raises:
        ConfigError: Names the key.
    """
    _check_home(study)
    _check_patience(study)
    _check_privacy(study)
    _check_use(study)
    for option in study.recipe.options:
        option.check(study)


def _check_labels(study: StudySettings) -> None:
    # Label maps are uint8, in which 255 is silofl.data.targets.IGNORED.
    if len(study.labels) > 254:
        raise ConfigError(f"labels must be at most 254, the numbers that a label map can hold, not {len(study.labels)}")
    start = 1 if study.task == "segmentation" else 0
    wanted = list(range(start, start + len(study.labels)))
    numbers = sorted(study.labels)
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


def _check_findings(study: StudySettings) -> None:
    # A target of 64 bits holds a set of findings.
    if len(study.labels) > MOST_FINDINGS:
        raise ConfigError(f"labels must be at most {MOST_FINDINGS} for multilabel, not {len(study.labels)}")
    absent = {name_absence(name) for name in study.labels.values()}
    for name in study.labels.values():
        if name in absent:
            raise ConfigError(
                f"label {quote_value(name)} is named as the absence of another one; remove it, because an example "
                "without findings has no label"
            )


def _check_regions(study: StudySettings) -> None:
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


def _check_volumes(study: StudySettings) -> None:
    if study.data.dimensions == 2:
        return
    if not study.model.network and study.model.name not in IN_3D:
        raise ConfigError(
            f"model.name must be one of {', '.join(IN_3D)} with data.dimensions 3, not "
            f"{quote_value(study.model.name)}; or name a model.network"
        )
    has_maps = study.task == "segmentation"
    if has_maps and not study.data.patches:
        raise ConfigError("data.patches is missing for a segmentation in 3D; add it, as {size: [96, 96, 32]}")
    if study.data.patches and not has_maps:
        raise ConfigError("a classification sees whole volumes; remove data.patches")
    if has_maps and study.model.normalization == "batch_stateless":
        raise ConfigError(
            "with model.normalization batch_stateless and data.patches an answer would depend on the other patches of "
            "a volume; take batch, instance or group"
        )


def _check_task(study: StudySettings) -> None:
    # What belongs to the other task is refused; of a package's network or loss nobody knows its task.
    fitting = FITTING[study.task]
    network_key = "model.network" if study.model.network else "model.name"
    chosen = {
        "metric": study.metric,
        network_key: study.model.network or study.model.name,
        "training.loss": study.training.loss,
    }
    for key, value in chosen.items():
        if value not in fitting[key] and not is_extension(value):
            listed = ", ".join(fitting[key])
            raise ConfigError(f"{key} must be one of {listed} for {study.task}, not {quote_value(value)}")


def _check_maps_only(study: StudySettings) -> None:
    for key, values in (("regions", study.regions), ("extra_metrics", study.extra_metrics)):
        if values and study.task != "segmentation":
            raise ConfigError(
                f"{key} must be left out for {study.task}, which has no label maps, not {quote_value([*values])}; "
                "remove them"
            )
    names = study.extra_metrics
    # Tables show a metric by what stands behind the slash.
    if len({name.rpartition("/")[2] for name in names}) < len(names):
        raise ConfigError(
            f"two of extra_metrics have one name after the slash, by which tables show them: {quote_value([*names])}; "
            "remove one"
        )


def _check_classes(study: StudySettings) -> None:
    weights = study.training.class_weights
    is_balanced = study.training.sampler == "balanced"
    if study.task == "segmentation" and (weights is not None or is_balanced):
        key = "class_weights" if weights is not None else "sampler"
        raise ConfigError(f"a segmentation has no classes; remove training.{key}")
    if is_balanced and study.is_multilabel:
        raise ConfigError(
            "training.sampler must be shuffled for multilabel, whose examples have several labels or none, not "
            "balanced; give training.class_weights"
        )
    names = {*study.labels.values()}
    if isinstance(weights, dict) and weights.keys() != names:
        raise ConfigError(
            f"training.class_weights must name each class once, {', '.join(sorted(names))}, not "
            f"{', '.join(sorted(weights)) or 'none'}; correct it"
        )
    # Both kinds of balance count the examples of each class.
    if study.is_private and (weights == "balanced" or is_balanced):
        key = "class_weights" if weights == "balanced" else "sampler"
        raise ConfigError(
            "the noise of privacy.dp_sgd does not cover the numbers of examples of each class, by which "
            f"training.{key} balances; give class_weights by class"
        )


def _check_inputs(study: StudySettings) -> None:
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


def _check_patience(study: StudySettings) -> None:
    # A falling rate follows from the planned number of rounds.
    if study.ends_early and study.training.has_falling_rate:
        raise ConfigError(
            f"training.schedule {study.training.schedule!r} lowers the rate over all rounds, and federation.patience "
            "may end the training before it is low. Remove federation.patience, or choose training.schedule: constant."
        )


def _check_home(study: StudySettings) -> None:
    # An algorithm that does more than keep BatchNorm at home makes sense without any.
    keeps_batchnorm = study.recipe.stays == "batchnorm" and not study.recipe.options
    if keeps_batchnorm and not study.model.has_own_batchnorm:
        raise ConfigError(
            f"model.normalization must be batch or batch_home if only BatchNorm stays at home "
            f"({study.algorithm.name}), not {study.model.normalization}; choose one of them, or fedavg, which is the "
            "same then"
        )
    # A model of another hospital answers here without the statistics that it keeps there.
    if study.model.normalization == "batch_home" and study.recipe.has_paired_models:
        raise ConfigError(
            f"model.normalization must be batch, group or instance with {study.algorithm.name}, which has hospitals "
            "answer by each other's models, not batch_home, whose statistics stay at a hospital; change it"
        )


def _check_privacy(study: StudySettings) -> None:
    # The noise is in the models alone: whatever else leaves, or mixes images before it, would leak past it.
    if not study.is_private:
        return
    sending = [option.section for option in study.recipe.options if not option.traits.is_of_steps]
    if sending:
        raise ConfigError(
            "algorithm.name must be one that sends nothing but models with privacy.dp_sgd, not "
            f"{quote_value(study.algorithm.name)} with {', '.join(sending)}; take fedavg"
        )
    if "batch" in study.model.normalization:
        raise ConfigError(
            "model.normalization must be instance or group with privacy.dp_sgd, not "
            f"{study.model.normalization!r}, by which images see each other; change it"
        )
    switches = (
        ("training.batch_dice", study.training.batch_dice, "each image needs a gradient"),
        ("training.measures_drift", study.training.measures_drift, "nothing but models may leave"),
        ("baseline_comparison", study.compares_with_baseline, "its model learns by batches"),
    )
    for key, is_on, reason in switches:
        if is_on:
            raise ConfigError(f"{key} cannot be used with privacy.dp_sgd: {reason}")


def _check_use(study: StudySettings) -> None:
    if study.do_not_use and study.do_not_use.on_fallback and not study.recipe.threshold:
        raise ConfigError(
            f"{quote_value(study.algorithm.name)} never falls back to a global model, as fedsm's selector does with "
            "labels site and answer choice; remove do_not_use.on_fallback"
        )
    if study.operating_point and not study.called:
        raise ConfigError(
            f"the answers of {study.task} of {len(study.labels)} labels have no threshold, as those of two classes or "
            "of multilabel have; remove operating_point"
        )


def _check_codes(study: StudySettings) -> None:
    names = [*study.labels.values()] if study.task == "segmentation" else []
    for name in study.codes:
        if name not in names:
            raise ConfigError(
                f"codes must name labels of a segmentation, not {quote_value(name)}{suggest_nearest(name, names)}; "
                "correct or remove it"
            )


def _check_rounds(study: StudySettings) -> None:
    # Without rounds there is only a model to test, which the hospitals have agreed to by its digest.
    if not study.rounds and not study.asks_alone and study.model.pretrained_sha256 is None:
        raise ConfigError(
            "rounds must be at least 1, not 0, without model.pretrained_sha256; a job that only tests a model is "
            "written by silofl evaluation-job"
        )
    if study.rounds and study.subgroups:
        raise ConfigError("subgroups are for a job of silofl evaluation-job --by, with rounds 0; remove them")
