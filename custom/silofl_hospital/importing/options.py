"""The options of an import."""

from dataclasses import dataclass
from pathlib import Path

from silofl.base.errors import ConfigError


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
