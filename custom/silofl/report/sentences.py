"""Sentences about a run: its status, metric, caveats and recipe, the same in the terminal and on the pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BATCH_DEPENDENT = "a prediction depends on the batch it stands in"
SHARED_PATIENTS = "same person in training and test"
EVERYONE = (
    "Each site's model is tested on the test data of all sites together; mean over the sites' models. It says how far "
    "a model goes beyond its own site, whose classes it may know best; only a simulation can measure it."
)
# What stays at home where BatchNorm travels.
SHARES_BATCHNORM = ("nothing", "head")
SHARED_BATCHNORM = (
    "BatchNorm is shared, and its averaged statistics fail where sites differ strongly; against a run that keeps it at "
    "home, that much of a difference is BatchNorm's and no merit of the algorithm"
)

METRICS = {
    "dice": (
        "Foreground Dice of each case, 2 |P and T| / (|P| + |T|) over all slices of the case, mean over its labels; "
        "a site's value is the mean over its cases. Cases whose truth and prediction are both empty are excluded "
        "and counted."
    ),
    "dice_with_background": (
        "Dice of each case with the background counted as a label, and 1 for a label that is empty in truth and "
        "prediction; a site's value is the mean over its cases. It is higher than the foreground Dice: compare it "
        "only with tables that are made the same way."
    ),
    "accuracy": "Share of examples whose class is right; every example is a case.",
    "balanced_accuracy": (
        "Share of a class's examples whose class is right, mean over the classes that the site's test data hold: a "
        "rare class counts as much as a frequent one."
    ),
    "auroc": (
        "Area under the ROC curve of one class against the rest, mean over the classes of which the site's test data "
        "hold both; a site without such a class has none."
    ),
}

_STATUS = {
    "COMPLETE": "No site missed more rounds than the study allows, and every site tested the model.",
    "INCOMPLETE": "The numbers stand for less than the study asked for:",
    "FAILED": "The run ended without a result:",
}

_STEPS = {
    "plain": "Plain: the optimiser follows the gradient of the loss.",
    "perturbed": "Perturbed: the gradient is taken at weights moved by alpha = {perturbation} uphill (HarmoFL).",
    "proximal": "Proximal: the loss plus mu / 2 times the squared distance to the received model, mu = {proximal}.",
}

_HOME = {
    "nothing": "Nothing: the whole model travels, the data never do.",
    "batchnorm": "BatchNorm parameters and statistics; all other weights travel, the data never do.",
    "head": "The head, the last layer, which decides (FedPer); all other weights travel, the data never do.",
    "everything": "Everything: each site trains alone and sends only its scores.",
}

_SELECTORS = {
    "gradients": "Sites send mean gradients; the server takes {selector_steps} step(s) of Adam a round.",
    "local_steps": "Sites take local steps with Adam; the server averages the weights (FedSM, Algorithm 1).",
    "moments": "Sites take one full-batch Adam step; the server averages the weights and Adam's moments.",
}

_SPLITS = {
    "slices": "the data are split by slice",
    "recordings": "the data are split by recording, so that recordings are apart but not persons",
    "windows": "the data are split by window, and windows of one recording stand in both",
}

_WEIGHTS = {
    "examples": "its number of training examples",
    "uniform": "1",
}


def status_sentence(status: str) -> str:
    """Return what a run's status means; what a status of its own name says where it is not known."""
    return _STATUS.get(status, f"The run's status is {status}.")


def unfinished_sentence(run: Path, can_resume_here: bool, finished: int, rounds: int | None) -> str:
    """Return that a run has no result yet, and how to go on with it."""
    of = f" of {rounds}" if rounds else ""
    state = f"{finished}{of} rounds are finished and there is no result yet: the run is running or interrupted"
    if can_resume_here:
        return f"{state}; resume with: python -m silofl resume {run}"
    return f"{state}; to go on with it, set continue_run: {run.name} in study.yaml and submit the job again"


def remedy_sentence(run: Path, status: str, can_resume_here: bool) -> str:
    """Return how to go on with a run that failed in a simulation; nothing for all others."""
    if status != "FAILED" or not can_resume_here:
        return ""
    return f"Once the cause is removed, go on with it: python -m silofl resume {run}"


def metric_sentence(metric: str | None) -> str:
    """Return how a metric is defined."""
    return METRICS.get(metric or "", f"The study's metric is {metric}." if metric else "The metric is not known here.")


def normalization_label(normalization: str | None) -> str:
    """Return the kind of the network's normalisation layers, with its catch."""
    if normalization == "batch_stateless":
        return f"{normalization} ({BATCH_DEPENDENT})"
    return normalization or "-"


def shares_patients(split_unit: str | None) -> bool:
    """Return whether one person may stand in several parts of the data."""
    return split_unit not in (None, "patient")


def split_sentence(split_unit: str | None) -> str:
    """Return what the data are split by, with its catch."""
    if not shares_patients(split_unit):
        return "by patient"
    apart = "; recordings are apart" if split_unit == "recordings" else ""
    return f"by {split_unit}, {SHARED_PATIENTS}{apart}"


def caveats(results: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the numbers must know beforehand."""
    found = []
    unit = results.get("split_unit")
    if shares_patients(unit):
        how = _SPLITS.get(str(unit), f"the data are split by {unit}")
        found.append(f"{SHARED_PATIENTS}: {how}; the values are higher than for new patients.")
    if results.get("normalization") == "batch_stateless":
        found.append(f"{BATCH_DEPENDENT}: the network keeps no BatchNorm statistics.")
    if results.get("recipe", {}).get("stays_home") == "batchnorm" and results.get("normalization") != "batch":
        found.append("the network has no BatchNorm to keep at home: all of it travels, as in FedAvg.")
    return found


def recipe_answers(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the algorithm's four questions with a recipe's answers, and a fifth where there is a selector."""
    answers = [
        ("How is the input normalised?", _amplitude(recipe)),
        ("How does a site step?", _answer(_STEPS, recipe, "step")),
        ("What stays at home?", _answer(_HOME, recipe, "stays_home")),
        ("Who listens to whom?", _mixing(recipe)),
    ]
    selector = _answer(_SELECTORS, recipe, "selector")
    return answers + [("How does the selector learn?", selector)] * (recipe.get("selector", "none") != "none")


def _amplitude(recipe: Mapping[str, Any]) -> str:
    band = recipe.get("amplitude_band")
    if band in (None, "none"):
        return "Not: images enter the network as the study prepared them."
    what = {"full": "all frequencies", 0: "the mean intensity alone"}.get(band, f"frequencies up to radius {band}")
    momentum = recipe.get("amplitude_momentum")
    return f"Amplitude normalisation (HarmoFL) of {what}: a running mean, momentum {momentum}, shared by the sites."


def _answer(answers: Mapping[str, str], recipe: Mapping[str, Any], key: str) -> str:
    value = str(recipe.get(key))
    return answers[value].format_map(recipe) if value in answers else value


def _mixing(recipe: Mapping[str, Any]) -> str:
    if recipe.get("stays_home") == "everything":
        return "Nobody: no weights travel."
    weights = _WEIGHTS.get(str(recipe.get("weights")), str(recipe.get("weights")))
    if recipe.get("mixing") == "softpull":
        return _softpull(recipe, weights)
    if recipe.get("mixing") == "adafed":
        return _adafed(recipe)
    if recipe.get("mixing") != "shared":
        return f"{recipe.get('mixing')}; a site's weight is {weights}."
    rate = recipe.get("server_lr")
    step = "" if rate == 1 else f" The server moves towards it with learning rate {rate}."
    return f"Every site gets the same weighted mean; a site's weight is {weights}.{step}"


def _softpull(recipe: Mapping[str, Any], weights: str) -> str:
    """Return who listens to whom where each site gets a model of its own."""
    own = f"SoftPull (FedSM): each site's own model keeps lambda = {recipe.get('self_weight')} of itself and takes the "
    own += "rest in equal parts from the others."
    if recipe.get("selector", "none") == "none":
        return own
    return f"{own} The global model beside it is the weighted mean of all; a site's weight is {weights}."


def _adafed(recipe: Mapping[str, Any]) -> str:
    """Return who listens to whom where sites are compared by their statistics, and which statistics these are."""
    own = f"AdaFed: each site's own model keeps lambda = {recipe.get('self_weight')} of itself and takes the rest from "
    own += "the others, from each the more, the closer its statistics are."
    return f"{own} {_statistics(recipe)}"


def _statistics(recipe: Mapping[str, Any]) -> str:
    if recipe.get("statistics") == "pretrained":
        layers = {"all": "every BatchNorm layer", "last": "the last layer (d-AdaFed)"}
        layer = layers.get(str(recipe.get("statistics_layers")), str(recipe.get("statistics_layers")))
        return f"These are mean and variance of the inputs of {layer} in a pretrained model, taken once before round 1."
    rounds, every = recipe.get("statistics_rounds"), recipe.get("refresh_every")
    after = "half of the rounds" if rounds == "half" else f"{rounds} round(s)"
    again = f", and anew every {every} round(s)" if every else ""
    return f"These are the BatchNorm layers' own, taken after {after} of FedBN{again} (f-AdaFed)."


def changes_sentence(changes: Mapping[str, Any]) -> str:
    """Return what was changed in a study, as ``training.learning_rate: 0.01, seed: 1``."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
    return ", ".join(f"{key}: {text}" for key, text in texts.items()) or "nothing"
