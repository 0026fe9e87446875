"""DICOM exams as a hospital's export leaves them: the files of several series and a report in one folder."""

from pathlib import Path

import nibabel
import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import BasicTextSRStorage, CTImageStorage, ExplicitVRLittleEndian, SegmentationStorage, generate_uid

from silofl.reading.raw_volume import LPS_TO_RAS

SPACING, ORIGIN = (0.75, 0.5, 2.0), (10.0, 20.0, 30.0)
# Voxel indices (x, y, z) to millimetres, as the program reads a series that `write_series` has written.
AFFINE = LPS_TO_RAS @ np.array(
    [[0.75, 0, 0, 10.0], [0, 0.5, 0, 20.0], [0, 0, 2.0, 30.0], [0, 0, 0, 1]], dtype=np.float64
)


def save(path, data):
    """Write a dataset with the header that its class needs."""
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    path.parent.mkdir(parents=True, exist_ok=True)
    pydicom.dcmwrite(path, data, enforce_file_format=True)


def describe(patient, study, series, modality, description, **elements):
    """Return what all files of a series state."""
    data = Dataset()
    data.PatientID, data.StudyInstanceUID, data.SeriesInstanceUID = patient, study, series
    data.Modality, data.SeriesDescription = modality, description
    data.update(elements)
    return data


def write_series(
    folder: Path, volume, patient, description, study, modality="CT", kind=("ORIGINAL", "PRIMARY", "AXIAL"), number=1
):
    """Write a volume (X, Y, Z) of int16 as files without an ending, and return the series' UID."""
    series = generate_uid()
    for z in range(volume.shape[2]):
        data = describe(patient, study, series, modality, description, SOPClassUID=CTImageStorage)
        data.ImageType, data.SeriesNumber, data.InstanceNumber = list(kind), number, z + 1
        data.ImagePositionPatient = [ORIGIN[0], ORIGIN[1], ORIGIN[2] + SPACING[2] * z]
        data.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        data.PixelSpacing, data.SliceThickness = [SPACING[1], SPACING[0]], SPACING[2]
        data.Rows, data.Columns = volume.shape[1], volume.shape[0]
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
        data.RescaleSlope, data.RescaleIntercept = 1, 0
        data.PixelData = np.ascontiguousarray(volume[:, :, z].T).tobytes()
        data["PixelData"].VR = "OW"
        save(folder / f"IM{number:02}{z:03}", data)
    return series


def write_report(folder: Path, patient, study):
    """Write a structured report."""
    save(folder / "SR1", describe(patient, study, generate_uid(), "SR", "Report", SOPClassUID=BasicTextSRStorage))


def write_segmentation(path: Path, patient, study, series, description="organ"):
    """Write what names a segmentation of a series, without its frames."""
    data = describe(patient, study, generate_uid(), "SEG", description, SOPClassUID=SegmentationStorage)
    reference = Dataset()
    reference.SeriesInstanceUID = series
    data.ReferencedSeriesSequence, data.Rows, data.Columns = [reference], 16, 12
    save(path, data)


def write_exam(folder: Path, patient, seed, description="Abdomen portal"):
    """Write a localizer, a volume with a bright box, a thin copy of it, a report and the box's mask; returns the box.

    All lie in one folder, the mask as mask.nii.gz.
    """
    rng, study = np.random.default_rng(seed), generate_uid()
    box = np.zeros((16, 12, 4), np.uint8)
    x, y = rng.integers(1, 5, 2)
    box[x : x + 8, y : y + 6, 1:] = 1
    volume = (rng.normal(40, 5, box.shape) + 200 * box).astype(np.int16)
    write_series(folder, volume[..., :1], patient, "Scout", study, kind=("ORIGINAL", "PRIMARY", "LOCALIZER"), number=1)
    write_series(folder, volume, patient, description, study, number=2)
    write_series(folder, volume[..., :2], patient, "Bone", study, number=3)
    write_report(folder, patient, study)
    nibabel.save(nibabel.Nifti1Image(box, AFFINE), folder / "mask.nii.gz")
    return volume
