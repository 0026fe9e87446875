"""A super model in use: load it, let it choose a hospital's model for a case, predict, and hand it on."""

from silofl.inference.prediction import Prediction
from silofl.inference.super_model import SuperModel

__all__ = ["Prediction", "SuperModel"]
