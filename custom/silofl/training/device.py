"""The device that a site computes on, its seeds, and its memory."""

import ctypes
import hashlib
import sys

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


def derive_seed(*parts: object) -> int:
    """Return a seed that depends on all parts (study seed, site, round, epoch) and on nothing else."""
    # Not hash(), which differs from process to process.
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    # Four bytes, which every generator takes: NumPy's RandomState refuses more.
    return int.from_bytes(digest[:4], "little")


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a training step frees for the next step, instead of asking the kernel anew.

    Tensors of some MiB are mapped and unmapped on every use otherwise, which costs about a third of a step's time.
    Those of half a GiB and more still are: the probabilities of whole volumes leave holes that nothing else fits into,
    by chance one more or less of them at the peak. The numbers are mallopt's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD
    (malloc.h); other systems are left alone.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(-3, 1 << 29)
            mallopt(-1, (1 << 31) - 1)
