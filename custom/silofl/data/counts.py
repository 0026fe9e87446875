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
# Nobody needs more digits of a median.
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
    """The size of one site's data, and what to look at in them.

    Attributes:
        training: Of the cases to learn from.
        validation: Of the cases to choose a model by.
        test: Of the cases to measure on.
        digest: SHA-256 of its dataset.json.
        labels_annotated: Numbers of the labels that its label maps show; None where that was not recorded.
        spacing_mm: Of its training volumes as they are prepared, median along each axis; None where their files do not
            state it, or that was not recorded.
        warnings: What should be looked at, sentences of `silofl_hospital.site.input_warnings`.
        content: `digest_data`; None where that was not recorded.
    """

    training: PartCounts
    validation: PartCounts
    test: PartCounts
    digest: str | None
    labels_annotated: tuple[int, ...] | None = declare_optional()
    spacing_mm: tuple[float, float, float] | None = declare_optional()
    warnings: tuple[str, ...] = declare_optional(())
    content: str | None = declare_optional()

    RENAMED_KEYS: ClassVar = {"doubts": "warnings"}
    FORMER_KEYS: ClassVar = ("contrasts_lacking", "population")

    @classmethod
    def of(cls, data: SiteData, warnings: Sequence[str] = ()) -> Self:
        """Count a site's data, and keep what to look at in them."""
        return cls(
            training=PartCounts.of(data.training),
            validation=PartCounts.of(data.validation),
            test=PartCounts.of(data.test),
            digest=None if data.manifest is None else data.manifest.digest,
            labels_annotated=None if data.manifest is None else data.manifest.labels_annotated,
            spacing_mm=_median_spacing(data.training),
            warnings=tuple(warnings),
        )


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
    # The order is that of the names: what a dataset.json lists first does not matter.
    for name, path in sorted(manifest.places.items()):
        digest.update(_digest_file(path, name, read_states(path, name)).encode())
    return digest.hexdigest()


def list_changed_sites(run: Path, data: Path, study: Study) -> list[str]:
    """Return the sites whose data are no longer those that a run has read; none where it has read none yet.

    Args:
        data: Folder that holds one data folder per site.

    Raises:
        DataError: A file cannot be read.
    """
    recorded = read_file(DataCounts, run / FILE) or DataCounts({})
    changed = []
    for site, counts in recorded.sites.items():
        # A site without a digest has read no dataset.json that could have changed.
        if counts.digest and (data / site).is_dir() and _is_changed(counts, data / site, study):
            changed.append(site)
    return changed


def _is_changed(counts: SiteCounts, folder: Path, study: Study) -> bool:
    if read_digest(folder) != counts.digest:
        return True
    try:
        return counts.content is not None and digest_data(read_manifest(folder, study)) != counts.content
    except DataError as error:
        raise DataError(f"site {folder.name!r}: {error}") from None


# The states are part of the key, so that a file is read again once it has changed.
@cache
def _digest_file(path: Path, name: str, states: tuple[tuple[str, int, int], ...]) -> str:
    return content_digest(path, name)


def _median_spacing(part: Examples) -> Spacing | None:
    spacings = [part.spacings[case] for case in dict.fromkeys(part.cases) if case in part.spacings]
    if not spacings:
        return None
    x, y, z = (float(f"{side:.{DIGITS}g}") for side in np.median(spacings, axis=0))
    return x, y, z
