"""The roles of models, and the names under which arrays travel: ``role/name``."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

MODEL, GLOBAL, PERSONAL, SELECTOR = "model", "global", "personal", "selector"


def read_role(name: str) -> str:
    """Return the role in front of an array's name, empty where there is none."""
    return name.partition("/")[0] if "/" in name else ""


def split_role(name: str) -> tuple[str, str]:
    """Return the role in front of an array's name, empty where there is none, and the role's own name of it."""
    role = read_role(name)
    return role, name.removeprefix(f"{role}/")


def select_role(role: str, arrays: Mapping[str, T]) -> dict[str, T]:
    """Return the arrays of one role under the names that the role itself uses."""
    return {name.removeprefix(f"{role}/"): array for name, array in arrays.items() if read_role(name) == role}


def add_role(role: str, arrays: Mapping[str, T]) -> dict[str, T]:
    """Return arrays under the names by which they travel."""
    return {f"{role}/{name}": array for name, array in arrays.items()}


def is_variance(name: str) -> bool:
    """Return whether an array is a running variance, by PyTorch's name for it; below 0 its layer would give NaN."""
    return name.endswith("running_var")
