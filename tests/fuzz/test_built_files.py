"""Files that somebody has built to read another file, to see this process's memory, to crash it or to keep it busy."""

import bz2
import gzip
import io
import struct
import zipfile
import zlib
from functools import cache

import nibabel
import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.reading.images import read_image

from .conftest import build_dicom, build_npz, build_png, one_sentence

VOXELS = np.arange(24, dtype="<i2").tobytes()
MHA = {"NDims": "3", "DimSize": "2 3 4", "ElementType": "MET_SHORT", "CompressedData": "False"}
NRRD = {"type": "short", "dimension": "3", "sizes": "2 3 4", "endian": "little", "encoding": "raw"}
SQUEEZED = {"CompressedData": "True"}
HUGE = "2147483647 2147483647 2147483647"


@cache
def bomb():
    """Return a stream of 1 GiB of zeros in some MiB."""
    squeeze = zlib.compressobj(1)
    part = squeeze.compress(bytes(1 << 24)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    # 63 parts more, the end, and Adler's sum, which of zeros is how many they are.
    return part + part[2:] * 63 + b"\3\0" + struct.pack(">I", (1 << 30) % 65521 << 16 | 1)


def mha(content=VOXELS, last="LOCAL", **changes):
    header = MHA | changes | {"ElementDataFile": last}
    return "".join(f"{key} = {value}\n" for key, value in header.items()).encode() + content


def nrrd(content=VOXELS, **changes):
    header = NRRD | {key.replace("_", " "): value for key, value in changes.items()}
    return b"NRRD0005\n" + "".join(f"{key}: {value}\n" for key, value in header.items()).encode() + b"\n" + content


def tiff(width, height, strip, compression):
    tags = {256: width, 257: height, 258: 8, 259: compression, 262: 1, 273: 8, 277: 1, 278: height, 279: len(strip)}
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(strip)) + strip + struct.pack("<H", len(tags)) + table + bytes(4)


def nifti(dim, offset=352.0, slope=1.0):
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    content = bytearray(header.binaryblock + bytes(4))
    struct.pack_into("<8h", content, 40, *dim)
    struct.pack_into("<2f", content, 108, offset, slope)
    content[344:348] = b"n+1\0"
    return bytes(content) + VOXELS


def claimed(content, size):
    """Return an archive that claims another size of its only member, in both of its places."""
    true = struct.pack("<I", zipfile.ZipFile(io.BytesIO(content)).infolist()[0].file_size)
    return content.replace(true, struct.pack("<I", size))


def dicom(rows, columns, frames):
    numbers = {2: 1, 8: frames, 0x10: rows, 0x11: columns, 0x100: 16, 0x101: 16, 0x102: 15, 0x103: 1}
    return build_dicom(numbers, VOXELS)


def picture(kind):
    file = io.BytesIO()
    Image.new("L", (20, 20)).save(file, kind)
    return file.getvalue()


BUILT = {
    "mha": {
        "voxels in another file": lambda: mha(b"", "/etc/passwd"),
        "voxels in a file beside it": lambda: mha(b"", "secret.raw"),
        "voxels in a list of files": lambda: mha(b"secret.raw\n", "LIST"),
        "voxels in a pattern of files": lambda: mha(b"", "%s%n%d.raw 1 9 1"),
        "voxels from the header on": lambda: mha(HeaderSize="4"),
        "calls a stream raw": lambda: mha(zlib.compress(VOXELS)),
        "calls raw a stream": lambda: mha(**SQUEEZED),
        "stream of half the voxels": lambda: mha(zlib.compress(VOXELS[:24]), **SQUEEZED),
        "stream without voxels": lambda: mha(zlib.compress(b""), **SQUEEZED),
        "stream without its end": lambda: mha(zlib.compress(VOXELS)[:-4], **SQUEEZED),
        "stream and more": lambda: mha(zlib.compress(VOXELS) + b"\0", **SQUEEZED),
        "stream of 1 GiB": lambda: mha(bomb(), **SQUEEZED),
        "without voxels": lambda: mha(b""),
        "of -1 axes": lambda: mha(NDims="-1"),
        "of 0 axes": lambda: mha(NDims="0"),
        "of 2 billion axes": lambda: mha(NDims="2147483647"),
        "of axes in a format string": lambda: mha(NDims="%n%s%s%s"),
        "of sizes in a format string": lambda: mha(DimSize="%n %s %s"),
        "of a type in a format string": lambda: mha(ElementType="%n%s%s%s"),
        "of sizes beyond 64 bits": lambda: mha(DimSize=HUGE),
        "of sizes whose product is 0 in 64 bits": lambda: mha(DimSize="4294967296 4294967296 1"),
        "of a size of 5,000 digits": lambda: mha(DimSize="9" * 5000 + " 1 1"),
        "of a billion channels": lambda: mha(ElementNumberOfChannels="1000000000"),
        "of a spacing of nothing": lambda: mha(ElementSpacing="0 1e-400 nan"),
        "of a header without end": lambda: b"Comment = a\n" * 1_000_000,
        "of a line without end": lambda: b"Comment = " + bytes(10_000_000),
    },
    "nrrd": {
        "voxels in another file": lambda: nrrd(b"", data_file="/etc/passwd"),
        "voxels in a list of files": lambda: nrrd(b"", datafile="LIST") + b"secret.raw\n",
        "voxels in a pattern of files": lambda: nrrd(b"", data_file="%s%n 1 9 1"),
        "voxels from elsewhere": lambda: nrrd(byte_skip="-1"),
        "of -1 axes": lambda: nrrd(dimension="-1"),
        "of 2 billion axes": lambda: nrrd(dimension="2147483647"),
        "of sizes in a format string": lambda: nrrd(sizes="%n %s %s"),
        "of sizes beyond 64 bits": lambda: nrrd(sizes=HUGE),
        "stream of 1 GiB": lambda: nrrd(bomb(), encoding="gzip"),
        "stream without its end": lambda: nrrd(gzip.compress(VOXELS)[:-8], encoding="gzip"),
        "of text": lambda: nrrd(b"1 2 3", encoding="ascii"),
        "of half the text": lambda: nrrd(b"1 " * 12, encoding="ascii"),
        "of more text than its voxels need": lambda: nrrd(b"1" * 10_000_000, encoding="ascii"),
        "of a number of 5,000 digits": lambda: nrrd(b"1 " * 23 + b"9" * 5000, encoding="ascii"),
        "stream of bzip2 of 256 MiB": lambda: nrrd(bz2.compress(bytes(1 << 24)) * 16, encoding="bzip2"),
        "of a header without end": lambda: b"NRRD0004\n" + b"# a\n" * 1_000_000,
    },
    "nii": {
        "of -1 axes": lambda: nifti([-1] * 8),
        "of sizes beyond its bytes": lambda: nifti([3, 32767, 32767, 2, 1, 1, 1, 1]),
        "of sizes beyond all memory": lambda: nifti([7] + [32767] * 7),
        "of sizes below 0": lambda: nifti([3, -2, -3, 4, 1, 1, 1, 1]),
        "of voxels before its beginning": lambda: nifti([3, 2, 3, 4, 1, 1, 1, 1], offset=-1e30),
    },
    "nii.gz": {
        "stream of 1 GiB": lambda: gzip.compress(nifti([3, 2, 3, 4, 1, 1, 1, 1])) + gzip.compress(bytes(1 << 24)) * 64,
        "of 16 GiB once scaled": lambda: gzip.compress(nifti([3, 32767, 32767, 2, 1, 1, 1, 1], slope=0.5)),
    },
    "npz": {
        "of more numbers than bytes": lambda: build_npz((2**40, 4, 4), "<i2", VOXELS),
        "of more numbers than 64 bits count": lambda: build_npz((2**62, 2**62, 2**62), "<i2", VOXELS),
        "of fewer numbers than bytes": lambda: build_npz((1, 2, 2), "<i2", VOXELS),
        "of objects": lambda: build_npz((1, 2, 2), "|O", VOXELS),
        "that claims 4 GiB": lambda: claimed(build_npz((1, 4, 6), "<i2", VOXELS), 2**32 - 2),
    },
    "png": {
        "of 4 billion pixels": lambda: build_png((65535, 65535), bytes(100)),
        "of no pixels": lambda: build_png((0, 0), b""),
        "webp that calls itself png": lambda: picture("WEBP"),
    },
    "tif": {
        "of 4 billion pixels": lambda: tiff(65535, 65535, bytes(100), 1),
        "stream of 1 GiB": lambda: tiff(20, 20, bomb(), 8),
        "strip beyond its file": lambda: tiff(20, 20, b"", 1),
    },
    "dcm": {
        "of sizes beyond its bytes": lambda: dicom(65535, 65535, 1),
        "of 2 billion frames": lambda: dicom(512, 512, 2147483647),
        "mha that calls itself dicom": lambda: mha(b"", "/etc/passwd"),
        "nrrd that calls itself dicom": lambda: nrrd(b"", data_file="/etc/passwd"),
    },
    "jpg": {"eps that calls itself jpg": lambda: picture("EPS")},
}


@pytest.mark.parametrize("ending", BUILT)
def test_built_files_are_refused_in_one_sentence_each(tmp_path, ending):
    (tmp_path / "secret.raw").write_bytes(VOXELS)
    path = tmp_path / f"a.{ending}"
    for what, build in BUILT[ending].items():
        path.write_bytes(build())
        with one_sentence(str(tmp_path), "secret.raw", "/etc/passwd") as refusals:
            read_image(path, f"a.{ending}", index=0 if ending == "npz" else None)
        assert len(refusals) == 1 and isinstance(refusals[0], DataError), what
        assert str(refusals[0]).startswith(f"a.{ending} "), what
