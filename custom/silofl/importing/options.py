"""The options of an import, and how a layout's defaults fill those that are not given."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silofl.base.errors import ConfigError

if TYPE_CHECKING:
    from silofl.importing.site_files import SitePlan

# Way to distribute the examples of a classification set over sites -> the options that it uses.
PARTITIONS: Mapping[str, tuple[str, ...]] = {
    "own": (),
    "dirichlet": ("num_sites", "alpha", "is_equal"),
    "shards": ("num_sites", "num_shards"),
    "patients": ("num_sites",),
    "recordings": ("num_sites",),
}
# Defaults of layouts: shares of patients, and how the examples of one set are dealt to sites.
FIFTHS: Mapping[str, object] = {"test": 0.2, "validation": 0.2}
DEALT: Mapping[str, object] = {
    "partition": "dirichlet",
    "num_sites": 20,
    "alpha": 0.1,
    "is_equal": False,
    "num_shards": 2,
    "test": 0.5,
    "validation": 0.0,
}
# Field of `ImportOptions` -> its name on the command line.
NAMES = {
    "partition": "partition",
    "num_sites": "sites",
    "alpha": "alpha",
    "is_equal": "equal-sizes",
    "num_shards": "shards",
    "test": "test",
    "validation": "validation",
    "label_values": "values in labels",
    "image_pattern": "image-pattern",
    "mask_pattern": "mask-pattern",
    "resample_masks": "resample-masks",
}


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import; None leaves the choice to the layout.

    Attributes:
        seed: Seed of every random choice.
        test: Fraction of a site's patients, recordings or examples for the test, in [0, 1).
        validation: Fraction of the others for the validation, in [0, 1).
        num_sites: Sites to make, except of a set's own; as many as patients if these are divided.
        alpha: Concentration of the Dirichlet split over those sites, above 0; small values differ more.
        is_equal: Whether that split gives all sites the same number of examples, as AdaFed's.
        labels: Names of the labels in the order of their numbers.
        label_values: Number of each of them in the masks, from 1.
        image_pattern: Where the images of a site's cases lie, or ``T1=PATTERN,T2=PATTERN``.
        mask_pattern: Where their masks lie.
        resample_masks: Whether masks on another grid are brought to that of their image, by the nearest voxel.
        is_truncated: Whether every site is cut to as many training examples as the smallest has.
        partition: A name in `PARTITIONS`: the set's ``own`` sites; examples divided by ``dirichlet`` or by ``shards``;
            or whole ``patients`` or ``recordings``, evenly.
        num_shards: Shards of each site, at least 1.
        scratch: A folder for what an import needs on its way, which is removed at its end.
    """

    seed: int = 0
    test: float | None = None
    validation: float | None = None
    num_sites: int | None = None
    alpha: float | None = None
    labels: tuple[str, ...] | None = None
    is_truncated: bool = False
    partition: str | None = None
    num_shards: int | None = None
    is_equal: bool | None = None
    label_values: tuple[int, ...] | None = None
    image_pattern: str | None = None
    mask_pattern: str | None = None
    resample_masks: bool | None = None
    scratch: Path = Path()

    def __post_init__(self) -> None:
        names, values = self.labels or (), self.label_values or ()
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"labels must have a name of its own each, not {name!r} twice; rename one")
        if values and (len({*values}) < len(names) or min(values) < 1):
            raise ConfigError(
                f"labels must have a value of its own each, from 1, because 0 is the background, not "
                f"{', '.join(map(str, values))}; correct them"
            )

    def filled(self, layout: str, defaults: Mapping[str, Any]) -> ImportOptions:
        """Return the options with a layout's values for those that are not given.

        Args:
            defaults: Field -> value, for all fields that the layout uses.

        Raises:
            ConfigError: A given option means nothing to the layout, or to the partition that is chosen.
        """
        given = {field for field in NAMES if getattr(self, field) is not None}
        _refuse_options(given - defaults.keys(), f"layout {layout!r}")
        partition = self.partition or defaults.get("partition")
        unused = set() if partition is None else _list_unused_options(partition)
        _refuse_options(given & unused, f"partition {partition!r}")
        kept = given | unused | ({"num_sites"} if partition == "patients" else set())
        return replace(self, **{field: value for field, value in defaults.items() if field not in kept})


def _list_unused_options(partition: str) -> set[str]:
    if partition not in PARTITIONS:
        raise ConfigError(f"partition must be one of {', '.join(PARTITIONS)}, not {partition!r}; choose another")
    return {field for fields in PARTITIONS.values() for field in fields} - set(PARTITIONS[partition])


def _refuse_options(fields: set[str], chosen: str) -> None:
    names = [name for field, name in NAMES.items() if field in fields]
    if names:
        raise ConfigError(f"{names[0]} must not be given with {chosen}, which does not use it; leave it out")


@dataclass(frozen=True)
class Listing:
    """What SOURCE holds, as a table, and what to do with it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    advice: str


@dataclass(frozen=True)
class Layout:
    """The function that plans an import, the defaults of the options that it uses, and one that lists what is there."""

    plan: Callable[[Path, ImportOptions], dict[str, SitePlan]]
    defaults: Mapping[str, object] = field(default_factory=dict)
    list_content: Callable[[Path], Listing] | None = None

    @property
    def description(self) -> str:
        """What the files are, where to get them, and what SOURCE must hold: the text at the head of its file."""
        text = inspect.getdoc(sys.modules[self.plan.__module__]) or ""
        return text.replace("::\n", ":\n")
