"""What a simulation writes of each site's data to data.json: its size, and what should be looked at."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from silofl.base.errors import DataError
from silofl.base.schema import declare_optional, read_file
from silofl.data.manifest import Manifest, read_digest, read_manifest
from silofl.data.parts import Examples, Spacing
from silofl.data.site_data import SiteData
from silofl.reading.access import content_digest, read_states
from silofl.study import Study

FILE = "data.json"
# Of a median; nobody needs more of it.
DIGITS = 4


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
        spacing_mm: Of its training volumes as they are prepared, median along each axis; None where their files do not
            state it, or that was not recorded.
        doubts: What should be looked at, sentences of `silofl_hospital.site.input_warnings`.
        content: `digest_data`; None where that was not recorded.
    """

    training: PartCounts
    validation: PartCounts
    test: PartCounts
    digest: str | None
    labels_annotated: tuple[int, ...] | None = declare_optional()
    spacing_mm: tuple[float, float, float] | None = declare_optional()
    doubts: tuple[str, ...] = declare_optional(())
    content: str | None = declare_optional()

    FORMER_KEYS: ClassVar = ("contrasts_lacking", "population")

    @classmethod
    def of(cls, data: SiteData, doubts: Sequence[str] = ()) -> Self:
        """Count a site's data, and keep what is doubtful about them."""
        counts = [PartCounts.of(part) for part in (data.training, data.validation, data.test)]
        known, spacing = data.manifest, _median_spacing(data.training)
        if known is None:
            return cls(*counts, None, spacing_mm=spacing, doubts=tuple(doubts))
        return cls(*counts, known.digest, known.labels_annotated, spacing, tuple(doubts))


@dataclass(frozen=True)
class DataCounts:
    """The content of data.json.

    Attributes:
        sites: Site -> the size of its data, of the sites that train.
    """

    sites: Mapping[str, SiteCounts]


def digest_data(manifest: Manifest) -> str:
    """Return the SHA-256 of dataset.json and of all files that it names; a process reads a file once in each state.

    Raises:
        DataError: A file cannot be read.
    """
    digest = hashlib.sha256(manifest.digest.encode())
    for name, place in sorted(manifest.places.items()):
        digest.update(_digest_file(place, name, read_states(place, name)).encode())
    return digest.hexdigest()


def list_changed_sites(run: Path, data: Path, study: Study) -> list[str]:
    """Return the sites whose data are no longer those that a run has read; none where it has read none yet.

    Args:
        data: Folder that holds one data folder per site.

    Raises:
        DataError: A file cannot be read.
    """
    counts = read_file(DataCounts, run / FILE)
    known = {site: one for site, one in (counts.sites if counts else {}).items() if one.digest}
    return [site for site, one in known.items() if (data / site).is_dir() and _is_changed(one, data / site, study)]


def _is_changed(known: SiteCounts, folder: Path, study: Study) -> bool:
    if read_digest(folder) != known.digest:
        return True
    try:
        return known.content is not None and digest_data(read_manifest(folder, study)) != known.content
    except DataError as error:
        raise DataError(f"site {folder.name!r}: {error}") from None


@cache
def _digest_file(place: Path, name: str, states: tuple[tuple[str, int, int], ...]) -> str:
    return content_digest(place, name)


def _median_spacing(part: Examples) -> Spacing | None:
    known = [part.spacings[case] for case in dict.fromkeys(part.cases) if case in part.spacings]
    return tuple(float(f"{side:.{DIGITS}g}") for side in np.median(known, axis=0)) if known else None
