"""A command of the command line: its module is imported only when it is given; and the wheel that has more of them."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pkgutil import resolve_name
from typing import Any

from silofl import __version__

# The wheels of what a person starts by hand, of researchers and study leads, and of clinics.
HOSPITAL_WHEEL, DESK_WHEEL, CLINIC_WHEEL = "silofl-hospital", "silofl-desk", "silofl-clinic"
WHEELS = (HOSPITAL_WHEEL, DESK_WHEEL, CLINIC_WHEEL)
# What lacks a wheel says so, with the version that fits.
LACKS = "needs the wheel {0}; install {0} " + __version__


@dataclass(frozen=True)
class Command:
    """A command, of which nothing is imported before it is given.

    Attributes:
        module: Its module, whose ``run`` carries it out; imported once all arguments are checked.
        purpose: What it does.
        arguments: The function that adds its arguments, as ``module:function``; the module's ``add_options`` if empty.
    """

    module: str
    purpose: str
    arguments: str = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments to its parser."""
        resolve_name(self.arguments or f"{self.module}:add_options")(parser)
        parser.set_defaults(command=self)

    def __call__(self, options: argparse.Namespace) -> int:
        """Carry it out and return its exit code; a terminal shows that its imports go on."""
        from rich.console import Console

        with Console(stderr=True).status("loading"):
            module = import_module(self.module)
        code: int = module.run(options)
        return code


def name_commands(wheel: str, role: str, commands: Mapping[str, tuple[str, str]]) -> dict[str, Command]:
    """Return a role's commands, with their arguments from the role's file: ``add_check`` for ``site check``.

    Args:
        wheel: The package that has them, as ``silofl``.
        role: The file of `arguments` there.
        commands: Name -> its module in the package, and what it does.
    """
    named = {}
    for name, (module, purpose) in commands.items():
        function = "add_" + name.rpartition(" ")[2].replace("-", "_")
        named[name] = Command(f"{wheel}.{module}", purpose, f"{wheel}.command_line.{role}:{function}")
    return named


def load_announced(group: str) -> dict[str, Any]:
    """Return name -> what the further wheels that are installed announce under a group of entry points."""
    announced: dict[str, Any] = {}
    for wheel in WHEELS:
        try:
            points = distribution(wheel).entry_points.select(group=group)
        except PackageNotFoundError:
            continue
        announced |= {point.name: point.load() for point in points}
    return announced


def hand_on(public: str, module: str, wheel: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module that has its names from a further wheel.

    Args:
        public: The module's own name.
        module: The one that has the names.
        wheel: The wheel that has this one; where it is not installed, an ImportError names it.
    """

    def find(name: str) -> object:
        try:
            source = import_module(module)
        except ModuleNotFoundError as error:
            # Another module that is missing is a fault of that wheel, which is there.
            if error.name != module.partition(".")[0]:
                raise
            raise ImportError(f"{public} {LACKS.format(wheel)}") from None
        try:
            return getattr(source, name)
        except AttributeError:
            raise AttributeError(f"module {public!r} has no attribute {name!r}") from None

    return find
