"""The section `data` of a study.yaml: how image files become batches."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from silofl.base.errors import ConfigError, quote_value
from silofl.base.settings import Count, Finite, Fraction, NotNegative, Section, Whole
from silofl.core.modality import Modality

SplitUnit = Literal["patient", "recordings", "slices", "examples", "unknown"]
# More channels would fill the memory before anything could be said about it.
MOST_CHANNELS = 4096
Channels = Annotated[Whole, Field(gt=0, le=MOST_CHANNELS)]
# A command gives the files of a case as NAME=FILE,NAME=FILE, so that a name holds none of these signs.
CHANNEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9 _.+-]{0,31}$"
ChannelName = Annotated[str, Field(pattern=CHANNEL_NAME)]
# A larger side of a patch would fill the memory.
Side = Annotated[Whole, Field(ge=1, le=512)]
Neighbours = Annotated[Whole, Field(ge=0, le=8)]


def _refuse_ambiguous(value: object) -> object:
    # JSON, and so the study's digest, does not tell apart numbers that are none, nor keys of two types.
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("finite numbers")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("keys that are text")
        _refuse_ambiguous([*value.values()])
    if isinstance(value, list):
        for inner in value:
            _refuse_ambiguous(inner)
    return value


# These keys and values are those of a class of a library, which checks them itself.
Options = Annotated[dict[str, Any], AfterValidator(_refuse_ambiguous)]


class Transform(Section):
    """One transform that a study names, of MONAI as ``Resize: {spatial_size: [128, 128]}``, or of a package."""

    name: str
    options: Options = {}

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and len(value) == 1 and "name" not in value:
            ((name, options),) = value.items()
            return {"name": name, "options": options or {}}
        return value


class PatchSettings(Section):
    """The patches of volumes on which a network trains; it goes through whole volumes in windows of the same size.

    Attributes:
        size: Voxels along X, Y and Z, as ``[96, 96, 32]``; divisible as often as the network halves them.
        per_volume: Random patches of each training volume per epoch.
        foreground: Share of patches centred on a labelled voxel.
        overlap: Overlap of neighbouring windows in a whole volume, as a share of their side; a larger one is slower and
            smoother.
    """

    size: tuple[Side, Side, Side]
    per_volume: Count = 2
    foreground: Fraction = 0.5
    overlap: Annotated[NotNegative, Field(le=0.9)] = 0.25


class BackgroundSettings(Section):
    """Values for voxels where nothing was measured, before intensities are scaled.

    Attributes:
        below: Smaller values become this value, as -1024 in CT.
        nan: NaN becomes this value; else an image with NaN is refused.
    """

    below: Finite | None = None
    nan: Finite | None = None


class DataSettings(Section):
    """How a site's image files become batches.

    Attributes:
        dimensions: With 2 each slice of a volume is an example; with 3 the whole volume.
        patches: With ``dimensions`` 3, for label maps: the patches in which the network sees a volume. A classifier
            sees the whole of it instead; Resize or ResizeWithPadOrCrop then make all of one size.
        channels: Channels, 1 or 3 of a picture: grey is repeated, colour becomes luminance.
        channel_names: A name per channel, in the network's order, as ``[T1, T2]``; each is then scaled alone.
        resample: Whether a contrast is resampled to the grid of the case's first one.
        neighbours: Slices before and after each slice that become further channels.
        modality: DICOM's code (``DX`` is radiography, ``XC`` a camera); the super model refuses others. Default: that
            of the sites' images.
        intensity: ``dtype`` maps the file's integer range to [0, 1]; ``percentiles`` the case's 0.5 to 99.5 percentile;
            ``zscore`` gives each case mean 0 and deviation 1.
        background: ``{below: -1024}`` or ``{nan: 0}``, or both: what padding of the scanner becomes.
        volume_transforms: MONAI transforms of a whole volume before it is cut into slices, as ``Orientation: {axcodes:
            RAS}``.
        transforms: MONAI transforms of each image (with ``dimensions`` 3, each volume) and its label, done once, as
            ``Resize: {spatial_size: [128, 128]}``.
        augment: Random MONAI transforms of each training image or patch in every epoch, as ``RandRotate90: {prob: 0.75,
            max_k: 3}``.
        split_unit: What training, validation and test data of a site must not share; ``unknown`` if it does not know
            its patients.
    """

    dimensions: Literal[2, 3] = 2
    patches: PatchSettings | None = None
    channels: Channels = 1
    channel_names: tuple[ChannelName, ...] = ()
    resample: bool = False
    neighbours: Neighbours = 0
    modality: Modality | None = None
    intensity: Literal["dtype", "percentiles", "zscore", "raw"] = "dtype"
    background: BackgroundSettings = BackgroundSettings()
    volume_transforms: tuple[Transform, ...] = ()
    transforms: tuple[Transform, ...] = ()
    augment: tuple[Transform, ...] = ()
    split_unit: SplitUnit = "patient"

    @property
    def in_channels(self) -> int:
        """Channels of the network's input: for each offset from -neighbours to neighbours those of that slice."""
        return self.channels * (2 * self.neighbours + 1)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """(C, *spatial) of the prepared images, or of their patches; None where the files decide it."""
        if self.patches:
            return (self.in_channels, *self.patches.size)
        # The last resize decides.
        sizes = [step.options.get("spatial_size") for step in self.transforms if step.name.startswith("Resize")]
        return (self.in_channels, *sizes[-1]) if sizes and isinstance(sizes[-1], list | tuple) else None

    @property
    def shown(self) -> slice:
        """The channels that a picture shows, among those of the network's input: the slice itself, of contrasts one."""
        start = self.channels * self.neighbours
        return slice(start, start + (1 if self.channel_names else self.channels))

    @model_validator(mode="after")
    def _names_each_channel(self) -> DataSettings:
        names = self.channel_names
        if names and (len(names) != self.channels or len({*names}) < len(names)):
            raise ConfigError(
                f"data.channel_names must be data.channels, {self.channels}, different names, not "
                f"{quote_value([*names])}; set data.channels to their number, and name each once"
            )
        if self.resample and not names:
            raise ConfigError(
                "data.resample is for several contrasts in files of their own (channel_names); leave it out"
            )
        return self

    @model_validator(mode="after")
    def _cuts_what_it_has(self) -> DataSettings:
        if self.dimensions == 3 and self.neighbours:
            raise ConfigError(
                f"data.neighbours must be 0 with data.dimensions 3, whose volumes are not cut, not {self.neighbours}; "
                "remove it"
            )
        if self.dimensions == 2 and self.patches:
            raise ConfigError(
                "data.patches are cut from volumes, and data.dimensions 2 cuts slices; remove one of both"
            )
        return self

    @model_validator(mode="after")
    def _fits_into_memory(self) -> DataSettings:
        if self.in_channels > MOST_CHANNELS:
            raise ConfigError(
                f"data.channels must be at most {MOST_CHANNELS} together with those of the neighbours, not "
                f"{self.in_channels}; lower data.neighbours"
            )
        return self
