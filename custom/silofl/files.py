"""Files written atomically: whatever happens meanwhile, the old version or the new one is there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from silofl.errors import ConfigError


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a temporary file in the same folder, force it to the disk, and rename it to its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: os.replace is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            # Before the rename, or a power cut may leave the new name with no content.
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        # The rename itself is a change of the folder, which a power cut may lose too.
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file for this process; it is let go when the process ends, however it ends.

    Raises:
        ConfigError: Another process holds it.
    """
    with path.open("w") as stream:
        try:
            # Not a file with a process id: the kernel lets a lock go when its process dies, so none is ever stale.
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{path.parent} must not be in use; another run still writes it: end that first"
            ) from None
        yield


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda stream: stream.write(text.encode()))


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically; NaN is refused because other programs cannot read it."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of keys and values.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} must exist; it is not there") from None
    except PermissionError:
        raise ConfigError(f"{path} must be readable by this account; permission was denied: grant it") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} must be a JSON file: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, not {type(values).__name__}")
    return values


def save_tensors(path: Path, value: dict[str, Any]) -> None:
    """Save tensors and plain values so that ``torch.load(path, weights_only=True)`` reads them."""
    write_atomically(path, lambda stream: torch.save(value, stream))


def load_tensors(path: Path) -> dict[str, Any]:
    """Load what `save_tensors` saved, on the CPU."""
    # weights_only: an unrestricted pickle runs code.
    return torch.load(path, map_location="cpu", weights_only=True)
