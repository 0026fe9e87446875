"""Folders of images and masks for each site, as many hospitals keep their annotated images.

Own data, from nowhere else::

    SOURCE/
      north/                 a folder for each site
        images/a.png ...     pictures, NIfTI, MHA or NRRD volumes, or folders of a DICOM series
        masks/a.png ...      of the same name but for the ending; 0 is the background, 1 or in pictures 255 the label;
                             also DICOM segmentations, or those of 3D Slicer (a.seg.nrrd)
        patients.csv         whose image it is, in the columns file and patient (or patients.tsv)
      south/ ...

Files that lie elsewhere, or several contrasts of a case, are named by patterns: paths relative to a site's folder, in
which {case} is the name of a case, a folder's or a part of a name::

    --image-pattern "scans/{case}_t1.nii.gz" --mask-pattern "scans/{case}_seg.nii.gz"
    --image-pattern "T1={case}/t1.nii.gz,T2={case}/t2.nii.gz" --mask-pattern "{case}/seg.nii.gz"

Where each label has a file of its own, {label} stands for its name, as TotalSegmentator saves organs::

    --image-pattern "{case}/ct.nii.gz" --mask-pattern "{case}/segmentations/{label}.nii.gz" --labels liver,spleen

A file that fits several patterns belongs to the one with most letters beside {case}; images that fit none are counted.
Where a case lacks a contrast, the import counts it and dataset.json has null. In patients.csv file is the case, or the
path of one of its images.

--layout bids takes BIDS trees: patterns are kinds of files, as T1w and labels/dseg, of which the masks lie in
derivatives/, and the subject is the patient. --layout nnunet takes data sets of nnU-Net, which name their contrasts,
labels, regions and the label ignore in dataset.json: its number counts in no loss and no score::

    --layout bids --image-pattern "T1=T1w,FLAIR=FLAIR" --mask-pattern desc-lesion_mask --labels lesion

Without patients.csv the patients are those of the DICOM headers (PatientID), where these differ. Otherwise nobody knows
whose images they are: they are split by file.

--labels organ,lesion says that 1 is organ and 2 lesion, --labels 1=organ,4=lesion that 4 is: at the site it becomes 2.
Segmentations of DICOM and 3D Slicer are numbered by the names of their segments. Masks with another number or name are
refused, and so are masks whose voxels are not those of their image.
"""

from dataclasses import replace
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl.reading.endings import has_dicom_mark
from silofl_hospital.importing.arrangements import ARRANGEMENTS, Arranged
from silofl_hospital.importing.cases import (
    CASE,
    Patterns,
    SiteCases,
    find_cases,
    parse_patterns,
    plan_cases,
    shorten_names,
)
from silofl_hospital.importing.masks import ENDINGS, MASK_OPTIONS, read_values
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.patients import read_patients
from silofl_hospital.importing.site_files import Layout, SitePlan, visible_files, visible_folders

# Without patterns: images and masks of one name.
BY_STEM = Patterns((f"images/{CASE}",), f"masks/{CASE}")


def plan_folders(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<site>/images and SOURCE/<site>/masks, or of the files that patterns name.

    Raises:
        ConfigError: A pattern is not one, or only one of the two is given.
        DataError: An image has no mask or a mask no image, or patients.csv does not fit.
    """
    find = ARRANGEMENTS[options.arrangement] if options.arrangement else _find_by_patterns
    plans = {}
    for folder in visible_folders(source):
        found, values, regions = find(folder, options)
        plans[found.site] = plan_cases(read_patients(found), values, options, _describe_left_out(found), regions)
    return plans


def _find_by_patterns(folder: Path, options: ImportOptions) -> Arranged:
    values = read_values(options)
    images = options.image_pattern
    masks = options.mask_pattern
    # The image a.png is then images/a.png at the site, and not images/images/a.png.
    if images is None and masks is None:
        return replace(find_cases(folder.name, folder, BY_STEM), images_in="images"), values, {}
    if images is None or masks is None:
        raise ConfigError("one of image-pattern and mask-pattern is missing; give both or none")
    return find_cases(folder.name, folder, parse_patterns(images, masks, options.labels or ())), values, {}


def _describe_left_out(found: SiteCases) -> list[str]:
    """Return a sentence that counts the images that fit no pattern, or have no mask."""
    taken: set[Path] = set()
    for case in found.cases:
        taken.update(case.image_files, case.masks)
    names = []
    for path in visible_files(found.folder):
        # A file within a folder that is taken is a slice of a series.
        is_taken = not taken.isdisjoint((path, *path.parents))
        if not is_taken and (path.name.lower().endswith(ENDINGS) or has_dicom_mark(path)):
            names.append(path.relative_to(found.folder).as_posix())
    if not names:
        return []
    sentence = f"{found.site}: images that fit no pattern or have no mask are left out: {len(names)}, as"
    return [f"{sentence} {shorten_names(names)}"]


LAYOUT = Layout(plan_folders, (*MASK_OPTIONS, "arrangement"))
