"""Use a super model: load it, let it choose a hospital's model for a case, predict, and export it."""

from silofl.inference.prediction import Prediction
from silofl.inference.super_model import SuperModel

__all__ = ["Prediction", "SuperModel"]
