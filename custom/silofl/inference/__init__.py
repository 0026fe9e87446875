"""Use a super model: load it, let it choose a hospital's model for a case, predict, and export it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from silofl.inference.prediction import Prediction
    from silofl.inference.super_model import SuperModel

__all__ = ["Prediction", "SuperModel"]
FILES = {"Prediction": "prediction", "SuperModel": "super_model"}


def __getattr__(name: str) -> object:
    """Import a class at its first use: torch comes with it, which who reads a result need not wait for."""
    if name not in FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{FILES[name]}"), name)
