"""A command of the command line: its module is imported only when it is given; and the wheel that has more of them."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pkgutil import resolve_name
from typing import Any

from silofl import __version__

# The wheel of researchers and study leads, which hospitals need not install, and what lacks it.
DESK_WHEEL = "silofl-desk"
LACKS_DESK = f"must have the wheel {DESK_WHEEL}, which is not here; install {DESK_WHEEL} {__version__}"
WITHOUT_TORCH = {
    "silofl.completion",
    *(f"silofl.hospital.{name}" for name in ("import_data", "egress_check", "doctor", "schema")),
}


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

    def greet(self) -> None:
        """Print one line before seconds of imports, on standard error: standard output is the command's."""
        loading = "" if self.module in WITHOUT_TORCH else ", loading PyTorch"
        # Nobody need read it.
        with suppress(OSError, AttributeError):
            sys.stderr.write(f"SiloFL {__version__}{loading}\n")
            sys.stderr.flush()

    def __call__(self, options: argparse.Namespace) -> int:
        """Carry it out and return its exit code."""
        return import_module(self.module).run(options)


def name_commands(wheel: str, role: str, commands: Mapping[str, tuple[str, str]]) -> dict[str, Command]:
    """Return a role's commands, with their arguments from the role's file: ``add_check`` for ``site check``.

    Args:
        wheel: The package that has them, as ``silofl``.
        role: The file of `arguments` there.
        commands: Name -> its module in the package, and what it does.
    """
    functions = {name: "add_" + name.rpartition(" ")[2].replace("-", "_") for name in commands}
    return {
        name: Command(f"{wheel}.{module}", purpose, f"{wheel}.arguments.{role}:{functions[name]}")
        for name, (module, purpose) in commands.items()
    }


def find_desk() -> Distribution | None:
    """Return the desk's wheel as it is installed; None where it is not."""
    try:
        return distribution(DESK_WHEEL)
    except PackageNotFoundError:
        return None


def load_desk(group: str) -> dict[str, Any]:
    """Return name -> what the desk's wheel announces under a group of entry points; nothing without the wheel."""
    desk = find_desk()
    return {one.name: one.load() for one in desk.entry_points if one.group == group} if desk else {}
