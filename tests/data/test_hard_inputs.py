"""Small inputs on which readers failed, each as a scanner, an exporter or a spreadsheet writes it."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from silofl.data.images import read_image, read_label
from silofl.data.importers import ImportOptions, import_layout
from silofl.errors import DataError
from tests.conftest import SHARED


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a case in a folder of its own."""
    path, root = SHARED / "cases" / "build4.py", tmp_path_factory.mktemp("cases")
    if not path.is_file():
        pytest.skip("no built inputs beside the repository")
    spec = importlib.util.spec_from_file_location("build4_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(name):
        if not (root / name).is_dir():
            module.main(name, root / name)
        return root / name

    return build


# -------- readers


@pytest.mark.parametrize(("case", "count"), [("chest_views", 2), ("slice_location_alone", 5)])
def test_pictures_without_a_place_are_no_volume_and_each_is_read_by_its_name(build, case, count):
    exam = build(case) / "exam"
    with pytest.raises(DataError, match=rf"exam must hold slices .*, not {count} pictures without .*; name each file"):
        read_image(exam)
    assert {read_image(path).array.shape[-1] for path in exam.iterdir()} == {1}


def test_a_mosaic_of_united_imaging_is_refused_by_its_name(build):
    with pytest.raises(DataError, match="0.dcm of exam must hold a slice, .*ImageType VFRAME of United Imaging"):
        read_image(build("uih_mosaics") / "exam")


def test_frames_that_are_called_a_mosaic_are_read_by_their_places(build):
    folder = build("enhanced_called_mosaic")
    image = read_image(folder / "x.dcm")
    np.testing.assert_array_equal(image.array, np.load(folder / "right.npy"))
    # Columns to the left, rows to the back, 0.8 and 0.7 mm apart, and slices of 3 mm.
    np.testing.assert_allclose(image.affine[:3, :3], np.diag([-0.8, -0.7, 3]), atol=1e-6)


def test_a_jpeg_is_read_by_its_own_markers(build):
    folder = build("jpeg_said_rgb")
    np.testing.assert_allclose(np.int16(read_image(folder / "x.dcm").array), np.load(folder / "right.npy"), atol=3)


def test_label_numbers_whose_scale_is_no_number_are_as_stored(build):
    folder = build("nan_slope")
    np.testing.assert_array_equal(read_label(folder / "x.nii").array, np.load(folder / "right.npy"))


def test_exams_that_nobody_has_read_are_no_class(build, tmp_path):
    with pytest.raises(DataError) as caught:
        import_layout("table", build("table_nan") / "in", tmp_path / "data", ImportOptions())
    assert "a5.png, not nothing, as 'nan'" in str(caught.value) and "a7.png, not nothing, as 'NA'" in str(caught.value)
    assert "remove the row" in str(caught.value)
    source = tmp_path / "mended"
    _copy_without_rows(build("table_nan") / "in", source, ("nan", "NA"))
    import_layout("table", source, tmp_path / "data", ImportOptions())


def _copy_without_rows(source: Path, target: Path, words: tuple[str, ...]) -> None:
    shutil.copytree(source, target)
    for table in target.glob("*/labels.csv"):
        rows = table.read_text().splitlines()
        table.write_text("\n".join(row for row in rows if row.split(",")[1] not in words))
