"""A part's values as tensors, for a file, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def to_tensors(value: Any) -> Any:  # noqa: ANN401
    """Return a value with its arrays as tensors, for a file."""
    if isinstance(value, Mapping):
        return {key: to_tensors(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        # Not ascontiguousarray, which makes an array of one number one of one axis.
        return torch.from_numpy(np.asarray(value, order="C"))
    return list(value) if isinstance(value, tuple) else value


def to_arrays(value: Any) -> Any:  # noqa: ANN401
    """Return a value of a file with its tensors as arrays."""
    if isinstance(value, Mapping):
        return {key: to_arrays(item) for key, item in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value
