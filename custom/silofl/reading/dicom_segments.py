"""Read a DICOM segmentation onto the grid of its image: frames of segments, each laid on the slice that it marks.

The modules are those of DICOM PS3.3 (Segmentation, Multi-frame Functional Groups), of the binary kind. A file
need not have a frame for a slice on which nothing is marked, so that its own grid is not known from it alone.
highdicom, which reads it too, is no package of every site; pydicom begins each frame of single bits with a byte.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread, uid
from pydicom.filereader import read_file_meta_info

from silofl.base.errors import DataError
from silofl.reading.decoded import Decoded, check_bytes
from silofl.reading.dicom_checks import (
    COPY_OR_EXPORT,
    EXPORT,
    Judgement,
    check_judgements,
    judge_numbers,
    judge_size,
    judge_tiles,
)
from silofl.reading.dicom_planes import SEGMENT, Plane, count_frames, first_grid, read_planes
from silofl.reading.label_grid import match_voxels, view_voxels
from silofl.reading.raw_volume import LPS_TO_RAS

# What unpacks without end (Deflated) is told by the file's first bytes, before anything is unpacked.
READ = (uid.ImplicitVRLittleEndian, uid.ExplicitVRLittleEndian)
# How a segmentation says which pixels are of a segment: by a bit each, not by shares or numbers.
BINARY = "BINARY"
MOST_SEGMENTS = (1 << 16) - 1
# Of numbers of segments, which are kept so.
DTYPE = np.dtype(np.uint16)


def read_segmentation(path: Path, name: str, shape: Sequence[int], affine: Sequence[Sequence[float]]) -> Decoded:
    """Read a segmentation as layers of segments' numbers with the voxels of its image.

    Args:
        shape: Size of the image, (X, Y, Z).
        affine: The image's voxel indices to millimetres, (4, 4).

    Returns:
        An array (layers, X, Y, Z), with another layer where segments overlap.

    Raises:
        DataError: It is not whole, or a frame lies on no slice of the image.
    """
    syntax = read_file_meta_info(path).get("TransferSyntaxUID", READ[0])
    if syntax not in READ:
        raise DataError(f"{name} is stored as {uid.UID(syntax).name}; export it without compression")
    header = dcmread(path)
    for judge in (_judge_form, judge_tiles, judge_numbers, _judge_frames, judge_size):
        check_judgements(judge(header), name)
    image_affine = np.array(affine)
    check_bytes(name, (1, *shape), DTYPE.itemsize)
    layers = [np.zeros(shape, DTYPE)]
    seen = set()
    frames = zip(read_planes(header), _read_frames(header), strict=True)
    for number, (plane, pixels) in enumerate(frames, start=1):
        voxels = _find_voxels(plane, pixels.shape, image_affine, shape)
        if voxels is None:
            raise DataError(
                f"{name} does not lie on the voxels of its image: frame {number} lies between or outside of them; name "
                "the image on which it was drawn, or save it as NIfTI on the image's grid, as with 3D Slicer"
            )
        key = (plane[SEGMENT], voxels.tobytes())
        if key in seen:
            raise DataError(f"{name} holds two frames of a segment at one place; export each time point as a file")
        seen.add(key)
        _lay_frame(pixels, voxels, layers, name)
    return Decoded(np.stack(layers), image_affine)


def _judge_form(header: Dataset) -> Judgement:
    form = str(header.get("SegmentationType"))[:20]
    bits = header.BitsAllocated
    samples = header.SamplesPerPixel
    yield (
        (form, bits, samples) != (BINARY, 1, 1),
        f"has SegmentationType {form}, BitsAllocated {bits} and SamplesPerPixel {samples} instead of {BINARY}, 1 and "
        f"1; {EXPORT}",
    )


def _judge_frames(header: Dataset) -> Judgement:
    """Judge whether each frame says of which segment it is."""
    planes = list(read_planes(header))
    frames = count_frames(header)
    yield len(planes) != frames, f"describes {len(planes)} of its {frames} frames; {COPY_OR_EXPORT}"
    for plane in planes:
        number = plane[SEGMENT]
        yield (
            number not in range(1, MOST_SEGMENTS + 1),
            f"has a frame of the segment {number} ({SEGMENT}) instead of 1 to {MOST_SEGMENTS}; {EXPORT}",
        )
        yield first_grid([plane]) is None, f"does not state place, direction and pixel size of each frame; {EXPORT}"


def _read_frames(header: Dataset) -> Iterator[NDArray[np.uint16]]:
    """Yield the segment's number of each pixel of each frame, (columns, rows); 0 where there is none."""
    size = header.Rows * header.Columns
    raw = np.frombuffer(header.PixelData, np.uint8)
    for frame, plane in enumerate(read_planes(header)):
        # A frame of single bits begins and ends anywhere within a byte.
        start = frame * size
        frame_bytes = raw[start // 8 : math.ceil((start + size) / 8)]
        bits = np.unpackbits(frame_bytes, bitorder="little")[start % 8 :][:size]
        yield bits.reshape(header.Rows, header.Columns).T * DTYPE.type(plane[SEGMENT])


def _find_voxels(
    plane: Plane, shape: Sequence[int], image_affine: NDArray[np.float64], image_shape: Sequence[int]
) -> NDArray[np.int64] | None:
    """Return which voxel of the image each pixel of a frame is, as `match_voxels`."""
    affine = np.eye(4)
    affine[:3] = first_grid([plane])
    affine = LPS_TO_RAS @ affine
    # A frame is one voxel thick: across it the image's own step counts, which in a tilted scan is not upright on it.
    along = np.abs(np.linalg.solve(image_affine, affine)[:3, :2]).argmax(axis=0)
    # Axes 0, 1 and 2 add up to 3, so this is the axis that the frame does not lie along.
    affine[:3, 2] = image_affine[:3, 3 - along.sum()] if along[0] != along[1] else 0
    return match_voxels(affine, (*shape, 1), image_affine, image_shape)


def _lay_frame(
    pixels: NDArray[np.uint16], voxels: NDArray[np.int64], layers: list[NDArray[np.uint16]], name: str
) -> None:
    """Write a frame into the first layer in which it covers no other segment."""
    drawn = pixels != 0
    for layer in layers:
        view = view_voxels(layer, voxels, (*pixels.shape, 1))[..., 0]
        if not view[drawn].any():
            view[drawn] = pixels[drawn]
            return
    check_bytes(name, (len(layers) + 1, *layers[0].shape), DTYPE.itemsize)
    layers.append(np.zeros_like(layers[0]))
    _lay_frame(pixels, voxels, layers[-1:], name)
