"""What happens to the machines of a network: processes that are killed, wires that are cut, slow ones, full disks."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from provisioning.namespaces import Namespaces
from provisioning.network import Network
from silofl.flare.kit import Kit

JOBS, PARENTS = ("worker_process", "runner_process"), ("client_train", "server_train")
MARKS = {"job": JOBS, "parent": PARENTS, "all": (*JOBS, *PARENTS)}
FILLER = "filler"


class Machines(Network):
    """The network, with what happens to its machines.

    Args:
        spaces: The hospitals' own networks, where this account makes any.
    """

    def __init__(self, project: Path, logs: Path, spaces: Namespaces | None) -> None:
        super().__init__(project, logs, spaces)
        self.spaces = spaces

    def kit_of_site(self, name: str) -> Kit:
        """Return the kit of the server or a hospital."""
        return next(kit for kit in (self.server, *self.hospitals) if kit.name == name)

    def processes(self, name: str, part: str) -> list[psutil.Process]:
        """Return the processes of a part of a machine: ``job``, ``parent``, or ``all``."""
        kit = self.kit_of_site(name)
        lines = [(p, " ".join(p.info["cmdline"] or [])) for p in psutil.process_iter(["cmdline"])]
        return [p for p, line in lines if f"{kit.folder}" in line and any(mark in line for mark in MARKS[part])]

    def kill_part(self, name: str, part: str) -> None:
        """Kill a part of a machine."""
        found = self.processes(name, part)
        assert found
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        # A killed process is there for its children until somebody has taken its exit code.
        assert psutil.wait_procs(found, timeout=10)[1] == []

    def cut(self, name: str, seconds: float) -> None:
        """Cut a hospital's wire for some time."""
        assert self.spaces
        self.spaces.switch(name, on=False)
        time.sleep(seconds)
        self.spaces.switch(name, on=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a disk of 16 MiB; yields whether this account may."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    is_mounted = subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take all the room that is left on a disk."""
    with (folder / FILLER).open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(1 << 16)):
                pass
        except OSError as full:
            assert full.errno == errno.ENOSPC
