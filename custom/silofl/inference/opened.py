"""A trained model in any of the forms in which it is handed on: a super model's folder, a bundle, or a run's models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silofl.data.domain import Domain
from silofl.errors import ConfigError
from silofl.files import load_tensors, read_json
from silofl.inference.bundle import VolumeNetwork
from silofl.inference.contents import Contents, unpack_calling
from silofl.inference.directory import BUNDLE, read_fingerprint, read_model_folder
from silofl.inference.geometry import check_images, check_probabilities
from silofl.inference.prediction import CaseAnswer
from silofl.inference.super_model import BATCH_SIZE, ENSEMBLE, SuperModel
from silofl.models.roles import GLOBAL
from silofl.models.weights import is_state
from silofl.schema import read_record
from silofl.study import load_study

# Of a run's folder `model`.
Network = Callable[[Tensor], Tensor]
STUDY, BEST = "study.yaml", "best.pt"


def open_model(folder: Path, device: torch.device) -> tuple[SuperModel, str]:
    """Return a trained model, and what its results name it by.

    Args:
        folder: A super model, a MONAI bundle that ``silofl export`` wrote, or a run's folder ``model`` with one for
            all sites.
        device: Where it computes.

    Raises:
        ConfigError: It is none of these, or broken.
    """
    if (folder / BUNDLE).is_file():
        return _open_bundle(folder, device)
    if (folder / BEST).is_file() and not (folder / "model.json").exists():
        contents = _read_best(folder)
        return SuperModel(contents, device), hashlib.sha256((folder / BEST).read_bytes()).hexdigest()
    return SuperModel(read_model_folder(folder), device), read_fingerprint(folder)


class BundleModel(SuperModel):
    """A bundle's own network, as whoever has the bundle runs it.

    Args:
        contents: What the bundle says of its study, without its weights.
        network: One case's prepared images (n, C, *spatial) to probabilities.
        weigh: The same to the weight of each member.
        members: The members' names.
        device: Where it computes.
    """

    def __init__(
        self, contents: Contents, network: Network, weigh: Network, members: list[str], device: torch.device
    ) -> None:
        # Not the base class's, which builds the networks of weights.
        self.contents, self.device, self.selector, self._models = contents, device, None, {}
        self._network, self._weigh, self._members = network, weigh, members

    @property
    def rule(self) -> str:
        """Which of its models answers."""
        several = f"the {len(self._members)} models in it" if len(self._members) > 1 else "the model in it"
        return f"The network of a MONAI bundle answers, by its own rule for {several}."

    def answer(
        self, images: NDArray, batch_size: int = BATCH_SIZE, threshold: float | None = None, site: str | None = None
    ) -> CaseAnswer:
        """Return what the bundle says of one case; the arguments after it are the rule's, which is fixed here."""
        check_images(images, self.contents.image_shape, bool(self.contents.study.data.patches))
        with torch.inference_mode():
            given = torch.from_numpy(np.array(images, np.float32)).to(self.device)
            probabilities, weights = self._network(given).cpu().numpy(), self._weigh(given).tolist()
        check_probabilities(probabilities, self.contents.study.name)
        named = dict(zip(self._members, weights, strict=True))
        name = next((name for name, one in named.items() if one == 1), ENSEMBLE)
        return CaseAnswer(name, named, {}, False, probabilities)


def _open_bundle(folder: Path, device: torch.device) -> tuple[SuperModel, str]:
    try:
        about, how = read_json(folder / BUNDLE)["super_model"], read_json(folder / "configs" / "inference.json")
        study = load_study(folder / "configs" / STUDY)
        shape, domain = tuple(how["image_shape"]), read_record(Domain, how["domain"], "domain")
        calling = unpack_calling(how.get("calling", {}), study)
        members, fingerprint, facts = list(about["members"]), str(about["fingerprint"]), {"test": about.get("test")}
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{folder} must be a MONAI bundle that silofl export wrote; it lacks {error}, so that nobody knows how to "
            "prepare its images: name another"
        ) from None
    network: Any
    try:
        if study.data.patches:
            network = VolumeNetwork(str(folder / "models"), device)
            weigh = network.weigher
        else:
            network = torch.jit.load(str(folder / "models" / "model.ts"), map_location=device)
            weigh = network.member_weights
    except (OSError, RuntimeError, ValueError):
        raise ConfigError(
            f"{folder / 'models'} must be as silofl export wrote it; it cannot be read: export it again"
        ) from None
    contents = Contents(study, shape, {GLOBAL: {}}, "only", domain=domain, facts=facts, calling=calling)
    return BundleModel(contents, network, weigh, members, device), fingerprint


def _read_best(folder: Path) -> Contents:
    study = load_study(folder / STUDY)
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
