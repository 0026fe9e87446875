"""Files that are either the old or the new version, whatever happens while they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file beside its place, force it to the disk, and put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda stream: stream.write(text.encode()))


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically; NaN is refused because other programs cannot read it."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def save_tensors(path: Path, value: dict[str, Any]) -> None:
    """Save tensors and plain values so that ``torch.load(path, weights_only=True)`` reads them."""
    write_atomically(path, lambda stream: torch.save(value, stream))


def load_tensors(path: Path) -> dict[str, Any]:
    """Load what `save_tensors` saved, on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)
