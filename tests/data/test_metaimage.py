import os
import zlib

import numpy as np
import pytest
import SimpleITK

from silofl.data.images import read_image
from silofl.errors import DataError

from .conftest import VOXELS, affine_of

HEADER = {
    "ObjectType": "Image",
    "NDims": "3",
    "BinaryData": "True",
    "TransformMatrix": "0 1 0 1 0 0 0 0 -1",
    "Offset": "1 2 3",
    "ElementSpacing": "0.5 2 3",
    "DimSize": "2 3 4",
    "ElementType": "MET_SHORT",
}


@pytest.fixture
def write(tmp_path):
    def write_volume(content=VOXELS, last="LOCAL", **changes):
        header = {key: value for key, value in (HEADER | changes).items() if value is not None}
        lines = [f"{key} = {value}\n" for key, value in (header | {"ElementDataFile": last}).items()]
        (tmp_path / "v.mha").write_bytes("".join(lines).encode() + content)
        return tmp_path / "v.mha"

    return write_volume


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"TransformMatrix": None, "Rotation": "0 0 1 1 0 0 0 1 0"},
        {"TransformMatrix": None, "Offset": None},
        {"Offset": None, "Position": "7 8 9"},
        {"ElementSpacing": None, "ElementSize": "4 5 6"},
        {"ElementSpacing": "-1 2 3"},
        {"ElementSpacing": None},
        {"BinaryDataByteOrderMSB": "True"},
        {"ElementByteOrderMSB": "True"},
        {"BinaryData": None, "ObjectType": None, "HeaderSize": "-1"},
        {"ElementType": "MET_USHORT", "AnatomicalOrientation": "RAI", "0010|0020": "a = b"},
        {"ElementType": "MET_LONG", "DimSize": "2 3 2"},
        {"ElementType": "MET_DOUBLE", "DimSize": "1 3 2"},
        {"ElementType": "MET_CHAR", "ElementNumberOfChannels": "2"},
        {"ElementType": "MET_UCHAR_ARRAY", "ElementNumberOfChannels": "2"},
    ],
)
def test_a_volume_is_what_itk_reads(write, changes):
    path = write(**changes)
    image, oracle = read_image(path), SimpleITK.ReadImage(str(path))
    array = SimpleITK.GetArrayFromImage(oracle)
    np.testing.assert_array_equal(image.array, array.reshape(*array.shape[:3], -1).transpose(3, 2, 1, 0))
    np.testing.assert_allclose(image.affine, affine_of(oracle), rtol=1e-12)
    assert image.array.dtype == array.dtype


WHOLE = "a whole file, not a truncated or corrupt one"
AXES_4 = {"NDims": "4", "DimSize": "2 3 2 2", "Offset": None, "ElementSpacing": "1 1 1 1"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"NDims": "1"}, WHOLE),
        ({"NDims": "5"}, WHOLE),
        ({"NDims": "three"}, WHOLE),
        ({"DimSize": "2 3"}, WHOLE),
        ({"DimSize": "2 3 -4"}, WHOLE),
        ({"DimSize": "2 3 5"}, WHOLE),
        ({"DimSize": "2 3 3"}, WHOLE),
        ({"DimSize": "0 3 4"}, WHOLE),
        ({"DimSize": None}, WHOLE),
        ({"ElementType": "MET_OTHER"}, WHOLE),
        ({"ElementType": None}, WHOLE),
        ({"ElementNumberOfChannels": "0"}, WHOLE),
        ({"ElementSpacing": "0 1 1"}, WHOLE),
        ({"ElementSpacing": "nan 1 1"}, WHOLE),
        ({"ElementSpacinf": "1 1 1"}, f"{WHOLE}.* with a known key as ElementSpacing"),
        ({"TransformMatrix": "1 0 0 0 1 0 0 0 0"}, WHOLE),
        ({"TransformMatrix": "1 0 0"}, WHOLE),
        ({"CompressedData": "yes"}, WHOLE),
        ({"Position": "1 2 3"}, WHOLE),
        ({"Comment": "\n"}, WHOLE),
        ({"BinaryData": "False"}, "an Image of BinaryData"),
        ({"ObjectType": "Tube"}, "an Image of BinaryData"),
        (AXES_4 | {"TransformMatrix": "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1"}, "2 or 3 axes, not 4"),
        ({"ElementToIntensityFunctionSlope": "2"}, "intensities as they are, not .*FunctionSlope and .*applied"),
        ({"ElementToIntensityFunctionSlope": "1", "ElementToIntensityFunctionOffset": "-1024"}, "intensities as they"),
    ],
)
def test_a_header_that_is_not_whole_or_of_another_form_is_refused(write, changes, sentence):
    with pytest.raises(DataError, match=f"v.mha must (be|hold) {sentence}"):
        read_image(write(**changes))


OTHER_KEYS = """
Comment ObjectSubType TransformType Name ID ParentID CompressionLevel Color CenterOfRotation DistanceUnits
AnatomicalOrientation AcquisitionDate Modality SequenceID ElementMin ElementMax ElementNBits
ElementToIntensityFunctionSlope ITK_InputFilterName 0028|0030
"""


def test_the_other_keys_of_the_format_may_be_there(write):
    plain = read_image(write())
    full = read_image(write(**dict.fromkeys(OTHER_KEYS.split(), "1")))
    np.testing.assert_array_equal(full.array, plain.array)
    np.testing.assert_array_equal(full.affine, plain.affine)


@pytest.mark.parametrize(("unit", "factor"), [("um", 0.001), ("mm", 1), ("cm", 10), ("?", 1)])
def test_lengths_in_another_unit_become_millimetres(write, unit, factor):
    plain, image = read_image(write()).affine, read_image(write(DistanceUnits=unit)).affine
    np.testing.assert_allclose(image[:3], plain[:3] * factor)


@pytest.mark.parametrize(("content", "compressed"), [(VOXELS, "False"), (zlib.compress(VOXELS), "True")])
def test_voxels_in_a_file_beside_the_header_are_read(write, tmp_path, content, compressed):
    whole = read_image(write())
    write(b"", last="v.zraw", CompressedData=compressed).rename(tmp_path / "v.mhd")
    (tmp_path / "v.zraw").write_bytes(content)
    image = read_image(tmp_path / "v.mhd")
    np.testing.assert_array_equal(image.array, whole.array)
    np.testing.assert_array_equal(image.affine, whole.affine)
    for wrong in (content[:-1], content + b"\0"):
        (tmp_path / "v.zraw").write_bytes(wrong)
        with pytest.raises(DataError, match="v.mhd must be a whole file"):
            read_image(tmp_path / "v.mhd")


@pytest.mark.parametrize("last", ["../v.raw", "/etc/hostname", "LIST", "v%03d.raw 1 4 1", "w.raw", "link.raw"])
def test_voxels_elsewhere_than_in_a_plain_file_beside_the_header_are_refused(write, tmp_path, last):
    write(b"", last=last).rename(tmp_path / "v.mhd")
    (tmp_path / "v.raw").write_bytes(VOXELS)
    os.symlink(tmp_path / "v.raw", tmp_path / "link.raw")
    with pytest.raises(DataError, match="v.mhd must name its voxels as a plain file beside it, not as a path, a link"):
        read_image(tmp_path / "v.mhd")


def test_a_header_without_a_file_of_voxels_is_refused(write, tmp_path):
    path = write(b"").rename(tmp_path / "v.mhd")
    path.write_bytes(path.read_bytes().replace(b"ElementDataFile = LOCAL\n", b""))
    with pytest.raises(DataError, match="v.mhd must be a whole file.*its header lacks 'ElementDataFile'"):
        read_image(path)
