import bz2
import gzip
import os

import numpy as np
import pytest
import SimpleITK

from silofl.data.images import read_image
from silofl.errors import DataError

from .conftest import VOXELS, affine_of

HEADER = {
    "type": "short",
    "dimension": "3",
    "space": "left-posterior-superior",
    "sizes": "2 3 4",
    "space directions": "(0,2,0) (-1,0,0.5) (0,0,3)",
    "kinds": "domain domain domain",
    "endian": "little",
    "encoding": "raw",
    "space origin": "(1,2,3)",
}
TEXT = b" ".join(b"%d" % number for number in range(24))
NO_SPACE = {"space": None, "space directions": None, "space origin": None}


@pytest.fixture
def write(tmp_path):
    def write_volume(voxels=VOXELS, magic="NRRD0005", **changes):
        header = HEADER | {key.replace("_", " "): value for key, value in changes.items()}
        lines = [f"{key}: {value}\n" for key, value in header.items() if value is not None]
        (tmp_path / "v.nrrd").write_bytes(
            "".join([f"{magic}\n# by hand\n", *lines, "a writer's key:=its value\n\n"]).encode() + voxels
        )
        return tmp_path / "v.nrrd"

    return write_volume


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"space": "RAS"},
        {"space": "left-anterior-superior"},
        {"space": "scanner-xyz", "kinds": None},
        {"space_origin": None, "kinds": "space space space"},
        NO_SPACE,
        {**NO_SPACE, "spacings": "1 2 -3"},
        {**NO_SPACE, "kinds": "RGB-color domain domain", "sizes": "3 2 4", "spacings": "nan 2 3"},
        {**NO_SPACE, "kinds": "domain domain list"},
        {**NO_SPACE, "kinds": "domain vector domain"},
        {"type": "uint16_t", "endian": "big"},
        {"type": "unsigned char", "endian": None, "sizes": "4 3 4"},
        {"type": "float", "sizes": "1 3 4", "content": "a phantom", "thicknesses": "1 1 1"},
        {"encoding": "gzip", "voxels": gzip.compress(VOXELS)},
        {"encoding": "ascii", "voxels": TEXT, "endian": None},
        {"encoding": "text", "voxels": b"\n".join(TEXT.split()) + b"\n"},
        {"encoding": "txt", "voxels": b"-0.5 1e3\t" * 12, "type": "double", "endian": None},
    ],
)
def test_a_volume_is_what_itk_reads(write, changes):
    path = write(**changes)
    image, oracle = read_image(path), SimpleITK.ReadImage(str(path))
    array = SimpleITK.GetArrayFromImage(oracle)
    array = array.reshape(*[1] * (3 - oracle.GetDimension()), *array.shape[: oracle.GetDimension()], -1)
    np.testing.assert_array_equal(image.array, array.transpose(3, 2, 1, 0))
    np.testing.assert_allclose(image.affine, affine_of(oracle), rtol=1e-12, atol=1e-12)
    assert image.array.dtype == array.dtype


OTHER_FORMS = [
    ({"data_file": "other.raw"}, "hold its voxels itself"),
    ({"datafile": "LIST"}, "hold its voxels itself"),
    ({"byte_skip": "-1"}, "hold its voxels itself"),
    ({"encoding": "hex"}, "have the encoding raw, gzip, bzip2 or ascii"),
    ({"axis_mins": "0 0 0"}, "give its place by 'space directions'"),
    ({"kinds": "domain domain time"}, "have kinds of axes .*, not 'time'; save one time point a file"),
    ({"kinds": "HSV-color domain domain"}, "have kinds .*, not 'hsv-color'; save its colours as RGB"),
    ({"kinds": "complex domain domain"}, "have kinds .*, not 'complex'; save its magnitude"),
]


@pytest.mark.parametrize(("changes", "sentence"), OTHER_FORMS)
def test_another_form_is_refused(write, changes, sentence):
    with pytest.raises(DataError, match=f"v.nrrd must {sentence}"):
        read_image(write(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": "NRRD0009"},
        {"dimension": "-1"},
        {"dimension": "16"},
        {"sizes": "2 3"},
        {"sizes": "2 3 5"},
        {"sizes": "2 3 %n%n%n"},
        {"type": "block"},
        {"type": None},
        {"endian": None},
        {"kinds": "vector domain vector"},
        {"kinds": "domain domain 3D-matrix"},
        {"space": "elsewhere"},
        {"space": None},
        {"space_directions": None},
        {"space_directions": "(1,0,0) (1,0,0) (0,0,1)"},
        {"space_directions": "(1,0,0) (0,nan,0) (0,0,1)"},
        {"spacings": "1 1 1"},
        {"encodinf": "raw"},
        {"voxels": VOXELS[:-1]},
        {"voxels": VOXELS + b"\0"},
        {"encoding": "gzip", "voxels": gzip.compress(VOXELS)[:-5]},
        {"encoding": "gzip", "voxels": gzip.compress(VOXELS) + b"\0"},
        {"encoding": "gzip", "voxels": gzip.compress(VOXELS + b"\0")},
        {"encoding": "bzip2", "voxels": bz2.compress(VOXELS)[:-5]},
        {"encoding": "bzip2", "voxels": bz2.compress(VOXELS) + b"\0"},
        {"encoding": "bzip2", "voxels": bz2.compress(VOXELS + b"\0")},
        {"encoding": "bzip2", "voxels": bz2.compress(bytes(1 << 22))},
        {"encoding": "ascii", "voxels": TEXT[:-3]},
        {"encoding": "ascii", "voxels": TEXT + b" 24"},
        {"encoding": "ascii", "voxels": TEXT.replace(b"23", b"40000")},
        {"encoding": "ascii", "voxels": TEXT.replace(b"23", b"2.5")},
        {"encoding": "ascii", "voxels": TEXT.replace(b"23", b"__import__")},
        {"encoding": "ascii", "voxels": TEXT + b" " * (1 << 22)},
        {"encoding": "ascii", "voxels": b""},
    ],
)
def test_a_file_that_is_not_whole_is_refused(write, changes):
    with pytest.raises(DataError, match="v.nrrd must be a whole file, not a truncated or corrupt one"):
        read_image(write(**changes))


@pytest.mark.parametrize(
    ("unit", "factors"),
    # Nobody knows how long a furlong is.
    [('"cm" "um" "m"', (10, 0.001, 1000)), ('"furlong" "mm" "mm"', (1, 1, 1))],
)
def test_lengths_in_another_unit_become_millimetres(write, unit, factors):
    plain, image = read_image(write()).affine, read_image(write(space_units=unit)).affine
    np.testing.assert_allclose(image[:3], plain[:3] * np.reshape(factors, (3, 1)))


def test_spacings_without_a_space_have_units_of_their_own(write):
    image = read_image(write(**NO_SPACE, spacings="1 2 nan", kinds="domain domain list", units='"um" "mm" ""'))
    np.testing.assert_allclose(np.abs(np.diag(image.affine)), [0.001, 2, 1, 1])


@pytest.mark.parametrize("name", ["bzip2", "BZ2"])
def test_voxels_that_bzip2_has_compressed_are_those_that_it_was_given(write, name):
    wanted = read_image(write()).array
    np.testing.assert_array_equal(read_image(write(encoding=name, voxels=bz2.compress(VOXELS))).array, wanted)


@pytest.fixture
def write_apart(write, tmp_path):
    """Write a header whose voxels lie in a file beside it; returns the header."""

    def write_both(file_name="v.raw", voxels=VOXELS, end="\n", **changes):
        content = write(b"", data_file=file_name, **changes).read_bytes().removesuffix(b"\n\n") + end.encode()
        (tmp_path / "v.nhdr").write_bytes(content)
        (tmp_path / "v.raw").write_bytes(voxels)
        return tmp_path / "v.nhdr"

    return write_both


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"encoding": "gzip", "voxels": gzip.compress(VOXELS)}, {"encoding": "bzip2", "voxels": bz2.compress(VOXELS)}],
    ids=["raw", "gzip", "bzip2"],
)
def test_voxels_in_a_file_beside_the_header_are_read(write, write_apart, changes, end):
    image, whole = read_image(write_apart(end=end, **changes)), read_image(write())
    np.testing.assert_array_equal(image.array, whole.array)
    np.testing.assert_array_equal(image.affine, whole.affine)


@pytest.mark.parametrize(
    "file_name",
    ["./v.raw", "../s/v.raw", "/etc/hostname", "LIST", "v%d.raw 1 9 1", "w.raw", "", "link.raw", ".raw"],
)
def test_voxels_elsewhere_than_in_a_plain_file_beside_the_header_are_refused(write_apart, tmp_path, file_name):
    path = write_apart(file_name)
    os.symlink(tmp_path / "v.raw", tmp_path / "link.raw")
    (tmp_path / ".raw").write_bytes(VOXELS)
    with pytest.raises(DataError, match="v.nhdr must (name its voxels as a plain file beside it|be a whole file)"):
        read_image(path)


@pytest.mark.parametrize("voxels", [VOXELS[:-1], VOXELS + b"\0"])
def test_voxels_beside_the_header_of_another_number_are_refused(write_apart, voxels):
    with pytest.raises(DataError, match="v.nhdr must be a whole file"):
        read_image(write_apart(voxels=voxels))
