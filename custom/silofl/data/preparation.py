"""Turn the files of one case into examples, 2D images or a volume: read, scale, cut and transform them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError, UnreadableError, error_text
from silofl.data.contrasts import join_contrasts, list_missing_contrasts, read_images
from silofl.data.data_profile import image_kind
from silofl.data.intensity import scale_intensity, to_channels
from silofl.data.leakage import digest_content
from silofl.data.manifest import Manifest
from silofl.data.parts import PreparedCase, Spacing
from silofl.data.records import Record
from silofl.data.targets import IGNORE, IGNORED
from silofl.data.transforms import compose, metadata_tracking
from silofl.reading.formats import build_file_request
from silofl.reading.header import find_segmentation, read_header
from silofl.reading.image import Image, check_affine
from silofl.reading.images import RENUMBER, check_values, read_label
from silofl.reading.label_grid import lay_on_image
from silofl.setup.extensions import is_extension
from silofl.study import Study
from silofl.study.data_settings import DataSettings

if TYPE_CHECKING:
    from monai.transforms.compose import Compose
    from torch import Tensor

# What a site that annotates only some of the study's labels is told.
ANNOTATE = (
    f"{RENUMBER}, and list every label that is drawn in all cases in dataset.json, in labels and, where that is there, "
    "in labels_annotated"
)


@dataclass(frozen=True)
class Preparation:
    """A study with its deterministic transforms, applied to every case before caching; built by `build_preparation`."""

    study: Study
    volume_steps: Compose | None
    image_steps: Compose | None

    @property
    def is_turning(self) -> bool:
        """Whether all volumes are turned the same way."""
        return any(step.name == "Orientation" for step in self.study.data.volume_transforms)


@dataclass(frozen=True)
class InverseTransform:
    """The record of what transforms did to an array's grid, with which an array is brought back to the old grid.

    Attributes:
        affine: The affine after the transforms, (4, 4).
        operations: MONAI's record of the invertible transforms, in their order.
    """

    affine: NDArray[np.float64]
    operations: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class TransformedCase:
    """A case after the study's transforms.

    Attributes:
        images: float32 (n, C, *spatial), with the neighbours of each slice; zeros for contrasts that the case lacks.
        labels: Label maps uint8 (n, *spatial); None of a case without one.
        affine: Voxel indices to millimetres before the transforms of images, (4, 4); None of a picture.
        volume_inverse: Of the volume; None of a picture and without such transforms.
        plane_inverse: Of each 2D image, the same for all, or in 3D of the whole; None without such transforms.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.uint8] | None
    affine: NDArray[np.float64] | None
    volume_inverse: InverseTransform | None
    plane_inverse: InverseTransform | None


def build_preparation(study: Study, has_label_map: bool | None = None) -> Preparation:
    """Build the preparation of a study.

    Args:
        has_label_map: Whether label maps are transformed along; by default when the task is segmentation.

    Raises:
        ConfigError: A transform is not allowed, or its options are not right.
    """
    has_label_map = study.task == "segmentation" if has_label_map is None else has_label_map
    volume_steps = compose(study.data, "volume_transforms", has_label_map)
    return Preparation(study, volume_steps, compose(study.data, "transforms", has_label_map))


def prepare_case(record: Record, manifest: Manifest, steps: Preparation) -> PreparedCase:
    """Read one case and turn it into examples.

    Intensities are scaled over the whole case; then its `slices` are cut in stored order; then volumes are transformed
    and, in 2D, cut along their last axis; then each image is transformed; then the slices of the case are joined by
    their neighbours.

    Raises:
        DataError: What is wrong with the case, by its name.
        UnreadableError: One of its files cannot be read.
    """
    try:
        return _prepare_record(record, manifest, steps)
    except UnreadableError as error:
        raise UnreadableError(f"case {record.case!r}: {error}", error.reason) from None
    except DataError as error:
        raise DataError(f"case {record.case!r}: {error}") from None


def build_requests(records: Iterable[Record], manifest: Manifest) -> Iterator[bytes]:
    """Yield what asks the decoders' process for the files of cases, in the order in which `prepare_case` reads them."""
    for record in records:
        # What is wrong with a file is told where it is read.
        with suppress(DataError, OSError):
            files = [(path, name, False) for path, name in filter(None, manifest.source(record).files)]
            if isinstance(record.label, str):
                files.append((manifest.places[record.label], record.label, True))
            # A DICOM segmentation is laid on the grid of its image, which must be read first.
            if find_segmentation(files[-1][0]) is not None:
                continue
            # All requests of a case are built before the first goes out, so that a faulty case asks for nothing.
            requests = [build_file_request(path, name, record.index, is_label) for path, name, is_label in files]
            yield from filter(None, requests)


def _prepare_record(record: Record, manifest: Manifest, steps: Preparation) -> PreparedCase:
    source = manifest.source(record)
    stored = read_images(source, steps.study.data)
    image = join_contrasts(stored, source, steps.study.data)
    if image.affine is not None:
        check_affine(image.affine, record.image)
    # The digests are of what the files hold, before it is scaled or cut.
    files = zip(record.files, filter(None, stored), strict=True)
    digests = {file: digest_content(read.array, read.affine) for file, read in files}
    label = read_label_map(record, manifest, image, steps.study)
    case = {"image": scale_image(image, steps.study, record.image)}
    affine = image.affine
    numbers = record.numbers
    if numbers is not None:
        _check_slices(record, numbers, image)
        case["image"], affine = take_slices(case["image"], affine, numbers)
        label = label if label is None else label[..., numbers]
    if label is not None:
        case["label"] = label.astype(np.float32)
    moved = transform_case(case, affine, list_missing_contrasts(steps.study.data.channel_names, [source]), steps)
    num_examples = len(moved.images)
    targets = moved.labels
    if targets is None:
        targets = np.full(num_examples, record.label, dtype=np.int64)
    spacing = None
    if moved.affine is not None and read_header(source.first[0]).has_spacing:
        inverse = moved.plane_inverse
        spacing = measure_spacing(moved.affine if inverse is None else moved.affine @ inverse.affine)
    # A picture or a whole volume is no slice, and has no number.
    slices: tuple[int | None, ...] = (None,)
    if image.array.ndim == 4 == moved.images.ndim:
        numbers = numbers or range(1)
        # The numbers go on where a transform has added slices.
        slices = tuple(range(numbers.start, numbers.start + numbers.step * num_examples, numbers.step))
    return PreparedCase(record.case, record.patient, moved.images, targets, slices, spacing, digests)


def take_slices(
    pixels: np.ndarray, affine: NDArray[np.float64] | None, numbers: range
) -> tuple[np.ndarray, NDArray[np.float64] | None]:
    """Return some slices of a volume (C, X, Y, Z), and their voxel indices to millimetres."""
    # The step lengthens the voxels. The origin may stay, because no allowed transform depends on it.
    if affine is not None:
        affine = affine @ np.diag([1, 1, numbers.step, 1])
    return pixels[..., numbers], affine


def read_label_map(record: Record, manifest: Manifest, image: Image, study: Study) -> np.ndarray | None:
    """Return a case's label map, int32 (1, *spatial), with the voxels of its image; None for a classification.

    What nobody annotated has the number `silofl.data.targets.IGNORED`.

    Raises:
        DataError: It cannot be read, does not lie on the image, or holds a label that is not declared.
    """
    if not isinstance(record.label, str):
        return None
    stored = {number: own for number, own in manifest.stored_numbers.items() if own in manifest.labels_annotated}
    labels = {number: study.labels[own] for number, own in stored.items()}
    remedy = RENUMBER if len(labels) == len(study.labels) else ANNOTATE
    if manifest.ignored is not None:
        labels[manifest.ignored] = IGNORE
    path = manifest.places[record.label]
    label = read_label(path, record.label, record.index, labels, image)
    label = lay_on_image(label, image, record.label, (path, manifest.source(record).first[0]))
    check_values(label, labels, record.label, remedy)
    if manifest.ignored is not None:
        stored[manifest.ignored] = IGNORED
    if all(number == own for number, own in stored.items()):
        return label.array
    numbers = label.array.copy()
    for number, own in stored.items():
        # Not in the copy itself, in which a number may be another's already.
        numbers[label.array == number] = own
    return numbers


def _check_slices(record: Record, numbers: range, image: Image) -> None:
    # A picture has no slice at all.
    depth = image.array.shape[3] if image.array.ndim == 4 else 0
    if numbers.stop > depth:
        kind = f"has {depth} slices" if depth else f"is a {image_kind(image).removesuffix('s')}"
        raise DataError(f"{record.image} {kind}, and has no slice {numbers.stop - 1}; correct dataset.json")


def transform_case(
    case: dict[str, np.ndarray],
    affine: NDArray[np.float64] | None,
    lacking: Sequence[str],
    steps: Preparation,
    has_record: bool = False,
) -> TransformedCase:
    """Apply a study's transforms to a case.

    Args:
        case: ``image`` (C, *spatial), with the channels and intensities of the study, and perhaps ``label`` float32;
            changed in its place, as a volume may be most of the memory.
        affine: Voxel indices to millimetres, (4, 4); None of a picture.
        lacking: The contrasts that the case lacks.
        has_record: Whether the way back is needed of a picture too.
    """
    settings = steps.study.data
    volume_inverse = None
    if case["image"].ndim == 4:
        moved = _apply_transforms(steps.volume_steps, case, affine)
        volume_inverse = _read_inverse(moved["image"])
        if volume_inverse is not None:
            affine = volume_inverse.affine
        case |= {key: _to_array(value) for key, value in moved.items()}
    # A hospital's own transforms may read MONAI's record. Without it MONAI resizes a slice in a quarter of the time.
    is_own = any(is_extension(transform.name) for transform in settings.transforms)
    has_record = has_record or affine is not None
    planes: list[Mapping[str, np.ndarray | Tensor]] = []
    for example in _cut_examples(case, settings):
        # The first image's record is that of all, which have one size.
        needs_record = is_own or (has_record and not planes)
        planes.append(_apply_transforms(steps.image_steps, example, None, needs_record))
    arrays = [_to_array(plane["image"]) for plane in planes]
    # A single image needs no copy, which for a volume would take as much memory again.
    images = np.stack(arrays) if len(arrays) > 1 else arrays[0][None]
    # A missing contrast was zeros until here, but a transform of intensities has moved them.
    images[:, [settings.channel_names.index(name) for name in lacking]] = 0
    labels = None
    if "label" in case:
        labels = _to_label_maps(np.stack([_to_array(plane["label"])[0] for plane in planes]))
    return TransformedCase(
        images=_stack_neighbours(images, settings.neighbours),
        labels=labels,
        affine=affine,
        volume_inverse=volume_inverse,
        plane_inverse=_read_inverse(planes[0]["image"]) if has_record else None,
    )


def _to_label_maps(moved: NDArray[np.float32]) -> NDArray[np.uint8]:
    labels = moved.astype(np.uint8)
    if (labels != moved).any():
        fraction = moved[labels != moved][0]
        raise DataError(
            f"the study's transforms make {fraction:g} of a label, where whole numbers from 0 to 255 are possible; "
            "have the package's transform take the nearest pixel's label"
        )
    return labels


def measure_spacing(affine: NDArray[np.float64]) -> Spacing:
    """Return the sides of a voxel in mm, by voxel indices to millimetres (4, 4)."""
    x, y, z = np.linalg.norm(affine[:3, :3], axis=0).tolist()
    return x, y, z


def _cut_examples(case: dict[str, np.ndarray], settings: DataSettings) -> list[dict[str, np.ndarray]]:
    if settings.dimensions == 3 or case["image"].ndim != 4:
        return [case]
    examples = []
    for z in range(case["image"].shape[-1]):
        examples.append({key: value[..., z] for key, value in case.items()})
    return examples


def scale_image(image: Image, study: Study, name: str) -> NDArray[np.float32]:
    """Return a case's pixels, float32 (C, *spatial), with the channels and intensities of the study."""
    check_has_slices(image, study.data, name)
    settings = study.data
    array = to_channels(image.array, settings.channels, image.is_window or image.has_contrasts)
    if not image.has_contrasts:
        return scale_intensity(array, settings.intensity, image.dtype_max)
    # Contrasts have scales of their own; the channels of a picture or a window have one.
    return np.stack([scale_intensity(contrast, settings.intensity, image.dtype_max) for contrast in array])


def _stack_neighbours(slices: NDArray[np.float32], neighbours: int) -> NDArray[np.float32]:
    # Of slices (n, C, H, W) these are (n, (2 k + 1) C, H, W): for each offset from -k to k all channels of that slice.
    # Before the first slice of the case and after its last one there is none, and the nearest is repeated.
    if neighbours == 0:
        # The slices are not copied: a volume may fill half of the memory.
        return slices
    offsets = np.arange(-neighbours, neighbours + 1)
    rows = (np.arange(len(slices))[:, None] + offsets).clip(0, len(slices) - 1)
    return np.reshape(slices[rows], (len(slices), -1, *slices.shape[2:]))


def check_has_slices(image: Image, settings: DataSettings, name: str) -> None:
    """Refuse an image that is no volume where a study asks for one; a volume of one slice is one.

    Raises:
        DataError: It is a picture or a window of a time series, and the study asks for neighbours or for 3D.
    """
    is_3d = settings.dimensions == 3
    if image.array.ndim != 4 and (is_3d or settings.neighbours > 0):
        needs = "dimensions 3" if is_3d else f"neighbours {settings.neighbours}"
        raise DataError(
            f"{name} must be a volume with data.{needs}, not a {image_kind(image).removesuffix('s')}; give the volume, "
            f"or set data.{'dimensions to 2' if is_3d else 'neighbours to 0'}"
        )


def _apply_transforms(
    steps: Compose | None, case: dict[str, np.ndarray], affine: np.ndarray | None, has_record: bool = True
) -> Mapping[str, np.ndarray | Tensor]:
    # With MONAI's record of what is done the arrays become its MetaTensors.
    if steps is None:
        return case
    import torch
    from monai.data.meta_tensor import MetaTensor

    grid = None if affine is None else torch.as_tensor(affine)
    make = partial(MetaTensor, affine=grid) if has_record else torch.from_numpy
    try:
        with metadata_tracking(has_record):
            moved = steps({key: make(np.ascontiguousarray(value)) for key, value in case.items()})
    except Exception as error:  # MONAI raises whatever its array code raises
        size = str(case["image"].shape[1:])
        if affine is not None:
            # A volume may be resampled by the size of its voxels, which a header may state wrongly.
            size += " and voxels of {:g} x {:g} x {:g} mm".format(*measure_spacing(affine))
        reason = error_text(error.__cause__ or error)
        raise DataError(f"the study's transforms fail on an image of size {size}; MONAI says: {reason}") from None
    return {key: moved[key] for key in case}


def _to_array(moved: np.ndarray | Tensor) -> NDArray[np.float32]:
    return moved if isinstance(moved, np.ndarray) else np.asarray(moved, dtype=np.float32)


def _read_inverse(moved: np.ndarray | Tensor) -> InverseTransform | None:
    """Return the record of what transforms did to an array; None where they kept none."""
    if not (hasattr(moved, "affine") and hasattr(moved, "applied_operations")):
        return None
    return InverseTransform(np.asarray(moved.affine, dtype=np.float64), tuple(moved.applied_operations))
