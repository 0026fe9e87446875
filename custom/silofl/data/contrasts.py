"""Contrasts of one case, as T1 and T2 of a patient: files of their own, or channels of one, joined to one image."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from silofl.base.errors import ConfigError, DataError, quote_value
from silofl.reading.access import input_name
from silofl.reading.header import read_dicom_element, read_header
from silofl.reading.image import Image, check_affine, check_grid, is_identity, is_same_grid, overlaps
from silofl.reading.images import read_image
from silofl.study.data_settings import CHANNEL_NAME, DataSettings


@dataclass(frozen=True)
class ImageFiles:
    """The files of one image.

    Attributes:
        files: Path, and name in messages, of the one file; or of one for each of `channels`, None where there is none.
        channels: The contrasts that the files hold, in their order; none where the study names none.
        index: Which image of an npz file.
    """

    files: tuple[tuple[Path, str] | None, ...]
    channels: tuple[str, ...] = ()
    index: int | None = None

    @property
    def first(self) -> tuple[Path, str]:
        """Path and name of the first file that is there."""
        return next(file for file in self.files if file is not None)

    @property
    def has_own_files(self) -> bool:
        """Whether each contrast has a file of its own, and one file does not hold all."""
        return len(self.files) > 1

    @property
    def contrasts(self) -> tuple[str, ...]:
        """The contrasts that are there."""
        # One file for several channels holds all of them.
        if len(self.files) != len(self.channels):
            return self.channels
        return tuple(name for name, file in zip(self.channels, self.files, strict=True) if file is not None)


def check_contrasts(names: Sequence[str], where: str) -> None:
    """Refuse names of contrasts that no study can have.

    Args:
        where: What messages call their place.

    Raises:
        ConfigError: Two are the same, or one holds another sign than letters, digits, spaces, '.', '_', '+' and '-'.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where} gives two contrasts the name {quote_value(name)}; rename one")
        if not re.fullmatch(CHANNEL_NAME, name):
            raise ConfigError(
                f"{where} has the contrast {quote_value(name)}; use a name of at most 32 letters, digits, spaces, '.', "
                "'_', '+' and '-'"
            )


# An image that is no record of a dataset.json.
Case = Path | Mapping[str, Path]


def build_source(case: Case, settings: DataSettings) -> ImageFiles:
    """Return the files of an image that no dataset.json lists.

    Args:
        case: The file or DICOM folder, with all channels in the study's order; or a file for each contrast, by name.

    Raises:
        DataError: A contrast is none of the study's, or there is no file.
    """
    if isinstance(case, Path):
        return ImageFiles(((case, input_name(case)),), settings.channel_names)
    unknown = [contrast for contrast in case if contrast not in settings.channel_names]
    if unknown or not case:
        listed = ", ".join(settings.channel_names) or "none: give FILE alone"
        raise DataError(f"contrasts must be among the study's, which are {listed}, not {', '.join(unknown) or 'none'}")
    return ImageFiles(tuple((path, input_name(path)) for path in case.values()), tuple(case))


def list_missing_contrasts(names: Iterable[str], sources: Iterable[ImageFiles]) -> list[str]:
    """Return which contrasts, of those of a study, some image lacks."""
    names = list(names)
    # Without any image nothing is missing.
    in_all = set(names).intersection(*[source.contrasts for source in sources])
    return [name for name in names if name not in in_all]


def parse_case(text: str) -> Case:
    """Return the case that a command names: ``FILE``, or ``T1=FILE,T2=FILE`` for contrasts in files of their own.

    Raises:
        ConfigError: Only some of several parts have a name, two have the same, or a file has none.
    """
    parts = [part.partition("=") for part in text.split(",")]
    # The name of a file may hold both signs, so that a path that exists is taken as it is.
    if text.strip() and ("=" not in text or Path(text).exists()):
        return Path(text)
    case = {name.strip(): Path(path) for name, _, path in parts}
    # An empty path would be the folder that the command runs in.
    if len(case) < len(parts) or not all(path.strip() for _, _, path in parts):
        raise ConfigError(f"input {text!r} is neither FILE nor NAME=FILE,NAME=FILE with a name for each contrast")
    return case


def list_case_files(case: Case) -> list[Path]:
    """Return the files of a case; messages and results call it by the first one's name."""
    return [case] if isinstance(case, Path) else list(case.values())


def read_source(source: ImageFiles, settings: DataSettings) -> Image:
    """Read an image; where the study names its channels they come in the study's order, zeros for those not there.

    Raises:
        DataError: A file cannot be read or holds another number of channels than it must, or two lie on different grids
            and the study resamples none, or DICOM files name different patients.
    """
    return join_contrasts(read_images(source, settings), source, settings)


def read_images(source: ImageFiles, settings: DataSettings) -> list[Image | None]:
    """Read each file of an image, None where there is none.

    Raises:
        DataError: A file cannot be read.
    """
    return [None if file is None else read_image(*file, source.index, settings.background) for file in source.files]


def join_contrasts(images: Sequence[Image | None], source: ImageFiles, settings: DataSettings) -> Image:
    """Return what `read_images` has read of a source as one image; as `read_source`."""
    _check_files(source)
    if not settings.channel_names:
        (image,) = filter(None, images)
        if image.has_contrasts:
            count = len(image.array)
            raise DataError(
                f"{source.first[1]} holds {count} time points or contrasts, and the study names none; save one of "
                f"them, or name {count} contrasts in channel_names of dataset.json and of the study's data"
            )
        return image
    channels = _align_contrasts(images, source, settings.resample)
    first_image = next(iter(channels.values()))
    blank = np.zeros_like(first_image.array)
    maxima = {image.dtype_max for image in channels.values()}
    return replace(
        first_image,
        array=np.concatenate([channels[name].array if name in channels else blank for name in settings.channel_names]),
        # Files of several types have no largest value in common.
        dtype_max=maxima.pop() if len(maxima) == 1 else None,
        has_contrasts=True,
        is_resampled=any(image.is_resampled for image in channels.values()),
    )


def _align_contrasts(images: Sequence[Image | None], source: ImageFiles, is_resampled: bool) -> dict[str, Image]:
    """Return the contrasts that are there by name, all on the grid of the first."""
    if len(images) == 1 != len(source.channels):
        # One file holds all contrasts as its channels.
        (whole,) = filter(None, images)
        _check_channels(whole, source.channels, source.first[1])
        return {channel: replace(whole, array=whole.array[[i]]) for i, channel in enumerate(source.channels)}
    aligned: dict[str, Image] = {}
    target: Image | None = None
    for channel, image, file in zip(source.channels, images, source.files, strict=True):
        if image is None or file is None:
            continue
        _check_channels(image, [channel], file[1])
        target = target or image
        aligned[channel] = _resample_to_grid(image, target, file, source.first) if is_resampled else image
        check_grid(aligned[channel], target, file[1], source.first[1], ", or train with data.resample: true")
    return aligned


def _check_files(source: ImageFiles) -> None:
    files = [file for file in source.files if file is not None]
    # The reader of one file has looked at the patients in it.
    if len(files) == 1:
        return
    listed = " and ".join(name for _, name in files)
    if len({os.path.realpath(path) for path, _ in files}) < len(files):
        raise DataError(f"one file is given for two contrasts, among {listed}; leave out a contrast that is not there")
    patients = {read_dicom_element(path, "PatientID") for path, _ in files} - {None}
    if len(patients) > 1:
        raise DataError(f"{listed} are of {len(patients)} patients; give the files of one")


def _check_channels(image: Image, wanted: Sequence[str], name: str) -> None:
    if len(image.array) != len(wanted):
        raise DataError(
            f"the number of channels in {name} is {len(image.array)}, and that of its contrasts {len(wanted)} "
            f"({', '.join(wanted)}); save it with these, or say which contrast each file holds: {wanted[0]}=FILE for "
            "predict, channel_names in dataset.json"
        )


def _resample_to_grid(image: Image, target: Image, file: tuple[Path, str], target_file: tuple[Path, str]) -> Image:
    """Return a volume resampled to the grid of the first contrast, where it lies on another one."""
    if image.affine is None or target.affine is None:
        return image
    if image.spatial_shape == target.spatial_shape and is_same_grid(image, target):
        return image
    # A header that states nothing would be resampled by a grid that a reader has made up.
    for volume, affine, (path, name) in ((image, image.affine, file), (target, target.affine, target_file)):
        check_affine(affine, name)
        header = read_header(path)
        if is_identity(volume) or not (header.has_spacing and header.has_orientation and header.has_place):
            raise DataError(
                f"{name} does not state its voxels' size in mm, how its axes lie and where, by which data.resample "
                f"joins {file[1]} and {target_file[1]}; export it again, or leave the contrast out"
            )
    if not overlaps(image, target):
        raise DataError(
            f"{file[1]} lies outside of {target_file[1]}, to whose grid data.resample brings it; correct the position "
            "in its header, or leave the contrast out"
        )
    import torch
    from monai.data.meta_tensor import MetaTensor
    from monai.transforms.spatial.array import ResampleToMatch

    from silofl.data.transforms import metadata_tracking

    with metadata_tracking(True):
        grid = MetaTensor(np.zeros(target.array.shape, np.float32), affine=torch.as_tensor(target.affine))
        stored = MetaTensor(image.array.astype(np.float32), affine=torch.as_tensor(image.affine))
        moved = ResampleToMatch(mode="bilinear")(stored, grid)
    # Between two voxels lies no value that their type cannot hold, so that its largest value stays.
    return Image(np.asarray(moved, dtype=np.float32), target.affine, image.dtype_max, is_resampled=True)
