"""Image files of every format that the data room reads, with wrong bytes and with headers that nobody would write."""

import struct
import zlib

import nibabel
import numpy as np
import pytest
import SimpleITK
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from silofl.reading.images import read_image, read_label

from .conftest import build_dicom, build_npz, build_png, files_opened, one_sentence

pytestmark = pytest.mark.fuzz
PIXELS = np.add.outer(np.arange(24), np.arange(20)).astype(np.uint8)
VOLUME = np.stack([PIXELS, PIXELS + 1, PIXELS * 2]).astype(np.int16)
# Beside the data, and named in the headers: of the size of the volume, so that nothing but a check keeps it out.
SECRET = bytes(range(7, 247)) * 12
ENDINGS = ("png", "jpg", "tif", "deflate.tif", "nii", "nii.gz", "mha", "raw.mha", "nrrd", "raw.nrrd")
ENDINGS += ("npz", "dcm")
NUMBERS = ["0", "-1", "1", "2", "3", "4", "20", "24", "65536", "2147483648", "-9223372036854775808", "1e309", "nan"]
WORDS = ["", "LOCAL", "LIST", "secret.raw", "/etc/passwd", "True", "False", "%n%s%s", "raw", "gzip", "none", "(1,0,0)"]
VALUES = st.lists(st.sampled_from(NUMBERS + WORDS) | st.text(max_size=6), max_size=9).map(" ".join)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a good file of each ending."""
    folder = tmp_path_factory.mktemp("whole")
    volume = SimpleITK.GetImageFromArray(VOLUME)
    for ending in ENDINGS:
        path = folder / f"a.{ending}"
        if ending in ("png", "jpg", "tif", "deflate.tif"):
            Image.fromarray(PIXELS).save(path, **({"compression": "tiff_deflate"} if "deflate" in ending else {}))
        elif "nii" in ending:
            nibabel.save(nibabel.Nifti1Image(VOLUME, np.eye(4)), path)
        elif ending == "npz":
            np.savez_compressed(path, images=PIXELS[None], labels=PIXELS[None])
        else:
            SimpleITK.WriteImage(volume[:, :, 0] if ending == "dcm" else volume, path, "raw" not in ending)
    return {ending: (folder / f"a.{ending}").read_bytes() for ending in ENDINGS}


@pytest.fixture
def read(tmp_path):
    """Read bytes as an image and as a label map, each of which gives an array or one sentence."""
    (tmp_path / "secret.raw").write_bytes(SECRET)

    def read_both(content, ending):
        path = tmp_path / f"a.{ending}"
        path.write_bytes(content)
        for read_one in (read_image, read_label):
            with one_sentence(str(tmp_path)), files_opened() as opened:
                image = read_one(path, "a", index=0 if ending == "npz" else None)
                assert image.array.size > 0 and SECRET[:64] not in image.array.tobytes()
            assert not [name for name in opened if name.startswith("/etc") or "secret" in name]

    return read_both


@st.composite
def damaged(draw, content):
    """Draw the bytes of a file with up to six changes: bits, numbers, and pieces lost, doubled or put in."""
    content = bytearray(content)
    # Most of what a reader believes stands at the beginning, and in an archive and a TIFF at the end.
    places = st.integers(0, 400) | st.integers(0, len(content)) | st.integers(len(content) - 200, len(content))
    for _ in range(draw(st.integers(1, 6))):
        place = max(0, min(draw(places), len(content) - 1))
        kind = draw(st.sampled_from(["bit", "number", "lost", "doubled", "put in", "text"]))
        if not content:
            break
        if kind == "bit":
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "number":
            number = struct.pack(draw(st.sampled_from(["<I", ">I", "<H"])), draw(st.sampled_from([0, 1, 255, 65535])))
            content[place : place + len(number)] = number
        elif kind == "lost":
            del content[place : place + draw(st.sampled_from([1, 4, 64, len(content)]))]
        elif kind == "doubled":
            content[place:place] = content[place : place + 16]
        elif kind == "put in":
            content[place:place] = draw(st.binary(max_size=16))
        else:
            text = draw(st.sampled_from(NUMBERS + WORDS)).encode()
            content[place : place + len(text)] = text
    return bytes(content)


@pytest.mark.parametrize("ending", ENDINGS)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(read, whole, ending, data):
    read(data.draw(damaged(whole[ending])), ending)


@given(data=st.data())
def test_a_damaged_dicom_segmentation_is_read_or_refused(segmentation, tmp_path, data):
    content, image = segmentation
    (tmp_path / "damaged.dcm").write_bytes(data.draw(damaged(content)))
    with one_sentence(str(tmp_path)):
        label = read_label(tmp_path / "damaged.dcm", "a", labels={1: "organ", 2: "lesion"}, image=image)
        assert label.spatial_shape == image.spatial_shape


@pytest.fixture
def segmentation(write_series_to_segment, write_segmentation):
    """The bytes of a good segmentation, and its image."""
    series, drawn = write_series_to_segment((5, 3, 4)), np.eye(5, 3, dtype=np.uint8)
    path = write_segmentation(series, [(1, 0, drawn), (2, 1, drawn), (1, 3, drawn)], {1: "organ", 2: "lesion"})
    return path.read_bytes(), read_image(series)


MHA_KEYS = ["ObjectType", "NDims", "BinaryData", "BinaryDataByteOrderMSB", "CompressedData", "CompressedDataSize"]
MHA_KEYS += ["TransformMatrix", "Offset", "ElementSpacing", "ElementSize", "DimSize", "HeaderSize", "ElementType"]
MHA_KEYS += ["ElementNumberOfChannels", "ElementDataFile", "Comment"]
MHA = {"NDims": "3", "DimSize": "20 24 3", "ElementType": "MET_SHORT", "ElementDataFile": "LOCAL"}
NRRD_FIELDS = ["type", "dimension", "space", "space dimension", "sizes", "space directions", "kinds", "endian"]
NRRD_FIELDS += ["encoding", "space origin", "spacings", "axis mins", "data file", "byte skip", "line skip"]
NRRD_FIELDS += ["block size"]
NRRD = {"type": "short", "dimension": "3", "sizes": "20 24 3", "endian": "little", "encoding": "raw"}
CONTENTS = st.sampled_from([VOLUME.tobytes(), zlib.compress(VOLUME.tobytes()), zlib.compress(bytes(1 << 20)), b""])


@given(changes=st.dictionaries(st.sampled_from(MHA_KEYS), VALUES, max_size=4), content=CONTENTS)
def test_a_built_mha_is_read_or_refused(read, changes, content):
    header = MHA | changes
    header["ElementDataFile"] = header.pop("ElementDataFile")
    text = "".join(f"{key} = {value}\n" for key, value in header.items())
    read(text.encode("utf-8", "surrogatepass") + content, "mha")


@given(changes=st.dictionaries(st.sampled_from(NRRD_FIELDS), VALUES, max_size=4), content=CONTENTS)
def test_a_built_nrrd_is_read_or_refused(read, changes, content):
    text = "".join(f"{key}: {value}\n" for key, value in (NRRD | changes).items())
    read(b"NRRD0004\n" + text.encode("utf-8", "surrogatepass") + b"\n" + content, "nrrd")


@given(
    dim=st.lists(st.integers(-32768, 32767), min_size=8, max_size=8) | st.permutations([3, 20, 24, 3, 1, 1, 1, 1]),
    datatype=st.sampled_from([0, 1, 2, 4, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 1792, 2048, 2304]),
    offset=st.sampled_from([352.0, 0.0, -1.0, 1e30, float("nan")]),
    scale=st.sampled_from([(1.0, 0.0), (0.0, 0.0), (1e38, 1e38), (float("nan"), 1.0)]),
)
def test_a_built_nifti_is_read_or_refused(read, whole, dim, datatype, offset, scale):
    content = bytearray(whole["nii"])
    struct.pack_into("<8h", content, 40, *dim)
    struct.pack_into("<h", content, 70, datatype)
    struct.pack_into("<3f", content, 108, offset, *scale)
    read(bytes(content), "nii")


@given(
    shape=st.lists(st.sampled_from([0, 1, 3, 20, 24, 2**31, 2**62, -1]), max_size=5),
    descr=st.sampled_from(
        ["|u1", "<f8", ">i2", "|O", "|S1000000000", "<M8[s]", "|V8", "<c8", "[('a', 'u1')]", "?", ""]
    ),
    key=st.sampled_from(["images", "labels", "windows"]),
)
def test_a_built_npz_is_read_or_refused(read, shape, descr, key):
    shape = f"({''.join(f'{n},' for n in shape)})"
    read(build_npz(shape, descr, PIXELS.tobytes(), key), "npz")


@given(
    size=st.tuples(*[st.sampled_from([0, 1, 20, 65535, 2**31 - 1, 2**32 - 1])] * 2),
    form=st.tuples(st.sampled_from([1, 2, 4, 8, 16, 7]), st.sampled_from([0, 2, 3, 4, 6, 9]), st.integers(0, 2)),
    pixels=st.sampled_from([b"", PIXELS.tobytes(), bytes(1 << 20)]),
)
def test_a_built_png_is_read_or_refused(read, size, form, pixels):
    read(build_png(size, pixels, form, [(b"PLTE", bytes(6))]), "png")


@given(
    tags=st.dictionaries(
        st.sampled_from([*range(256, 260), 262, 266, 273, *range(277, 280), 284, 317, 320, *range(322, 326), 338, 339]),
        st.tuples(
            st.sampled_from([1, 2, 3, 4, 5, 12, 16]),
            st.sampled_from([0, 1, 3, 2**16, 2**32 - 1]),
            st.binary(min_size=4, max_size=4),
        ),
        max_size=4,
    )
)
def test_a_built_tiff_is_read_or_refused(read, tags):
    usual = {256: 20, 257: 24, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 24, 279: 480}
    entries = {tag: (4, 1, struct.pack("<I", value)) for tag, value in usual.items()} | tags
    table = b"".join(struct.pack("<HHI", t, *entry[:2]) + entry[2] for t, entry in sorted(entries.items()))
    head = b"II*\0" + struct.pack("<I", 8 + PIXELS.size)
    read(head + PIXELS.tobytes() + struct.pack("<H", len(entries)) + table + bytes(4), "tif")


@given(
    numbers=st.dictionaries(
        st.sampled_from([2, 8, 0x10, 0x11, 0x100, 0x101, 0x103]),
        st.sampled_from([0, 1, 7, 8, 16, 32, 1000, 65535]),
        max_size=4,
    ),
    syntax=st.sampled_from([f"1.2.840.10008.1.2.{last}" for last in ("1", "4.50", "4.90", "5")]),
    pixels=st.binary(max_size=64) | st.just(VOLUME[0].tobytes()),
)
def test_a_built_dicom_is_read_or_refused(read, numbers, syntax, pixels):
    read(build_dicom({2: 1, 0x10: 24, 0x11: 20, 0x100: 16} | numbers, pixels, syntax), "dcm")


@given(
    rows=st.integers(1, 30),
    columns=st.integers(1, 30),
    frames=st.integers(1, 4),
    bits=st.sampled_from([8, 16, 32]),
    samples=st.sampled_from([1, 3]),
    held=st.integers(0, 2000),
)
def test_no_pixel_of_a_built_dicom_is_made_up(tmp_path, rows, columns, frames, bits, samples, held):
    path = tmp_path / "a.dcm"
    path.write_bytes(build_dicom({2: samples, 8: frames, 0x10: rows, 0x11: columns, 0x100: bits}, bytes(held)))
    with one_sentence(str(tmp_path)):
        # Also when it is built of zeros, no other value is read.
        assert read_image(path).array.size * bits // 8 <= held and not read_image(path).array.any()
