"""Plain torch modules: the networks that studies name."""

from silofl.models.networks import HarmonizedModel, build_model, build_plain_model

__all__ = ["HarmonizedModel", "build_model", "build_plain_model"]
