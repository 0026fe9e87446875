"""Prepare an image without a label as training images were prepared, and record the way back to its own grid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.data.contrasts import ImageFiles, list_missing_contrasts, read_source
from silofl.data.data_profile import DataProfile, Form, read_form
from silofl.data.preparation import (
    InverseTransform,
    Preparation,
    build_preparation,
    scale_image,
    take_slices,
    transform_case,
)
from silofl.study import Study

ANY = DataProfile()


@dataclass(frozen=True)
class PreparedImage:
    """A prepared image without a label, and the records that lead back to its input grid.

    Attributes:
        images: float32 (n, C, H, W): one picture, or the slices of a volume, with their neighbours as the study asks;
            in 3D (1, C, X, Y, Z).
        shape: Size of the input without channels: (rows, columns), or (X, Y, Z).
        affine: The input's voxel indices to millimetres, (4, 4); None for a picture.
        volume_inverse: Of the volume; None for a picture and without such transforms.
        plane_inverse: Of each 2D image, the same for all, or in 3D of the whole; None without such transforms.
        form: Of the input in its file.
        missing: Contrasts that the input lacks; zeros stand in their place.
    """

    images: NDArray[np.float32]
    shape: tuple[int, ...]
    affine: NDArray[np.float64] | None
    volume_inverse: InverseTransform | None
    plane_inverse: InverseTransform | None
    form: Form
    missing: tuple[str, ...] = ()

    def image_warnings(self, data_profile: DataProfile, steps: Preparation) -> list[str]:
        """Return why an answer may mean nothing: what the file does not state, and `DataProfile.image_warnings`."""
        of_file = list_file_warnings(self.form, self.missing, steps.study)
        return of_file + data_profile.image_warnings(self.images, self.form, steps.is_turning)


def list_file_warnings(form: Form, missing: Iterable[str], study: Study) -> list[str]:
    """Return what a case lacks, and what its file does not state, as sentences for people.

    Args:
        form: Of its image in the file.
    """
    image_warnings = [f"contrast {name} is missing; zeros stand in its place" for name in missing]
    if form.kind == "volumes" and not form.header.has_spacing:
        results = []
        if any(step.name == "Spacing" for step in study.data.volume_transforms):
            results.append("it was resampled as if they were 1 mm, or by uncertain numbers")
        if study.task == "segmentation":
            results.append("no millilitres are given")
        # Where nothing depends on the size there is nothing to warn of.
        if results:
            image_warnings.append("; ".join(["the file does not state the size of its voxels in mm", *results]))
    if form.kind == "volumes" and not form.header.has_orientation:
        image_warnings.append("the file does not state how its axes lie in the body; left and right may be exchanged")
    return image_warnings


def prepare_image(source: ImageFiles, study: Study) -> NDArray[np.float32]:
    """Prepare an image without a label for prediction, as training images were prepared.

    Args:
        study: The study whose data settings apply.

    Returns:
        (n, C, H, W): one image, or the slices of a volume, with their neighbours as the study asks; in 3D
        (1, C, X, Y, Z).

    Raises:
        DataError: The image cannot be read or scaled.
    """
    return prepare_with_inverse(source, build_preparation(study, has_label_map=False)).images


def prepare_with_inverse(
    source: ImageFiles, steps: Preparation, data_profile: DataProfile = ANY, numbers: range | None = None
) -> PreparedImage:
    """Prepare an image as `prepare_image` does, and record how to bring a prediction back to the input's grid.

    Args:
        source: Its files; zeros stand for a contrast that it lacks, where the study's algorithm takes them.
        steps: The study's preparation without label maps; the way back needs the very same one.
        data_profile: The images that the models learnt from.
        numbers: The slices of a volume that are taken; None for all.

    Raises:
        DataError: The image cannot be read, scaled or transformed, has no possible grid, lacks a contrast that the
            algorithm needs, is of another kind than the training images, or is a picture where the study trained on
            volumes: a picture does not say how its axes lie in the body.
    """
    name = source.first[1]
    lacking = tuple(list_missing_contrasts(steps.study.data.channel_names, [source]))
    # This is asked first: reading the files of a study that takes no such image would be in vain.
    steps.study.recipe.check_images(steps.study, (), lacking)
    for path, file_name in filter(None, source.files):
        if not path.exists():
            raise DataError(f"{file_name} does not exist; give the path of an image file or a DICOM series' folder")
    image = read_source(source, steps.study.data)
    form = read_form(source, image)
    data_profile.check(form, name)
    if image.array.ndim != 4 and steps.volume_steps is not None:
        raise DataError(
            f"{name} must be a volume, as in the training of {steps.study.name}, not a picture, whose axes are not "
            "known; give the NIfTI, MHA or NRRD file or the DICOM series"
        )
    case = {"image": scale_image(image, steps.study, name)}
    affine = image.affine
    if numbers is not None:
        case["image"], affine = take_slices(case["image"], affine, numbers)
    # Only the case holds the array, which may be most of the memory: the transforms put another one in its place.
    shape = case["image"].shape[1:]
    moved = transform_case(case, affine, lacking, steps, has_record=True)
    return PreparedImage(
        images=moved.images,
        shape=shape,
        affine=affine,
        volume_inverse=moved.volume_inverse,
        plane_inverse=moved.plane_inverse,
        form=form,
        missing=lacking,
    )
