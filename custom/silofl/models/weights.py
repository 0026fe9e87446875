"""The file beside study.yaml that a run starts from: weights matched by name and shape, or a pretrained model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from silofl.base.errors import ConfigError
from silofl.base.files import load_tensors
from silofl.core.mixing import Arrays
from silofl.study import Study

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".pt", ".pth", ".safetensors")
OURS = "network."
# What our own models, torch's DataParallel and Lightning's modules put before every name.
PREFIXES = ("", OURS, "module.", "model.", f"module.{OURS}", "module.model.")
# A deep network has hundreds of names.
MOST_NAMES = 12
REMEDY = "write one for this study with silofl pretrain, then put it there or give --pretrained"


@dataclass(frozen=True)
class Start:
    """What a run starts from.

    Attributes:
        arrays: Name -> array of all floating-point parameters and buffers of the study's network.
        sentence: What of it is from the file, for the log; None where all of it must be.
    """

    arrays: Arrays
    sentence: str | None = None


def read_start(folder: Path, study: Study) -> Start | None:
    """Read the file that a study names, from the folder of its study.yaml; None where it names none.

    Raises:
        ConfigError: The errors of `read_pretrained` and `read_weights`.
    """
    if not study.rounds and not study.asks_alone:
        return Start(_read_finished(folder / study.model.pretrained, study))
    if study.recipe.needs_pretrained:
        return Start(read_pretrained(folder / study.model.pretrained, study))
    return read_weights(folder / study.model.weights, study) if study.model.weights else None


def _read_finished(path: Path, study: Study) -> Arrays:
    """Read the arrays of a finished model in one file, as `silofl.inference.model_file` packs them."""
    content = _read_agreed_file(path, "pretrained", study.model.pretrained_sha256, "make it with silofl evaluation-job")
    return {name: value.numpy() for name, value in _read_tensors(path.name, content).items()}


def read_pretrained(path: Path, study: Study) -> Arrays:
    """Read a pretrained model: the state of the study's network, as ``silofl pretrain`` and a finished run write it.

    Returns:
        Name -> array of all floating-point parameters and buffers.

    Raises:
        ConfigError: The file is missing or broken, or holds another network's state or numbers that are not finite.
    """
    content = _read_agreed_file(path, "pretrained", study.model.pretrained_sha256, REMEDY)
    state = _read_tensors(path.name, content)
    seeded = _seed_state(study)
    for name, value in seeded.items():
        tensor = state.get(name)
        if tensor is None or tensor.shape != value.shape or not tensor.float().isfinite().all():
            fault = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}, or not finite"
            raise ConfigError(
                f"{path.name} does not fit study {study.name!r}, which has {name!r} of shape {tuple(value.shape)}: "
                f"it is {fault}; {REMEDY}"
            )
    return {name: state[name].detach().float().numpy() for name in seeded}


def read_weights(path: Path, study: Study) -> Start:
    """Read the weights that everybody starts from; the study's seed gives those that the file lacks.

    Args:
        path: The file, ``.safetensors``, or ``.pt`` as `torch.save` writes it; no code in it is run.
        study: Names the network, the seed, and the SHA-256 of the file.

    Raises:
        ConfigError: The file is missing, another or broken, fits the network nowhere, or is not finite where it fits.
    """
    content = _read_agreed_file(path, "weights", study.model.weights_sha256, "put it there, or give --weights")
    tensors = _select_floating(_read_tensors(path.name, content))
    seeded = _seed_state(study)
    sources = match_weights(_shapes(seeded), _shapes(tensors))
    if not sources:
        raise ConfigError(
            f"{path.name} holds {_example(tensors)} and no weights of study {study.name!r}, as {_example(seeded)}; "
            "take a file of this network"
        )
    state = dict(seeded)
    for name, source in sources.items():
        state[name] = tensors[source].detach().float()
        if not state[name].isfinite().all():
            raise ConfigError(f"{source!r} in {path.name} holds NaN or infinity; take another file")
    # Copied, because several names of a file may share one memory.
    arrays = {name: value.detach().numpy().copy() for name, value in state.items()}
    return Start(arrays, _describe_match(path.name, list(seeded), sources))


def match_weights(wanted: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Match a file's tensors to a network's by name and shape.

    Names are taken as they are, and without one of `PREFIXES`; whichever of these fits most tensors counts.

    Args:
        wanted: Name -> shape in the study's model, whose network's names begin with ``network.``.
        found: Name -> shape in the file.

    Returns:
        Name in the model -> name in the file, of those that fit.
    """
    best: dict[str, str] = {}
    for prefix in PREFIXES:
        names = {OURS + name.removeprefix(prefix): name for name in found if name.startswith(prefix)}
        fitting = {}
        for name, shape in wanted.items():
            if name in names and tuple(found[names[name]]) == tuple(shape):
                fitting[name] = names[name]
        # Of prefixes that fit as many tensors the one before counts.
        best = max(best, fitting, key=len)
    return best


def _read_agreed_file(path: Path, key: str, agreed: str | None, remedy: str) -> bytes:
    """Return the content of a file that a study names, which has the SHA-256 that the study gives.

    Raises:
        ConfigError: It is missing, or another file.
    """
    if not path.is_file():
        raise ConfigError(f"model.{key} must be a file next to study.yaml, not {path.name!r}; {remedy}")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if agreed is not None and digest != agreed:
        raise ConfigError(
            f"{path.name} has SHA-256 {digest}, and model.{key}_sha256 another; take the file that was agreed on, or "
            "write this number into study.yaml"
        )
    return content


def _read_tensors(name: str, content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a file, of a training checkpoint those of its ``state_dict``."""
    state: Any = None
    with suppress(Exception):  # both libraries raise many kinds on broken bytes
        if name.endswith(".safetensors"):
            from safetensors.torch import load

            state = load(content)
        else:
            state = load_tensors(content)
    if isinstance(state, dict):
        state = state.get("state_dict", state)
    if not is_state(state):
        raise ConfigError(
            f"{name} does not hold the tensors of a network's state alone; save its state_dict() with torch.save or "
            "safetensors"
        )
    return state


def is_state(value: object) -> TypeGuard[dict[str, Tensor]]:
    """Return whether a file's content is name -> tensor, each of numbers that are all there."""
    from torch import Tensor

    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and _is_dense(tensor) for name, tensor in value.items()
    )


def _is_dense(tensor: Tensor) -> bool:
    # Of the other kinds torch can hardly do more than load them.
    is_plain = str(tensor.layout) == "torch.strided" and not (tensor.is_nested or tensor.is_quantized)
    return is_plain and tensor.device.type == "cpu" and not tensor.is_complex()


def _seed_state(study: Study) -> dict[str, Tensor]:
    """Return the study's network as its seed begins it: all floating-point parameters and buffers."""
    # Imported here because torch takes seconds, which whoever names no file need not wait for.
    from silofl.models.networks import build_plain_model

    return _select_floating(build_plain_model(study, study.seed).state_dict())


def _select_floating(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Counters, as BatchNorm's of its batches, never travel.
    return {name: value for name, value in state.items() if value.is_floating_point()}


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


def _example(state: Mapping[str, Tensor]) -> str:
    return next((f"{name!r} of shape {tuple(value.shape)}" for name, value in state.items()), "no tensor")


def _describe_match(file: str, wanted: list[str], sources: Mapping[str, str]) -> str:
    """Say how much of a network is from a file, and name what is not."""
    sentence = f"everybody starts from {file}: {len(sources)} of {len(wanted)} tensors are from it"
    seeded = [name for name in wanted if name not in sources]
    if not seeded:
        return sentence
    more = "" if len(seeded) <= MOST_NAMES else f" and {len(seeded) - MOST_NAMES} more"
    return f"{sentence}, the others from the seed: {', '.join(seeded[:MOST_NAMES])}{more}"
