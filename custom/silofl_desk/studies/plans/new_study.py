"""``silofl new-study``: write a job folder for the user's data, from the job that suits them or another one."""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.bundled_jobs import JOBS
from silofl.base.errors import ConfigError, ExitCode, make_printable
from silofl.base.files import copy_folder, write_text
from silofl.base.options import make_console
from silofl.base.settings import dump_yaml, parse, read_yaml
from silofl.core.presets import find_recipe
from silofl.core.training_end import PATIENCE
from silofl.data.inventory import measure_grid
from silofl.data.manifest import FILE_NAME
from silofl.data.prepared_image import prepare_image
from silofl.models.weights import SUFFIXES
from silofl.study import Study, load_study
from silofl.study.former_keys import rename_former_keys
from silofl.study.sections import FITTING, CardSettings
from silofl_desk.studies.plans.data_survey import FirstImage, Survey, survey_sites
from silofl_desk.studies.plans.survey_rules import Surveyed, choose_patch, choose_spacing, choose_window, read_survey
from silofl_desk.studies.runs.simulation import fit_configurations, fit_meta, study_file

WINDOW_NETWORK = "activity_cnn"
# A network, and FedSM's selector, can take images whose shortest side has so many pixels.
LEAST_SIDE = {"unet": 32, "densenet121": 32, "lenet5": 16, "alexnet": 64}
LEAST_SELECTOR_SIDE = 32
# The most rounds of a study whose training ends by itself.
MOST_ROUNDS = 200
# Only the lead knows these fields, so that they are written as comments.
CARD = [
    "",
    "# Who answers for the model: its card says it. Fill the fields, and take away the first marks.",
    "# card:",
    *(f"#   {name}: " for name in CardSettings.model_fields),
]
# Resized images have sides that can be halved four times, and are small enough for a training to its end on two cores;
# twice the side takes four times as long (`bench/defaults.py`).
MOST_SIDE = 128
SIDE_STEP = 16
# A volume has another resolution across its slices, or too few of them, for a network in 3D: nnU-Net's ratio, and the
# thickness of the job's patches.
MOST_ANISOTROPY = 3
FEWEST_SLICES = 16
# A classification sees whole volumes, resized.
MOST_SIDE_3D = 64
SIDE_STEP_3D = 8
# Whoever answers the most frequent class alone is then right in as many cases.
MOST_FREQUENT = 0.6
NORMS = {
    "batch": "BatchNorm",
    "batch_stateless": "stateless BatchNorm",
    "batch_home": "BatchNorm with home statistics",
    "group": "GroupNorm",
    "instance": "InstanceNorm",
}
# An algorithm may need this, which the job does not have: sections of the study, in the order in which they are tried.
NEEDED: tuple[tuple[str, dict[str, object]], ...] = (
    ("model", {}),
    ("model", {"normalization": "batch"}),
    ("training", {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.03}),
    ("training", {"local_epochs": 2}),
)


def run(options: argparse.Namespace) -> int:
    """Write the job, and say what was chosen and how to go on with it."""
    surveyed = survey_sites(options.data)
    console = make_console(options)
    survey = read_survey(options.survey) if options.survey else None
    study = write_new_study(options.target, options.job, surveyed, options.algorithm, options.sites, survey)
    for sentence in _describe_choices(study, surveyed):
        console.print(sentence, markup=False)
    target = quote(str(options.target))
    data = quote(str(options.data))
    is_one_site = (options.data / FILE_NAME).is_file()
    if is_one_site:
        site = options.data.resolve()
        data = f"{quote(str(site.parent))} --sites {quote(site.name)}"
    console.print(f"wrote {options.target}: read its app/config/study.yaml before you train", markup=False)
    if not {*study.federation.named} <= {*surveyed.sites}:
        # A simulation is of the sites whose data are here.
        data += " --set federation.sites=null"
    console.print(f"  silofl estimate {target} --sites {len(study.federation.named or surveyed.sites)}", markup=False)
    # A search trains a federation, which one site is none.
    if not is_one_site:
        console.print(f"  silofl tune {target} --data {data}", markup=False)
    console.print(f"  silofl simulate {target} --data {data} --out RUN --in-process", markup=False)
    return ExitCode.COMPLETE


def _describe_choices(study: Study, found: Survey) -> Iterator[str]:
    """Say what a new study trains and why, what was chosen for rare classes, and what of it fits the data badly."""
    trained = "windows of time series" if found.kind == "windows" else "pictures"
    if found.kind == "volumes":
        trained = _describe_cut(study, found)
    yield f"{study.name} trains {trained}: {study.algorithm.name}, {NORMS[study.model.normalization]}"
    if found.kind == "pictures":
        yield from _describe_resize(study, found)
    if study.training.sampler == "balanced" and found.most_frequent:
        name, share = found.most_frequent
        yield f"{share:.0%} of the training cases are {name}: metric {study.metric}, training.sampler balanced"

    yield from (f"CAUTION  {sentence}" for sentence in study.cautions)


def _describe_resize(study: Study, found: Survey) -> Iterator[str]:
    """Say what a study's size makes of the largest of the first images, and of the smallest label in their masks."""
    sizes = [step.options["spatial_size"] for step in study.data.transforms if step.name == "Resize"]
    if not sizes:
        return
    height, width = sizes[0]
    rows, columns = max((sample.image.spatial_shape for sample in found.samples), key=math.prod)
    sentence = f"images of up to {rows} x {columns} pixels become {height} x {width}"
    drawn = []
    for sample in found.samples:
        share = height * width / math.prod(sample.image.spatial_shape)
        for number, pixels in sample.label_sizes.items():
            if number in found.labels:
                drawn.append((pixels * share, pixels, number))
    if drawn:
        kept, pixels, number = min(drawn)
        sentence += (
            f"; the smallest label of the first masks, {found.labels[number]} of {pixels} pixels, keeps {kept:.3g}"
        )
    yield sentence


def _describe_cut(study: Study, found: Survey) -> str:
    """Say whether a study trains volumes whole or in slices, and why."""
    is_whole = study.data.dimensions == 3
    job = choose_job(found)
    why = _explain_slices(found)
    if is_whole != job.endswith("_3d"):
        why = f"as its job does; {job} suits them better"
    elif is_whole and found.task == "segmentation":
        why = f"their voxels are at most {MOST_ANISOTROPY} times as long as wide; for 2D slices: --from fedavg_masks"
    elif is_whole:
        why = "a class is the whole volume's"
    return f"{'3D volumes' if is_whole else '2D slices of the volumes'} ({why})"


def write_new_study(
    target: Path,
    job: Path | None,
    found: Survey,
    algorithm: str | None = None,
    sites: Sequence[str] = (),
    survey: Surveyed | None = None,
) -> Study:
    """Write a job for the surveyed data: algorithm, network and training of another job, the rest from the data.

    Args:
        target: New folder; its name is the study's.
        job: The job to begin with; None for the one that suits the data.
        found: The survey of the data.
        algorithm: In place of the job's.
        sites: The hospitals that take part, by name; none where the study leaves that open.
        survey: Measures of the hospitals, for spacing, patch and window; None for the job's and the first images'.

    Raises:
        ConfigError: The folder exists, or the job is for another task or kind of images.
        DataError: The images do not go together, or lack a contrast that the job's algorithm needs.
    """
    if target.exists():
        raise ConfigError(f"{target} already exists. Choose another name for the study.")
    if job is None:
        job = JOBS / choose_job(found)
        # The only job for windows is AdaFed's, which begins with a pretrained model.
        algorithm = algorithm or ("fedavg" if found.kind == "windows" else None)
    template = load_study(study_file(job))
    _check_template(job, template, found)
    values, _ = rename_former_keys(read_yaml(study_file(job)))
    values.pop("continue_run", None)
    # A job of a paper's settings has it off. With differential privacy there is no local model to compare with.
    if not values.get("privacy", {}).get("dp_sgd"):
        values.pop("baseline_comparison", None)
    for key in ("weights", "weights_sha256", "pretrained_sha256"):
        values.get("model", {}).pop(key, None)
    _fit_to_data(values, template, found, target.resolve().name)
    if survey:
        _fit_to_survey(values["data"], survey)
    _fit_federation(values, template, found, sites)
    if algorithm:
        values = _replace_algorithm(values, algorithm)
    _end_by_patience(values, found)
    study = parse(Study, values, "the new study.yaml")
    study.recipe.check_images(study, (), found.missing)
    # A pretrained model stays behind, and so do weights: they know the other job's data.
    copy_folder(job, target, *(f"*{suffix}" for suffix in SUFFIXES))
    write_text(study_file(target), _study_text(values, job))
    fit_meta(target, study, ("name", "federation.min_sites", "federation.sites"))
    if algorithm:
        fit_configurations(target, study)
    return study


def choose_job(found: Survey) -> str:
    """Return the name of the bundled job that a study of surveyed data begins with."""
    if found.kind == "windows":
        return "adafed_activity"
    job = "fedavg_masks" if found.task == "segmentation" else "fedavg_classes"
    return f"{job}_3d" if found.kind == "volumes" and not _explain_slices(found) else job


def _explain_slices(found: Survey) -> str:
    """Return why volumes with masks are cut into slices; empty where a network in 3D sees them whole."""
    if found.kind != "volumes":
        return ""
    depths = [min(sample.image.spatial_shape) for sample in found.samples]
    if max(depths) == 1:
        return "each has one slice"
    if found.task != "segmentation":
        return ""
    sides = _measure_spacing(found)
    slices = min(depths)
    if sides.max() > MOST_ANISOTROPY * sides.min():
        size = " x ".join(f"{side:.3g}" for side in sides)
        return f"their voxels of {size} mm are more than {MOST_ANISOTROPY} times as long as wide"
    return f"one has {slices} of them, and 3D needs {FEWEST_SLICES}" if slices < FEWEST_SLICES else ""


def _check_template(job: Path, template: Study, found: Survey) -> None:
    """Refuse a job for another task, or with a network for another kind of images."""
    # Of classes and of findings the same networks answer.
    is_of_task = FITTING[template.task] is FITTING[found.task]
    is_flat_or_volumes = template.data.dimensions == 2 or found.kind == "volumes"
    is_of_windows = template.model.name == WINDOW_NETWORK
    if not is_of_task or not is_flat_or_volumes or is_of_windows != (found.kind == "windows"):
        raise ConfigError(
            f"--from must be a job for {found.task} of {found.kind}, not {job}; leave it out, or take "
            f"{choose_job(found)}"
        )


def _fit_to_data(values: dict[str, Any], template: Study, found: Survey, name: str) -> None:
    """Replace a job's values by those of the data."""
    values |= {"name": name, "task": found.task, "labels": found.labels}
    if found.labels != template.labels:
        # They are unions of the job's own labels.
        values.pop("regions", None)
    if found.regions:
        values["regions"] = {name: list(labels) for name, labels in found.regions.items()}
    if found.task == "multilabel" != template.task:
        # Most findings are rare: who names none is right in most.
        values["metric"] = "auroc"
        values.get("training", {}).pop("sampler", None)
    _fit_channels(values, found)
    _fit_intensity(values["data"], found)
    _fit_geometry(values, template, found)
    _fit_classes(values, found)


def _fit_federation(values: dict[str, Any], template: Study, found: Survey, sites: Sequence[str]) -> None:
    """Name the hospitals, and ask for no more answers than there are sites."""
    settings = values.setdefault("federation", {})
    settings.pop("sites", None)
    if sites:
        settings["sites"] = sorted(sites)
    number = len(sites or found.sites)
    if number < template.federation.min_sites:
        settings["min_sites"] = number


def _fit_classes(values: dict[str, Any], found: Survey) -> None:
    """Let a rare class count as much as a frequent one, in training and in the metric."""
    if found.most_frequent is None or found.most_frequent[1] <= MOST_FREQUENT:
        return
    values["metric"] = "balanced_accuracy" if values["metric"] == "accuracy" else values["metric"]
    # The noise of differential privacy does not cover numbers of cases.
    if not values.get("privacy", {}).get("dp_sgd"):
        values["training"].pop("class_weights", None)
        values["training"]["sampler"] = "balanced"


def _replace_algorithm(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the study with another algorithm and what this needs."""
    recipe = find_recipe(name, "recommended", {})
    model = values.get("model", {})
    if model.get("normalization", "batch") == "batch":
        # Of BatchNorm only an algorithm that keeps it at home, or compares it, makes use.
        model = {**model, "normalization": "group"}
    values = {**values, "model": model, "algorithm": {"name": name, "preset": "recommended"}}
    for section, needed in NEEDED[recipe.stays == "batchnorm" :]:
        changed = {**values, section: {**values.get(section, {}), **needed}}
        with suppress(ConfigError):
            parse(Study, changed, "the new study.yaml")
            return changed
    return values


def _end_by_patience(values: dict[str, Any], found: Survey) -> None:
    """Let the rounds end by themselves, but where the study's own rounds must stay.

    They stay where another number of rounds changes what a round does, and where no validation can end them.
    """
    study = parse(Study, values, "the new study.yaml")
    mixing = study.recipe.mixing
    is_planned = study.training.has_falling_rate or study.is_private
    is_planned = is_planned or (mixing is not None and mixing.traits.shared_rounds == "half")
    if not is_planned and study.rounds and found.has_validation:
        values["rounds"] = MOST_ROUNDS
        values["federation"]["patience"] = study.federation.patience or PATIENCE


def _fit_channels(values: dict[str, Any], found: Survey) -> None:
    """Begin the section ``data`` with the channels of the data."""
    settings: dict[str, Any] = {"channels": found.channels}
    if found.channel_names:
        settings["channel_names"] = list(found.channel_names)
    for key, value in values.get("data", {}).items():
        if key not in ("channels", "channel_names"):
            settings[key] = value
    settings |= {"split_unit": found.split_unit, "transforms": [], "modality": found.modality}
    if not found.channel_names:
        # Only contrasts of one case can lie on different grids.
        settings.pop("resample", None)
    elif found.is_resampled:
        settings["resample"] = True
    values["data"] = settings


def _fit_intensity(settings: dict[str, Any], found: Survey) -> None:
    """Scale by the values themselves where the range of the files' type says little of them."""
    if settings.get("intensity", "dtype") == "dtype" and not (found.kind == "pictures" and found.has_bytes):
        settings["intensity"] = "raw" if found.kind == "windows" else "percentiles"


def _fit_geometry(values: dict[str, Any], template: Study, found: Survey) -> None:
    """Choose directions, spacing and size of the images."""
    settings = values["data"]
    turned = {"Orientation": {"axcodes": "RAS"}}
    if found.kind == "volumes":
        settings["volume_transforms"] = settings.get("volume_transforms") or [turned]
    else:
        # Pictures and windows have neither directions nor neighbouring slices.
        for key in ("volume_transforms", "neighbours"):
            settings.pop(key, None)
    if template.data.dimensions == 3 and not template.data.patches:
        shapes = [measure_grid(sample.image)[0] for sample in found.samples]
        sides = np.round(np.median(shapes, axis=0) / SIDE_STEP_3D).astype(int) * SIDE_STEP_3D
        settings["volume_transforms"] = [turned]
        settings["transforms"] = [{"Resize": {"spatial_size": sides.clip(2 * SIDE_STEP_3D, MOST_SIDE_3D).tolist()}}]
    elif template.data.dimensions == 3:
        spacing = [float(f"{side:.3g}") for side in _measure_spacing(found)]
        settings["volume_transforms"] = [turned, {"Spacing": {"pixdim": spacing}}]
    elif found.kind != "windows":
        study = parse(Study, values, "the new study.yaml")
        sizes = np.array([_measure_plane(sample, study) for sample in found.samples])
        settings["transforms"] = _choose_resize(sizes, template)


def _fit_to_survey(settings: dict[str, Any], survey: Surveyed) -> None:
    """Replace spacing and patch by those of the surveyed hospitals, and scale CT by its window."""
    if settings.get("patches"):
        spacing = choose_spacing(survey)
        settings["volume_transforms"] = [{"Orientation": {"axcodes": "RAS"}}, {"Spacing": {"pixdim": spacing}}]
        settings["patches"] = {**settings["patches"], "size": choose_patch(survey, spacing)}
    window = choose_window(survey)
    if window:
        settings["intensity"] = "raw"
        settings["transforms"] = [*settings["transforms"], {"ScaleIntensityRange": window}]


def _measure_spacing(found: Survey) -> NDArray[np.float64]:
    """Return the median spacing of the first volumes in mm along the body's own axes: right, front, head."""
    spacings = np.array([measure_grid(sample.image)[1] for sample in found.samples], dtype=np.float64)
    return np.quantile(spacings, 0.5, axis=0)


def _measure_plane(sample: FirstImage, study: Study) -> tuple[int, ...]:
    """Return height and width of a first image as the study prepares it, before its transforms."""
    if sample.image.affine is None:
        return sample.image.spatial_shape
    return prepare_image(sample.source, study).shape[2:]


def _choose_resize(sizes: NDArray[np.int_], template: Study) -> list[dict[str, Any]]:
    """Return the transforms that bring images to one size where they are not.

    Args:
        sizes: Height and width of the first images as the study prepares them, (n, 2).
        template: The job's study, which names the networks.
    """
    least = sizes.min(axis=0)
    most = sizes.max(axis=0)
    # The network and the selector must both take the images.
    needed = max(LEAST_SIDE.get(template.model.name, 1), LEAST_SELECTOR_SIDE if template.recipe.selector else 1)
    is_turned = any(transform.name == "RandRotate90" for transform in template.data.augment)
    fits = (least == most).all() and needed <= least.min() and most.max() <= MOST_SIDE
    if fits and not (is_turned and least[0] != least[1]):
        return []
    resizing = [{step.name: step.options} for step in template.data.transforms if step.name == "Resize"]
    # The job's own size suits its networks, which images below it do not.
    if resizing and least.min() < needed:
        return resizing
    middle = np.round(np.median(sizes, axis=0) / SIDE_STEP).astype(int) * SIDE_STEP
    sides = np.clip(middle, -(-needed // SIDE_STEP) * SIDE_STEP, MOST_SIDE)
    # Images that are turned by 90 degrees stay of one size only where they are square.
    if is_turned:
        sides = np.full(2, sides.max())
    return [{"Resize": {"spatial_size": sides.tolist()}}]


def _study_text(values: Mapping[str, Any], job: Path) -> str:
    """Return a study.yaml, with what its reader must think of first and what only he knows."""
    size = "data.patches" if values["data"].get("patches") else "the size of the images in data.transforms"
    head = (
        f"# {values['name']}, based on {make_printable(job.resolve().name)}. silofl schema study explains every key.\n"
        f"# Think first about {size}. silofl tune finds a learning rate.\n"
    )
    card = "" if "card" in values else "\n".join(CARD) + "\n"
    return head + dump_yaml(dict(values)) + card
