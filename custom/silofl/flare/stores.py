"""Where a server keeps its jobs and its snapshots, as its resources.json says."""

from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError

# NVFlare's default, which a restart of the machine empties.
VOLATILE = "/tmp/nvflare"


def read_stores(resources: dict[str, Any]) -> list[str]:
    """Return where a server keeps its snapshots and its jobs.

    Raises:
        ConfigError: resources.json does not say so in NVFlare's form.
    """
    snapshots, jobs = _find_arguments(resources)
    return [str(snapshots.get("root_dir", "")), str(jobs.get("uri_root", ""))]


def set_stores(resources: dict[str, Any], root: str) -> None:
    """Have a server keep its snapshots and its jobs below a folder.

    Raises:
        ConfigError: resources.json does not say where they are in NVFlare's form.
    """
    snapshots, jobs = _find_arguments(resources)
    snapshots["root_dir"] = f"{root}/snapshots"
    jobs["uri_root"] = f"{root}/jobs"


def is_volatile(place: str) -> bool:
    """Return whether a restart of the machine may empty a place."""
    return Path(place).is_relative_to(VOLATILE)


def _find_arguments(resources: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]
        jobs = next(part for part in resources["components"] if part["id"] == "job_manager")["args"]
    except (KeyError, TypeError, StopIteration):
        raise ConfigError(
            "the server's resources.json lacks a snapshot_persistor with a storage, or a component job_manager; start "
            "from NVFlare's resources.json.default"
        ) from None
    return snapshots, jobs
