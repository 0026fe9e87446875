import struct

import nibabel
import numpy as np
import pytest
from PIL import Image as Picture

from silofl.base.errors import DataError
from silofl.reading.image import Image, check_affine
from silofl.reading.images import check_values, read_image, read_label
from silofl.study.data_settings import BackgroundSettings
from tests.data.conftest import assert_refused
from tests.reading.test_png import pack, write_png
from tests.reading.test_tiff import build, grey_tags

GREY = np.random.default_rng(0).integers(0, 256, (3, 5), dtype=np.uint8)
RGB = np.random.default_rng(1).integers(0, 256, (3, 5, 3), dtype=np.uint8)


def save(folder, array, name="a.png"):
    Picture.fromarray(array).save(folder / name)
    return folder / name


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_an_alpha_channel_is_dropped(tmp_path, name):
    with_alpha = np.concatenate([RGB, GREY[..., None]], axis=2)
    np.testing.assert_array_equal(read_image(save(tmp_path, with_alpha, name)).array, RGB.transpose(2, 0, 1))
    grey_with_alpha = np.stack([GREY, GREY // 2], axis=2)
    np.testing.assert_array_equal(read_image(save(tmp_path, grey_with_alpha, name)).array, GREY[None])


# Tag of orientation -> the picture as it is shown: TIFF 6.0, section 8; EXIF has the same.
SHOWN = {
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.T,
    6: lambda stored: stored[::-1].T,
    7: lambda stored: stored[::-1, ::-1].T,
    8: lambda stored: stored.T[::-1],
}
STORED = {
    "1 bit": GREY > 100,
    "8 bits": GREY,
    "16 bits": GREY.astype(np.uint16) * 257,
    "float": GREY.astype(np.float32),
}


FILES = [("a.png", None), ("a.tif", None), ("a.tif", "tiff_lzw")]
# Every tag once for each format, every kind of numbers with one tag that exchanges the sides; PNG has no fractions.
TURNED = [("8 bits", *file, tag) for file in FILES[:2] for tag in SHOWN]
TURNED += [(kind, *file, 6) for kind in STORED for file in FILES if (kind, file) != ("float", FILES[0])]


@pytest.mark.parametrize(("kind", "name", "compression", "tag"), TURNED)
def test_a_picture_is_read_as_it_is_shown(tmp_path, kind, name, compression, tag):
    stored, options = STORED[kind], {"compression": compression} if compression else {}
    exif = Picture.Exif()
    exif[274] = tag
    turned = {"exif": exif} if name == "a.png" else {"tiffinfo": {274: tag}}
    Picture.fromarray(stored).save(tmp_path / name, **turned, **options)
    np.testing.assert_array_equal(read_image(tmp_path / name).array, SHOWN[tag](stored)[None])


def test_a_palette_gives_images_colours_and_labels_numbers(tmp_path):
    stored, exif = np.array([[0, 1, 1], [2, 1, 0]], np.uint8), Picture.Exif()
    exif[274] = 6
    picture = Picture.fromarray(stored).convert("P")
    picture.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    picture.save(tmp_path / "a.png", exif=exif)
    shown = SHOWN[6](stored)
    np.testing.assert_array_equal(read_label(tmp_path / "a.png").array[0], shown)
    # Number 0 is the colour (10, 20, 30), 1 is (40, 50, 60), 2 is (70, 80, 90).
    colours = shown * 30 + np.reshape([10, 20, 30], (3, 1, 1))
    np.testing.assert_array_equal(read_image(tmp_path / "a.png").array, colours)


@pytest.mark.parametrize(
    ("name", "stored", "dtype_max"),
    [
        *((name, GREY, 255) for name in ("a.png", "a.tiff", "A.PNG")),
        ("a.png", GREY > 100, 1),
        *((name, GREY.astype(np.uint16) * 257, 65535) for name in ("a.png", "a.tif")),
        ("a.tif", GREY.astype(np.float32) / 7, None),
    ],
)
def test_grey_pictures_keep_their_numbers(tmp_path, name, stored, dtype_max):
    image = read_image(save(tmp_path, stored, name))
    np.testing.assert_array_equal(image.array, stored[None])
    assert (image.affine, image.dtype_max, image.spatial_shape) == (None, dtype_max, (3, 5))


def test_print_colours_become_rgb(tmp_path):
    Picture.fromarray(RGB).convert("CMYK").save(tmp_path / "a.tif")
    np.testing.assert_allclose(read_image(tmp_path / "a.tif").array, RGB.transpose(2, 0, 1), atol=1)


def write_tiff(path, pixels, photometric=1, sample_format=1):
    """Write rows of whole numbers as they are, with the tags that Pillow does not let choose."""
    tags = grey_tags(*pixels.shape, _258=8 * pixels.itemsize, _262=photometric, _279=pixels.nbytes, _339=sample_format)
    build(path, tags, pixels.tobytes())


@pytest.mark.parametrize(
    ("dtype", "sample_format", "dtype_max"), [("<i1", 2, 127), ("<u4", 1, 2**32 - 1), ("<i4", 2, 2**31 - 1)]
)
def test_a_tiffs_numbers_keep_their_sign(tmp_path, dtype, sample_format, dtype_max):
    limits = np.iinfo(dtype)
    pixels = np.array([[limits.min, -1 if limits.min else 0, 1], [2, 3, limits.max]], dtype)
    write_tiff(tmp_path / "a.tif", pixels, sample_format=sample_format)
    image = read_image(tmp_path / "a.tif")
    np.testing.assert_array_equal(image.array[0], pixels)
    assert image.dtype_max == dtype_max


def test_a_tiff_from_white_is_read_as_shown(tmp_path):
    np.testing.assert_array_equal(
        read_image(write_whitening("u1")(tmp_path)).array[0], [[255, 254, 253], [255, 0, 248]]
    )


def write_alpha(folder):
    alpha = np.zeros((3, 5, 4), np.uint8)
    alpha[1, :, 3] = 255
    return save(folder, alpha)


def write_deep(folder):
    return write_png(folder / "a.png", (3, 5), (2, 16), pack(np.ones((3, 15), int), 16))


def write_stack(folder):
    pages = [Picture.fromarray(GREY) for _ in range(5)]
    pages[0].save(folder / "a.tif", save_all=True, append_images=pages[1:])
    return folder / "a.tif"


def write_whitening(dtype):
    def write(folder):
        write_tiff(folder / "a.tif", np.array([[0, 1, 2], [0, 255, 7]], dtype), photometric=0)
        return folder / "a.tif"

    return write


def write_fraction(folder):
    write_tiff(folder / "a.tif", np.ones((2, 3)), sample_format=3)
    return folder / "a.tif"


def write_lab(folder):
    Picture.frombytes("LAB", (5, 3), RGB.tobytes()).save(folder / "a.tif")
    return folder / "a.tif"


@pytest.mark.parametrize(
    ("read", "write", "sentence"),
    [
        (read_label, write_alpha, "holds its labels as transparency alone"),
        (read_image, write_deep, "has colours of 16 bits, .*; save it with 8 bits, scaled"),
        (read_label, write_deep, "has colours of 16 bits, .*; save label numbers as grey"),
        (read_image, write_stack, "holds 5 pictures; .* a volume as .nii.gz"),
        (read_image, write_whitening("<u2"), "stores white as 0 .PhotometricInterpretation 0."),
        (read_label, write_whitening("u1"), "stores white as 0 .PhotometricInterpretation 0."),
        (read_image, write_fraction, "is truncated or corrupt .*a form that Pillow does not know"),
        (read_image, write_lab, "has colours of the mode 'LAB'"),
        (read_label, lambda folder: save(folder, RGB), "holds 3 channels that differ"),
    ],
)
def test_numbers_that_would_be_lost_or_others_are_refused(tmp_path, read, write, sentence):
    with pytest.raises(DataError, match=f"a.(png|tif) {sentence}"):
        read(write(tmp_path))


@pytest.mark.parametrize("name", ["a.png", "a.nii.gz", "slice.dcm"])
def test_an_unreadable_file_is_a_permission_error_not_corrupt_data(tmp_path, deny, name):
    folder = tmp_path / "series"
    folder.mkdir()
    (folder / name).write_bytes(b"x")
    deny(name)
    assert_refused("cannot be read: permission was denied", folder if name == "slice.dcm" else folder / name)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_intensities_that_are_not_finite_are_refused(tmp_path, value):
    pixels = np.ones((4, 4), np.float32)
    pixels[1, 2:] = value
    with pytest.raises(DataError, match="a.tif holds 2 NaN or infinite intensities"):
        read_image(save(tmp_path, pixels, "a.tif"))
    nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), tmp_path / "a.nii")
    assert_refused("a.nii holds 2 NaN or infinite", tmp_path / "a.nii")


def test_a_coloured_label_that_is_grey_is_read(tmp_path):
    np.testing.assert_array_equal(read_label(save(tmp_path, np.stack([GREY] * 3, axis=2))).array, GREY[None])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (x, "the label .*, beyond -2147483648 to 2147483647")
        for x in (np.float64(-(2**40)), np.uint64(2**63 + 1), np.int64(2**31))
    ]
    + [(np.float64(x), f"{x}, no whole label") for x in ("0.5", "1.002", "nan", "inf")],
)
def test_label_numbers_that_would_become_others_are_refused(tmp_path, value, sentence):
    voxels = np.array([[[0, value]]], dtype=value.dtype)
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4), dtype=value.dtype), tmp_path / "a.nii")
    with pytest.raises(DataError, match=f"a.nii holds {sentence}"):
        read_label(tmp_path / "a.nii")


def test_label_values_that_are_whole_but_for_rounding_are_labels(tmp_path):
    # A third and a tenth cannot be written in a float32: 3 * 0.33333334 and 20 * 0.1 are 1.00000002 and 2.00000003.
    for slope, stored, wanted in ((1 / 3, 3, 1), (0.1, 20, 2), (1 / 255, 255, 1)):
        content = bytearray(nibabel.Nifti1Image(np.array([[[0, stored]]], np.uint8), np.eye(4)).to_bytes())
        struct.pack_into("<f", content, 112, slope)
        (tmp_path / "a.nii").write_bytes(content)
        assert read_label(tmp_path / "a.nii").array.tolist() == [[[[0, wanted]]]]


def picture(array, affine=None):
    return Image(np.asarray(array)[None], affine, 255)


@pytest.mark.parametrize(
    ("values", "shown"),
    [([[0, 255]], "255"), ([[3, 7]], "3, 7"), ([[-1, 1]], "-1"), ([range(20)], r"2, 3, .*, \.\.\.")],
)
def test_declared_label_values_are_accepted_and_others_named(values, shown):
    for declared in ([[0, 1, 2]], [[0, 0, 0]], [[2, 2, 2]]):
        assert check_values(picture(declared), {1: "white", 2: "grey"}, "m.png") is None
    with pytest.raises(DataError, match=rf"m.png holds {shown}, but the labels are 0 .*, 1 \(nucleus\)"):
        check_values(picture(values), {1: "nucleus"}, "m.png")


# --- background


@pytest.fixture
def padded(tmp_path):
    def write(array):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / "ct.nii.gz")
        return tmp_path / "ct.nii.gz"

    return write


@pytest.mark.parametrize(
    ("stored", "background", "wanted"),
    [
        (np.int16([-3024, -1024, 40]), {"below": -1024}, [-1024, -1024, 40]),
        (np.int16([-3024, -1024, 40]), {}, [-3024, -1024, 40]),
        # Its type cannot hold the bound.
        (np.uint8([0, 7]), {"below": -1024}, [0, 7]),
        (np.float32([np.nan, 2.5]), {"nan": 0}, [0, 2.5]),
    ],
)
def test_a_background_becomes_what_the_study_says(padded, stored, background, wanted):
    array = read_image(padded(stored[None, None]), background=BackgroundSettings(**background)).array
    assert array.dtype == stored.dtype and array.ravel().tolist() == wanted


@pytest.mark.parametrize(("value", "background"), [(np.nan, {}), (np.inf, {"nan": 0})])
def test_what_is_not_finite_is_refused_unless_it_is_background(padded, value, background):
    with pytest.raises(DataError, match=r"holds 1 NaN .* data.background to \{nan: 0\}"):
        read_image(padded(np.float32([[[value, 2.5]]])), background=BackgroundSettings(**background))


def test_a_sheared_grid_is_one_and_parallel_axes_are_none():
    check_affine(np.array([[1, 0, 0, 0], [0, 1, 0.5, 0], [0, 0, 3, 0], [0, 0, 0, 1.0]]), "scan")
    with pytest.raises(DataError, match="scan has axes that do not point in three directions"):
        check_affine(np.array([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1e-6, 0], [0, 0, 0, 1.0]]), "scan")
