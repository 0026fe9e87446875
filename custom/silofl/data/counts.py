"""What a simulation writes of each site's data to data.json: its size, and what should be looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from silofl.data.parts import Examples
from silofl.data.site_data import SiteData
from silofl.schema import declare_optional

FILE = "data.json"


@dataclass(frozen=True)
class PartCounts:
    """The size of training, validation or test data.

    Attributes:
        cases: Number of cases.
        patients: Number of patients; null where those of some cases are not known.
        examples: Number of 2D images: pictures, or slices of volumes.
    """

    cases: int
    patients: int | None
    examples: int

    @classmethod
    def of(cls, part: Examples) -> Self:
        """Count a part."""
        patients = None if None in part.patients else part.num_patients
        return cls(len(set(part.cases)), patients, len(part))


@dataclass(frozen=True)
class SiteCounts:
    """The size of one site's data, and what is doubtful about them.

    Attributes:
        training: Of the cases to learn from.
        validation: Of the cases to choose a model by.
        test: Of the cases to measure on.
        digest: SHA-256 of its dataset.json.
        labels_annotated: Numbers of the labels that its label maps show; None where that was not recorded.
        doubts: What should be looked at, sentences of `silofl.data.doubts`.
    """

    training: PartCounts
    validation: PartCounts
    test: PartCounts
    digest: str | None
    labels_annotated: tuple[int, ...] | None = declare_optional()
    doubts: tuple[str, ...] = declare_optional(())

    @classmethod
    def of(cls, data: SiteData, doubts: Sequence[str] = ()) -> Self:
        """Count a site's data, and keep what is doubtful about them."""
        digest, annotated = (data.manifest.digest, data.manifest.labels_annotated) if data.manifest else (None, None)
        return cls(*map(PartCounts.of, (data.training, data.validation, data.test)), digest, annotated, tuple(doubts))


@dataclass(frozen=True)
class DataCounts:
    """The content of data.json.

    Attributes:
        sites: Site -> the size of its data, of the sites that train.
    """

    sites: Mapping[str, SiteCounts]
