import nibabel
import numpy as np
import pytest
import SimpleITK

from silofl.data.site_data import load_site_data
from silofl.importing.importers import ImportOptions, import_layout
from silofl.reading.access import content_digest, list_files
from silofl.reading.detached_voxels import find_voxel_file
from silofl.reading.images import read_label

AFFINE = np.diag([-0.5, -0.5, 3, 1])


def save(path, array):
    """Write header and voxels apart; returns the header."""
    if path.suffix == ".hdr":
        nibabel.save(nibabel.Nifti1Pair(array, AFFINE), path.with_suffix(".img"))
    else:
        image = SimpleITK.GetImageFromArray(array.T)
        image.SetSpacing((0.5, 0.5, 3))
        SimpleITK.WriteImage(image, path)
    return path


@pytest.mark.parametrize(("ending", "beside"), [(".hdr", ".img"), (".mhd", ".raw"), (".nhdr", ".raw")])
def test_the_voxels_of_a_header_belong_to_it(tmp_path, ending, beside):
    array = np.ones((2, 3, 4), np.int16)
    path = save(tmp_path / f"a{ending}", array)
    voxels = tmp_path / f"a{beside}"
    assert find_voxel_file(path) == voxels and list(list_files(path)) == [path, voxels]
    before = content_digest(path, "a")
    voxels.write_bytes(voxels.read_bytes()[:-1] + b"\1")
    assert content_digest(path, "a") != before
    voxels.unlink()
    assert find_voxel_file(path) is None and list(list_files(path)) == [path]


def test_a_broken_header_and_another_file_have_no_voxels_beside_them(tmp_path):
    for name in ("a.nhdr", "b.mhd", "c.nii", "d"):
        (tmp_path / name).write_bytes(b"\xff\0")
        assert find_voxel_file(tmp_path / name) is None


@pytest.mark.parametrize(
    ("ending", "numbers"), [(".hdr", (0, 1, 2)), (".hdr", (0, 1, 4)), (".mhd", (0, 1, 4)), (".nhdr", (0, 1, 2))]
)
def test_headers_beside_their_voxels_are_imported_and_loaded(tmp_path, study, ending, numbers):
    rng, source = np.random.default_rng(0), tmp_path / "source" / "north"
    for kind in ("images", "masks"):
        (source / kind).mkdir(parents=True)
    masks = {f"c{i}": rng.choice(np.uint8(numbers), (6, 5, 3)) for i in range(4)}
    for case, mask in masks.items():
        save(source / "images" / f"{case}{ending}", rng.integers(0, 99, (6, 5, 3), dtype=np.int16))
        save(source / "masks" / f"{case}{ending}", mask)
    options = ImportOptions(labels=("organ", "lesion"), label_values=numbers[1:])
    import_layout("folders", tmp_path / "source", tmp_path / "target", options)
    wanted = study(labels={1: "organ", 2: "lesion"}, intensity="raw", split_unit="unknown")
    data = load_site_data(tmp_path / "target" / "north", wanted, tmp_path / "cache")
    case = data.test.cases[0]
    stored = read_label(source / "images" / f"{case}{ending}").array[0]
    np.testing.assert_array_equal(data.test.images[:, 0], np.moveaxis(stored, 2, 0))
    mask = np.where(masks[case] == numbers[2], 2, masks[case])
    np.testing.assert_array_equal(data.test.targets, np.moveaxis(mask, 2, 0))
