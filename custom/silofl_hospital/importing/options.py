"""The options of an import."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError, quote_value


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import.

    Attributes:
        seed: Seed of every random choice.
        test: Fraction of a site's patients for the test, in [0, 1).
        validation: Fraction of the others for the validation, in [0, 1).
        labels: Names of the labels in the order of their numbers.
        label_values: Number of each of them in the masks, from 1.
        spellings: What a table writes for a label -> the label.
        image_pattern: Where the images of a site's cases lie, or ``T1=PATTERN,T2=PATTERN``.
        mask_pattern: Where their masks lie.
        mask_threshold: The number from which on a mask is its one label.
        resample_masks: Whether masks of pictures may have another size than these.
        skip: Whether cases without an image or a mask are left out.
        voxel_size: Which counts where a NIfTI file states two, ``sform`` or ``pixdim``; None for neither.
        window: Samples of a window that is cut from a recording; None for the whole recording.
        rate: Samples in a second to which the channels of EDF are brought; None where they have one rate.
        arrangement: How each site's folder is arranged, ``bids`` or ``nnunet``; None for patterns of its own.
        scratch: A folder for what an import needs on its way, which is removed at its end.
    """

    seed: int = 0
    test: float = 0.2
    validation: float = 0.2
    labels: tuple[str, ...] | None = None
    label_values: tuple[int, ...] | None = None
    spellings: Mapping[str, str] = field(default_factory=dict)
    image_pattern: str | None = None
    mask_pattern: str | None = None
    mask_threshold: int | None = None
    resample_masks: bool = False
    skip: bool = False
    voxel_size: str | None = None
    window: int | None = None
    rate: int | None = None
    arrangement: str | None = None
    scratch: Path = Path()

    @classmethod
    def parse_labels(cls, parts: Sequence[str], is_table: bool) -> dict[str, Any]:
        """Return the options that the words of ``--labels`` are.

        Args:
            parts: Names alone, as organ; in masks also a number and a name, 1=organ; in a table also a name and another
                that the table writes for it, no=nein.
            is_table: Whether they are a table's.

        Raises:
            ConfigError: A number is missing or none.
        """
        pairs = [tuple(word.strip() for word in part.split("=", 1)) for part in parts]
        if not pairs:
            return {}
        if is_table:
            names = dict.fromkeys(pair[0] for pair in pairs)
            return {"labels": tuple(names), "spellings": {pair[1]: pair[0] for pair in pairs if len(pair) > 1}}
        if all(len(pair) == 1 for pair in pairs):
            return {"labels": tuple(pair[0] for pair in pairs)}
        if not all(len(pair) == 2 and re.fullmatch("[0-9]{1,9}", pair[0]) and pair[1] for pair in pairs):
            raise ConfigError(
                "labels must be names, as organ,lesion, or a value and a name for each label, as 1=organ,4=lesion, not "
                f"{quote_value(','.join(parts))}; correct them"
            )
        return {"labels": tuple(pair[1] for pair in pairs), "label_values": tuple(int(pair[0]) for pair in pairs)}

    def __post_init__(self) -> None:
        names = self.labels or ()
        values = self.label_values or ()
        if len({*names}) < len(names):
            raise ConfigError(f"Two of the labels {', '.join(names)} have one name. Rename one.")
        # 0 is the background in every mask.
        if values and (len({*values}) < len(names) or min(values) < 1):
            shown = ", ".join(map(str, values))
            raise ConfigError(f"labels must have different values from 1 on, not {shown}; correct them")
