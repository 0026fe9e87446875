"""The device that a site computes on, its seeds, and its memory."""

import ctypes
import hashlib
import os
import sys
from typing import Literal

import torch

from silofl.base.errors import ConfigError

# The numbers of mallopt's options, as malloc.h has them.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8


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


def set_threads(threads: int | Literal["auto"]) -> None:
    """Set torch's threads; ``auto``: one per core, not for training, whose sums change with them."""
    torch.set_num_threads(count_cores() if threads == "auto" else threads)


def count_cores() -> int:
    """Return how many cores torch may use: what ``OMP_NUM_THREADS`` says, or else all that this process may run on."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if given.isdecimal() and int(given):
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a training step frees for the next step, instead of asking the kernel anew.

    Tensors of some MiB are mapped and unmapped on every use otherwise, which costs about a third of a step's time.
    Those of half a GiB and more still are: the probabilities of whole volumes leave holes that nothing else fits into,
    by chance one more or less of them at the peak.
    """
    _tell_malloc(MMAP_THRESHOLD, 1 << 29)
    _tell_malloc(TRIM_THRESHOLD, (1 << 31) - 1)


def give_freed_memory_back() -> None:
    """Have glibc give the system what is freed, for a process whose many threads hold large blocks for a short time.

    It would keep them for the thread that freed them, in all several times what is ever in use.
    """
    _tell_malloc(MMAP_THRESHOLD, 1 << 21)
    _tell_malloc(ARENA_MAX, 2)


def _tell_malloc(option: int, value: int) -> None:
    """Set an option of glibc's; other systems are left alone."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(option, value)
