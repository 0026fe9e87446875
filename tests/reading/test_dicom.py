"""Whether all pixels are there and mean what is read: by files that are built, and by those that pydicom ships."""

import io
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK
from PIL import Image as Picture
from pydicom import uid
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, encapsulate_extended, generate_frames

from silofl.base.errors import DataError
from silofl.reading.header import read_header
from silofl.reading.image_grid import has_grid
from silofl.reading.images import read_image, read_label
from tests.conftest import group
from tests.data.conftest import assert_refused, edit
from tests.reading.test_jpeg import state_rows

# The markers of JPEG that say what colours it holds.
ADOBE, JFIF = 0xEE, 0xE0
GREY = np.add.outer(np.arange(16) * 9, np.arange(24) * 4).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], axis=-1)
JPEG = uid.JPEGBaseline8Bit
SHIPPED = Path(pydicom.__file__).parent / "data" / "test_files"


@pytest.fixture
def build(write_dicom, tmp_path):
    """Write pixels (rows, columns), or frames or colours of them, as one DICOM file; PixelData are bytes or streams."""

    def write(pixels, **elements):
        folder = write_dicom(tmp_path / f"base{len(list(tmp_path.iterdir()))}", np.zeros((2, 2, 1), np.int16))
        data = pydicom.dcmread(folder / "99.dcm")
        del data.RescaleSlope, data.RescaleIntercept
        # Whose numbers are no measure, so that it may have colours and MONOCHROME1.
        data.Modality, data.SOPClassUID = "OT", uid.MultiFrameGrayscaleWordSecondaryCaptureImageStorage
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
        bits, has_colours = pixels.itemsize * 8, elements.get("SamplesPerPixel") == 3
        data.Rows, data.Columns = pixels.shape[-3:-1] if has_colours else pixels.shape[-2:]
        data.BitsAllocated, data.BitsStored, data.HighBit = bits, bits, bits - 1
        data.PixelRepresentation = int(pixels.dtype.kind == "i")
        data.PixelData = pixels.tobytes() + b"\0" * (pixels.nbytes % 2)
        if has_colours:
            data.PhotometricInterpretation, data.PlanarConfiguration = "RGB", 0
        if pixels.ndim == 3 + has_colours:
            data.NumberOfFrames, data.SpacingBetweenSlices = len(pixels), 2.5
        data["PixelData"].VR = "OB" if bits == 8 else "OW"
        data.file_meta.TransferSyntaxUID = elements.pop("syntax", uid.ExplicitVRLittleEndian)
        data.update(elements.pop("palette", {}))
        for key, value in elements.items():
            setattr(data, key, encapsulate(value) if key == "PixelData" and isinstance(value, list) else value)
        data["PixelData"].is_undefined_length = data.file_meta.TransferSyntaxUID.is_encapsulated
        pydicom.dcmwrite(folder.with_suffix(".dcm"), data, enforce_file_format=True)
        return folder.with_suffix(".dcm")

    return write


def jpeg(pixels, **options):
    stream = io.BytesIO()
    Picture.fromarray(pixels).save(stream, quality=100, subsampling=0, **{"format": "JPEG"} | options)
    return stream.getvalue()


def jpeg_2000(pixels):
    return jpeg(pixels, format="JPEG2000", no_jp2=True)


def rle(pixels):
    """Encode a frame of 8 bits: runs of literals of up to 128 bytes, in the only segment."""
    content = pixels.tobytes()
    parts = [content[place : place + 128] for place in range(0, len(content), 128)]
    head = (1).to_bytes(4, "little") + (64).to_bytes(4, "little")
    return head.ljust(64, b"\0") + b"".join(bytes([len(part) - 1]) + part for part in parts)


def lossless(pixels, tmp_path):
    """Encode a frame as lossless JPEG, by GDCM itself."""
    writer = SimpleITK.ImageFileWriter()
    writer.SetImageIO("GDCMImageIO")
    writer.SetFileName(str(tmp_path / "lossless.dcm"))
    writer.UseCompressionOn()
    writer.SetCompressor("JPEG")
    writer.Execute(SimpleITK.GetImageFromArray(pixels[None]))
    return next(generate_frames(pydicom.dcmread(tmp_path / "lossless.dcm").PixelData, number_of_frames=1))


def values(path):
    """Return what is read: (rows, columns), or (frames, rows, columns), or with colours last."""
    return np.squeeze(read_image(path).array.T)


FORMS = {
    uid.JPEGBaseline8Bit: jpeg,
    uid.JPEGExtended12Bit: jpeg,
    uid.JPEG2000Lossless: jpeg_2000,
    uid.JPEG2000: jpeg_2000,
    uid.RLELossless: rle,
}


def without_markers(stream):
    """Return a JPEG without the markers of JFIF and Adobe, of which the frame alone says what its colours are."""
    kept, place = stream[:2], 2
    while stream[place + 1] != 0xDA:
        end = place + 2 + int.from_bytes(stream[place + 2 : place + 4], "big")
        kept, place = kept + stream[place:end] * (stream[place + 1] not in (JFIF, ADOBE)), end
    return kept + stream[place:]


def palette(entries, **more):
    """The elements of a palette whose colours are a number, the number less 1, and the number less 2."""
    table = np.arange(entries, dtype=np.uint16) % 256 * 256
    parts = Dataset()
    for shift, colour in enumerate(("Red", "Green", "Blue")):
        parts.add_new(f"{colour}PaletteColorLookupTableDescriptor", "US", [entries, 0, 16])
        parts.add_new(f"{colour}PaletteColorLookupTableData", "OW", np.roll(table, shift).tobytes())
    return {"PhotometricInterpretation": "PALETTE COLOR", "palette": parts} | more


def scaled(dtype, stored, slope, intercept):
    """Numbers over the whole range of some bits, their elements, and what they measure."""
    lowest = -(1 << stored - 1) if dtype in (np.int8, np.int16) else 0
    pixels = np.linspace(lowest, lowest + (1 << stored) - 1, 24).reshape(4, 6).astype(dtype)
    form = {"BitsStored": stored, "HighBit": stored - 1, "RescaleSlope": slope, "RescaleIntercept": intercept}
    return pixels, form, np.float64(pixels) * slope + intercept


# Of brightness and two colours by JFIF, of red, green and blue by Adobe, and of these by the names of the components.
JPEGS = {"ycc": jpeg(COLOUR), "rgb": jpeg(COLOUR, keep_rgb=True), "named": without_markers(jpeg(COLOUR, keep_rgb=True))}
TWO = np.stack([NOISE, NOISE[::-1]])
SHADES = np.stack([GREY, np.roll(np.arange(256), 1)[GREY], np.roll(np.arange(256), 2)[GREY]], axis=-1)
RGB = {"SamplesPerPixel": 3}
BIT = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0}
MASK = np.random.default_rng(0).integers(0, 2, (4, 6), dtype=np.uint8)
# Brightness of two pixels, then the two colours, of no colour: 100, 200.
HALVED = RGB | {"PhotometricInterpretation": "YBR_FULL_422"}
HALVES = bytes([100, 200, 128, 128] * (16 * 12))
HALVES_READ = np.repeat(np.tile(np.uint8([100, 200]), (16, 12))[..., None], 3, axis=-1)
WHITE = {"PhotometricInterpretation": "MONOCHROME1"}
TWELVE = {"BitsStored": 12, "HighBit": 11}
content, *TABLES = encapsulate_extended([jpeg_2000(np.ascontiguousarray(frame)) for frame in TWO])
EXTENDED = {"PixelData": content, "ExtendedOffsetTable": TABLES[0], "ExtendedOffsetTableLengths": TABLES[1]}
# What a file holds, its elements, what is read, and how near.
READ = {
    "filled up to a block": (GREY, {"PixelData": GREY.tobytes() + bytes(100)}, GREY, 0),
    "filled up to an even length": (GREY[:3, :3], {}, GREY[:3, :3], 0),
    "colours of which half are stored": (COLOUR, HALVED | {"PixelData": HALVES}, HALVES_READ, 0),
    "no scale of colours": (COLOUR, RGB | {"RescaleSlope": 1, "RescaleIntercept": 0}, COLOUR, 0),
    "an extended table": (TWO, {"syntax": uid.JPEG2000Lossless} | EXTENDED, TWO, 0),
    # Colours of 16 bits come with the upper 8 where their numbers have 8.
    "a palette": (GREY, palette(256), SHADES, 0),
    "a palette of 16 bits": (np.uint16(GREY), palette(256), SHADES * 256, 0),
    "24 of 32 bits": (np.uint32(GREY) * 1000, {"BitsStored": 24, "HighBit": 23}, GREY * 1000.0, 0),
    "32 bits": (np.uint32(GREY) * 1000, {}, GREY * 1000.0, 0),
    "notes above 12 bits": (np.uint16(GREY) | 0xA000, TWELVE, GREY, 0),
    "notes above 12 bits with a sign": ((np.uint16(GREY) | 0xA000).view(np.int16), TWELVE, GREY, 0),
    "one tile": (COLOUR, RGB | {"TotalPixelMatrixRows": 16, "TotalPixelMatrixColumns": 24}, COLOUR, 0),
    "bits from white": (MASK, BIT | WHITE | {"PixelData": np.packbits(MASK, bitorder="little").tobytes()}, 1 - MASK, 0),
    # The largest number of 12 bits becomes the smallest.
    "from white": (np.uint16(GREY), WHITE | TWELVE | {"Modality": "DX"}, 4095.0 - GREY, 0),
    "from white with a sign": (np.int16(GREY) - 100, WHITE | TWELVE | {"Modality": "DX"}, 99.0 - GREY, 0),
    **{
        f"{modality} from white": (np.uint16(GREY), WHITE | TWELVE | {"Modality": modality}, GREY, 0)
        for modality in ("CT", "MR", "NM", "PT")
    },
    # 0 to 63 twice is 0 to 126: eight bits of sixteen; -128 to 127 turned round is 0 to 255.
    **{
        f"scaled {np.dtype(case[0]).name} {case[1:]}": (*scaled(*case), 0)
        for case in (
            *((np.uint16, 6, 2, 0), (np.int16, 8, -1, 127), (np.uint16, 8, 0.5, 0), (np.uint16, 8, 2, 0)),
            *((np.uint8, 8, 1, -128), (np.int8, 8, -1, 127), (np.uint32, 32, 1, -1024)),
        )
    },
    **{
        f"two frames as {syntax.name} in {fragments} fragments, table {has_table}": (
            TWO,
            {
                "syntax": syntax,
                "PixelData": encapsulate(
                    [encode(np.ascontiguousarray(frame)) for frame in TWO],
                    fragments_per_frame=fragments,
                    has_bot=has_table,
                ),
            },
            TWO,
            2,
        )
        for syntax, encode in FORMS.items()
        for fragments, has_table in ((1, True), (2, True), (2, False))
    },
    # Whatever its header says.
    **{
        f"a JPEG of {name} called {colours}": (
            COLOUR,
            RGB | {"syntax": JPEG, "PhotometricInterpretation": colours, "PixelData": [stream]},
            COLOUR,
            4,
        )
        for name, stream in JPEGS.items()
        for colours in ("RGB", "YBR_FULL", "YBR_FULL_422")
    },
    "a JPEG that says nothing of its colours": (
        COLOUR,
        RGB | {"syntax": JPEG, "PhotometricInterpretation": "YBR_FULL", "PixelData": [without_markers(jpeg(COLOUR))]},
        COLOUR,
        4,
    ),
    **{
        f"JPEG 2000 of {colours}, {is_transformed}": (
            COLOUR,
            RGB
            | {
                "syntax": uid.JPEG2000,
                "PhotometricInterpretation": colours,
                "PixelData": [jpeg(COLOUR, format="JPEG2000", no_jp2=True, mct=is_transformed)],
            },
            COLOUR,
            0,
        )
        for is_transformed, colours in ((1, "YBR_FULL"), (1, "RGB"), (1, "YBR_ICT"), (0, "YBR_RCT"))
    },
}


@pytest.mark.parametrize(("pixels", "elements", "wanted", "near"), READ.values(), ids=READ)
def test_what_is_stored_is_read_as_it_is_meant(build, pixels, elements, wanted, near):
    path = build(pixels, **elements)
    before = path.read_bytes()
    np.testing.assert_allclose(np.float64(values(path)), wanted, atol=near, rtol=0)
    assert path.read_bytes() == before


def cut_at(place, frames):
    """Return frames of which one ends early."""
    return [frame[: len(frame) * 3 // 4] if number == place else frame for number, frame in enumerate(frames)]


FILMS = (
    {"SOPClassUID": uid.UltrasoundMultiFrameImageStorage, "Modality": "US", "FrameTime": 40},
    {"SOPClassUID": uid.XRayAngiographicImageStorage, "Modality": "XA", "CineRate": 15},
)
NO_DISTANCE = {"SpacingBetweenSlices": None}
VECTORS = {"SliceVector": [1, 2, 1, 2], "FrameIncrementPointer": [0x00540010, 0x00540080]}
VECTORS |= {"EnergyWindowVector": [1, 1, 2, 2]}
DEEP = np.uint16(GREY)
# What a file holds, its elements, and what is wrong with it.
REFUSED = [
    # 16 rows of 24 columns of 2 bytes.
    *(
        (np.ones((16, 24), np.uint16), {"syntax": syntax, "PixelData": b"\1" * 766}, "holds 766 bytes of .* need 768")
        for syntax in (uid.ExplicitVRLittleEndian, uid.ExplicitVRBigEndian)
    ),
    (GREY, {"NumberOfFrames": 3}, "holds 384 bytes of PixelData, .*NumberOfFrames .3. need 1152"),
    # Each row is filled up, each column, each frame, or each row of bits; or half a frame is left of another.
    (GREY[:, :22], {"PixelData": GREY.tobytes()}, "holds 384 bytes of PixelData, .* need 352"),
    (GREY[:15, :21], {"PixelData": GREY[:15, :23].tobytes() + b"\0"}, "holds 346 bytes of PixelData, .* need 315"),
    (GREY[:14], {"PixelData": GREY.tobytes()}, "holds 384 bytes of PixelData, .* need 336"),
    (TWO[:, :5, :5], {"PixelData": b"".join(frame[:5, :5].tobytes() + b"\0" for frame in TWO)}, "holds 52 .* need 50"),
    (np.ones((100, 12), np.uint8), BIT | {"PixelData": bytes(200)}, "holds 200 bytes of PixelData, .* need 150"),
    (GREY, {"PixelData": GREY.tobytes() + bytes(194)}, "holds 578 bytes of PixelData, .* need 384"),
    (GREY, {"PixelData": GREY.tobytes() * 2}, "holds 768 bytes of PixelData, .*NumberOfFrames .1. need 384"),
    *(
        (COLOUR, HALVED | {"PixelData": wrong}, f"holds {len(wrong)} bytes of PixelData, .* need 768")
        for wrong in (HALVES[:-2], HALVES + HALVES[: len(HALVES) // 2])
    ),
    *(
        (
            TWO,
            {"syntax": syntax, "PixelData": encapsulate([encode(NOISE)] * count, has_bot=has_table)},
            f"holds {count} frames, where its NumberOfFrames says 2",
        )
        for syntax, encode in FORMS.items()
        for count, has_table in ((1, True), (3, True), (3, False))
    ),
    # One that ends early, wherever it stands.
    *(
        (
            np.stack([GREY, GREY]),
            {"syntax": syntax, "PixelData": cut_at(place, [encode(GREY), encode(GREY)])},
            ".*; copy it again",
        )
        for syntax, encode in FORMS.items()
        for place in (0, 1)
    ),
    *(
        (
            GREY,
            {"syntax": syntax, "Rows": rows, "Columns": columns, "PixelData": [FORMS[syntax](GREY)]},
            rf".*\[{rows}, {columns}, 1\], where its compressed pixels say \[16, 24, 1\] in frame 1",
        )
        for syntax in (uid.JPEGBaseline8Bit, uid.JPEG2000Lossless)
        for rows, columns in ((32, 24), (8, 24), (16, 48))
    ),
    (GREY, {"syntax": uid.RLELossless, "Rows": 32, "PixelData": [rle(GREY)]}, ".*384"),
    (GREY, {"syntax": JPEG, "PixelData": [jpeg(COLOUR)]}, r".*\[16, 24, 1\], .* say \[16, 24, 3\]"),
    (COLOUR, RGB | {"syntax": JPEG, "PixelData": [jpeg(GREY)]}, r".*\[16, 24, 3\], .* say \[16, 24, 1\]"),
    (GREY, {"syntax": JPEG, "PixelData": [b"\xff\xd8\xff\xd9"]}, "is truncated or corrupt .*; copy it again"),
    # Of 32 rows, of which the rest is grey, or what the last rows were.
    (
        np.vstack([GREY, GREY]),
        {"syntax": JPEG, "PixelData": [state_rows(jpeg(GREY), 32)]},
        "lacks a part of its compressed pixels",
    ),
    # Three runs of 128 bytes, each after a byte with its length.
    *(
        (GREY, {"syntax": uid.RLELossless, "PixelData": [rle(GREY)[:-lost]]}, f".*{there} vs. 384 bytes.*; copy it")
        for lost, there in ((1, 383), (11, 373), (129, 256))
    ),
    (DEEP, {"syntax": uid.RLELossless, "PixelData": [rle(GREY)]}, ".*1 vs. 2 segments.*; copy it again"),
    (
        np.stack([COLOUR, COLOUR]),
        RGB | {"syntax": JPEG, "PixelData": [JPEGS["rgb"], JPEGS["ycc"]]},
        ".*its frames differ in how they store colours",
    ),
    (COLOUR, RGB | {"RescaleSlope": 1, "RescaleIntercept": -1024}, "has RescaleSlope .* beside colours .RGB."),
    (COLOUR, RGB | {"PhotometricInterpretation": "YBR_FULL", "RescaleSlope": 2}, "has RescaleSlope .*.YBR_FULL."),
    (GREY, palette(256, RescaleSlope=1, RescaleIntercept=-1024), "has RescaleSlope .* beside colours .PALETTE"),
    (np.stack([GREY] * 4), VECTORS, ".*EnergyWindowVector and SliceVector tell apart"),
    *(
        (np.stack([GREY] * 3), form | place | NO_DISTANCE, "holds 3 pictures without a place")
        for form in FILMS
        for place in ({}, {"ImagePositionPatient": None})
    ),
    (DEEP, {"BitsStored": 12, "HighBit": 15}, "has BitsStored 12 and HighBit 15 of 16 bits.*; export it again"),
    (DEEP, {"BitsStored": 17, "HighBit": 16}, "has BitsStored 17 and HighBit 16 of 16 bits"),
    (DEEP, {"BitsStored": 0, "HighBit": 0}, "has BitsStored 0 and HighBit 0 of 16 bits"),
    (DEEP, {"BitsAllocated": 24, "BitsStored": 24, "HighBit": 23}, "has BitsAllocated 24 instead of 1, 8, 16 or 32"),
    (DEEP, {"PixelRepresentation": 2}, "has PixelRepresentation 2 instead of 0 or 1"),
    (DEEP, {"SamplesPerPixel": 4}, "has SamplesPerPixel 4 instead of 1 or 3"),
    *(
        (np.uint16(COLOUR), RGB | {"PhotometricInterpretation": colours}, f".*Interpretation {colours} instead of RGB")
        for colours in ("HSV", "MONOCHROME2", "YBR_RCT", "YBR_FULL")
    ),
    (
        COLOUR,
        RGB | {"syntax": JPEG, "PixelData": [JPEGS["ycc"]], "PhotometricInterpretation": None},
        ".* instead of RGB, YBR_FULL or YBR_FULL_422",
    ),
    (DEEP, {"PhotometricInterpretation": "RGB"}, ".*Interpretation RGB instead of MONOCHROME1"),
    (np.uint16(COLOUR), RGB | {"PlanarConfiguration": 2}, "has PlanarConfiguration 2 instead of 0 or 1"),
    (DEEP, {"ImageType": ["ORIGINAL", "PRIMARY", "M", "ND", "MOSAIC"]}, "holds many slices .* MOSAIC"),
    (DEEP, {"TotalPixelMatrixRows": 32, "TotalPixelMatrixColumns": 48}, "holds tiles of a whole slide of 32 x 48"),
    (DEEP, {"SOPClassUID": uid.RTDoseStorage, "DoseGridScaling": "0.1"}, "is a radiotherapy dose"),
    (DEEP, {"Modality": "RTDOSE"}, "is a radiotherapy dose"),
    (DEEP, {"RescaleSlope": 0, "RescaleIntercept": -1024}, "has a rescale slope of 0"),
    *(
        (GREY, {"syntax": syntax, "PixelData": [b"\xff\x4f\xff\x51" * 9]}, f"is compressed as {syntax.name[:15]}")
        for syntax in (uid.HTJ2KLossless, uid.MPEG2MPML, uid.JPEG2000MC)
    ),
]


@pytest.mark.parametrize(("pixels", "elements", "sentence"), REFUSED)
@pytest.mark.filterwarnings("ignore:Invalid value")
def test_what_is_missing_or_would_be_misread_is_refused(build, pixels, elements, sentence):
    with pydicom.config.disable_value_validation():
        assert_refused(f"dcm {sentence}", build(pixels, **elements))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_file_of_a_series_must_hold_its_pixels(write_dicom, tmp_path, place):
    folder = write_dicom(tmp_path / "series", np.ones((4, 6, 3), np.int16))
    file = edit(sorted(folder.iterdir())[place], PixelData=bytes(46))
    assert_refused(f"{file.name} of series holds 46 bytes of PixelData, .* need 48", folder)


@pytest.mark.parametrize("key", ["FloatPixelData", "DoubleFloatPixelData"])
def test_fractions_are_refused_whatever_else_is_stated(build, key):
    path = edit(build(np.float32(GREY), **{key: bytes(GREY.size * 8)}), drop=["PixelData"])
    assert_refused("is truncated or corrupt .*no whole numbers", path)


@pytest.mark.parametrize("form", ["baseline", "lossless"])
def test_a_jpeg_of_missing_pixels_is_refused(build, tmp_path, form):
    syntax = uid.JPEGBaseline8Bit if form == "baseline" else uid.JPEGLosslessSV1
    whole = jpeg(NOISE) if form == "baseline" else lossless(NOISE, tmp_path)
    np.testing.assert_allclose(np.int16(values(build(NOISE, syntax=syntax, PixelData=[whole]))), NOISE, atol=3)
    for cut in (whole[: len(whole) // 2], whole[: len(whole) * 9 // 10]):
        # A file system fills up what it lost.
        for content in (cut, cut + bytes(len(whole) - len(cut))):
            path = build(NOISE, syntax=syntax, PixelData=[content])
            assert_refused("lacks its codestream's end in frame 1 of 1; copy it again", path)
        path = build(NOISE, syntax=syntax, PixelData=[cut + b"\xff\xd9"])
        assert_refused("lacks a part of its compressed pixels; copy it again", path)


def test_a_jpeg_ls_that_ends_early_is_refused(tmp_path):
    data = pydicom.dcmread(SHIPPED / "MR_small_jpeg_ls_lossless.dcm")
    whole = next(generate_frames(data.PixelData, number_of_frames=1))
    for content in (whole[:2000], whole[:2000] + b"\xff\xd9"):
        data.PixelData = encapsulate([content])
        data.save_as(tmp_path / "cut.dcm")
        assert_refused("cut.dcm .*; copy it again", tmp_path / "cut.dcm")


def test_each_slice_is_read_by_its_own_jpeg(build, tmp_path):
    (tmp_path / "series").mkdir()
    for z, stream in enumerate(JPEGS.values()):
        form = {"SamplesPerPixel": 3, "ImagePositionPatient": [10, 20, 2 * z], "SeriesInstanceUID": "1.2.3"}
        path = build(COLOUR, syntax=uid.JPEGBaseline8Bit, PixelData=[stream], **form, SOPInstanceUID=f"1.2.{z}")
        path.rename(tmp_path / "series" / f"{z}.dcm")
    found = read_image(tmp_path / "series").array
    assert found.shape == (3, 24, 16, 3)
    for z in range(3):
        np.testing.assert_allclose(found[..., z].transpose(2, 1, 0).astype(np.int16), COLOUR, atol=4)


@pytest.mark.parametrize(
    ("maker", "elements", "private"),
    [
        ("United Imaging", {"ImageType": ["ORIGINAL", "PRIMARY", "M", "VFRAME"]}, ()),
        ("United Imaging", {}, (0x0065, "Image Private Header", 0x50, "DS", "20")),
        ("United Imaging", {}, (0x0065, "Image Private Header", 0x50, "SQ", [Dataset(), Dataset()])),
        ("Siemens", {}, (0x0019, "SIEMENS MR HEADER", 0x0A, "US", 9)),
    ],
)
def test_slices_side_by_side_are_refused_by_their_makers_name(build, maker, elements, private):
    path = build(GREY, **elements)
    if private:
        place, creator, element, *value = private
        edit(path, lambda header: header.private_block(place, creator, create=True).add_new(element, *value))
    assert_refused(f"holds many slices .*of {maker}.; convert its series to NIfTI with dcm2niix", path)


def test_frames_called_a_mosaic_are_read_by_their_places(write_frames):
    volume = np.arange(90, dtype=np.int16).reshape(3, 6, 5)
    path = edit(write_frames(volume) / "frames.dcm", ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"])
    np.testing.assert_array_equal(read_image(path).array[0], volume)


@pytest.mark.parametrize("value", [("DS", "1"), ("DS", "0"), ("UN", b"1 "), ("LO", "no number"), ("DS", ["2", "3"])])
def test_a_picture_of_one_slice_is_no_mosaic(build, value):
    path = build(GREY)
    edit(path, lambda h: h.private_block(0x0065, "Image Private Header", create=True).add_new(0x50, *value))
    np.testing.assert_array_equal(values(path), GREY)


def test_more_bits_than_the_header_allocates_are_refused(build, tmp_path):
    path = build(GREY, syntax=uid.JPEGLosslessSV1, PixelData=[lossless(np.uint16(GREY) * 200, tmp_path)])
    assert_refused("has BitsAllocated 8, .* need 16", path)


@pytest.mark.parametrize("text", ["1,5", "0x2", "inf", "1.5 x", "1_0", "1e400", " ", "1\\2"])
@pytest.mark.parametrize("key", ["RescaleSlope", "RescaleIntercept"])
def test_a_scale_that_is_no_decimal_number_is_refused(build, key, text):
    path = build(GREY, **{key: "7.7777"})
    path.write_bytes(path.read_bytes().replace(b"7.7777", text.ljust(6).encode()))
    assert_refused(f"has '.*' as {key} instead of 1 decimal number", path)


@pytest.mark.parametrize(
    ("text", "slope"),
    [("1.5", 1.5), ("+1.5", 1.5), (" 1.5", 1.5), ("1.5\0", 1.5), (".5", 0.5), ("5.", 5), ("1E+1", 10), ("1e-6", 1e-6)]
    + [("-1", -1), ("0.5", 0.5), ("1000", 1000)],
)
def test_a_scale_is_read_as_dicom_writes_decimal_numbers(build, text, slope):
    path = build(GREY, RescaleSlope="7.7777", RescaleIntercept="0.25")
    path.write_bytes(path.read_bytes().replace(b"7.7777", text.ljust(6).encode()))
    np.testing.assert_allclose(values(path), np.float64(GREY) * slope + 0.25, rtol=1e-12)


@pytest.mark.parametrize(
    ("key", "values", "count"),
    [
        ("PixelSpacing", ["0.7777", "1"], 2),
        ("ImagePositionPatient", ["0.7777", "1", "1"], 3),
        ("ImageOrientationPatient", ["0.7777", "0", "0", "0", "1", "0"], 6),
    ],
)
def test_a_place_that_is_no_number_is_refused(build, key, values, count):
    path = build(GREY, **{key: values})
    assert read_image(path).affine is not None
    path.write_bytes(path.read_bytes().replace(b"0.7777", b"0,7777"))
    for broken, shown in ((path, "'0,7777, "), (build(GREY, **{key: values[:1]}), "'0.7777'")):
        assert not read_header(broken).has_spacing
        assert_refused(f"has {shown}.* as {key} instead of {count} decimal number", broken)


@pytest.mark.parametrize("dtype", [">u1", ">i2", ">u2", ">i4", ">u4"])
def test_big_endian_is_read_as_the_numbers_that_are_meant(build, dtype):
    pixels = (np.arange(24).reshape(4, 6) * (10 if dtype == ">u1" else 1000)).astype(dtype)
    image = read_image(build(pixels, syntax=uid.ExplicitVRBigEndian))
    np.testing.assert_array_equal(np.squeeze(image.array.T), pixels)
    # torch takes no other.
    assert image.array.dtype.isnative


def test_colours_are_read_in_both_orders_of_planes(build):
    for pixels in (COLOUR, np.uint16(COLOUR) * 250, np.stack([COLOUR, COLOUR[::-1]])):
        planes = np.ascontiguousarray(np.moveaxis(pixels, -1, -3)).tobytes()
        for order, content in ((0, pixels.tobytes()), (1, planes)):
            path = build(pixels, SamplesPerPixel=3, PlanarConfiguration=order, PixelData=content)
            found = read_image(path).array.transpose(3, 2, 1, 0)
            np.testing.assert_array_equal(np.squeeze(found), pixels)


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8), (16, 24), (3, 5, 8), (3, 5, 5)])
def test_pixels_of_one_bit_are_0_and_1(build, shape):
    mask = np.random.default_rng(0).integers(0, 2, shape, dtype=np.uint8)
    bits = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0}
    path = build(mask, PixelData=np.packbits(mask, bitorder="little").tobytes(), **bits)
    np.testing.assert_array_equal(values(path), mask)
    assert read_image(path).dtype_max == 1
    np.testing.assert_array_equal(np.squeeze(read_label(path).array.T), mask)


@pytest.mark.parametrize("storage", ["EncapsulatedPDFStorage", "RTPlanStorage", "ComprehensiveSRStorage"])
def test_what_is_no_image_is_called_what_it_is(build, storage):
    kind = getattr(uid, storage)
    path = edit(build(GREY, SOPClassUID=kind), drop=["PixelData", "Rows", "Columns"])
    sentence = "is no image, but a DICOM file of the kind '{}'; name the file"
    assert_refused(f"{path.name} {sentence.format(kind.name)}", path)
    alone = path.parent / "export" / "report.dcm"
    alone.parent.mkdir()
    path.rename(alone)
    assert_refused(f"report.dcm {sentence.format(kind.name)}", alone.parent)


@pytest.mark.parametrize("storage", [uid.EnhancedMRImageStorage, uid.EnhancedXAImageStorage])
def test_a_scale_of_frames_is_applied_to_each(build, storage):
    pixels, scale = np.stack([GREY, GREY]), "PixelValueTransformationSequence"
    shared = group(scale, RescaleSlope=2, RescaleIntercept=5)
    path = build(pixels, SOPClassUID=storage, SharedFunctionalGroupsSequence=[shared])
    np.testing.assert_array_equal(values(path), np.int32(pixels) * 2 + 5)
    each = [group(scale, RescaleSlope=slope, RescaleIntercept=5) for slope in (2, 0.5)]
    path = build(pixels, SOPClassUID=storage, PerFrameFunctionalGroupsSequence=each, ImagePositionPatient=None)
    np.testing.assert_array_equal(values(path), [GREY * 2.0 + 5, GREY * 0.5 + 5])


def test_what_numbers_measure_must_be_one_for_all_frames(build):
    def measured(*slopes):
        mapping = "RealWorldValueMappingSequence"
        groups = [group(mapping, RealWorldValueSlope=one, RealWorldValueIntercept=0.0) for one in slopes]
        form = {"ImagePositionPatient": None, "SOPClassUID": uid.EnhancedPETImageStorage}
        return build(np.stack([GREY, GREY]), PerFrameFunctionalGroupsSequence=groups, **form)

    np.testing.assert_array_equal(values(measured(2.0, 2.0)), [GREY, GREY])
    assert_refused("has several RealWorldValueSlope or -Intercept", measured(2.0, 3.0))


def test_a_series_of_grey_and_coloured_slices_is_refused(write_dicom, tmp_path):
    folder = write_dicom(tmp_path / "series", np.ones((4, 6, 3), np.int16))
    colours = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    edit(folder / "98.dcm", **colours, PixelData=bytes(144))
    assert_refused("series holds slices of several patients or kinds", folder)


def decode(path):
    """Return SimpleITK's reading, by another copy of GDCM: (frames, rows, columns, colours)."""
    image = SimpleITK.ReadImage(str(path), imageIO="GDCMImageIO")
    data = pydicom.dcmread(path, force=True)
    return SimpleITK.GetArrayFromImage(image).reshape(int(data.get("NumberOfFrames") or 1), data.Rows, data.Columns, -1)


def read_stated(path):
    """Return a file's image; of a film as that of a volume, once it states how far its frames lie apart."""
    try:
        return read_image(path)
    except DataError as error:
        if "pictures without a place" not in str(error):
            raise
    data = pydicom.dcmread(path, force=True)
    data.SpacingBetweenSlices = 2
    data.save_as(path)
    return read_image(path)


# Colours of more than 8 bits in RLE.
MISREAD = {*(f"SC_rgb_rle_{bits}bit{frames}.dcm" for bits in (16, 32) for frames in ("", "_2frame"))}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pydicoms_files_are_read_as_another_library_reads_them(tmp_path):
    refused, compared = {}, 0
    for path in sorted(file for file in SHIPPED.parent.rglob("*") if file.is_file()):
        copy = tmp_path / f"{path.name}.dcm"
        copy.write_bytes(path.read_bytes())
        try:
            array = read_stated(copy).array
            # A picture is (C, rows, columns).
            found = array.transpose(1, 2, 0)[None] if array.ndim == 3 else array.transpose(3, 2, 1, 0)
        except DataError as error:
            refused[path.name] = str(error)
            continue
        if path.name in MISREAD:
            data = pydicom.dcmread(path)
            wanted = pydicom.pixels.pixel_array(data).reshape(found.shape)
        else:
            wanted = decode(path)
        compared += 1
        np.testing.assert_array_equal(found, wanted, err_msg=path.name)
    assert compared > 70
    refused_images = {name for name in refused if name.startswith(("SC_", "MR_", "CT_", "JPEG", "examples"))}
    # Broken on purpose, or a row longer than it states.
    broken = {"MR_truncated.dcm", "JPEG2000-embedded-sequence-delimiter.dcm", "MR_small_padded.dcm"}
    assert refused_images == broken


# --- projections


@pytest.mark.parametrize(
    ("elements", "is_picture"),
    [
        *(({"Modality": modality}, True) for modality in ("CR", "DX", "MG", "IO", "PX", "US", "OP")),
        ({"SOPClassUID": uid.SecondaryCaptureImageStorage}, True),
        ({"Modality": "CT", "SOPClassUID": uid.CTImageStorage}, False),
    ],
)
def test_a_projection_is_a_picture_as_it_is_shown(build, elements, is_picture):
    place = {"ImagePositionPatient": [0, 0, 0], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    values = np.arange(12, dtype=np.uint16).reshape(3, 4)
    path = build(values, **elements | dict.fromkeys(place), ImagerPixelSpacing=[0.1, 0.1])
    image = read_image(path)
    assert (image.affine is None, image.spatial_shape) == (is_picture, (3, 4) if is_picture else (4, 3, 1))
    np.testing.assert_array_equal(image.array[0] if is_picture else image.array[0, ..., 0].T, values)
    assert not is_picture or has_grid(path, (3, 4), None)
    # A slice with a place in the body is one of a volume, by whatever it was captured.
    assert read_image(build(values, **elements | place, PixelSpacing=[0.1, 0.1])).affine is not None


def test_a_radiograph_stored_as_white_is_turned_and_a_photograph_has_colours(build):
    place = dict.fromkeys(("ImagePositionPatient", "ImageOrientationPatient"))
    white = build(GREY, **place, Modality="DX", PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(read_image(white).array, 255 - GREY[None])
    photograph = read_image(build(COLOUR, **place, Modality="OP", SamplesPerPixel=3))
    np.testing.assert_array_equal(photograph.array, np.moveaxis(COLOUR, 2, 0))
    frames = build(np.stack([GREY, GREY]), **place, Modality="US")
    assert read_image(frames).affine is not None
