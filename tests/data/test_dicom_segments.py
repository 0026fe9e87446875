import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
    SurfaceSegmentationStorage,
    generate_uid,
)

from silofl.data import decoder
from silofl.data.header import find_segmentation
from silofl.data.images import read_image, read_label
from silofl.data.label_grid import lay_on_image
from silofl.data.layouts.masks import Values, plan_mask
from silofl.data.segments import Segment, read_segments
from silofl.errors import DataError

LABELS = {1: "organ", 2: "lesion"}
# 15 pixels a frame, so that of 1 bit frames begin within a byte, and end where the byte after the next begins.
SHAPE = (5, 3, 7)
MASK = np.random.default_rng(0).integers(0, 3, SHAPE).astype(np.uint8)
LABELMAP = "1.2.840.10008.5.1.4.1.1.66.7"


@pytest.fixture
def series(write_series_to_segment):
    return write_series_to_segment(SHAPE)


@pytest.fixture
def write(write_segmentation, series):
    def save(frames, names=LABELS, **options):
        return write_segmentation(series, frames, names, **options)

    return save


def frames_of(mask, slices=range(SHAPE[2]), numbers=(1, 2)):
    return [(number, z, mask[..., z] == number) for number in numbers for z in slices]


def read(path, series, labels=LABELS):
    return read_label(path, "c0/seg", labels=labels, image=read_image(series)).array[0]


def test_frames_are_laid_on_the_slices_of_their_image(write, series):
    # In an order of their own.
    frames = frames_of(MASK)
    path = write([frames[place] for place in np.random.default_rng(1).permutation(len(frames))])
    np.testing.assert_array_equal(read(path, series), MASK)
    assert read_segments(path, "seg") == (Segment("organ", 1, None), Segment("lesion", 2, None))


@pytest.mark.parametrize("slices", [[3], [1, 5], [0, 1, 4]])
def test_slices_without_a_frame_are_background(write, series, slices):
    wanted = np.zeros_like(MASK)
    wanted[..., slices] = MASK[..., slices]
    np.testing.assert_array_equal(read(write(frames_of(MASK, slices)), series), wanted)


def test_numbers_are_those_of_the_labels_by_the_names_of_segments(write, series):
    path = write(frames_of(MASK), {1: "Lesion", 2: "organ"})
    np.testing.assert_array_equal(read(path, series), np.choose(MASK, [0, 2, 1]))


def test_where_segments_overlap_the_label_that_is_named_later_covers_the_other(write, series):
    organ, lesion = MASK > 0, MASK == 2
    frames = [(1, z, lesion[..., z]) for z in range(7)] + [(2, z, organ[..., z]) for z in range(7)]
    np.testing.assert_array_equal(read(write(frames, {1: "lesion", 2: "organ"}), series), MASK)
    with pytest.raises(DataError, match="c0/seg must name its segments as the labels, organ, not 'lesion'"):
        read(write(frames, {1: "lesion", 2: "organ"}), series, {1: "organ"})


def test_segments_that_are_nowhere_drawn_may_have_any_name(write, series):
    frames = [*frames_of(MASK), (3, 0, np.zeros(SHAPE[:2], bool))]
    np.testing.assert_array_equal(read(write(frames, {**LABELS, 3: "skin"}), series), MASK)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_label_map_of_dicom_holds_the_numbers_of_segments(write, series, bits):
    path = write([(None, z, MASK[..., z]) for z in range(7)], kind="LABELMAP", bits=bits)
    np.testing.assert_array_equal(read(path, series), MASK)


@pytest.mark.parametrize("value", [1, 255, 254])
def test_shares_are_segments_where_each_is_nothing_or_all(write, series, value):
    frames = [(number, z, pixels * np.uint8(value)) for number, z, pixels in frames_of(MASK)]
    path = write(frames, kind="FRACTIONAL", MaximumFractionalValue=255 if value == 254 else value)
    if value == 254:
        with pytest.raises(DataError, match="c0/seg must say of each pixel whether .*FRACTIONAL.*254 of 255"):
            read(path, series)
    else:
        np.testing.assert_array_equal(read(path, series), MASK)


def test_frames_in_run_lengths_are_read(write, series):
    path = write([(None, z, MASK[..., z]) for z in range(7)], kind="LABELMAP", syntax=RLELossless)
    np.testing.assert_array_equal(read(path, series), MASK)


def test_a_folder_with_one_segmentation_is_read_as_it(write, series, tmp_path):
    (tmp_path / "export").mkdir()
    write(frames_of(MASK)).rename(tmp_path / "export" / "1.2.3")
    np.testing.assert_array_equal(read(tmp_path / "export", series), MASK)
    assert find_segmentation(series) is None and find_segmentation(next(series.iterdir())) is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_segmentation_lies_on_the_nifti_of_its_series(write, series, tmp_path, turned):
    image = read_image(series)
    array, affine = image.array[0], image.affine
    if turned:
        # As dcm2niix writes it: rows run to the front, and columns may run to the right.
        affine = affine @ np.diag([-1, -1, 1, 1])
        affine[:3, 3] = (image.affine @ [4, 2, 0, 1])[:3]
    nibabel.save(nibabel.Nifti1Image(array, affine), tmp_path / "a.nii.gz")
    found = read(write(frames_of(MASK)), tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(found, MASK[::-1, ::-1] if turned else MASK)


def test_a_frame_of_a_part_of_the_slice_is_padded(write, series):
    small = [(number, z, pixels[1:3, 1:]) for number, z, pixels in frames_of(MASK)]
    path = write(small)
    header = pydicom.dcmread(path)
    for frame in header.PerFrameFunctionalGroupsSequence:
        place = frame.PlanePositionSequence[0]
        x, y, z = place.ImagePositionPatient
        # One column of 0.5 mm and one row of 0.75 mm on.
        place.ImagePositionPatient = [x + 0.5, y + 0.75, z]
    header.save_as(path)
    wanted = np.zeros_like(MASK)
    wanted[1:3, 1:] = MASK[1:3, 1:]
    np.testing.assert_array_equal(read(path, series), wanted)


def change(path, function):
    header = pydicom.dcmread(path)
    function(header)
    header.save_as(path)


@pytest.mark.parametrize("moved", [1.0, 14.0, -2.0])
def test_a_frame_beside_the_slices_of_its_image_is_refused(write, series, moved):
    def move(header):
        place = header.PerFrameFunctionalGroupsSequence[3].PlanePositionSequence[0]
        place.ImagePositionPatient = [10, 20, 36 + moved if moved != -2 else 28]

    path = write(frames_of(MASK))
    change(path, move)
    with pytest.raises(DataError, match="c0/seg must lie on the voxels of its image; its frame 4 lies beside them"):
        read(path, series)


def test_two_frames_of_a_segment_at_one_place_are_refused(write, series):
    path = write([*frames_of(MASK), frames_of(MASK)[0]])
    with pytest.raises(DataError, match="c0/seg must hold one frame of each segment at each place, not two"):
        read(path, series)


def test_a_segmentation_of_another_frame_of_reference_is_refused(write, series):
    path = write(frames_of(MASK), FrameOfReferenceUID=generate_uid())
    image = read_image(series)
    label = read_label(path, labels=LABELS, image=image)
    with pytest.raises(DataError, match="m must be drawn on its image, not in another frame of reference .*UID.; name"):
        lay_on_image(label, image, "m", (path, series))
    assert lay_on_image(label, image, "m", (write(frames_of(MASK)), series)) is label


def test_a_segmentation_of_a_picture_is_refused(write, tmp_path):
    from PIL import Image

    Image.fromarray(np.zeros((3, 5), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="c0/seg must lie on a volume with places in mm, as a DICOM segmentation"):
        read(write(frames_of(MASK)), tmp_path / "a.png")


def drop_places(header):
    for frame in header.PerFrameFunctionalGroupsSequence:
        del frame.PlanePositionSequence


REFUSED = {
    "fewer pixels": (lambda h: setattr(h, "PixelData", h.PixelData[:-4]), "hold 27 bytes of PixelData, not 2[34]"),
    "more frames": (lambda h: setattr(h, "NumberOfFrames", 5000), "describe each of its 5000 frames, not 14"),
    "no pixels": (lambda h: delattr(h, "PixelData"), "hold PixelData"),
    "no places": (drop_places, "state the place, the direction and the pixel size of each frame"),
    "no number": (
        lambda h: delattr(h.PerFrameFunctionalGroupsSequence[0], "SegmentIdentificationSequence"),
        "name the segment of each frame .ReferencedSegmentNumber.",
    ),
    "zero": (
        lambda h: setattr(
            h.PerFrameFunctionalGroupsSequence[0].SegmentIdentificationSequence[0], "ReferencedSegmentNumber", 0
        ),
        "name the segment of each frame .ReferencedSegmentNumber., from 1 to 65535, not 0",
    ),
    "no number of a segment": (
        lambda h: delattr(h.SegmentSequence[0], "SegmentNumber"),
        "give each segment a whole number .SegmentNumber.",
    ),
    "kind": (lambda h: setattr(h, "SegmentationType", "PROBABLE"), "have a SegmentationType of .*, not PROBABLE"),
    "bits": (lambda h: setattr(h, "BitsAllocated", 8), "have BitsAllocated 1 for BINARY, not 8"),
    "samples": (lambda h: setattr(h, "SamplesPerPixel", 3), "have SamplesPerPixel 1, not 3"),
    "tiles": (
        lambda h: h.update({"TotalPixelMatrixRows": 30, "TotalPixelMatrixColumns": 50}),
        ".* not tiles of a whole",
    ),
    "place": (
        lambda h: h.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence[0].update({"ImagePositionPatient": [1]}),
        "have 3 decimal number.s. as ImagePositionPatient",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_segmentation_that_is_not_whole_is_refused(write, series, name):
    function, sentence = REFUSED[name]
    path = write(frames_of(MASK))
    change(path, function)
    with pytest.raises(DataError, match=f"^c0/seg must {sentence}"):
        read(path, series)


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, DeflatedExplicitVRLittleEndian])
def test_another_compression_is_refused(write, series, syntax):
    path = write(frames_of(MASK))
    header = pydicom.dcmread(path)
    header.file_meta.TransferSyntaxUID = syntax
    if syntax == JPEG2000Lossless:
        header.PixelData = pydicom.encaps.encapsulate([header.PixelData])
    header.save_as(path)
    with pytest.raises(DataError, match="c0/seg must be stored as it is or as RLE, not as (JPEG 2000|Deflated)"):
        read(path, series)


def test_a_surface_is_refused(write, series):
    path = write(frames_of(MASK))

    def turn(header):
        header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = SurfaceSegmentationStorage
        del header.PixelData, header.Rows

    change(path, turn)
    with pytest.raises(DataError, match="must be .*, not a DICOM (segmentation|file of the kind 'Surface Seg)"):
        read(path, series)


def test_a_segment_that_the_file_does_not_describe_is_refused(write, series):
    with pytest.raises(DataError, match="c0/seg must name a segment for each number that it holds, not none for 2"):
        read(write(frames_of(MASK), {1: "organ"}), series)


def test_many_overlapping_segments_are_bounded_before_memory_is_taken(write, series, monkeypatch):
    # The image has 105 voxels of two bytes; two layers are more than a limit of 400.
    from silofl.data import decoded, dicom_segments

    monkeypatch.setattr(decoded, "MAX_BYTES", 400)
    path, image = (
        write(frames_of(np.ones_like(MASK), numbers=[1, 1])[:7] + [(2, 0, np.ones((5, 3), bool))]),
        read_image(series),
    )
    with pytest.raises(DataError, match="seg must hold at most .* once decoded"):
        dicom_segments.read_segmentation(path, "seg", SHAPE, image.affine.tolist())


def test_a_short_file_is_refused_in_the_decoders_process(write, series):
    path = write(frames_of(MASK))
    path.write_bytes(path.read_bytes()[:600])
    process = decoder._process
    with pytest.raises(DataError, match="c0/seg must"):
        read(path, series)
    assert decoder._process is process or process is None


def test_a_segmentation_is_no_image(write):
    with pytest.raises(DataError, match="seg.dcm must be an image, not a DICOM segmentation; name it as the mask"):
        read_image(write(frames_of(MASK)))


def resample(path, image, tmp_path, labels=LABELS):
    """Import a segmentation as a mask on the grid of an image, and return it."""
    values = Values({number: name for number, name in labels.items()}, of_all=labels)
    name, write_mask = plan_mask(path, image, "p1", values, "p1/seg", is_resampled=True)
    (tmp_path / "masks").mkdir(exist_ok=True)
    write_mask(tmp_path / name)
    return read_label(tmp_path / name).array[0]


def save_image(series, tmp_path, factors, shape):
    """Write an image whose voxels are other ones than those of a series, and begin where they begin."""
    affine = read_image(series).affine @ np.diag([*factors, 1])
    # The corner of the first voxel stays where it is.
    affine[:3, 3] += read_image(series).affine[:3, :3] @ (np.array(factors) - 1) / 2
    nibabel.save(nibabel.Nifti1Image(np.zeros(shape, np.int16), affine), tmp_path / "a.nii.gz")
    return tmp_path / "a.nii.gz"


@pytest.mark.parametrize("slices", [range(7), [5, 1, 2]])
def test_a_segmentation_on_another_grid_is_resampled_where_it_was_asked_for(write, series, tmp_path, slices):
    path, image = write(frames_of(MASK, slices)), save_image(series, tmp_path, (1, 0.5, 0.5), (5, 6, 14))
    with pytest.raises(DataError, match="c0/seg must lie on the voxels of its image.*import with --resample-masks"):
        read(path, image)
    wanted = np.zeros_like(MASK)
    wanted[..., list(slices)] = MASK[..., list(slices)]
    # Each of its voxels holds two rows and two slices of the image.
    np.testing.assert_array_equal(resample(path, image, tmp_path), wanted.repeat(2, axis=1).repeat(2, axis=2))


def test_a_segmentation_that_is_resampled_lies_as_its_nifti_does(write, series, tmp_path):
    image = save_image(series, tmp_path, (0.7, 1.1, 1.6), (8, 3, 9))
    same = nibabel.Nifti1Image(MASK, read_image(series).affine)
    nibabel.save(same, tmp_path / "mask.nii.gz")
    wanted = resample(tmp_path / "mask.nii.gz", image, tmp_path)
    assert wanted.any()
    np.testing.assert_array_equal(resample(write(frames_of(MASK)), image, tmp_path), wanted)


def test_a_segmentation_of_one_slice_is_as_thick_as_it_says(write, series, tmp_path):
    path, image = write(frames_of(MASK, [2])), save_image(series, tmp_path, (1, 1, 0.5), (5, 3, 14))
    wanted = np.zeros((5, 3, 14))
    wanted[..., 4:6] = MASK[..., 2:3]
    np.testing.assert_array_equal(resample(path, image, tmp_path), wanted)
    change(path, lambda header: header.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].pop("SliceThickness"))
    with pytest.raises(DataError, match="p1/seg must state how far its slices lie apart .SpacingBetweenSlices"):
        resample(path, image, tmp_path)


def test_slices_of_a_segmentation_without_a_frame_are_no_part_of_thick_ones(write, series, tmp_path):
    path, image = write(frames_of(MASK, [0, 4])), save_image(series, tmp_path, (1, 1, 0.5), (5, 3, 14))
    # 8 mm apart and 2 mm thick: nobody knows whether there are slices between.
    with pytest.raises(DataError, match="p1/seg must state how far its slices lie apart .SpacingBetweenSlices"):
        resample(path, image, tmp_path)
    measures = {"SpacingBetweenSlices": 2}
    change(path, lambda header: header.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].update(measures))
    wanted = np.zeros((5, 3, 14))
    wanted[..., :2], wanted[..., 8:10] = MASK[..., :1], MASK[..., 4:5]
    np.testing.assert_array_equal(resample(path, image, tmp_path), wanted)


@pytest.mark.parametrize("pixel", [1, 0.02])
def test_frames_of_small_pixels_may_lie_less_aside(write, series, tmp_path, pixel):
    def move(header):
        shared, first = header.SharedFunctionalGroupsSequence[0], header.PerFrameFunctionalGroupsSequence[3]
        shared.PixelMeasuresSequence[0].PixelSpacing = [pixel, pixel]
        first.PlanePositionSequence[0].ImagePositionPatient[0] += 0.05

    path, image = write(frames_of(MASK)), save_image(series, tmp_path, (1, 1, 0.5), (5, 3, 14))
    change(path, move)
    if pixel == 1:
        assert resample(path, image, tmp_path).any()
    else:
        with pytest.raises(DataError, match="p1/seg must have frames above one another at even distances"):
            resample(path, image, tmp_path)


def test_frames_that_are_no_volume_are_not_resampled(write, series, tmp_path):
    def move(header):
        header.PerFrameFunctionalGroupsSequence[3].PlanePositionSequence[0].ImagePositionPatient = [11, 20, 36]

    path, image = write(frames_of(MASK)), save_image(series, tmp_path, (1, 1, 0.5), (5, 3, 14))
    change(path, move)
    with pytest.raises(DataError, match="p1/seg must have frames above one another at even distances"):
        resample(path, image, tmp_path)


def test_a_segmentation_of_another_frame_of_reference_is_not_resampled(write, series, tmp_path):
    path = write(frames_of(MASK), FrameOfReferenceUID=generate_uid())
    with pytest.raises(DataError, match="p1/seg must be drawn on its image, not in another frame of reference"):
        resample(path, series, tmp_path)
