"""Plain torch modules: the networks that studies name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from silofl.models.networks import HarmonizedModel, build_model, build_plain_model

__all__ = ["HarmonizedModel", "build_model", "build_plain_model"]


def __getattr__(name: str) -> object:
    """Import a network's maker at its first use: torch comes with it, which names of arrays need not wait for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from silofl.models import networks

    return getattr(networks, name)
