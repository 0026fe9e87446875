"""Folders of DICOM exams for each site, as an archive exports them: several series, localizers and reports together.

Own data, from nowhere else::

    SOURCE/
      north/                 a folder for each site
        exam1/...            DICOM files in any folders and of any names, several series mixed
        patients.csv         only where PatientID is not the patient: columns file and patient, where file is the case
      south/ ...

Without TARGET the command lists the series by modality, description and size, and of how many patients they are.

--image-pattern takes the series to learn from, by modality and description, in which * stands for any letters; of
several contrasts one series of each exam. Localizers are never taken::

    --image-pattern "CT/*portal*"
    --image-pattern "T1=MR/*t1*,FLAIR=MR/*flair*"

The masks are the DICOM segmentations (SEG) that name such a series; --mask-pattern "SEG/*reader 1*" takes those of a
description. Masks in other files are named by their path in the site's folder, {case} being the exam's folder there::

    --mask-pattern "{case}/mask.nii.gz"

The patient is PatientID. What is left over is counted: series that no pattern names, and series without a mask.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from silofl.base.errors import ConfigError, DataError, quote_value
from silofl.reading.patient_names import key_patient
from silofl_hospital.importing.cases import (
    CASE,
    SiteCases,
    check_pattern,
    check_utf8_name,
    plan_cases,
    shorten_names,
    split_contrasts,
)
from silofl_hospital.importing.masks import ENDINGS, MASK_OPTIONS, read_values, split_ending
from silofl_hospital.importing.options import ImportOptions, Layout, Listing
from silofl_hospital.importing.patients import TABLES, read_patients, warn_unknown_patients
from silofl_hospital.importing.series import SEGMENTATION, Export, Series, count_names, read_export
from silofl_hospital.importing.site_files import SitePlan, visible_folders

COLUMNS = ("site", "modality", "description", "size", "series", "patients")
ANY_SEGMENTATION = f"{SEGMENTATION}/*"


@dataclass(frozen=True)
class Exam:
    """What becomes a case where it has a mask.

    Attributes:
        case: The case's name.
        folder: The folder in the site's folder that its series lie in.
        name: What messages call it.
        series: The series of each contrast, None where there is none.
    """

    case: str
    folder: str
    name: str
    series: tuple[Series | None, ...]

    @property
    def taken(self) -> list[Series]:
        """The series that are there."""
        return [one for one in self.series if one is not None]


# Gives the mask of what may become a case, if there is one.
MaskFinder = Callable[[Exam], Path | None]


def list_exams(source: Path) -> Listing:
    """List the series of all sites: how many of each modality, description and size there are, and of whom."""
    rows = []
    for folder in _site_folders(source):
        ordered = sorted(read_export(folder).series, key=_kind)
        for kind, found in groupby(ordered, _kind):
            members = [*found]
            patients = {key_patient(one.patient) for one in members}
            rows.append((folder.name, *kind, str(len(members)), str(len(patients))))
    return Listing(COLUMNS, tuple(rows), "take series with --image-pattern MODALITY/DESCRIPTION, as CT/*portal*")


def _kind(series: Series) -> tuple[str, str, str]:
    size = "no image" if series.size is None else " x ".join(map(str, series.size))
    return series.modality, series.description, f"{size} localizer" if series.is_localizer else size


def plan_dicom(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of the series in SOURCE/<site> that a pattern names.

    Raises:
        ConfigError: No pattern is given, or it is none.
        DataError: A site has no such series or no mask of one, or it is not clear which of several is meant.
    """
    if options.image_pattern is None:
        held = [one for folder in _site_folders(source) for one in read_export(folder).images]
        raise ConfigError(
            "image-pattern must name the series to take as MODALITY/DESCRIPTION, in which * stands for any letters; "
            f"SOURCE holds these: {count_names(held) or 'none'}"
        )
    plans = {}
    for folder in _site_folders(source):
        found, notes = find_exams(folder, options)
        plan = plan_cases(found, read_patients(found), read_values(options), options)
        plans[found.site] = plan.with_notes(notes)
    return warn_unknown_patients(plans)


def _site_folders(source: Path) -> list[Path]:
    folders = visible_folders(source)
    if not folders:
        raise DataError(f"{source.name} must hold a folder for each site with DICOM files in it, not none; make one")
    return folders


def find_exams(folder: Path, options: ImportOptions) -> tuple[SiteCases, tuple[str, ...]]:
    """Find the cases of a site, and count what is left over.

    Args:
        options: Its patterns, and the folder in which each series gets links to its files.

    Raises:
        DataError: There is no series or mask, or it is not clear which of several is meant.
    """
    site, export = folder.name, read_export(folder)
    contrasts, patterns = split_contrasts(options.image_pattern or "")
    wanted = options.mask_pattern or ANY_SEGMENTATION
    is_path = CASE in wanted
    find_mask = _find_by_path(folder, wanted) if is_path else _find_segmentation(folder, export, wanted)
    exams = _group_exams(folder, export, patterns, is_path)
    for pattern in patterns:
        if not any(one.fits(pattern) for one in export.images):
            there = shorten_names({one.name for one in export.images}) or "no image"
            raise DataError(
                f"site {site!r} must have a series as {pattern}; it has {there}: correct --image-pattern, or remove "
                "the folder"
            )
    found = [(exam, find_mask(exam)) for exam in exams]
    whole = {exam: mask for exam, mask in found if mask is not None}
    if not whole:
        raise DataError(
            f"site {site!r} must have a mask as {wanted} of a series that is taken, not none of {len(exams)}; correct "
            "--mask-pattern, or add masks"
        )
    staged = _stage_cases(folder, export, whole, contrasts, options.scratch / site)
    return staged, _describe_left_over(site, export, whole, exams)


def _group_exams(folder: Path, export: Export, patterns: Sequence[str], is_by_folder: bool) -> list[Exam]:
    """Return what may become cases: each series of one pattern; else one of each pattern of an exam or a folder."""
    taken = [one for one in export.images if any(map(one.fits, patterns))]
    groups: dict[object, list[Series]] = {}
    for one in sorted(taken, key=lambda one: (one.files[0].parent, one.number, one.uid)):
        patient = key_patient(one.patient)
        whole_exam = (patient, one.study) if len(patterns) > 1 else (patient, one.uid)
        groups.setdefault(_exam_folder(folder, one) if is_by_folder else whole_exam, []).append(one)
    names = [_exam_folder(folder, members[0]) for members in groups.values()]
    used, exams = Counter[str](), []
    for name, members in zip(names, groups.values(), strict=True):
        used[name] += 1
        # Of several series in one folder each gets a number.
        case = name if names.count(name) == 1 else f"{name}-{used[name]}"
        exam = f"{case} of site {folder.name!r}"
        exams.append(Exam(case, name, exam, tuple(_choose_series(exam, members, pattern) for pattern in patterns)))
    return exams


def _exam_folder(folder: Path, series: Series) -> str:
    """Return the name of the folder in the site's folder that holds a series; the site's own of one without."""
    parts = series.files[0].relative_to(folder).parts
    check_utf8_name(folder.name, parts[0])
    return parts[0] if len(parts) > 1 else folder.name


def _choose_series(exam: str, members: Sequence[Series], pattern: str) -> Series | None:
    fitting = [one for one in members if one.fits(pattern)]
    if len(fitting) > 1:
        raise DataError(
            f"{exam} must have one series as {pattern}, not {len(fitting)}: "
            f"{shorten_names(one.description for one in fitting)}; narrow --image-pattern, or move the others away"
        )
    return fitting[0] if fitting else None


def _find_segmentation(folder: Path, export: Export, pattern: str) -> MaskFinder:
    """Look for the one segmentation that names a series of the case."""
    if not pattern.upper().startswith(f"{SEGMENTATION}/"):
        raise ConfigError(
            f"mask-pattern must be {SEGMENTATION}/DESCRIPTION, or a path with {CASE}, not {quote_value(pattern)}; "
            "correct it"
        )
    segmentations = [one for one in export.series if one.modality == SEGMENTATION and one.fits(pattern)]

    def describe(one: Series) -> str:
        return f"{one.description or 'without a description'} ({one.files[0].relative_to(folder)})"

    def find(exam: Exam) -> Path | None:
        uids = {one.uid for one in exam.taken}
        fitting = [one for one in segmentations if one.refers_to & uids]
        if len(fitting) > 1:
            raise DataError(
                f"{exam.name} must have one mask as {pattern}, not {len(fitting)}: "
                f"{shorten_names(map(describe, fitting))}; name one with --mask-pattern, move the others out of the "
                "site's folder, or put their segments into one DICOM segmentation, for example with 3D Slicer"
            )
        return fitting[0].files[0] if fitting else None

    return find


def _find_by_path(folder: Path, pattern: str) -> MaskFinder:
    """Look for a mask by its path, in which the exam's folder stands for the case."""
    path = check_pattern(pattern, "mask-pattern")

    def find(exam: Exam) -> Path | None:
        mask = folder / path.replace(CASE, exam.folder)
        split_ending(mask, f"mask-pattern {path}")
        return mask if mask.exists() else None

    return find


def _stage_cases(
    folder: Path, export: Export, masks: Mapping[Exam, Path], contrasts: tuple[str, ...], root: Path
) -> SiteCases:
    """Give each series a folder of links to its files, as the readers of a series want it, and each mask a link.

    A damaged file may be a slice of any series in its folder: it goes with each, whose reader then refuses it by name.
    """
    images: dict[str, tuple[Path | None, ...]] = {}
    for exam in masks:
        names = [f"{exam.case}/{contrast}" for contrast in contrasts] or [exam.case]
        places = [None if one is None else root / "images" / name for name, one in zip(names, exam.series, strict=True)]
        for place, series in zip(filter(None, places), exam.taken, strict=True):
            folders = {file.parent for file in series.files}
            _link_files([*series.files, *(file for file in export.damaged if file.parent in folders)], place)
        images[exam.case] = tuple(places)
    (root / "masks").mkdir(parents=True)
    staged = {exam.case: root / "masks" / f"{exam.case}{_ending(mask)}" for exam, mask in masks.items()}
    tables = {root / table: folder / table for table in TABLES if (folder / table).exists()}
    for link, file in {**{staged[exam.case]: mask for exam, mask in masks.items()}, **tables}.items():
        link.symlink_to(file.resolve())
    return SiteCases(folder.name, root, images, staged, contrasts, images_in="images")


def _link_files(files: Iterable[Path], place: Path) -> None:
    place.mkdir(parents=True)
    for number, file in enumerate(files):
        # Numbered, because files of two folders may have one name.
        (place / f"{number:05}.dcm").symlink_to(file.resolve())


def _ending(mask: Path) -> str:
    """Return a mask's ending, which tells its form; archives give none to a DICOM file."""
    known = (ending for ending in ENDINGS if mask.name.lower().endswith(ending))
    return "" if mask.is_dir() else next(known, ".dcm")


def _describe_left_over(
    site: str, export: Export, whole: Mapping[Exam, Path], exams: Sequence[Exam]
) -> tuple[str, ...]:
    """Return sentences that count the series that become no case, and the damaged files."""
    taken = {one for exam in exams for one in exam.taken}
    others = [one for one in export.images if one not in taken]
    notes = []
    if len(exams) > len(whole):
        notes.append(f"{site}: {len(exams) - len(whole)} of {len(exams)} exams have no mask, and are left out")
    if others:
        notes.append(f"{site}: series that no pattern names are left out: {count_names(others)}")
    if export.damaged:
        count = len(export.damaged)
        notes.append(f"{site}: no series can be read that has a damaged file in its folder: {count} files")
    return tuple(notes)


LAYOUT = Layout(plan_dicom, MASK_OPTIONS, list_exams)
