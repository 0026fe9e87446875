"""The options of an import, and what a layout uses of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from silofl.base.errors import ConfigError

if TYPE_CHECKING:
    from silofl_hospital.importing.site_files import SitePlan

# Field of `ImportOptions` that not every layout uses -> its name on the command line.
NAMES = {
    "label_values": "values in labels",
    "image_pattern": "image-pattern",
    "mask_pattern": "mask-pattern",
    "arrangement": "layout",
}


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import.

    Attributes:
        seed: Seed of every random choice.
        test: Fraction of a site's patients for the test, in [0, 1).
        validation: Fraction of the others for the validation, in [0, 1).
        labels: Names of the labels in the order of their numbers.
        label_values: Number of each of them in the masks, from 1.
        image_pattern: Where the images of a site's cases lie, or ``T1=PATTERN,T2=PATTERN``.
        mask_pattern: Where their masks lie.
        arrangement: How each site's folder is arranged, ``bids`` or ``nnunet``; None for patterns of its own.
        scratch: A folder for what an import needs on its way, which is removed at its end.
    """

    seed: int = 0
    test: float = 0.2
    validation: float = 0.2
    labels: tuple[str, ...] | None = None
    label_values: tuple[int, ...] | None = None
    image_pattern: str | None = None
    mask_pattern: str | None = None
    arrangement: str | None = None
    scratch: Path = Path()

    def __post_init__(self) -> None:
        names = self.labels or ()
        values = self.label_values or ()
        if len({*names}) < len(names):
            raise ConfigError(f"Two of the labels {', '.join(names)} have one name. Rename one.")
        # 0 is the background in every mask.
        if values and (len({*values}) < len(names) or min(values) < 1):
            shown = ", ".join(map(str, values))
            raise ConfigError(f"labels must have different values from 1 on, not {shown}; correct them")


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
