"""Networks, losses, transforms and metrics of reviewed packages, which a machine has installed and its settings name.

A package announces them as entry points (Python Packaging User Guide, "Entry points specification") in the groups
below. A study names one as ``package==version/name``, so that all machines run the same. What the machine's settings do
not name letter by letter is refused, and nothing of it is imported; by default they name nothing.
"""

import os
import re
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from typing import Annotated, Any

from pydantic import AfterValidator

from silofl.base.errors import ExtensionError

# A package announces its parts in these groups of entry points.
NETWORKS, LOSSES, TRANSFORMS, METRICS = "silofl.networks", "silofl.losses", "silofl.transforms", "silofl.metrics"
# On a machine without site.yaml or server.yaml, as a researcher's, the settings are this variable.
VARIABLE = "SILOFL_EXTENSIONS"
WORD = "[A-Za-z0-9][A-Za-z0-9._-]*"
FORM = re.compile(rf"(?P<package>{WORD})==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)/(?P<name>{WORD})")


def is_extension(name: str | None) -> bool:
    """Return whether a name in a study is that of a part of a package."""
    return name is not None and FORM.fullmatch(name) is not None


def _check_extension(value: str) -> str:
    if not is_extension(value):
        raise ValueError("a part of a package, as 'package==1.2.0/name'")
    return value


Extension = Annotated[str, AfterValidator(_check_extension)]

# This process may run these: it is one machine's, whatever the study. None until its settings have been read.
_allowed: frozenset[str] | None = None


def allow_extensions(names: Iterable[str] | None) -> None:
    """Let this process run these parts of packages and no others; None goes back to those of the environment."""
    global _allowed
    _allowed = None if names is None else frozenset(names)


def list_allowed_extensions() -> tuple[str, ...]:
    """Return what this process may run; before its settings are read, the names in ``SILOFL_EXTENSIONS``, by comma."""
    if _allowed is not None:
        return tuple(sorted(_allowed))
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    return tuple(sorted(filter(None, named)))


def find_extension(where: str, group: str, name: str) -> EntryPoint:
    """Find a part of a package, without importing anything of it.

    Args:
        where: The study's key, for the sentence.
        name: ``package==version/name``.

    Raises:
        ExtensionError: The machine's settings do not name it, or the package is not installed, has another version, or
            announces no such part.
    """
    if name not in list_allowed_extensions():
        raise ExtensionError(
            f"{where}: {name!r} is not allowed on this machine; review its package, install it, and add this name to "
            f"`extensions` in site.yaml or server.yaml, or to {VARIABLE}"
        )
    package, _, rest = name.partition("==")
    version, _, part = rest.partition("/")
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        installed = None
    # Only this very version was reviewed: another one may do anything.
    if installed is None or installed.version != version:
        raise ExtensionError(
            f"{where} needs package {package!r} in version {version}, but "
            f"{installed.version if installed else 'none'} is installed; install the wheel that was reviewed"
        )
    announced = {entry.name: entry for entry in installed.entry_points if entry.group == group}
    if part not in announced:
        listed = ", ".join(sorted(announced)) or "nothing"
        raise ExtensionError(
            f"{where} must be a part that package {package!r} announces in {group}, among {listed}, not {part!r}"
        )
    return announced[part]


def check_extensions(named: Iterable[tuple[str, str, str]]) -> None:
    """Find every part that a study names, by key, group and name, before anything of it is imported.

    Raises:
        ExtensionError: As `find_extension`.
    """
    for where, group, name in named:
        find_extension(where, group, name)


def load_extension(where: str, group: str, name: str) -> Callable[..., Any]:
    """Import a part of a package that `find_extension` has found.

    Raises:
        ExtensionError: It may not run here, or its package cannot be imported.
    """
    entry = find_extension(where, group, name)
    try:
        part: Callable[..., Any] = entry.load()
        return part
    except Exception as error:  # a package's own fault, of whatever kind
        raise ExtensionError(
            f"{where}: the import of {name!r} fails with {type(error).__name__}; repair its package"
        ) from error
