"""A layout of the data to import: what plans its import, the options that it uses, and what it says of itself."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import SitePlan

# Field of `ImportOptions` that not every layout uses -> its name on the command line.
NAMES = {
    "label_values": "values in labels",
    "image_pattern": "image-pattern",
    "mask_pattern": "mask-pattern",
    "arrangement": "layout",
}


@dataclass(frozen=True)
class Layout:
    """The function that plans an import, the fields of `NAMES` that it uses, and one that lists what is there."""

    plan: Callable[[Path, ImportOptions], dict[str, SitePlan]]
    uses: tuple[str, ...] = ()
    list_content: Callable[[Path], list[dict[str, str]]] | None = None

    def check(self, layout: str, options: ImportOptions) -> None:
        """Refuse an option that means nothing to the layout.

        Raises:
            ConfigError: Such an option is given.
        """
        for field, name in NAMES.items():
            if getattr(options, field) and field not in self.uses:
                raise ConfigError(f"Layout {layout!r} does not use {name}. Leave it out.")

    def describe(self) -> str:
        """Return what the files are, where to get them, and what SOURCE must hold: the text at the head of its file."""
        text = inspect.getdoc(sys.modules[self.plan.__module__]) or ""
        return text.replace("::\n", ":\n")
