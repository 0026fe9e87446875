"""A trained model in any of the forms in which it is handed on: a super model's folder, a bundle, or a run's models."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from silofl.base.errors import ConfigError
from silofl.base.files import load_tensors, read_json
from silofl.inference import HEAD
from silofl.inference.contents import Contents
from silofl.inference.directory import BUNDLE, read_fingerprint, read_model_folder
from silofl.inference.super_model import SuperModel
from silofl.models.roles import GLOBAL
from silofl.models.weights import is_state
from silofl.study import STORED, load_study
from silofl_hospital.inference.bundle import BundleModel, unpack_contents

# Of a bundle of version 0.4 whose networks look through volumes.
PROGRAM = "weights.pt2"
# Of a run's folder `model`.
STUDY, BEST = "study.yaml", "best.pt"


def open_model(folder: Path, device: torch.device) -> tuple[SuperModel, str]:
    """Return a trained model, and what its results name it by.

    Args:
        folder: A super model, a MONAI bundle that ``silofl export`` wrote, or a run's folder ``model`` with one for
            all sites.

    Raises:
        ConfigError: It is none of these, or broken.
    """
    if (folder / BUNDLE).is_file():
        return _open_bundle(folder, device)
    if (folder / BEST).is_file() and not (folder / HEAD).exists():
        contents = _read_best(folder)
        return SuperModel(contents, device), hashlib.sha256((folder / BEST).read_bytes()).hexdigest()
    return SuperModel(read_model_folder(folder), device), read_fingerprint(folder)


def _open_bundle(folder: Path, device: torch.device) -> tuple[SuperModel, str]:
    configs = folder / "configs"
    if (folder / "models" / PROGRAM).is_file():
        raise ConfigError(
            f"{folder / 'models' / PROGRAM} is a program of torch.export, which this version no longer reads. "
            "Export the super model again."
        )
    try:
        about = read_json(folder / BUNDLE)["super_model"]
        # In a bundle of version 0.4 the metadata do not say how images are prepared.
        how = about if "image_shape" in about else read_json(configs / "inference.json")
        study = load_study(configs / STUDY, STORED)
        contents = unpack_contents(about, study, how["image_shape"], how["domain"], how["calling"], how["usual"])
        members, fingerprint = list(about["members"]), str(about["fingerprint"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{folder} must be a MONAI bundle that silofl export wrote; it lacks {error}, so that nobody knows how to "
            "prepare its images: name another"
        ) from None
    network: nn.Module
    try:
        network = torch.jit.load(str(folder / "models" / "model.ts"), map_location=device)
    except (OSError, RuntimeError, ValueError):
        raise ConfigError(
            f"{folder / 'models'} must be as silofl export wrote it; it cannot be read: export it again"
        ) from None
    return BundleModel(contents, network, members, device), fingerprint


def _read_best(folder: Path) -> Contents:
    study = load_study(folder / STUDY, STORED)
    shape = study.data.image_shape
    if shape is None:
        raise ConfigError(
            f"{folder / STUDY} must name Resize or patches, which say the images' size; it does not: name the run's "
            "super model instead"
        )
    try:
        state = load_tensors((folder / BEST).read_bytes())
    except Exception:  # torch raises many kinds on bytes that are no weights
        state = None
    if not is_state(state):
        raise ConfigError(f"{folder / BEST} must hold a model's weights; it does not: copy the folder again")
    return Contents(study, shape, {GLOBAL: state}, "only")
