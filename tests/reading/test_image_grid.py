import nibabel
import numpy as np
import pytest
from PIL import ExifTags, Image

from silofl.reading import formats, images
from silofl.reading.image_grid import has_grid, is_turned
from silofl.reading.images import read_image


@pytest.fixture
def picture(tmp_path):
    """Write a picture of 6 rows and 4 columns with a tag of orientation."""

    def write(ending=".jpg", turn=None):
        path, tags = tmp_path / f"a{ending}", Image.Exif()
        if turn is not None:
            tags[ExifTags.Base.Orientation] = turn
        Image.fromarray(np.zeros((6, 4, 3), np.uint8)).save(path, exif=tags)
        return path

    return write


@pytest.mark.parametrize("ending", [".jpg", ".png", ".tif"])
# 9 is no orientation.
@pytest.mark.parametrize("turn", [None, 3, 6, 8, 9])
def test_a_picture_has_the_size_in_which_it_is_shown(picture, ending, turn):
    path = picture(ending, turn)
    shape = read_image(path).spatial_shape
    assert shape == ((4, 6) if turn in (6, 8) else (6, 4))
    assert has_grid(path, shape, None) and not has_grid(path, shape[::-1], None)
    assert is_turned(path) is (turn in (3, 6, 8))


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.nii.gz", "a.txt"])
def test_what_is_no_image_has_no_grid(tmp_path, name):
    (tmp_path / name).write_bytes(b"no image")
    assert not has_grid(tmp_path / name, (6, 4), None) and not is_turned(tmp_path / name)


def test_a_volume_has_the_grid_of_its_header(tmp_path):
    path = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), np.diag([1, 2, 3, 1])), path)
    image = read_image(path)
    assert has_grid(path, image.spatial_shape, image.affine)
    # At the farthest corner 5 * 0.01 mm are within a tenth of a millimetre, 5 * 0.03 mm are not.
    assert has_grid(path, (4, 5, 6), np.diag([1, 2, 3.01, 1]))
    assert not has_grid(path, (4, 5, 6), np.diag([1, 2, 3.03, 1]))
    assert not has_grid(path, (5, 4, 6), image.affine)


TILT = np.array([[1, 0, 0], [0, 0.8, -0.6], [0, 0.6, 0.8]])


@pytest.mark.parametrize("direction", [np.eye(3), np.diag([-1.0, -1, 1]), np.eye(3)[:, [1, 2, 0]], TILT])
def test_a_series_has_the_grid_that_its_reader_gives(write_dicom, tmp_path, direction):
    path = write_dicom(tmp_path / "series", np.zeros((8, 6, 4), np.int16), direction=direction)
    image = read_image(path)
    assert image.spatial_shape == (8, 6, 4)
    assert has_grid(path, image.spatial_shape, image.affine)
    assert not has_grid(path, (8, 6, 3), image.affine)
    assert not has_grid(path, image.spatial_shape, image.affine @ np.diag([1, -1, 1, 1]))


def test_many_frames_have_the_grid_that_their_reader_gives(write_frames):
    path = write_frames(np.zeros((8, 6, 5), np.int16), slices=(0, 2, 4, 1, 3))
    image = read_image(path)
    assert has_grid(path, (8, 6, 5), image.affine) and not has_grid(path, (8, 6, 4), image.affine)


def test_a_series_that_is_no_volume_has_no_grid(write_dicom, tmp_path):
    path = write_dicom(tmp_path / "series", np.zeros((8, 6, 6), np.int16), skip=(2,))
    assert not has_grid(path, (8, 6, 5), np.eye(4))


def test_a_grid_is_told_without_decoding(picture, write_dicom, tmp_path, monkeypatch):
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), np.eye(4)), tmp_path / "a.nii.gz")
    grids = {
        path: (image.spatial_shape, image.affine)
        for path in (picture(".png", 6), tmp_path / "a.nii.gz", write_dicom(tmp_path / "s", np.zeros((8, 6, 4), "i2")))
        for image in [read_image(path)]
    }
    monkeypatch.setattr(images, "decode", lambda *arguments: pytest.fail("decoded"))
    monkeypatch.setattr(formats, "decode_in_subprocess", lambda *arguments: pytest.fail("decoded"))
    assert all(has_grid(path, *grid) for path, grid in grids.items())
