"""NIfTI files (.nii, .nii.gz), read by nibabel; what it takes for something else is judged here.

Sources: nifti.nimh.nih.gov/pub/dist/src/niftilib/nifti1.h, and NIfTI-2. Lengths are returned in millimetres.
"""

import gzip
import math
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.decoded import Decoded, check_bytes
from silofl.reading.packed import LENGTHS

# They say whether more than the header follows.
EXTENSION_BYTES = 4
# The lowest bits of xyzt_units, and the millimetres of each unit; most writers leave the unit out.
SPACE_BITS = 7
MILLIMETRES = {0: 1.0, 1: 1000.0, 2: 1.0, 3: 0.001}
# Of a quaternion, whose three numbers are rounded: beyond it they are wrong.
ROUNDING = 0.01
# Of one axis by both grids: 45 degrees. A scan that was turned to an atlas lies nearer to what it was.
LEAST_COSINE = 0.7
# Of one size of voxels that is stated twice, rounded.
SAME_SIZE = 0.01
# How a header ends whose voxels lie in an .img file.
PAIR_MAGIC = (b"ni1", b"ni2")


def read_nifti_header(path: Path) -> Any:  # noqa: ANN401 (nibabel has no types)
    """Return nibabel's header of a file, with a rounded quaternion of length 1, as ITK takes it.

    Raises:
        Exception: Whatever nibabel raises of a broken header.
    """
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as stream:
        return _read_header(stream)


def unit_mm(header: Any) -> float | None:  # noqa: ANN401 (as above)
    """Return the millimetres of a header's unit of length; None of a number that stands for no unit."""
    return MILLIMETRES.get(int(header["xyzt_units"]) & SPACE_BITS)


def affine_mm(header: Any) -> NDArray[np.float64]:  # noqa: ANN401 (as above)
    """Return voxel indices to millimetres (right, front, head), (4, 4): by sform, by qform, or by sizes alone.

    Where sform and pixdim state other sizes, it is qform, which has pixdim's, as ITK and nnU-Net read it.
    """
    factor = unit_mm(header) or 1.0
    is_by_qform = int(header["qform_code"]) > 0 and find_two_sizes(header) is not None
    affine = header.get_qform() if is_by_qform else header.get_best_affine()
    return np.diag([factor, factor, factor, 1.0]) @ np.asarray(affine, dtype=np.float64)


def find_two_sizes(header: Any) -> tuple[str, str] | None:  # noqa: ANN401 (as above)
    """Return the sizes of a voxel by sform and by pixdim where both are stated and differ, to be printed."""
    sizes = np.array(header.get_zooms()[:3], dtype=np.float64)
    if int(header["sform_code"]) <= 0 or not (sizes > 0).all():
        return None
    steps = np.linalg.norm(header.get_sform()[:3, : len(sizes)], axis=0)
    if np.allclose(steps, sizes, rtol=SAME_SIZE):
        return None
    return " x ".join(f"{step:.4g}" for step in steps), " x ".join(f"{size:.4g}" for size in sizes)


def has_two_directions(header: Any) -> bool:  # noqa: ANN401 (as above)
    """Return whether sform and qform are both stated, and an axis of one runs far from the other's."""
    if min(int(header["sform_code"]), int(header["qform_code"])) <= 0:
        return False
    try:
        sform = header.get_sform()[:3, :3]
        qform = header.get_qform()[:3, :3]
    except ValueError:  # of a quaternion that is none, which states nothing
        return False
    lengths = np.linalg.norm(sform, axis=0) * np.linalg.norm(qform, axis=0)
    return bool(np.any(np.sum(sform * qform, axis=0) < LEAST_COSINE * lengths))


def read_nifti(path: Path, name: str, content: NDArray[np.uint8] | None = None) -> Decoded:
    """Read a volume with its channels: those of a colour, or the fourth or fifth axis.

    Args:
        content: Of a file that is compressed by gzip, its bytes as `silofl.reading.packed` unpacks them, (n,).

    Raises:
        DataError: It is no volume of numbers, its scale is not finite, it is too large, or its name's ending is wrong.
        Exception: Whatever nibabel raises of a file that is not whole.
    """
    from nibabel.arrayproxy import ArrayProxy

    with path.open("rb") if content is None else BytesIO(content[: max(LENGTHS.values())].tobytes()) as stream:
        header = _read_header(stream)
        _check_header(header, name)
        sizes = find_two_sizes(header)
        # Without a qform, 1 mm is what writers put there who state the sizes in sform alone.
        if sizes and int(header["qform_code"]) <= 0 and set(header.get_zooms()[:3]) != {1}:
            raise DataError(
                f"{name} has voxels of {sizes[0]} by its sform and of {sizes[1]} by its pixdim; import it with "
                "--voxel-size sform or pixdim"
            )
        # Without compression the voxels stay in the file until they are needed.
        voxels = ArrayProxy(path if content is None else stream, header)  # type: ignore[no-untyped-call]
        array = _read_voxels(voxels, name, content)
    return _split_channels(array, affine_mm(header), name)


def _read_header(stream: BufferedIOBase) -> Any:  # noqa: ANN401 (as above)
    import nibabel

    length = LENGTHS.get(stream.read(4))
    if length is None:
        raise ValueError("it does not begin with the length of its header, 348 or 540")
    stream.seek(0)
    # Without the extensions behind it, of which a file of 1 MiB may hold 1 GiB.
    forms: dict[int, Any] = {348: nibabel.Nifti1Header, 540: nibabel.Nifti2Header}
    header = forms[length](stream.read(length))
    keys = ("quatern_b", "quatern_c", "quatern_d")
    norm = math.hypot(*(float(header[key]) for key in keys))
    if 1 < norm < 1 + ROUNDING:
        for key in keys:
            header[key] = header[key] / norm
    return header


def _check_header(header: Any, name: str) -> None:  # noqa: ANN401 (as above)
    """Refuse what holds no volume of numbers, and a scale that is none."""
    offset = float(header["vox_offset"])
    least = int(header["sizeof_hdr"]) + EXTENSION_BYTES
    # Not "<": an offset that is NaN is refused too.
    if header["magic"].item() in PAIR_MAGIC or not offset >= least:
        raise DataError(
            f"{name} does not hold its voxels behind its header (vox_offset {offset:g}, below {least}, or a pair with "
            "an .img file); save it as one .nii file"
        )
    if header.get_data_dtype().kind == "c":
        raise DataError(f"{name} holds complex numbers; save their magnitude")
    slope = float(header["scl_slope"])
    inter = float(header["scl_inter"])
    if math.isnan(slope) and (math.isnan(inter) or inter == 0) and header.get_data_dtype().kind in "iu":
        # So nibabel, SPM and others write that whole numbers have no scale.
        return
    if not math.isfinite(slope) or (slope != 0 and not math.isfinite(inter)):
        raise DataError(
            f"{name} has a scale of intensities that is not finite (scl_slope {slope:g}, scl_inter {inter:g}); export "
            "it again, or write 1 and 0 if its numbers need none"
        )


def _read_voxels(voxels: Any, name: str, content: NDArray[np.uint8] | None) -> NDArray[Any]:  # noqa: ANN401 (as above)
    """Return the voxels by their scale; as stored where it is 1, since intensities and labels are checked by type."""
    from nibabel.volumeutils import apply_read_scaling

    is_stored = voxels.dtype.names is not None or (voxels.slope, voxels.inter) == (1, 0)
    dtype = voxels.dtype if is_stored else np.dtype(np.float64)
    check_bytes(name, voxels.shape, dtype.itemsize)
    if content is None:
        numbers: NDArray[Any] = voxels.get_unscaled()
    else:
        numbers = np.ndarray(voxels.shape, voxels.dtype, content.data, int(voxels.offset), order="F")
    if not is_stored:
        scaled = apply_read_scaling(numbers, np.float64(voxels.slope), np.float64(voxels.inter))
        numbers = scaled.astype(dtype, copy=False)
    return numbers


def _split_channels(array: NDArray[Any], affine: NDArray[np.float64], name: str) -> Decoded:
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    # NIfTI's fifth axis is that of a voxel's values; some writers leave the fourth, time, at 1 before it.
    if array.ndim == 5 and array.shape[3] == 1:
        array = array[:, :, :, 0]
    is_colour = array.dtype.names is not None
    if array.ndim not in (2, 3, 4) or (is_colour and array.ndim == 4):
        raise DataError(
            f"{name} holds {array.ndim} axes of {array.dtype}; save it with 2 or 3 axes of numbers, or 4 with channels "
            "last, and one time point a file"
        )
    if array.ndim == 4:
        return Decoded(np.moveaxis(array, 3, 0), affine, has_contrasts=True)
    if array.ndim == 2:
        array = array[:, :, None]
    if is_colour:
        return Decoded(np.stack([array[key] for key in "RGB"]), affine)
    return Decoded(array[None], affine)
