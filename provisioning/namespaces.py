"""Linux network namespaces: each hospital on its own network, with one wire to the server and no other way out.

Linux only, and only for root; `iproute2`'s ``ip`` does the work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl.base.files import hold_lock

# So many networks may run on one machine at a time: 10.213.1.0/24 and so on.
NUMBERS = range(1, 100)
PREFIX = "10.213"
LOCKS = Path("/run")
DEVICES = Path("/sys/class/net")


class Namespaces:
    """One namespace a hospital, all wired to a bridge on which the server listens.

    Use as a context: leaving it removes namespaces, wires and bridge. Their names hold a number that is free on this
    machine, so that several such networks can exist at a time.

    Args:
        names: The hospitals.
        bits: A second, on the server's line, of which each wire has its share both ways; no limit where None.
    """

    def __init__(self, names: Sequence[str], bits: float | None = None) -> None:
        self._names = tuple(names)
        self._number = 0
        self._lock = ExitStack()
        self._rate = f"{bits / len(names):.0f}" if bits else None

    @property
    def server_address(self) -> str:
        """The address of the bridge, once it is there."""
        return f"{PREFIX}.{self._number}.1"

    def __enter__(self) -> Namespaces:
        """Make bridge, namespaces and wires.

        Raises:
            ConfigError: The system does not let this account do so.
        """
        try:
            self._number = self._claim()
            # A process that was killed left its own behind.
            self._remove()
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            # Python does not call __exit__ where __enter__ fails.
            self.__exit__()
            reason = (getattr(error, "stderr", None) or str(error)).strip()
            raise ConfigError(
                f"network namespaces must be possible here, not refused ({reason}); leave --namespaces out"
            ) from None
        return self

    def __exit__(self, *reason: object) -> None:
        """Remove namespaces, wires and bridge."""
        if self._number:
            self._remove()
        self._lock.close()

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs a command in a hospital's namespace; the same command where it has none."""
        if name not in self._names:
            return list(command)
        return ["ip", "netns", "exec", self._space(name), *command]

    def limit(self, name: str, bits: str) -> None:
        """Limit a hospital's wire both ways, in bits a second as `tc` reads them."""
        limit = ["root", "tbf", "rate", bits, "burst", "32kb", "latency", "400ms"]
        # A limit holds for what a device sends, so that each end of the wire needs one.
        _run("tc", "-n", self._space(name), "qdisc", "add", "dev", "eth0", *limit)
        _run("tc", "qdisc", "add", "dev", self._wire(name), *limit)

    def switch(self, name: str, *, on: bool) -> None:
        """Cut a hospital's wire, or mend it."""
        _ip("-n", self._space(name), "link", "set", "eth0", "up" if on else "down")

    def _claim(self) -> int:
        """Return the first number that no living process holds, and lock it."""
        for number in NUMBERS:
            try:
                self._lock.enter_context(hold_lock(LOCKS / f"silofl-network-{number}.lock"))
            except ConfigError:
                continue
            return number
        raise ConfigError(f"at most {len(NUMBERS)} networks must run on this machine; end one")

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{self.server_address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for host, name in enumerate(self._names, start=2):
            wire = self._wire(name)
            space = self._space(name)
            _ip("netns", "add", space)
            _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", wire, "master", self._bridge, "up")
            _ip("-n", space, "address", "add", f"{PREFIX}.{self._number}.{host}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")
            if self._rate:
                self.limit(name, self._rate)

    def _remove(self) -> None:
        """Remove every namespace and device with this number, those of other hospitals' names too."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        for line in listed.splitlines():
            if line.startswith(f"{self._bridge}-"):
                # Behind its name a line may have a number in brackets.
                subprocess.run(["ip", "netns", "delete", line.split()[0]], capture_output=True)
        # A wire outlives its namespace for as long as a process lives in there.
        wires = [path.name for path in DEVICES.glob(f"{self._bridge}-*")]
        for device in (*wires, self._bridge):
            subprocess.run(["ip", "link", "delete", device], capture_output=True)

    @property
    def _bridge(self) -> str:
        return f"silofl{self._number}"

    def _wire(self, name: str) -> str:
        return f"{self._bridge}-{self._names.index(name) + 2}"

    def _space(self, name: str) -> str:
        return f"{self._bridge}-{name}"


def are_possible() -> bool:
    """Return whether this account may make network namespaces."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Namespaces(("trial",)):
            return True
    except ConfigError:
        return False


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
