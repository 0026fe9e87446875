"""The images that models learn from: their form and size of voxels in the files, and intensities as networks see them.

A model answers any image; whether its answer means something depends on whether it has learnt from such images. The
measures are few and coarse: an image within all of them may still show something that no site has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError
from silofl.base.schema import declare_optional
from silofl.core.modality import Modality, PetUnit
from silofl.core.spread import count_digits_apart
from silofl.data.contrasts import ImageFiles
from silofl.data.targets import find_labelled
from silofl.reading.dicom_codes import read_codes
from silofl.reading.header import MOST_MM, Header, check_pet_units, read_header, read_pet_unit
from silofl.reading.image import SPACING_MM, Image, check_affine

Kind = Literal["pictures", "volumes", "windows"]
Colour = Literal["grey", "colour"]
Measure = Literal["mean", "contrast", "roughness"]
# So many deviations on either side of the training images' mean hold all of a bell curve but one in ten thousand.
DEVIATIONS = 4
# A range is at least this share of the images' contrast wide, on either side.
LEAST_MARGIN = 0.01
DIGITS = 3
# Protocols state voxels' sizes in two digits.
SIZE_DIGITS = 2
# The range of sizes goes so many deviations of their logarithms to either side of the mean.
VOXEL_DEVIATIONS = 2
# Voxels of up to so many times the training images' sizes, either way, give no warning.
ROOM = 2
Sides = tuple[float, float, float]
T = TypeVar("T", bound=str)


@dataclass(frozen=True)
class Form:
    """The form of one image in its file.

    Attributes:
        kind: What it is.
        colour: Whether its channels differ; None where they are no colours.
        axes: The directions that a volume's voxel axes run to, as ``LPS`` (left, back, head); None where unknown.
        header: What its first file states.
        voxel_mm: The sides of a volume's voxels in mm, the shortest first; None where unknown.
        modalities: Those that its files state; one for each contrast with a file of its own.
        units: What the numbers of PET count.
        codes: What else its first file states in DICOM's codes.
    """

    kind: Kind
    colour: Colour | None = None
    axes: str | None = None
    header: Header = Header()
    voxel_mm: Sides | None = None
    modalities: tuple[Modality, ...] = ()
    codes: Mapping[str, str] = field(default_factory=dict)
    units: tuple[PetUnit, ...] = ()


@dataclass(frozen=True)
class Range:
    """The values that a measure has in training images.

    Attributes:
        measure: Which of `measure_images`.
        low: The least.
        high: The largest.

    Raises:
        ConfigError: They are no finite range.
    """

    measure: Measure
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ConfigError(f"{self.measure} must be a finite range, not {self.low} to {self.high}")

    def __or__(self, other: Range) -> Range:
        """Return the range of both."""
        return Range(self.measure, min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class VoxelSizes:
    """The sides of the voxels of training volumes, in mm: of each voxel the shortest, the middle and the longest.

    Attributes:
        least: The least that is usual of each.
        most: The largest.

    Raises:
        ConfigError: They are no sizes of voxels.
    """

    least: Sides
    most: Sides

    def __post_init__(self) -> None:
        """Refuse what is no size of a voxel."""
        low, high = SPACING_MM
        for small, large in zip(self.least, self.most, strict=True):
            # Of NaN every comparison is false.
            if not low <= small <= large <= high:
                raise ConfigError(f"voxels must be of {low:g} to {high:g} mm, least before most, not {self}")

    def __or__(self, other: VoxelSizes) -> VoxelSizes:
        """Return the sizes of both."""
        return VoxelSizes(_to_sides(map(min, self.least, other.least)), _to_sides(map(max, self.most, other.most)))

    def __str__(self) -> str:
        """Return the sizes in mm, for people."""
        least = "{:g} x {:g} x {:g}".format(*self.least)
        most = "{:g} x {:g} x {:g}".format(*self.most)
        return f"{least} mm" if least == most else f"{least} to {most} mm"

    def reaches(self, other: VoxelSizes, times: float) -> bool:
        """Return whether every side of other voxels lies within so many times these, either way."""
        is_large = all(low <= times * side for low, side in zip(self.least, other.least, strict=True))
        return is_large and all(side <= times * high for high, side in zip(self.most, other.most, strict=True))


@dataclass(frozen=True)
class DataProfile:
    """The images that models learn from; what is empty is not known.

    Attributes:
        kinds: Kinds of the images.
        colours: Whether they are grey or in colour.
        modalities: DICOM's codes.
        axes: The directions that the volumes' voxel axes run to, as they are stored.
        intensities: The values of their measures, after their preparation.
        voxels: The sizes of the volumes' voxels in their files.
        units: What the numbers of PET count.
        labelled: The share of labelled pixels, in [0, 1]; known of one hospital alone, and of none together.

    Raises:
        ConfigError: Axes are no directions, or the share is none.
    """

    kinds: tuple[Kind, ...] = declare_optional(())
    colours: tuple[Colour, ...] = declare_optional(())
    modalities: tuple[Modality, ...] = declare_optional(())
    axes: tuple[str, ...] = declare_optional(())
    intensities: tuple[Range, ...] = declare_optional(())
    voxels: VoxelSizes | None = declare_optional()
    units: tuple[PetUnit, ...] = declare_optional(())
    labelled: float | None = declare_optional()
    # Former versions told modalities by contrast.
    FORMER_KEYS: ClassVar = ("contrasts",)

    def __post_init__(self) -> None:
        """Refuse axes that are no directions, and what is no share."""
        if self.labelled is not None and not 0 <= self.labelled <= 1:
            raise ConfigError(f"labelled must be a share from 0 to 1, not {self.labelled}")
        for name in self.axes:
            if not re.fullmatch("[LRAPSI]{3}", name):
                raise ConfigError(f"axes must be three letters as 'LPS', not {name!r}")

    def __or__(self, other: DataProfile) -> DataProfile:
        """Return the images of both."""
        forms: dict[str, Any] = {name: _sort_unique([*getattr(self, name), *getattr(other, name)]) for name in FORMS}
        ranges: dict[str, Range] = {}
        for measured in (*self.intensities, *other.intensities):
            ranges[measured.measure] = ranges.get(measured.measure, measured) | measured
        voxels = self.voxels | other.voxels if self.voxels and other.voxels else self.voxels or other.voxels
        return DataProfile(**forms, intensities=tuple(ranges.values()), voxels=voxels)

    @property
    def bare(self) -> DataProfile:
        """What is left where no numbers may leave that come from few images, or from a site that nobody is like."""
        return replace(self, intensities=(), voxels=None, labelled=None)

    @property
    def sentence(self) -> str:
        """The form of the images, for people."""
        values = [" or ".join(getattr(self, name)) for name in FORMS]
        return ", ".join(filter(None, values)) or UNKNOWN

    def check(self, form: Form, name: str) -> None:
        """Refuse an image of another kind than the training images, or with voxels that no scanner has.

        Raises:
            DataError: Kind, colour or a modality is none of theirs, or a side of a voxel is longer than `MOST_MM`.
        """
        if form.voxel_mm is not None and max(form.voxel_mm) > MOST_MM:
            raise DataError(
                f"{name} has voxels of {VoxelSizes(form.voxel_mm, form.voxel_mm)}, and no scanner's exceed {MOST_MM:g} "
                "mm; correct its header, which may count in micrometres"
            )
        odd = {}
        values_of: dict[str, Sequence[str | None]] = {"kinds": [form.kind], "colours": [form.colour]}
        values_of |= {"modalities": form.modalities, "units": form.units}
        for key, values in values_of.items():
            for value in values:
                # What a file does not state differs from nothing.
                if value is not None and self._is_outside(key, value):
                    odd[key] = value
        if odd:
            trained = ", ".join(" or ".join(getattr(self, key)) for key in odd)
            raise DataError(
                f"{name} is unlike the training images: {', '.join(odd.values())}, where they are {trained}; take a "
                "super model that learnt from such images"
            )

    def _is_outside(self, key: str, value: str) -> bool:
        # Nothing is unlike what is not known of the training images.
        trained = getattr(self, key)
        return bool(trained) and value not in trained

    def image_warnings(self, images: NDArray[np.float32], form: Form | None, is_turned: bool) -> list[str]:
        """Return how an image differs from the training images, as sentences for people.

        Args:
            images: The case, (n, C, *spatial), prepared.
            form: Its form in the file; None of an array.
            is_turned: Whether the preparation turns all volumes the same way.
        """
        if self == DataProfile():
            return ["the super model does not say what images it learnt from; this one was compared with none"]
        image_warnings = []
        unlike = [] if form is None else self._compare_grid(form, is_turned)
        if unlike:
            image_warnings.append(f"it is unlike the training images: {'; '.join(unlike)}")
        values = measure_images(images)
        for trained in self.intensities:
            value = float(values[trained.measure].mean())
            if not trained.low <= value <= trained.high:
                bound = trained.low if value < trained.low else trained.high
                # With too few digits the value would read as the bound that it misses.
                digits = count_digits_apart(value, bound, DIGITS)
                image_warnings.append(
                    f"its intensities are unlike the training images': {trained.measure} {value:.{digits}g} after the "
                    f"preparation, theirs {trained.low:g} to {trained.high:g}"
                )
        return image_warnings

    def _compare_grid(self, form: Form, is_turned: bool) -> list[str]:
        """Return how the grid of an image in its file differs from the training images'."""
        unlike = []
        if form.axes and not is_turned and self._is_outside("axes", form.axes):
            unlike.append(f"its axes run {form.axes}, theirs {' or '.join(self.axes)}")
        if form.voxel_mm is not None and self.voxels is not None:
            sizes = VoxelSizes(form.voxel_mm, form.voxel_mm)
            if not self.voxels.reaches(sizes, ROOM):
                unlike.append(f"its voxels measure {sizes}, theirs {self.voxels}")
        return unlike


UNKNOWN = "images that nothing is known of"
FORMS = ("kinds", "colours", "modalities", "units", "axes")


def read_form(source: ImageFiles, image: Image) -> Form:
    """Return the form of an image that was read from files; what has one value for all is its first file's.

    Raises:
        DataError: Its grid is none.
    """
    path, name = source.first
    if image.affine is not None:
        check_affine(image.affine, name)
    header = read_header(path)
    sides = None
    if image.affine is not None and header.has_spacing:
        # They are sorted because how a volume was turned when it was stored changes no voxel.
        sides = _to_sides(sorted(np.linalg.norm(image.affine[:3, :3], axis=0).tolist()))
    return Form(
        kind=image_kind(image),
        colour=_colour(image),
        axes=None if image.affine is None or not header.has_orientation else _axes(image.affine),
        header=header,
        voxel_mm=sides,
        # Each contrast may be a file of its own, with a modality of its own.
        modalities=_sort_unique(read_header(file).modality for file, _ in filter(None, source.files)),
        units=_sort_unique(read_pet_unit(file) for file, _ in filter(None, source.files)),
        codes=read_codes(path),
    )


def image_kind(image: Image) -> Kind:
    """Return what an image is."""
    if image.is_window:
        return "windows"
    return "volumes" if image.array.ndim == 4 else "pictures"


def measure_data_profile(
    forms: Iterable[Form], images: Iterable[NDArray[np.float32]], label_maps: Iterable[NDArray[np.integer]] = ()
) -> DataProfile:
    """Return the data profile of training images.

    A range of intensities is the mean of a measure over the images, four deviations to either side and a little more,
    with three digits: no image's own value is in it. So are the sizes of voxels, by two deviations of their logarithms,
    with two digits.

    Args:
        forms: Of some of the images.
        images: Some of the images, each (C, *spatial), prepared.
        label_maps: Those of some of the images, each (*spatial); none where cases have classes.

    Raises:
        DataError: PET counts in several units, which no one network may learn from.
    """
    forms = list(forms)
    units: tuple[PetUnit, ...] = _sort_unique(chain.from_iterable(form.units for form in forms))
    check_pet_units(units)
    shares = [float(find_labelled(label_map).mean()) for label_map in label_maps]
    values: dict[Measure, list[NDArray[np.float64]]] = {}
    # Images may have different sizes, so that each is measured for itself.
    for image in images:
        for measure, value in measure_images(image[None]).items():
            values.setdefault(measure, []).append(value)
    arrays = {measure: np.concatenate(measured) for measure, measured in values.items()}
    return DataProfile(
        kinds=_sort_unique(form.kind for form in forms),
        colours=_sort_unique(form.colour for form in forms),
        modalities=_sort_unique(chain.from_iterable(form.modalities for form in forms)),
        units=units,
        axes=_sort_unique(form.axes for form in forms),
        intensities=tuple(_range(measure, arrays) for measure in arrays),
        voxels=_join_voxels([form.voxel_mm for form in forms if form.voxel_mm is not None]),
        labelled=float(f"{np.mean(shares):.{SIZE_DIGITS}g}") if shares else None,
    )


def measure_images(images: NDArray[np.float32]) -> dict[Measure, NDArray[np.float64]]:
    """Return the measures of each image (n,): the mean, the deviation, and how much neighbours differ.

    Roughness is the mean squared difference of neighbours along a row by twice the variance (von Neumann's ratio): near
    0 in smooth images, 1 in noise, 0 where all is one value. A channel of zeros counts in none of them.

    Args:
        images: (n, C, *spatial), prepared.
    """
    measures = [_measure_image(np.asarray(image, dtype=np.float64)) for image in images]
    # Without any image there are three empty arrays.
    mean, contrast, roughness = np.array(measures).reshape(-1, 3).T
    return {"mean": mean, "contrast": contrast, "roughness": roughness}


def _measure_image(image: NDArray[np.float64]) -> tuple[float, float, float]:
    # Zeros stand for a contrast that is not there: they say nothing of the others.
    is_there = image.any(axis=tuple(range(1, image.ndim)))
    pixels = image[is_there] if is_there.any() else image
    variance = pixels.var()
    roughness = 0.0
    if variance > 0 and pixels.shape[-1] > 1:
        roughness = np.square(np.diff(pixels, axis=-1)).mean() / (2 * variance)
    return pixels.mean(), np.sqrt(variance), roughness


def _axes(affine: NDArray[np.float64]) -> str:
    # It is imported here because pictures and windows need no nibabel.
    from nibabel.orientations import aff2axcodes

    return "".join(aff2axcodes(affine))  # type: ignore[no-untyped-call]


def _join_voxels(sides: Sequence[Sides]) -> VoxelSizes | None:
    if not sides:
        return None
    # Of logarithms, since a voxel of 2 mm is as far from 1 mm as one of 0.5 mm.
    logs = np.log(sides)
    middle = logs.mean(axis=0)
    margin = VOXEL_DEVIATIONS * logs.std(axis=0)
    return VoxelSizes(least=_round_sides(middle - margin), most=_round_sides(middle + margin))


def _round_sides(logs: NDArray[np.float64]) -> Sides:
    return _to_sides(float(f"{side:.{SIZE_DIGITS}g}") for side in np.exp(logs).clip(*SPACING_MM))


def _to_sides(lengths: Iterable[float]) -> Sides:
    x, y, z = lengths
    return x, y, z


def _range(measure: Measure, values: Mapping[Measure, NDArray[np.float64]]) -> Range:
    # Where a preparation brings all images to one mean and one deviation, the margin must be more than rounding.
    least = LEAST_MARGIN * (1 if measure == "roughness" else values["contrast"].mean())
    mean = values[measure].mean()
    margin = DEVIATIONS * values[measure].std() + least
    return Range(measure, low=float(f"{mean - margin:.{DIGITS}g}"), high=float(f"{mean + margin:.{DIGITS}g}"))


def _sort_unique(values: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(sorted({value for value in values if value is not None}))


def _colour(image: Image) -> Colour | None:
    if image.is_window or image.has_contrasts or len(image.array) not in (1, 3, 4):
        return None
    # A fourth channel is alpha, which says nothing of colour.
    red = image.array[0]
    return "grey" if all(np.array_equal(red, channel) for channel in image.array[1:3]) else "colour"
