"""Faults of files, as disks and people make them, and what a run leaves as one table."""

import numpy as np


def flip(path, place=0.5):
    """Change one byte."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def truncate(path):
    """Lose the second half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def delete(path):
    """Lose the file, if it is still there."""
    path.unlink(missing_ok=True)


DAMAGES = {"flipped": flip, "truncated": truncate, "deleted": delete}


def flatten(value, name=""):
    """Return all arrays and numbers below a value by their path."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        return {name: np.asarray(value)}
    return {path: one for key, part in inner for path, one in flatten(part, f"{name}/{key}").items()}
