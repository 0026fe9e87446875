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

from silofl.base.errors import ConfigError, DataError
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
from silofl_hospital.importing.options import ImportOptions, Layout
from silofl_hospital.importing.patients import read_patients, warn_unknown_patients
from silofl_hospital.importing.site_files import SitePlan, visible_files, visible_folders

# Without patterns: images and masks of one name.
BY_STEM = Patterns((f"images/{CASE}",), f"masks/{CASE}")


def plan_folders(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<site>/images and SOURCE/<site>/masks, or of the files that patterns name.

    Raises:
        ConfigError: A pattern is not one, or only one of the two is given.
        DataError: No site is found, an image has no mask or a mask no image, no site has some contrast, or patients.csv
            does not fit.
    """
    folders = visible_folders(source)
    if not folders:
        raise DataError(
            f"{source.name} must hold a folder for each site with images and masks in it, not none; make one"
        )
    sites: list[Arranged]
    if options.arrangement is None:
        sites = [(found, read_values(options), {}) for found in _find_by_patterns(folders, _read_patterns(options))]
    else:
        sites = [ARRANGEMENTS[options.arrangement](folder, options) for folder in folders]
    plans = {}
    for found, values, regions in sites:
        plan = plan_cases(found, read_patients(found), values, options)
        plans[found.site] = replace(plan.with_notes(_describe_left_out(found)), regions=regions)
    return warn_unknown_patients(plans)


def _find_by_patterns(folders: list[Path], patterns: Patterns) -> list[SiteCases]:
    sites = [find_cases(folder.name, folder, patterns) for folder in folders]
    _check_patterns(sites, patterns)
    return [replace(found, images_in="images") for found in sites] if patterns == BY_STEM else sites


def _read_patterns(options: ImportOptions) -> Patterns:
    if (options.image_pattern is None) != (options.mask_pattern is None):
        raise ConfigError("image-pattern and mask-pattern must be given together, not one alone; give both or none")
    if options.image_pattern is None or options.mask_pattern is None:
        return BY_STEM
    return parse_patterns(options.image_pattern, options.mask_pattern, options.labels or ())


def _check_patterns(sites: list[SiteCases], patterns: Patterns) -> None:
    """Refuse a pattern that no site has a file for: it is mistyped."""
    for name, pattern in zip(patterns.channel_names, patterns.images, strict=False):
        if all(found.missing.get(name) == len(found.images) for found in sites):
            raise DataError(f"some site must have a file as {pattern} for {name}, not none; correct the pattern")


def _describe_left_out(found: SiteCases) -> list[str]:
    """Return a sentence that counts the images that fit no pattern, or have no mask."""
    layers = {path for by_label in found.layers.values() for path in by_label.values()}
    taken = layers | {*found.masks.values(), *(path for paths in found.images.values() for path in paths)}
    names = [
        path.relative_to(found.folder).as_posix()
        for path in visible_files(found.folder)
        if taken.isdisjoint((path, *path.parents)) and (path.name.lower().endswith(ENDINGS) or has_dicom_mark(path))
    ]
    sentence = f"{found.site}: images that fit no pattern or have no mask are left out: {len(names)}, as"
    return [f"{sentence} {shorten_names(names)}"] if names else []


LAYOUT = Layout(plan_folders, (*MASK_OPTIONS, "arrangement"))
