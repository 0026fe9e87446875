"""The memory of a command with all that it starts: the sum of proportional set sizes, or its largest process."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

GIB = 2**30


def memory_of(pid: int) -> int:
    """Return the proportional set size of a process with all that it started, in bytes."""
    return sum(map(_own_memory, _family(pid)))


def largest_below(pid: int) -> int:
    """Return the most memory that any one process which a process has started has had until now, in bytes."""
    return max((_peak_of(one.pid) for one in _family(pid)[1:]), default=0)


def watched(
    command: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    measure: Callable[[int], int] = memory_of,
) -> int:
    """Run a command, which must end with 0; returns the peak of what a function says of its process, in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    peak = 0
    while process.poll() is None:
        peak = max(peak, measure(process.pid))
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


def _peak_of(pid: int) -> int:
    """Return the most memory that a process has had until now; none of one that has ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return 1024 * int(found[1]) if found else 0
