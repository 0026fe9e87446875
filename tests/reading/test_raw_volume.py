import gzip

import numpy as np
import pytest
import SimpleITK

from silofl.base.errors import DataError
from silofl.reading.images import read_image
from tests.data.conftest import VOXELS, affine_of

NRRD = {
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
MHA = {
    "ObjectType": "Image",
    "NDims": "3",
    "BinaryData": "True",
    "TransformMatrix": "0 1 0 1 0 0 0 0 -1",
    "Offset": "1 2 3",
    "ElementSpacing": "0.5 2 3",
    "DimSize": "2 3 4",
    "ElementType": "MET_SHORT",
}
GZIPPED = gzip.compress(VOXELS, mtime=0)
NO_SPACE = {"space": None, "space_directions": None, "space_origin": None}


@pytest.fixture
def write(tmp_path):
    """Write a volume of an ending, with changes to its header, and its voxels into another file if one is named."""

    def write_volume(ending, voxels=VOXELS, beside=None, magic="NRRD0005", end="\n\n", **changes):
        if ending == "nrrd":
            header = NRRD | {key.replace("_", " "): value for key, value in changes.items()} | {"data file": beside}
            lines = [magic, "# by hand", *(f"{key}: {value}" for key, value in header.items() if value is not None)]
            text = "\n".join([*lines, "a writer's key:=its value"]) + end
        else:
            header = MHA | {"ElementDataFile": beside or "LOCAL"} | changes
            header["ElementDataFile"] = header.pop("ElementDataFile")
            text = "".join(f"{key} = {value}\n" for key, value in header.items() if value is not None)
        path = tmp_path / f"v.{ending}"
        path.write_bytes(text.encode() + (voxels if beside is None else b""))
        (tmp_path / "v.raw").write_bytes(voxels)
        return path

    return write_volume


@pytest.mark.parametrize(
    ("ending", "changes"),
    [
        ("nrrd", {}),
        ("nrrd", {"space": "RAS"}),
        ("nrrd", {"space": "left-anterior-superior"}),
        ("nrrd", {"space": "scanner-xyz", "kinds": None}),
        ("nrrd", {"space_origin": None, "kinds": "space space space"}),
        ("nrrd", NO_SPACE),
        ("nrrd", {**NO_SPACE, "spacings": "1 2 -3"}),
        ("nrrd", {**NO_SPACE, "kinds": "RGB-color domain domain", "sizes": "3 2 4", "spacings": "nan 2 3"}),
        ("nrrd", {**NO_SPACE, "kinds": "domain domain list"}),
        ("nrrd", {**NO_SPACE, "kinds": "domain vector domain"}),
        ("nrrd", {"type": "uint16_t", "endian": "big"}),
        ("nrrd", {"type": "unsigned char", "endian": None, "sizes": "4 3 4"}),
        ("nrrd", {"type": "float", "sizes": "1 3 4", "content": "a phantom", "thicknesses": "1 1 1"}),
        ("nrrd", {"encoding": "gzip", "voxels": GZIPPED}),
        ("nrrd", {"space_units": '"mm" "millimeters" "???"'}),
        ("mha", {"DistanceUnits": "MM"}),
        ("mha", {}),
        ("mha", {"TransformMatrix": None, "Rotation": "0 0 1 1 0 0 0 1 0"}),
        ("mha", {"TransformMatrix": None, "Offset": None}),
        ("mha", {"Offset": None, "Position": "7 8 9"}),
        ("mha", {"ElementSpacing": None, "ElementSize": "4 5 6"}),
        ("mha", {"ElementSpacing": "-1 2 3"}),
        ("mha", {"ElementSpacing": None}),
        ("mha", {"BinaryDataByteOrderMSB": "True"}),
        ("mha", {"ElementByteOrderMSB": "True"}),
        ("mha", {"BinaryData": None, "ObjectType": None, "HeaderSize": "-1"}),
        ("mha", {"ElementType": "MET_USHORT", "AnatomicalOrientation": "RAI", "0010|0020": "a = b"}),
        ("mha", {"ElementType": "MET_LONG", "DimSize": "2 3 2"}),
        ("mha", {"ElementType": "MET_DOUBLE", "DimSize": "1 3 2"}),
        ("mha", {"ElementType": "MET_CHAR", "ElementNumberOfChannels": "2"}),
        ("mha", {"ElementType": "MET_UCHAR_ARRAY", "ElementNumberOfChannels": "2"}),
    ],
)
def test_a_volume_is_what_itk_reads(write, ending, changes):
    path = write(ending, **changes)
    image, oracle = read_image(path), SimpleITK.ReadImage(str(path))
    array = SimpleITK.GetArrayFromImage(oracle)
    array = array.reshape(*[1] * (3 - oracle.GetDimension()), *array.shape[: oracle.GetDimension()], -1)
    np.testing.assert_array_equal(image.array, array.transpose(3, 2, 1, 0))
    np.testing.assert_allclose(image.affine, affine_of(oracle), rtol=1e-12, atol=1e-12)
    assert image.array.dtype == array.dtype


WHOLE = "is truncated or corrupt"
AXES_4 = {"NDims": "4", "DimSize": "2 3 2 2", "Offset": None, "ElementSpacing": "1 1 1 1"}
REFUSED = {
    "nrrd": [
        ("skips bytes, or names another file", {"beside": "other.raw"}, {"datafile": "LIST"}, {"byte_skip": "-1"}),
        ("has another encoding than raw or gzip", *({"encoding": encoding} for encoding in ("hex", "ascii", "bzip2"))),
        ("states its lengths in another unit than mm", {"space_units": '"mm" "mm" "cm"'}, {"units": '"um" "mm" "mm"'}),
        ("gives its place by 'axis mins'", {"axis_mins": "0 0 0"}),
        ("has an axis of the kind 'time'; save one time point a file", {"kinds": "domain domain time"}),
        ("has an axis of the kind 'hsv-color'; save its colours as RGB", {"kinds": "HSV-color domain domain"}),
        ("has an axis of the kind 'complex'; save its magnitude", {"kinds": "complex domain domain"}),
        (
            WHOLE,
            *({"magic": magic} for magic in ("NRRD0009", "NRRD00.01")),
            *({"dimension": dimension} for dimension in ("-1", "16", "3-vector")),
            *({"sizes": sizes} for sizes in ("2 3", "2 3 5", "2 3 %n%n%n")),
            *({"type": kind} for kind in ("block", None)),
            *({"kinds": kinds} for kinds in ("vector domain vector", "domain domain 3D-matrix")),
            *({"space": space} for space in ("elsewhere", None)),
            *({"space_origin": place} for place in ("none", "(1,2,3) (4,5,6)")),
            {"space_directions": None},
            {"space_directions": "(1,0,0) (1,0,0) (0,0,1)"},
            {"space_directions": "(1,0,0) (0,nan,0) (0,0,1)"},
            {"space_directions": "(1,0,0) (0,1,,0) (0,0,1)"},
            {"space_directions": "none none none"},
            {"spacings": "1 1 1"},
            {**NO_SPACE, "spacings": "1 2 nan"},
            {"endian": None},
            {"encodinf": "raw"},
            {"Type": "short"},
            *({"voxels": voxels} for voxels in (VOXELS[:-1], VOXELS + b"\0")),
            *(
                {"encoding": "gzip", "voxels": voxels}
                for voxels in (GZIPPED[:-5], GZIPPED + b"\0", gzip.compress(VOXELS + b"\0"))
            ),
            {"encoding": "gzip", "voxels": gzip.compress(bytes(1 << 22))},
        ),
    ],
    "mha": [
        ("skips bytes, or names another file", {"beside": "v.raw"}, {"HeaderSize": "4"}),
        ("states its lengths in another unit than mm", {"DistanceUnits": "um"}),
        ("is no Image of BinaryData", {"BinaryData": "False"}, {"ObjectType": "Tube"}),
        ("has 4 axes", AXES_4 | {"TransformMatrix": "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1"}),
        (
            "has a scale that programs pass over .*FunctionSlope and .*applied",
            {"ElementToIntensityFunctionSlope": "2"},
            {"ElementToIntensityFunctionSlope": "1", "ElementToIntensityFunctionOffset": "-1024"},
        ),
        (f"{WHOLE} .* is like ElementSpacing", {"ElementSpacinf": "1 1 1"}),
        (
            WHOLE,
            *({"NDims": count} for count in ("1", "5", "three")),
            *({"DimSize": sizes} for sizes in ("2 3", "2 3 -4", "2 3 5", "2 3 3", "0 3 4", "4294967298 3 4", None)),
            *({"ElementType": kind} for kind in ("MET_OTHER", "MET_ASCII_CHAR", None)),
            *({"ElementSpacing": spacing} for spacing in ("0 1 1", "nan 1 1", "1 1", "1 1 1_0")),
            *({"TransformMatrix": matrix} for matrix in ("1 0 0 0 1 0 0 0 0", "1 0 0")),
            {"ElementNumberOfChannels": "0"},
            {"CompressedData": "yes"},
            {"Position": "1 2 3"},
            {"Comment": "\n"},
        ),
    ],
}


@pytest.mark.parametrize(
    ("ending", "sentence", "changes"),
    [(ending, row[0], changes) for ending, rows in REFUSED.items() for row in rows for changes in row[1:]],
)
def test_a_file_that_is_not_whole_is_refused(write, ending, sentence, changes):
    with pytest.raises(DataError, match=f"v.{ending} {sentence}"):
        read_image(write(ending, **changes))


OTHER_KEYS = """
Comment ObjectSubType TransformType Name ID ParentID CompressionLevel Color CenterOfRotation
AnatomicalOrientation AcquisitionDate Modality SequenceID ElementMin ElementMax ElementNBits
ElementToIntensityFunctionSlope ITK_InputFilterName 0028|0030
"""


def test_the_other_keys_of_metaimage_may_be_there(write):
    plain = read_image(write("mha"))
    full = read_image(write("mha", **dict.fromkeys(OTHER_KEYS.split(), "1")))
    np.testing.assert_array_equal(full.array, plain.array)
    np.testing.assert_array_equal(full.affine, plain.affine)


def test_a_channel_has_no_spacing(write):
    changes = {**NO_SPACE, "spacings": "1 2 nan", "kinds": "domain domain list", "units": '"mm" "mm" ""'}
    np.testing.assert_allclose(np.abs(np.diag(read_image(write("nrrd", **changes)).affine)), [1, 2, 1, 1])
