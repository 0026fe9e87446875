"""Where a site computes, and the seeds it computes with."""

from __future__ import annotations

import hashlib

import torch

from silofl.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the device of a study or site: ``auto`` takes a GPU where there is one.

    Raises:
        ConfigError: A GPU is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device must be 'cpu' or 'auto' on a machine without a usable GPU, not 'cuda'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def seed_of(*parts: object) -> int:
    """Return a seed that depends on all parts (study seed, site, round, epoch) and on nothing else."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:4], "little")
