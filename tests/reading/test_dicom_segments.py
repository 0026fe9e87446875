from contextlib import nullcontext

import nibabel
import numpy as np
import pytest
from PIL import Image
from pydicom import Dataset, dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    SurfaceSegmentationStorage,
    generate_uid,
)

from silofl.base.errors import DataError
from silofl.reading import decoded
from silofl.reading.dicom_segments import read_segmentation
from silofl.reading.header import find_segmentation
from silofl.reading.images import read_image, read_label
from silofl.reading.label_grid import lay_on_image
from silofl.reading.segments import Segment, read_dicom_segments
from tests.data.conftest import edit

LABELS = {1: "organ", 2: "lesion"}
# 15 pixels a frame, so that of 1 bit frames begin within a byte, and end where the byte after the next begins.
SHAPE = (5, 3, 7)
MASK = np.random.default_rng(0).integers(0, 3, SHAPE).astype(np.uint8)


@pytest.fixture
def series(write_series_to_segment):
    return write_series_to_segment(SHAPE)


@pytest.fixture
def write(write_segmentation, series):
    def save(frames, names=LABELS, **options):
        return write_segmentation(series, frames, names, **options)

    return save


@pytest.fixture
def whole(write):
    """A segmentation of all of the mask."""
    return write(frames_of(MASK))


def frames_of(mask, slices=range(SHAPE[2]), numbers=(1, 2)):
    return [(number, z, mask[..., z] == number) for number in numbers for z in slices]


def read(path, series, labels=LABELS):
    return read_label(path, "c0/seg", labels=labels, image=read_image(series)).array[0]


def assert_refused(sentence, path, series, labels=LABELS):
    with pytest.raises(DataError, match=f"^c0/seg {sentence}"):
        read(path, series, labels)


def test_frames_are_laid_on_the_slices_of_their_image(write, series):
    # In an order of their own.
    frames = frames_of(MASK)
    path = write([frames[place] for place in np.random.default_rng(1).permutation(len(frames))])
    np.testing.assert_array_equal(read(path, series), MASK)
    assert read_dicom_segments(path, "seg") == (Segment("organ", 1, None), Segment("lesion", 2, None))


@pytest.mark.parametrize("slices", [[3], [1, 5], [0, 1, 4]])
def test_slices_without_a_frame_are_background(write, series, slices):
    wanted = np.zeros_like(MASK)
    wanted[..., slices] = MASK[..., slices]
    np.testing.assert_array_equal(read(write(frames_of(MASK, slices)), series), wanted)


def test_segment_0_is_no_label(write, series):
    assert_refused("has a segment without a whole SegmentNumber from 1", write(frames_of(MASK), {0: "organ"}), series)


@pytest.mark.parametrize("kind", ["FRACTIONAL", "LABELMAP"])
def test_shares_and_numbers_are_refused(write, series, kind):
    assert_refused(f"has SegmentationType {kind}, .* instead of BINARY", write(frames_of(MASK), kind=kind), series)


@pytest.mark.parametrize(
    ("more", "names", "labels", "numbers"),
    [
        ([], {1: "Lesion", 2: "organ"}, LABELS, [0, 2, 1]),
        # Of one name, and one that is nowhere drawn.
        ([], {1: "lesion", 2: "lesion"}, {1: "lesion"}, [0, 1, 1]),
        ([(3, 0, np.zeros(SHAPE[:2], bool))], {**LABELS, 3: "skin"}, LABELS, [0, 1, 2]),
    ],
)
def test_labels_are_found_by_the_names_of_segments(write, series, more, names, labels, numbers):
    path = write([*frames_of(MASK), *more], names)
    np.testing.assert_array_equal(read(path, series, labels), np.choose(MASK, numbers))


def test_where_segments_overlap_the_later_label_covers_the_other(write, series, tmp_path):
    organ, lesion = MASK > 0, MASK == 2
    frames = [(1, z, lesion[..., z]) for z in range(7)] + [(2, z, organ[..., z]) for z in range(7)]
    np.testing.assert_array_equal(read(write(frames, {1: "lesion", 2: "organ"}), series), MASK)
    assert_refused("has the segment 'lesion', and the labels are organ", tmp_path / "seg.dcm", series, {1: "organ"})


def test_a_folder_with_one_segmentation_is_read_as_it(whole, series, tmp_path):
    (tmp_path / "export").mkdir()
    whole.rename(tmp_path / "export" / "1.2.3")
    np.testing.assert_array_equal(read(tmp_path / "export", series), MASK)
    assert find_segmentation(series) is None and find_segmentation(next(series.iterdir())) is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_segmentation_lies_on_the_nifti_of_its_series(whole, series, tmp_path, turned):
    image = read_image(series)
    array, affine = image.array[0], image.affine
    if turned:
        # As dcm2niix writes it: rows run to the front, and columns may run to the right.
        affine = affine @ np.diag([-1, -1, 1, 1])
        affine[:3, 3] = (image.affine @ [4, 2, 0, 1])[:3]
    nibabel.save(nibabel.Nifti1Image(array, affine), tmp_path / "a.nii.gz")
    found = read(whole, tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(found, MASK[::-1, ::-1] if turned else MASK)


def places_of(header):
    """Return the places of the frames, which may be changed."""
    return [frame.PlanePositionSequence[0].ImagePositionPatient for frame in header.PerFrameFunctionalGroupsSequence]


def test_a_frame_of_a_part_of_the_slice_is_padded(write, series):
    def move(header):
        for place in places_of(header):
            # One column of 0.5 mm and one row of 0.75 mm on.
            place[:2] = [place[0] + 0.5, place[1] + 0.75]

    path = edit(write([(number, z, pixels[1:3, 1:]) for number, z, pixels in frames_of(MASK)]), move)
    wanted = np.zeros_like(MASK)
    wanted[1:3, 1:] = MASK[1:3, 1:]
    np.testing.assert_array_equal(read(path, series), wanted)


# Between two slices, and behind the last and before the first one.
@pytest.mark.parametrize("height", [37, 50, 28])
def test_a_frame_beside_the_slices_of_its_image_is_refused(whole, series, height):
    edit(whole, lambda header: places_of(header)[3].__setitem__(2, height))
    assert_refused("does not lie on the voxels of its image: frame 4 lies between or outside of them", whole, series)


def test_a_segmentation_of_another_frame_of_reference_is_refused(whole, series):
    image = read_image(series)
    label = read_label(whole, labels=LABELS, image=image)
    assert lay_on_image(label, image, "m", (whole, series)) is label
    edit(whole, FrameOfReferenceUID=generate_uid())
    with pytest.raises(DataError, match="m was drawn in another frame of reference .*UID.; name"):
        lay_on_image(label, image, "m", (whole, series))


def test_a_segmentation_of_a_picture_is_refused(whole, tmp_path):
    Image.fromarray(np.zeros((3, 5), np.uint8)).save(tmp_path / "a.png")
    assert_refused("is a DICOM segmentation, and its image is no volume", whole, tmp_path / "a.png")


def compress(header, syntax):
    header.file_meta.TransferSyntaxUID = syntax
    header.PixelData = encapsulate([header.PixelData]) if syntax == JPEG2000Lossless else header.PixelData


def turn_to_surface(header):
    header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = SurfaceSegmentationStorage
    del header.PixelData, header.Rows


def first_of(header, sequence):
    return getattr(header.PerFrameFunctionalGroupsSequence[0], sequence)[0]


REFUSED = {
    "fewer pixels": (lambda h: setattr(h, "PixelData", h.PixelData[:-4]), "holds 2[34] bytes of PixelData, .* need 27"),
    "more frames": (lambda h: setattr(h, "NumberOfFrames", 5000), "describes 14 of its 5000 frames"),
    "no pixels": (lambda h: delattr(h, "PixelData"), "is truncated or corrupt .*PixelData"),
    "no places": (
        lambda h: [frame.pop("PlanePositionSequence") for frame in h.PerFrameFunctionalGroupsSequence],
        "does not state place, direction and pixel size of each frame",
    ),
    "no number": (
        lambda h: h.PerFrameFunctionalGroupsSequence[0].pop("SegmentIdentificationSequence"),
        "has a frame of the segment None .ReferencedSegmentNumber.",
    ),
    "zero": (
        lambda h: setattr(first_of(h, "SegmentIdentificationSequence"), "ReferencedSegmentNumber", 0),
        "has a frame of the segment 0 .ReferencedSegmentNumber. instead of 1 to 65535",
    ),
    "no segment": (
        lambda h: delattr(h.SegmentSequence[0], "SegmentNumber"),
        "has a segment without a whole SegmentNumber",
    ),
    "kind": (
        lambda h: setattr(h, "SegmentationType", "PROBABLE"),
        "has SegmentationType PROBABLE, .* instead of BINARY",
    ),
    "bits": (lambda h: setattr(h, "BitsAllocated", 8), "has .* BitsAllocated 8 and"),
    "samples": (lambda h: setattr(h, "SamplesPerPixel", 3), "has .* SamplesPerPixel 3 instead"),
    "tiles": (lambda h: h.update({"TotalPixelMatrixRows": 30, "TotalPixelMatrixColumns": 50}), "holds tiles of a"),
    "place": (
        lambda h: setattr(first_of(h, "PlanePositionSequence"), "ImagePositionPatient", [1]),
        "has .* as ImagePositionPatient instead of 3 decimal",
    ),
    "jpeg": (lambda h: compress(h, JPEG2000Lossless), "is stored as JPEG 2000"),
    "deflated": (
        lambda h: compress(h, DeflatedExplicitVRLittleEndian),
        "is stored as Deflated",
    ),
    "surface": (turn_to_surface, ".* a DICOM (segmentation|file of the kind 'Surface Seg)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_segmentation_that_is_not_whole_is_refused(whole, series, name):
    change, sentence = REFUSED[name]
    assert_refused(sentence, edit(whole, change), series)


def test_undescribed_segments_and_two_frames_at_one_place_are_refused(write, series):
    path = write(frames_of(MASK), {1: "organ"})
    assert_refused("names no segment for its number 2", path, series)
    path = write([*frames_of(MASK), frames_of(MASK)[0]])
    assert_refused("holds two frames of a segment at one place", path, series)


def test_many_overlapping_segments_are_bounded_before_memory_is_taken(write, series, monkeypatch):
    # The image has 105 voxels of two bytes; two layers are more than a limit of 400.
    monkeypatch.setattr(decoded, "MAX_BYTES", 400)
    path = write(frames_of(np.ones_like(MASK), numbers=[1]) + [(2, 0, np.ones((5, 3), bool))])
    with pytest.raises(DataError, match="seg takes .* once decoded"):
        read_segmentation(path, "seg", SHAPE, read_image(series).affine.tolist())


def test_a_segmentation_is_no_image(whole):
    with pytest.raises(DataError, match="seg.dcm is a DICOM segmentation; name it as the mask"):
        read_image(whole)


def change_sizes(path, change):
    """Change the shared sizes of a segmentation's pixels and slices."""
    edit(path, lambda header: change(header.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]))


def refer_to(path, uid):
    """Let a segmentation name the series on which it was drawn."""
    named = Dataset()
    named.SeriesInstanceUID = uid
    edit(path, ReferencedSeriesSequence=[named])


def uid_of(series):
    return dcmread(next(series.iterdir())).SeriesInstanceUID


TOO_THICK = "was drawn on slices {} mm apart, and those of its image are 2 mm apart; name the series on which"


def lay(path, series):
    image = read_image(series)
    return lay_on_image(read_label(path, "c0/seg", labels=LABELS, image=image), image, "c0/seg", (path, series)).array[
        0
    ]


# Of the series itself slices may overlap: thicker than they lie apart. One of another has neighbouring frames.
@pytest.mark.parametrize(
    ("slices", "sizes", "refers_to", "apart"),
    [
        *(
            (slices, {key: 4}, "", 4)
            for slices in ([2, 4], [1, 5], [3])
            for key in ("SpacingBetweenSlices", "SliceThickness")
        ),
        *((slices, {"SpacingBetweenSlices": 4}, "own", None) for slices in ([2, 4], [3])),
        *((slices, {}, "1.2.3", apart) for slices, apart in (([1, 5], 8), ([2, 4], 4), ([1, 2, 5], None), ([3], None))),
    ],
    ids=str,
)
def test_a_segmentation_of_thicker_slices_is_refused(write, series, slices, sizes, refers_to, apart):
    path = write(frames_of(MASK, slices))
    change_sizes(path, lambda stated: stated.update(sizes))
    if refers_to:
        refer_to(path, uid_of(series) if refers_to == "own" else refers_to)
    refusal = pytest.raises(DataError, match=f"c0/seg {TOO_THICK.format(apart)}")
    with nullcontext() if apart is None else refusal:
        assert lay(path, series)[..., slices].any()
