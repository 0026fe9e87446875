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

Where several masks of a case are one label's, * stands for any letters, and they are joined::

    --image-pattern "{case}.png" --mask-pattern "{case}_mask*.png"

Folders train, val and test (or training, valid, validation, testing) in a site's folder, or above its cases, are the
parts of its split; in the place of the sites' folders they are those of one site, SOURCE.

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
What --labels 1=organ,255=ignore calls ignore counts in no loss and no score.
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
)
from silofl_hospital.importing.masks import ENDINGS, MASK_OPTIONS, read_values
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.patients import read_patients
from silofl_hospital.importing.site_files import Layout, SitePlan
from silofl_hospital.importing.tree import describe_left_out, find_parts, list_sites, visible_files

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
    for folder in list_sites(source):
        found, values, regions = find(folder, options)
        plans[found.site] = plan_cases(read_patients(found), values, options, _describe_left_out(found), regions)
    return plans


def _find_by_patterns(folder: Path, options: ImportOptions) -> Arranged:
    values = read_values(options)
    images = options.image_pattern
    masks = options.mask_pattern
    patterns = BY_STEM
    if images is not None and masks is not None:
        patterns = parse_patterns(images, masks, options.labels or ())
    elif images is not None or masks is not None:
        raise ConfigError("one of image-pattern and mask-pattern is missing; give both or none")
    patterns_of = _list_part_patterns(folder, patterns)
    if not patterns_of:
        found = find_cases(folder.name, folder, patterns, options.skip)
        # The image a.png is then images/a.png at the site, and not images/images/a.png.
        return (replace(found, images_in="images") if patterns is BY_STEM else found), values, {}
    cases = []
    for (name, part), of_part in patterns_of.items():
        for case in find_cases(folder.name, folder, of_part, options.skip).cases:
            cases.append(replace(case, name=f"{name}/{case.name}", part=part))
    if len({case.part for case in cases}) == 1:
        # Where one part alone has masks the import deals it.
        cases = [replace(case, part=None) for case in cases]
    return SiteCases(folder.name, folder, cases, patterns.channel_names), values, {}


def _list_part_patterns(folder: Path, patterns: Patterns) -> dict[tuple[str, str], Patterns]:
    """Return for each folder of a part, with the part, where its files lie; none where a site has no such folders.

    They lie in the folder of the site, as train/images, or where the names of cases begin, as images/train.
    """
    place, _, _ = patterns.images[0].partition(CASE)
    cases_in = folder / place.rpartition("/")[0]
    is_above = not cases_in.is_dir()
    found = {}
    for path, part in find_parts(folder if is_above else cases_in).items():
        images = []
        for pattern in patterns.images:
            images.append(_insert_part(pattern, path.name, is_above))
        mask = _insert_part(patterns.mask, path.name, is_above)
        found[path.name, part] = replace(patterns, images=tuple(images), mask=mask)
    return found


def _insert_part(pattern: str, name: str, is_above: bool) -> str:
    return f"{name}/{pattern}" if is_above else pattern.replace(CASE, f"{name}/{CASE}", 1)


def _describe_left_out(found: SiteCases) -> list[str]:
    """Return a sentence that counts the images that fit no pattern, or have no mask."""
    taken: set[Path] = set()
    for case in found.cases:
        taken.update(case.image_files, case.masks)
    left_out = []
    for path in visible_files(found.folder):
        # A file within a folder that is taken is a slice of a series.
        is_taken = not taken.isdisjoint((path, *path.parents))
        if not is_taken and (path.name.lower().endswith(ENDINGS) or has_dicom_mark(path)):
            left_out.append(path)
    return describe_left_out(found.site, {"images that fit no pattern or have no mask": left_out}, found.folder)


LAYOUT = Layout(plan_folders, (*MASK_OPTIONS, "arrangement", "skip"))
