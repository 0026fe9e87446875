"""The memory of a command with all that it starts: the sum of proportional set sizes."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import psutil

GIB = 2**30


def memory_of(pid: int) -> int:
    """Return the proportional set size of a process with all that it started, in bytes."""
    return sum(map(_own_memory, _family(pid)))


def watched(
    command: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Run a command, which must end with 0; returns the most memory that it has had, in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_of(process.pid))
        time.sleep(0.5)
    if process.returncode:
        sys.exit(f"the simulation must end with 0, not {process.returncode}")
    return peak


def _family(pid: int) -> list[psutil.Process]:
    try:
        own = psutil.Process(pid)
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _own_memory(process: psutil.Process) -> int:
    """Return a process's part of the memory; none of one that has ended meanwhile."""
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0
