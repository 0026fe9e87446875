"""Prepared examples of a site: images and targets as arrays, with the case, slice and patient of each example."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.data.volumes import SLICES, Array, Volumes, central_slices
from silofl.study.data_settings import PatchSettings

T = TypeVar("T")
# The sides of a volume's voxels in mm, along its axes X, Y and Z.
Spacing = tuple[float, float, float]


@dataclass(frozen=True)
class Examples:
    """Training, validation or test examples of a site.

    Attributes:
        images: float32 (N, C, H, W), or (N, C, X, Y, Z) in 3D; `Volumes` where their sizes differ.
        targets: Label maps uint8 of the images' sizes for segmentation, classes int64 (N,) for classification.
        cases: The case that each example belongs to; the slices of a volume follow one another.
        slices: Each example's slice of its volume, from 0; None for a picture.
        patients: The patient that each example belongs to; None where nobody knows.
        annotated: The labels that the label maps show, where those are not all of the study's: what has another one is
            background in them.
        patches: How volumes are cut for a network; None where it sees whole images.
        spacings: Case -> the size of its voxels as they are prepared; without those whose files do not state it.
        has_ignored: Whether pixels of the label maps may be `silofl.data.targets.IGNORED`.
        digests: Case -> `silofl.data.leakage.digest_content` of its images; without those that show nobody.
    """

    images: Array
    targets: Array
    cases: tuple[str, ...]
    slices: tuple[int | None, ...]
    patients: tuple[str | None, ...]
    annotated: tuple[int, ...] | None = None
    patches: PatchSettings | None = None
    spacings: Mapping[str, Spacing] = field(default_factory=dict)
    has_ignored: bool = False
    digests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, *spatial) of what a network sees: an image, or a patch of a volume."""
        # Volumes of several sizes have no shape in common; their patches have.
        if self.patches:
            return (self.images[0].shape[0], *self.patches.size)
        return np.asarray(self.images).shape[1:]

    @property
    def has_volumes(self) -> bool:
        """Whether an example is a whole volume."""
        return isinstance(self.images, Volumes) or self.images.ndim == 5

    @property
    def num_patients(self) -> int:
        """The number of different patients; those whom nobody knows count as none."""
        return len({*self.patients} - {None})

    @property
    def patient_of(self) -> dict[str, str | None]:
        """Case -> its patient."""
        return dict(zip(self.cases, self.patients, strict=True))

    def patients_of(self, cases: Collection[str]) -> int | None:
        """Return the number of different patients of some cases; None where nobody knows one of them."""
        patient_of = self.patient_of
        patients = {patient_of[case] for case in {*cases} & patient_of.keys()}
        return None if None in patients else len(patients)

    def select_rows(self, rows: Sequence[int]) -> Examples:
        """Return the examples of the given rows, in that order."""
        return replace(
            self,
            images=self.images[rows],
            targets=self.targets[rows],
            cases=_select(self.cases, rows),
            slices=_select(self.slices, rows),
            patients=_select(self.patients, rows),
        )


def _select(values: tuple[T, ...], rows: Sequence[int] | np.ndarray) -> tuple[T, ...]:
    return tuple(values[row] for row in rows)


def take_central_slices(part: Examples) -> Examples:
    """Return central slices of a part's volumes, each with its volume's class, or 0 where that is a label map.

    They are as many of each volume as an epoch has patches of it, or one of a volume that is seen as a whole: from the
    middle one on, and again from there.
    """
    per_volume = part.patches.per_volume if part.patches else 1
    slices = (SLICES // 2 + np.arange(per_volume)) % SLICES
    rows = np.repeat(np.arange(len(part)), per_volume)
    classes = np.zeros(len(part), np.int64) if part.targets.ndim > 1 else np.asarray(part.targets)
    return Examples(
        images=np.concatenate([central_slices(image)[slices] for image in part.images]),
        targets=classes[rows],
        cases=_select(part.cases, rows),
        slices=_select(part.slices, rows),
        patients=_select(part.patients, rows),
    )


@dataclass(frozen=True)
class PreparedCase:
    """One case as it is written to the cache: images (n, C, *spatial), targets (n, *spatial) or (n,), n slice numbers.

    Of a picture n is 1, of a volume the number of its slices, or 1 where it is not cut. `spacing` is that of the
    prepared volume; None of a picture, and where the file does not state it. `digests` are those of
    `silofl.data.leakage.digest_content`, by file.
    """

    case: str
    patient: str | None
    images: NDArray[np.float32]
    targets: np.ndarray
    slices: tuple[int | None, ...]
    spacing: Spacing | None = None
    digests: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def has_own_size(self) -> bool:
        """Whether it is a volume with its label map, which no other case need be as large as."""
        return self.targets.ndim == 4
