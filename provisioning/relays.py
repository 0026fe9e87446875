"""Relays between the server and some of its sites: what project.yml must say of them, how a kit starts, its faults."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.flare.kit import Kit

# NVFlare's default is a line in clear over bare TCP, on which one silent caller keeps out all others.
LINE = {"scheme": "http", "connection_security": "mtls"}
# What a relay's kit starts, and what NVFlare has it start.
GUARDED, UNGUARDED = "silofl.flare.relay", "nvflare.private.fed.app.relay.relay"
SCRIPT, UMASK = "startup/sub_start.sh", "umask 077"


def complete_relays(path: Path, participants: list[dict[str, Any]]) -> None:
    """Have relays, and those that connect to one, speak TLS with certificates at both ends.

    Args:
        path: The project.yml, for an error.
        participants: Of the project; they are changed.

    Raises:
        ConfigError: A relay has no address, is behind another, or would speak otherwise.
    """
    relays = {one.get("name"): one for one in participants if one.get("type") == "relay"}
    servers = {one.get("name") for one in participants if one.get("type") == "server"}
    for name, relay in relays.items():
        listens, parent = relay.get("listening_host"), relay.get("connect_to") or {}
        if not isinstance(listens, dict) or not (listens.get("default_host") and listens.get("port")):
            raise ConfigError(f"{path} must give relay {name!r} a listening_host with default_host and port; add them")
        if not isinstance(parent, dict) or parent.get("name", *servers) not in servers:
            raise ConfigError(f"{path} must have relay {name!r} connect to the server, not to {parent!r}; correct it")
        relay["listening_host"] = _with_line(path, name, listens, LINE)
        relay["connect_to"] = _with_line(path, name, {"name": min(servers)} | parent, {"connection_security": "mtls"})
    for site in (one for one in participants if one.get("type") != "relay"):
        parent = site.get("connect_to")
        if isinstance(parent, str) and parent in relays:
            raise ConfigError(
                f"{path} must have {site.get('name')!r} connect to {{name: {parent}}}, not to {parent!r}, which "
                "NVFlare takes for another name of the server; correct it"
            )
        if isinstance(parent, dict) and parent.get("name") in relays:
            site["connect_to"] = _with_line(path, site.get("name"), parent, {"connection_security": "mtls"})


def _with_line(path: Path, name: object, given: Mapping[str, Any], line: Mapping[str, str]) -> dict[str, Any]:
    for key, value in line.items():
        if given.get(key, value) != value:
            raise ConfigError(f"{path} must leave {key} of {name!r} at {value!r}, not {given[key]!r}; remove the key")
    return {**given, **line}


def read_listener(kit: Kit) -> dict[str, Any]:
    """Return where and how a relay listens: ``scheme``, ``host``, ``port``, ``connection_security``.

    Raises:
        ConfigError: Its ``local/comm_config.json`` does not say so in NVFlare's form.
    """
    path = kit.folder / "local" / "comm_config.json"
    try:
        found = read_json(path)["internal"]
        return {"scheme": found["scheme"], **found["resources"]}
    except (KeyError, TypeError):
        raise ConfigError(f"{path} must say where the relay listens; it does not: make new kits") from None


def find_relay_faults(kit: Kit) -> Iterator[str]:
    """Find what lets others than the network's own speak with a relay, or its sites with one another.

    Raises:
        ConfigError: Its ``local/comm_config.json`` is broken.
    """
    listener = read_listener(kit)
    for key, value in LINE.items():
        if listener.get(key) != value:
            yield f"{key} in local/comm_config.json must be {value!r}, not {listener.get(key)!r}; make new kits"
    if f" {GUARDED} " not in (kit.folder / SCRIPT).read_text(encoding="utf-8"):
        yield f"{SCRIPT} must start {GUARDED}, which keeps sites from one another; fill the kit with fill-kits"
