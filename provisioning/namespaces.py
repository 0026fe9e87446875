"""Network namespaces: each hospital as a machine of its own, with one wire to the server and no other way out.

Linux only, and only for root; `iproute2`'s ``ip`` does the work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from silofl.errors import ConfigError

BRIDGE, PREFIX = "silofl0", "10.213.47"


class Namespaces:
    """One namespace a hospital, all wired to a bridge on which the server listens.

    Use as a context: leaving it takes namespaces, wires and bridge away.

    Args:
        names: The hospitals.
    """

    server_address = f"{PREFIX}.1"

    def __init__(self, names: Sequence[str]) -> None:
        self._spaces = {name: f"silofl-{name}" for name in names}

    def __enter__(self) -> Namespaces:
        """Make bridge, namespaces and wires.

        Raises:
            ConfigError: The system does not let this account do so.
        """
        self._remove()
        try:
            _ip("link", "add", BRIDGE, "type", "bridge")
            _ip("address", "add", f"{self.server_address}/24", "dev", BRIDGE)
            _ip("link", "set", BRIDGE, "up")
            for number, space in enumerate(self._spaces.values(), start=2):
                wire = f"{BRIDGE}-{number}"
                _ip("netns", "add", space)
                _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
                _ip("link", "set", wire, "master", BRIDGE, "up")
                _ip("-n", space, "address", "add", f"{PREFIX}.{number}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    _ip("-n", space, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            self._remove()
            reason = error.stderr.strip() or "it gave no reason"
            raise ConfigError(
                f"network namespaces must be possible here, not refused ({reason}); leave --namespaces out"
            ) from None
        return self

    def __exit__(self, *reason: object) -> None:
        """Take everything away again."""
        self._remove()

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """Return a command as it runs in a hospital's namespace; as it is for whoever has none."""
        return ["ip", "netns", "exec", self._spaces[name], *command] if name in self._spaces else list(command)

    def _remove(self) -> None:
        for space in self._spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)


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
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
