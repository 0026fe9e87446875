"""NVFlare recipes under their public name; the desk's wheel has them."""

from importlib import import_module

from silofl.command import DESK_WHEEL, LACKS


def __getattr__(name: str) -> object:
    """Return a name of `silofl_desk.recipes`.

    Raises:
        ImportError: The desk's wheel is not installed.
    """
    try:
        recipes = import_module("silofl_desk.recipes")
    except ModuleNotFoundError as error:
        if error.name != "silofl_desk":
            raise
        raise ImportError(f"silofl.recipes {LACKS.format(DESK_WHEEL)}") from None
    try:
        return getattr(recipes, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
