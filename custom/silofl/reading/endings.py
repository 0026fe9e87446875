"""What to do about a file whose ending no reader knows."""

from pathlib import Path

DICOM_MARK, DICOM_PLACE = b"DICM", 128
# Of files that are DICOM by their name, whatever is in them.
DICOM_ENDINGS = (".dcm", ".ima")
_AS_PNG = "save it as PNG"
_REGIONS = "export its regions as PNG or TIFF, for example with QuPath"
_ARRAYS = "save its array as NIfTI, or many of one size as npz"
_VOLUME = "save it as one NIfTI file, for example with dcm2niix or mri_convert"
REMEDIES = {
    **dict.fromkeys((".webp", ".jp2", ".jpx", ".j2k", ".heic", ".heif", ".avif", ".tga"), _AS_PNG),
    **dict.fromkeys((".svs", ".ndpi", ".scn", ".mrxs", ".qptiff", ".czi", ".lif", ".nd2", ".oib", ".vsi"), _REGIONS),
    **dict.fromkeys((".mat", ".h5", ".hdf5", ".npy", ".pt", ".pkl"), _ARRAYS),
    **dict.fromkeys((".mgh", ".mgz", ".hdr", ".img", ".nhdr", ".mhd", ".raw", ".zraw", ".par", ".rec"), _VOLUME),
    **dict.fromkeys((".brik", ".head"), "convert it to NIfTI, for example with AFNI's 3dAFNItoNIFTI"),
    **dict.fromkeys((".mnc", ".v"), "convert it to NIfTI, for example with nibabel"),
    **dict.fromkeys((".gii", ".vtk", ".stl", ".obj"), "name the volume from which this surface was computed"),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".ppt", ".pptx"), "export the image from the document as PNG"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz", ".bz2", ".7z", ".rar"), "unpack it"),
}


def suggest_remedy(path: Path) -> str:
    """Return what to do about a file that no reader knows, by its ending, and by its content where that is DICOM."""
    ending = path.suffix.lower()
    if has_dicom_mark(path) or ending == ".ima":
        return f"it is DICOM: name it {path.name}.dcm"
    # The names of DICOM files often are numbers with points.
    if not ending or ending[1:].isdigit():
        return f"convert it, or name DICOM {path.name}.dcm"
    return REMEDIES.get(ending, "convert it to one of these")


def has_dicom_mark(path: Path) -> bool:
    """Return whether a file begins as DICOM files do."""
    try:
        with path.open("rb") as file:
            file.seek(DICOM_PLACE)
            return file.read(len(DICOM_MARK)) == DICOM_MARK
    except OSError:
        return False
