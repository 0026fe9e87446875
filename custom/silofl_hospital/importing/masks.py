"""The masks of a site: their numbers checked when they are imported, and renumbered from 1 where they are others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError
from silofl.data.targets import IGNORE, IGNORED
from silofl.reading.endings import suggest_remedy
from silofl.reading.formats import PICTURES, READERS
from silofl.reading.header import find_segmentation
from silofl.reading.image import Image
from silofl.reading.image_grid import has_grid
from silofl.reading.images import check_values, read_image, read_label
from silofl.reading.label_grid import lay_on_image
from silofl.reading.segments import UNNAMED_LABEL, join_layers
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import File, copy_image, number_labels

# An npz file holds many images, which no path of one case names.
ENDINGS = tuple(ending for ending in READERS if ending != ".npz")
# 3D Slicer ends a segmentation so, which lies beside its image c0.nrrd.
SEGMENTATION = ".seg.nrrd"
REMEDY = "name each value with --labels, as --labels 1=organ,4=lesion, or save the mask with these"
# A mask of one label with more numbers than these has smoothed edges.
MOST_PARTS = 8
# These options mean something to every layout that has masks.
MASK_OPTIONS = ("label_values", "image_pattern", "mask_pattern", "mask_threshold", "resample_masks")


@dataclass(frozen=True)
class Values:
    """The numbers that a set's masks may hold.

    Attributes:
        names: Number in the masks, above 0 -> name of the label; 0 is the background.
        remedy: What to do about a mask that holds another number.
        ignored: The number in the masks of what nobody annotated; None where all is annotated.
        threshold: The number from which on a mask of one label is that label; None of masks that hold label numbers.
        resample: Whether the mask of a picture may have another size than it.
    """

    names: Mapping[int, str]
    remedy: str = "save it with these numbers"
    ignored: int | None = None
    threshold: int | None = None
    resample: bool = False

    @property
    def known(self) -> dict[int, str]:
        """All numbers that the masks may hold besides 0, with their names."""
        return dict(self.names) if self.ignored is None else {**self.names, self.ignored: IGNORE}

    @property
    def labels(self) -> dict[int, str]:
        """The labels at the site, numbered from 1 in the order of their numbers in the masks."""
        return number_labels((self.names[number] for number in sorted(self.names)), first=1)

    @property
    def is_kept(self) -> bool:
        """Whether the site has the numbers of the masks."""
        return dict(self.names).items() <= self.labels.items() and self.ignored not in self.labels

    @property
    def ignored_at_site(self) -> int | None:
        """The number at the site of what nobody annotated."""
        return self.ignored if self.ignored is None or self.is_kept else IGNORED

    def check(self, numbers: NDArray[np.integer], name: str) -> None:
        """Refuse a mask that holds another number, by the mask's name.

        Raises:
            DataError: It does; the message names the number.
        """
        check_values(Image(numbers, None, None), self.known, name, self.remedy)

    @property
    def numbers_at_site(self) -> dict[str, int]:
        """The number at the site of each name."""
        numbers = {name: number for number, name in self.labels.items()}
        return numbers if self.ignored_at_site is None else {**numbers, IGNORE: self.ignored_at_site}

    def renumber(self, numbers: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return checked numbers as the site's."""
        number_of = self.numbers_at_site
        # Sorted, because searchsorted gives the place of each number among these.
        stored = [0, *sorted(self.known)]
        at_site = [0, *(number_of[self.known[number]] for number in stored[1:])]
        return np.array(at_site, dtype=np.uint8)[np.searchsorted(stored, numbers)]


def read_values(options: ImportOptions) -> Values:
    """Return what masks may hold by the labels of a command line; one label without a name where none is given."""
    labels = options.labels or (UNNAMED_LABEL,)
    names = dict(zip(options.label_values or range(1, 1 + len(labels)), labels, strict=True))
    ignored = next((number for number, name in names.items() if name == IGNORE), None)
    names.pop(ignored or 0, None)
    if not names:
        raise ConfigError(f"labels name {IGNORE} alone, which no network learns; name a label too")
    if options.mask_threshold is not None and len(names) > 1:
        raise ConfigError(f"mask-threshold cuts masks of one label, and labels name {len(names)}; leave it out")
    return Values(names, REMEDY, ignored, options.mask_threshold, options.resample_masks)


def split_ending(path: Path, name: str) -> tuple[str, str]:
    """Return the name of an image or mask without its ending, and the ending; a folder (a DICOM series) has none.

    Args:
        path: The file or the folder.

    Raises:
        DataError: No reader knows the ending.
    """
    if path.is_dir():
        return path.name, ""
    for ending in (SEGMENTATION, *ENDINGS):
        if path.name.lower().endswith(ending):
            return path.name[: -len(ending)], path.name[-len(ending) :]
    known = ", ".join(ENDINGS)
    raise DataError(f"{name} must end in one of {known}, not {path.suffix!r}; {suggest_remedy(path)}, or remove it")


def plan_mask(mask: Path, image: Path, case: str, values: Values, name: str) -> File:
    """Plan a case's mask with the site's numbers.

    A picture is saved as PNG; where there is one label, 255 is 1. A volume is copied where it has the site's numbers
    already, and becomes NIfTI on its grid otherwise.

    Args:
        mask: The file, or the folder of a DICOM series.
        image: The image that it must lie on, of several contrasts the first.
        case: The name of its case.
    """
    _, ending = split_ending(mask, name)
    read = partial(read_mask, mask, image, values, name)
    if ending.lower() in PICTURES:
        return f"masks/{case}.png", partial(_save_renumbered, read, values)
    # A file that need not change keeps its header too.
    if values.is_kept and values.threshold is None:
        return f"masks/{case}{ending}", partial(copy_checked, mask, read)
    return f"masks/{case}.nii.gz", partial(_save_renumbered, read, values)


def plan_layers(masks: Sequence[tuple[str, Path]], image: Path, case: str, values: Values, name: str) -> File:
    """Plan one mask of a case whose labels have files of their own, as `plan_mask`.

    Args:
        masks: Label and file, which holds 0 and another number.
        image: The image that they must lie on, of several contrasts the first.
        case: The name of the case.
        name: What messages call the site.
    """
    is_picture = all(mask.suffix.lower() in PICTURES for _, mask in masks)
    write = partial(_save_layers, masks, image, case, values, name)
    return f"masks/{case}{'.png' if is_picture else '.nii.gz'}", write


def read_mask(mask: Path, image: Path, values: Values, name: str) -> Image:
    """Read a mask and check it; arguments as `plan_mask`.

    Raises:
        DataError: It cannot be read, holds another number, or does not lie on its image.
    """
    # A segmentation of DICOM or 3D Slicer may cover a part of its image, whose grid is then needed.
    decoded = read_image(image) if find_segmentation(mask) else None
    label = _read_numbers(mask, decoded, values, name)
    if label.affine is None:
        label = _resize(label, image, values, name)
    _check_on_image(label, decoded, (mask, image), name)
    return label


def _read_numbers(mask: Path, decoded: Image | None, values: Values, name: str) -> Image:
    if values.threshold is not None:
        drawn = read_image(mask, name)
        if not (drawn.array == drawn.array[:1]).all():
            raise DataError(f"{name} holds colours, which no threshold cuts; save it as grey")
        return replace(drawn, array=(drawn.array[:1] >= values.threshold).astype(np.int32) * min(values.names))
    label = read_label(mask, name, labels=values.known, image=decoded)
    if mask.suffix.lower() in PICTURES and list(values.known) == [1]:
        if np.isin(label.array, (0, 255)).all():
            label = replace(label, array=label.array // 255)
        elif label.array.max() > MOST_PARTS and len(np.unique(label.array)) > MOST_PARTS:
            raise DataError(
                f"{name} has smoothed edges, with {len(np.unique(label.array))} different numbers; cut them at half "
                f"with --mask-threshold 128, or {values.remedy}"
            )
    values.check(label.array, name)
    return label


def _resize(label: Image, image: Path, values: Values, name: str) -> Image:
    """Return the mask of a picture with the picture's size, each pixel with the number of the nearest."""
    if has_grid(image, label.spatial_shape, None):
        return label
    rows, columns = read_image(image).spatial_shape
    height, width = label.spatial_shape
    if (rows, columns) == (height, width):
        return label
    if not values.resample:
        raise DataError(
            f"{name} has {height} x {width} pixels, and its image {rows} x {columns}; export it anew, or lay it on its "
            "image with --resample-masks, where it is a copy of the whole image in another size"
        )
    from_rows = (np.arange(rows) + 0.5) * height // rows
    from_columns = (np.arange(columns) + 0.5) * width // columns
    return replace(label, array=label.array[:, from_rows.astype(int)[:, None], from_columns.astype(int)])


def _check_on_image(label: Image, decoded: Image | None, files: tuple[Path, Path], name: str) -> None:
    # The image is decoded only where its header alone does not tell that the mask lies on it.
    if decoded is None and has_grid(files[1], label.spatial_shape, label.affine):
        return
    lay_on_image(label, decoded or _read_case_image(files[1]), name, files)


def _read_case_image(path: Path) -> Image:
    image = read_image(path)
    if image.has_contrasts:
        raise DataError(
            f"{path.name} holds {len(image.array)} time points or contrasts; save one of them, or each contrast as a "
            "file of its own, and name these with --image-pattern T1=PATTERN,T2=PATTERN"
        )
    return image


def copy_checked(mask: Path, read: Callable[[], Image], target: Path) -> None:
    """Copy a mask once it has been read and checked."""
    read()
    copy_image(mask, target)


def _save_renumbered(read: Callable[[], Image], values: Values, target: Path) -> None:
    label = read()
    _write_numbers(values.renumber(label.array)[0], label.affine, target)


def _write_numbers(numbers: NDArray[np.uint8], affine: NDArray[np.float64] | None, target: Path) -> None:
    """Write a picture as PNG, or a volume as NIfTI."""
    if target.suffix == ".png":
        from PIL import Image as Picture

        Picture.fromarray(numbers).save(target)
    else:
        import nibabel

        nibabel.save(nibabel.Nifti1Image(numbers, affine), target)  # type: ignore[no-untyped-call]


def _save_layers(
    masks: Sequence[tuple[str, Path]], image: Path, case: str, values: Values, name: str, target: Path
) -> None:
    decoded = read_image(image)

    def read_layers() -> Iterator[tuple[int, str, NDArray[np.bool_]]]:
        # One layer after the other, so that a case of a hundred organs needs the memory of two.
        # In the order of the labels: of two at one place the later one counts.
        for label, mask in sorted(masks, key=lambda layer: values.numbers_at_site[layer[0]]):
            number = values.numbers_at_site[label]
            called = f"{name}: {mask.name} of {case}"
            drawn = _read_layer(mask, decoded, number, called)
            laid = lay_on_image(drawn, decoded, called, (mask, image))
            yield number, label, laid.array[0] != 0

    joined = join_layers(read_layers(), decoded.spatial_shape, f"{name}: the masks of {case}")
    _write_numbers(joined.astype(np.uint8), decoded.affine, target)


def _read_layer(mask: Path, grid: Image, number: int, name: str) -> Image:
    """Return a mask of one label with the label's number, whatever number it holds."""
    label = read_label(mask, name, image=grid)
    # Programs write 1, 255 or the label's own number.
    stored = np.unique(label.array[label.array != 0])
    if len(stored) > 1:
        shown = ", ".join(map(str, stored[:8].tolist()))
        raise DataError(f"{name} holds several numbers beside 0, {shown}; save it with one, as a file of one label")
    return replace(label, array=np.where(label.array != 0, np.int32(number), np.int32(0)))
