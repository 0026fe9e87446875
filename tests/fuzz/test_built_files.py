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

from silofl.data.images import read_image
from silofl.errors import DataError

from .conftest import one_sentence

VOXELS = np.arange(24, dtype="<i2").tobytes()
MHA = {"NDims": "3", "DimSize": "2 3 4", "ElementType": "MET_SHORT", "CompressedData": "False"}
NRRD = {"type": "short", "dimension": "3", "sizes": "2 3 4", "endian": "little", "encoding": "raw"}
SQUEEZED = {"CompressedData": "True"}
HUGE = "2147483647 2147483647 2147483647"


@cache
def bomb():
    """Return a stream of 1 GiB of zeros in some MiB."""
    return zlib.compress(bytes(1 << 30), 1)


def mha(content=VOXELS, last="LOCAL", **changes):
    header = MHA | changes | {"ElementDataFile": last}
    return "".join(f"{key} = {value}\n" for key, value in header.items()).encode() + content


def nrrd(content=VOXELS, **changes):
    header = NRRD | {key.replace("_", " "): value for key, value in changes.items()}
    return b"NRRD0005\n" + "".join(f"{key}: {value}\n" for key, value in header.items()).encode() + b"\n" + content


def png(width, height, pixels):
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


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


def mgh(*sizes):
    return struct.pack(">7ih", 1, *sizes, 4, 0, 0) + bytes(254) + VOXELS


def npz(shape, content=VOXELS, descr="<i2"):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content)
    return file.getvalue()


def claimed(content, size):
    """Return an archive that claims another size of its only member, in both of its places."""
    true = struct.pack("<I", zipfile.ZipFile(io.BytesIO(content)).infolist()[0].file_size)
    return content.replace(true, struct.pack("<I", size))


def dicom(rows, columns, frames, pixels=VOXELS):
    body = b"".join(struct.pack("<HH2sHH", 0x28, tag, b"US", 2, value) for tag, value in [(2, 1)])
    body += struct.pack("<HH2sH", 0x28, 8, b"IS", 10) + f"{frames:<10}".encode()
    body += b"".join(
        struct.pack("<HH2sHH", 0x28, tag, b"US", 2, value)
        for tag, value in [(0x10, rows), (0x11, columns), (0x100, 16), (0x101, 16), (0x102, 15), (0x103, 1)]
    )
    uid = b"1.2.840.10008.1.2.1\0"
    element = struct.pack("<HH2sH", 2, 0x10, b"UI", len(uid)) + uid
    meta = struct.pack("<HH2sHI", 2, 0, b"UL", 4, len(element)) + element
    return b"\0" * 128 + b"DICM" + meta + body + struct.pack("<HH2sHI", 0x7FE0, 0x10, b"OW", 0, len(pixels)) + pixels


BUILT = {
    "mha voxels in another file": ("mha", lambda: mha(b"", "/etc/passwd")),
    "mha voxels in a file beside it": ("mha", lambda: mha(b"", "secret.raw")),
    "mha voxels in a list of files": ("mha", lambda: mha(b"secret.raw\n", "LIST")),
    "mha voxels in a pattern of files": ("mha", lambda: mha(b"", "%s%n%d.raw 1 9 1")),
    "mha voxels from the header on": ("mha", lambda: mha(HeaderSize="4")),
    "mha calls a stream raw": ("mha", lambda: mha(zlib.compress(VOXELS))),
    "mha calls raw a stream": ("mha", lambda: mha(**SQUEEZED)),
    "mha stream of half the voxels": ("mha", lambda: mha(zlib.compress(VOXELS[:24]), **SQUEEZED)),
    "mha stream without voxels": ("mha", lambda: mha(zlib.compress(b""), **SQUEEZED)),
    "mha stream without its end": ("mha", lambda: mha(zlib.compress(VOXELS)[:-4], **SQUEEZED)),
    "mha stream and more": ("mha", lambda: mha(zlib.compress(VOXELS) + b"\0", **SQUEEZED)),
    "mha stream of 1 GiB": ("mha", lambda: mha(bomb(), **SQUEEZED)),
    "mha without voxels": ("mha", lambda: mha(b"")),
    "mha of -1 axes": ("mha", lambda: mha(NDims="-1")),
    "mha of 0 axes": ("mha", lambda: mha(NDims="0")),
    "mha of 2 billion axes": ("mha", lambda: mha(NDims="2147483647")),
    "mha of axes in a format string": ("mha", lambda: mha(NDims="%n%s%s%s")),
    "mha of sizes in a format string": ("mha", lambda: mha(DimSize="%n %s %s")),
    "mha of a type in a format string": ("mha", lambda: mha(ElementType="%n%s%s%s")),
    "mha of sizes beyond 64 bits": ("mha", lambda: mha(DimSize=HUGE)),
    "mha of sizes whose product is 0 in 64 bits": ("mha", lambda: mha(DimSize="4294967296 4294967296 1")),
    "mha of a size of 5,000 digits": ("mha", lambda: mha(DimSize="9" * 5000 + " 1 1")),
    "mha of a billion channels": ("mha", lambda: mha(ElementNumberOfChannels="1000000000")),
    "mha of a spacing of nothing": ("mha", lambda: mha(ElementSpacing="0 1e-400 nan")),
    "mha of a header without end": ("mha", lambda: b"Comment = a\n" * 1_000_000),
    "mha of a line without end": ("mha", lambda: b"Comment = " + bytes(10_000_000)),
    "nrrd voxels in another file": ("nrrd", lambda: nrrd(b"", data_file="/etc/passwd")),
    "nrrd voxels in a list of files": ("nrrd", lambda: nrrd(b"", datafile="LIST") + b"secret.raw\n"),
    "nrrd voxels in a pattern of files": ("nrrd", lambda: nrrd(b"", data_file="%s%n 1 9 1")),
    "nrrd voxels from elsewhere": ("nrrd", lambda: nrrd(byte_skip="-1")),
    "nrrd of -1 axes": ("nrrd", lambda: nrrd(dimension="-1")),
    "nrrd of 2 billion axes": ("nrrd", lambda: nrrd(dimension="2147483647")),
    "nrrd of sizes in a format string": ("nrrd", lambda: nrrd(sizes="%n %s %s")),
    "nrrd of sizes beyond 64 bits": ("nrrd", lambda: nrrd(sizes=HUGE)),
    "nrrd stream of 1 GiB": ("nrrd", lambda: nrrd(bomb(), encoding="gzip")),
    "nrrd stream without its end": ("nrrd", lambda: nrrd(gzip.compress(VOXELS)[:-8], encoding="gzip")),
    "nrrd of text": ("nrrd", lambda: nrrd(b"1 2 3", encoding="ascii")),
    "nrrd of half the text": ("nrrd", lambda: nrrd(b"1 " * 12, encoding="ascii")),
    "nrrd of more text than its voxels need": ("nrrd", lambda: nrrd(b"1" * 10_000_000, encoding="ascii")),
    "nrrd of a number of 5,000 digits": ("nrrd", lambda: nrrd(b"1 " * 23 + b"9" * 5000, encoding="ascii")),
    "nrrd stream of bzip2 of 256 MiB": ("nrrd", lambda: nrrd(bz2.compress(bytes(1 << 28)), encoding="bzip2")),
    "mhd voxels in another file": ("mhd", lambda: mha(b"", "/etc/passwd")),
    "mhd voxels above its folder": ("mhd", lambda: mha(b"", "../secret.raw")),
    "mhd voxels in a list of files": ("mhd", lambda: mha(b"secret.raw\n", "LIST")),
    "mhd voxels in itself": ("mhd", lambda: mha(b"", "a.mhd")),
    "mhd voxels in a link": ("mhd", lambda: mha(b"", "link.raw")),
    "mhd voxels behind a byte of 0": ("mhd", lambda: mha(b"", "secret.raw\0")),
    "mhd of more voxels than the file beside it": ("mhd", lambda: mha(b"", "secret.raw", DimSize=HUGE)),
    "nhdr voxels in another file": ("nhdr", lambda: nrrd(b"", data_file="/etc/passwd")),
    "nhdr voxels in a link": ("nhdr", lambda: nrrd(b"", data_file="link.raw")),
    "nhdr voxels in a pattern of files": ("nhdr", lambda: nrrd(b"", data_file="%s%n 1 9 1")),
    "nhdr of more voxels than the file beside it": ("nhdr", lambda: nrrd(b"", data_file="secret.raw", sizes="2 3 5")),
    "hdr without voxels": ("hdr", lambda: nifti([3, 2, 3, 4, 1, 1, 1, 1])[:344] + b"ni1\0"),
    "mgh of sizes beyond all memory": ("mgh", lambda: mgh(2**31 - 1, 2**31 - 1, 2**31 - 1, 9)),
    "mgh of fewer voxels than it says": ("mgh", lambda: mgh(2, 3, 5, 1)),
    "mgz stream of 1 GiB": ("mgz", lambda: gzip.compress(mgh(2, 3, 4, 1)) + gzip.compress(bytes(1 << 24)) * 64),
    "nrrd of a header without end": ("nrrd", lambda: b"NRRD0004\n" + b"# a\n" * 1_000_000),
    "nifti of -1 axes": ("nii", lambda: nifti([-1] * 8)),
    "nifti of sizes beyond its bytes": ("nii", lambda: nifti([3, 32767, 32767, 2, 1, 1, 1, 1])),
    "nifti of sizes beyond all memory": ("nii", lambda: nifti([7] + [32767] * 7)),
    "nifti of sizes below 0": ("nii", lambda: nifti([3, -2, -3, 4, 1, 1, 1, 1])),
    "nifti of voxels before its beginning": ("nii", lambda: nifti([3, 2, 3, 4, 1, 1, 1, 1], offset=-1e30)),
    "nifti stream of 1 GiB": (
        "nii.gz",
        lambda: gzip.compress(nifti([3, 2, 3, 4, 1, 1, 1, 1])) + gzip.compress(bytes(1 << 24)) * 64,
    ),
    "nifti of 16 GiB once scaled": (
        "nii.gz",
        lambda: gzip.compress(nifti([3, 32767, 32767, 2, 1, 1, 1, 1], slope=0.5)),
    ),
    "npz of more numbers than bytes": ("npz", lambda: npz((2**40, 4, 4))),
    "npz of more numbers than 64 bits count": ("npz", lambda: npz((2**62, 2**62, 2**62))),
    "npz of fewer numbers than bytes": ("npz", lambda: npz((1, 2, 2))),
    "npz of objects": ("npz", lambda: npz((1, 2, 2), descr="|O")),
    "npz that claims 4 GiB": ("npz", lambda: claimed(npz((1, 4, 6)), 2**32 - 2)),
    "png of 4 billion pixels": ("png", lambda: png(65535, 65535, zlib.compress(bytes(100)))),
    "png of no pixels": ("png", lambda: png(0, 0, zlib.compress(b""))),
    "tiff of 4 billion pixels": ("tif", lambda: tiff(65535, 65535, bytes(100), 1)),
    "tiff stream of 1 GiB": ("tif", lambda: tiff(20, 20, bomb(), 8)),
    "tiff strip beyond its file": ("tif", lambda: tiff(20, 20, b"", 1)),
    "dicom of sizes beyond its bytes": ("dcm", lambda: dicom(65535, 65535, 1)),
    "dicom of 2 billion frames": ("dcm", lambda: dicom(512, 512, 2147483647)),
    "mha that calls itself dicom": ("dcm", lambda: mha(b"", "/etc/passwd")),
    "nrrd that calls itself dicom": ("dcm", lambda: nrrd(b"", data_file="/etc/passwd")),
    "gif that calls itself png": ("png", lambda: picture("GIF")),
    "eps that calls itself jpg": ("jpg", lambda: picture("EPS")),
}


def picture(kind):
    file = io.BytesIO()
    Image.new("L", (20, 20)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("name", BUILT)
def test_a_built_file_is_refused_in_one_sentence(tmp_path, name):
    ending, build = BUILT[name]
    (tmp_path / "secret.raw").write_bytes(VOXELS)
    (tmp_path / "link.raw").symlink_to(tmp_path / "secret.raw")
    path = tmp_path / f"a.{ending}"
    path.write_bytes(build())
    with one_sentence(str(tmp_path), "secret.raw", "/etc/passwd") as refusals:
        read_image(path, f"a.{ending}", index=0 if ending == "npz" else None)
    assert len(refusals) == 1 and isinstance(refusals[0], DataError)
    assert str(refusals[0]).startswith(f"a.{ending} must ")
