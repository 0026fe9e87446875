import nibabel
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.reading.header import read_header, read_pet_unit
from silofl.reading.images import read_image, read_label
from silofl_hospital.importing.importers import ImportOptions, import_layout
from tests.data.conftest import edit

SIZES = (1.5, 1.5, 10)
VOXELS = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


def write_two_sizes(path, qform_code):
    """Write a volume whose sform has steps of 1 mm, and whose pixdim states others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(VOXELS % 2 if "masks" in path.parts else VOXELS, None)
    image.header.set_zooms(SIZES)
    image.header.set_qform(np.diag([-1.5, -1.5, 10, 1]), qform_code)
    image.header.set_sform(np.diag([-1, -1, 1, 1.0]), 1)
    image.header["pixdim"][1:4] = SIZES
    nibabel.save(image, path)


@pytest.fixture
def run(tmp_path):
    def go(qform_code, **options):
        for kind in ("images", "masks"):
            for number in range(3):
                write_two_sizes(tmp_path / "source" / "north" / kind / f"{number}.nii.gz", qform_code)
        summary = import_layout("folders", tmp_path / "source", tmp_path / "data", ImportOptions(**options))
        return [note for note in summary.notes if "PATIENTS" not in note], tmp_path / "data" / "north"

    return go


def test_with_a_qform_the_sizes_are_those_of_pixdim_and_the_import_says_so(run):
    notes, folder = run(1)
    assert notes == [
        "north: voxels are stated twice, 1 x 1 x 1 by sform and 1.5 x 1.5 x 10 by pixdim in 0.nii.gz; pixdim's are "
        "taken, of 6 files"
    ]
    image = read_image(folder / "images" / "0.nii.gz")
    np.testing.assert_array_equal(image.affine, np.diag([-1.5, -1.5, 10, 1]))
    np.testing.assert_array_equal(read_label(folder / "masks" / "0.nii.gz").affine, image.affine)
    assert read_header(folder / "images" / "0.nii.gz").has_spacing


def test_without_a_qform_an_option_names_the_right_sizes(run):
    sentence = "6 faults: .* 0.nii.gz has voxels of 1 x 1 x 1 by its sform and of 1.5 x 1.5 x 10 by its pixdim; look"
    with pytest.raises(DataError, match=sentence):
        run(0)


@pytest.mark.parametrize(("size", "wanted"), [("sform", (1, 1, 1)), ("pixdim", SIZES)])
@pytest.mark.parametrize("qform_code", [0, 1])
def test_a_named_size_is_written_into_images_and_masks(run, size, wanted, qform_code):
    notes, folder = run(qform_code, voxel_size=size)
    assert f"{size}'s are taken, of 6 files" in notes[0]
    for path in sorted(folder.rglob("*.nii.gz")):
        header = nibabel.load(path).header
        np.testing.assert_allclose(header.get_zooms(), wanted)
        np.testing.assert_allclose(header.get_sform(), header.get_qform(), atol=1e-6)
        np.testing.assert_allclose(np.diag(header.get_sform()), [-wanted[0], -wanted[1], wanted[2], 1])
    np.testing.assert_array_equal(np.asarray(nibabel.load(folder / "images" / "0.nii.gz").dataobj), VOXELS)


def test_pet_of_two_units_is_refused(write_dicom, tmp_path):
    for number in range(3):
        folder = tmp_path / "source" / "north" / "images" / str(number)
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_dicom(folder, np.zeros((4, 4, 3), np.int16))
        edit(folder, Modality="PT", Units=("BQML", "GML")[number % 2])
        mask = tmp_path / "source" / "north" / "masks" / f"{number}.nii.gz"
        mask.parent.mkdir(exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 3), np.uint8), read_image(folder).affine), mask)
    with pytest.raises(
        DataError, match="PET of one hospital counts in BQML and GML .DICOM's Units.; convert all to one"
    ):
        import_layout("folders", tmp_path / "source", tmp_path / "data", ImportOptions())


def test_other_headers_than_pets_have_no_unit(write_dicom, tmp_path):
    folder = write_dicom(tmp_path / "ct", np.zeros((4, 4, 3), np.int16))
    edit(folder, Modality="CT", Units="BQML")
    assert read_pet_unit(folder) is None
