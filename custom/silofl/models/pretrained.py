"""Read a pretrained model f, checked against the study's network."""

from pathlib import Path

import torch

from silofl.algorithms.mixing import Arrays
from silofl.errors import ConfigError
from silofl.files import load_tensors
from silofl.models.networks import build_plain_model
from silofl.study import Study

REMEDY = "write one for this study with silofl pretrain"


def read_pretrained(path: Path, study: Study) -> Arrays:
    """Read a pretrained model: the state of the study's network, as ``silofl pretrain`` and a finished run write it.

    Args:
        path: The file.
        study: Names the network.

    Returns:
        Name -> array of all floating-point parameters and buffers.

    Raises:
        ConfigError: The file is missing or broken, or holds another network's state or numbers that are not finite.
    """
    if not path.is_file():
        raise ConfigError(f"model.pretrained must be a file beside study.yaml, not {path.name!r}; {REMEDY}")
    try:
        state = load_tensors(path)
    except Exception:  # torch raises many kinds on broken bytes
        state = None
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ConfigError(f"{path.name} must hold the tensors of a model's state; it does not: {REMEDY}")
    wanted = {n: v for n, v in build_plain_model(study, study.seed).state_dict().items() if v.is_floating_point()}
    for name, value in wanted.items():
        found = state.get(name)
        if found is None or found.shape != value.shape or not torch.isfinite(found).all():
            what = "missing" if found is None else f"of shape {tuple(found.shape)}, or not finite"
            raise ConfigError(
                f"{path.name} must hold {name!r} of shape {tuple(value.shape)} as study {study.name!r} has it; it is "
                f"{what}: {REMEDY}"
            )
    return {name: state[name].float().numpy() for name in wanted}
