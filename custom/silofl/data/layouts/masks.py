"""The masks of a site: their numbers checked when they are imported, and renumbered from 1 where they are others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.beside import find_voxel_file
from silofl.data.endings import suggest_remedy
from silofl.data.formats import PICTURES, READERS, find_segmentation_grid
from silofl.data.header import find_segmentation
from silofl.data.image_grid import has_grid
from silofl.data.images import Image, check_values, read_image, read_label
from silofl.data.label_grid import check_frame_of_reference, lay_on_image, resample_to_image
from silofl.data.layouts.site_files import File, copy_image, number_labels
from silofl.data.nifti import read_nifti_header
from silofl.data.targets import IGNORE, IGNORED
from silofl.errors import DataError

NIFTI = (".nii", ".nii.gz")
# An npz file holds many images.
ENDINGS = tuple(ending for ending in READERS if ending != ".npz")
# Of a segmentation of 3D Slicer, beside its image c0.nrrd.
SEGMENTATION = ".seg.nrrd"


@dataclass(frozen=True)
class Values:
    """The numbers that a set's masks may hold.

    Attributes:
        names: Number in the masks, above 0 -> name of the label; 0 is the background.
        remedy: What to do about a mask that holds another number.
        of_all: The labels of all sites by their numbers, of which the masks may have some; None where each has all.
        ignored: The number in the masks of what nobody annotated; None where all is annotated.
    """

    names: Mapping[int, str]
    remedy: str = "save it with these numbers"
    of_all: Mapping[int, str] | None = None
    ignored: int | None = None

    @property
    def known(self) -> dict[int, str]:
        """All numbers that the masks may hold besides 0, with their names."""
        return dict(self.names) if self.ignored is None else {**self.names, self.ignored: IGNORE}

    @property
    def labels(self) -> dict[int, str]:
        """The labels at the site, those of all; else numbered from 1 in the order of their numbers in the masks."""
        if self.of_all is not None:
            return dict(self.of_all)
        return number_labels((self.names[number] for number in sorted(self.names)), first=1)

    @property
    def annotated(self) -> tuple[int, ...]:
        """The numbers at the site of the labels that the masks may have."""
        return tuple(number for number, name in self.labels.items() if name in self.names.values())

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

    def renumber(self, numbers: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return checked numbers as the site's."""
        known, number_of = sorted(self.known), {name: number for number, name in self.labels.items()}
        number_of[IGNORE] = self.ignored_at_site
        here = np.array([0, *(number_of[self.known[number]] for number in known)], dtype=np.uint8)
        return here[np.searchsorted([0, *known], numbers)]


def split_ending(path: Path, name: str) -> tuple[str, str]:
    """Return the name of an image or mask without its ending, and the ending; a folder (a DICOM series) has none.

    Args:
        path: The file or the folder.
        name: What messages call it.

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


def plan_mask(mask: Path, image: Path, case: str, values: Values, name: str, is_resampled: bool = False) -> File:
    """Plan a case's mask with the site's numbers.

    A picture is saved as PNG; where there is one label, 255 is 1. A volume is copied where it has the site's numbers
    already; otherwise NIfTI keeps its grid and header, and other volumes become NIfTI. Where volumes are resampled, all
    become NIfTI on the grid of their image.

    Args:
        mask: The file, or the folder of a DICOM series.
        image: The image that it must lie on, of several contrasts the first.
        case: The name of its case.
        values: What it may hold.
        name: What messages call it.
        is_resampled: Whether a volume may lie on another grid than its image.
    """
    _, ending = split_ending(mask, name)
    read = partial(read_mask, mask, image, values, name)
    if ending.lower() in PICTURES:
        return f"masks/{case}.png", partial(_save_picture, read, values)
    if is_resampled:
        return f"masks/{case}.nii.gz", partial(_save_resampled, mask, image, values, name)
    # A mask is named after its case, and a header would look for its voxels by another name.
    if values.is_kept and find_voxel_file(mask) is None:
        return f"masks/{case}{ending}", partial(copy_checked, mask, read)
    return f"masks/{case}{ending if ending.lower() in NIFTI else '.nii.gz'}", partial(_save_volume, mask, read, values)


def read_mask(mask: Path, image: Path, values: Values, name: str) -> Image:
    """Read a mask and check it; arguments as `plan_mask`.

    Raises:
        DataError: It cannot be read, holds another number, or does not lie on its image.
    """
    decoded = read_image(image) if find_segmentation(mask) else None
    label = _read_numbers(mask, decoded, values, name)
    _check_on_image(label, decoded, (mask, image), name)
    return label


def _read_numbers(mask: Path, decoded: Image | None, values: Values, name: str) -> Image:
    label = read_label(mask, name, labels=values.known, image=decoded)
    if mask.suffix.lower() in PICTURES and list(values.known) == [1] and np.isin(label.array, (0, 255)).all():
        label = replace(label, array=label.array // 255)
    values.check(label.array, name)
    return label


def _check_on_image(label: Image, decoded: Image | None, files: tuple[Path, Path], name: str) -> None:
    # The image is decoded only where its header alone does not tell that the mask lies on it.
    if decoded is None and has_grid(files[1], label.spatial_shape, label.affine):
        return
    try:
        decoded = decoded or read_image(files[1])
    except DataError:
        return  # That the image itself is broken is told, with its case, where it is prepared.
    lay_on_image(label, decoded, name, files)


def copy_checked(mask: Path, read: Callable[[], Image], target: Path) -> None:
    """Copy a mask once it has been read and checked."""
    read()
    copy_image(mask, target)


def save_with_header(stored: Path, numbers: NDArray[np.uint8], target: Path) -> None:
    """Save a label map with the grid and the header of a NIfTI file.

    Args:
        stored: The NIfTI file.
        numbers: (X, Y, Z).
        target: The new NIfTI file.
    """
    import nibabel

    header = read_nifti_header(stored)
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    # Behind the header, without what other programs had put there.
    header.set_data_offset(0)
    kind = nibabel.Nifti2Image if isinstance(header, nibabel.Nifti2Header) else nibabel.Nifti1Image
    nibabel.save(kind(numbers, header.get_best_affine(), header), target)


def _save_picture(read: Callable[[], Image], values: Values, target: Path) -> None:
    from PIL import Image as Picture

    Picture.fromarray(values.renumber(read().array)[0]).save(target)


def _save_resampled(mask: Path, image: Path, values: Values, name: str, target: Path) -> None:
    import nibabel

    decoded = read_image(image)
    own_grid = decoded
    if segmentation := find_segmentation(mask):
        check_frame_of_reference((mask, image), name)
        shape, affine = find_segmentation_grid(segmentation, name)
        # A grid alone, which takes no memory.
        own_grid = Image(np.broadcast_to(np.uint8(0), (1, *shape)), affine, None)
    label = resample_to_image(_read_numbers(mask, own_grid, values, name), decoded, name)
    nibabel.save(nibabel.Nifti1Image(values.renumber(label.array)[0], label.affine), target)


def _save_volume(mask: Path, read: Callable[[], Image], values: Values, target: Path) -> None:
    import nibabel

    label = read()
    numbers = values.renumber(label.array)[0]
    if mask.name.lower().endswith(NIFTI):
        save_with_header(mask, numbers, target)
    else:
        nibabel.save(nibabel.Nifti1Image(numbers, label.affine), target)
