"""Headers of a site's images that contradict themselves or each other, judged when the images are imported."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from silofl.base.errors import DataError, Faults
from silofl.reading.header import check_pet_units, is_dicom, read_pet_unit
from silofl.reading.nifti import find_two_sizes, read_nifti_header
from silofl_hospital.importing.options import ImportOptions


def settle_headers(site: str, files: Iterable[Path], options: ImportOptions) -> tuple[dict[Path, Path], list[str]]:
    """Return copies with one size of voxels of the files that state two, and what to say of them.

    Args:
        files: The images and masks of the site.
        options: Which size counts, and the folder for the copies. Without a choice it is that of pixdim where a qform
            has it too; the file then stays as it is.

    Raises:
        DataError: A file states two sizes and no qform, and none is chosen; or PET counts in several units.
    """
    copies: dict[Path, Path] = {}
    told = []
    units = []
    faults = Faults()
    for path in files:
        if is_dicom(path):
            units.append(read_pet_unit(path))
        if not path.name.lower().endswith((".nii", ".nii.gz")):
            continue
        try:
            header = read_nifti_header(path)
            sizes = find_two_sizes(header)
        except Exception:  # what is broken is told where it is read
            continue
        if sizes is None:
            continue
        told.append(f"{sizes[0]} by sform and {sizes[1]} by pixdim in {path.name}")
        if options.voxel_size is not None:
            copies[path] = options.scratch / site / f"{len(copies)}-{path.name}"
            _write_one_size(path, copies[path], options.voxel_size)
        elif int(header["qform_code"]) <= 0:
            with faults.collect_fault():
                raise DataError(
                    f"site {site!r}: {path.name} has voxels of {sizes[0]} by its sform and of {sizes[1]} by its "
                    "pixdim; look which is right, and name it with --voxel-size sform or --voxel-size pixdim"
                )
    faults.tell()
    check_pet_units(unit for unit in units if unit is not None)
    chosen = options.voxel_size or "pixdim"
    notes = [f"{site}: voxels are stated twice, {told[0]}; {chosen}'s are taken, of {len(told)} files"] if told else []
    return copies, notes


def _write_one_size(path: Path, target: Path, chosen: str) -> None:
    """Write a NIfTI file whose grids have the size that sform, or pixdim, states; its voxels stay as they are."""
    is_packed = path.name.lower().endswith(".gz")
    content = gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
    header = read_nifti_header(path)
    affine = header.get_sform()
    if chosen == "pixdim":
        axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
        affine[:3, :3] = axes * np.array(header.get_zooms()[:3])
    code = int(header["sform_code"])
    header.set_sform(affine, code)
    # This sets pixdim too.
    header.set_qform(affine, code)
    target.parent.mkdir(parents=True, exist_ok=True)
    settled = header.binaryblock + content[len(header.binaryblock) :]
    target.write_bytes(gzip.compress(settled) if is_packed else settled)
