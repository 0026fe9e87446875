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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from silofl.base.errors import ConfigError, DataError, quote_value
from silofl.reading.patient_names import key_patient
from silofl_hospital.importing.cases import (
    CASE,
    SiteCases,
    check_pattern,
    plan_cases,
    split_contrasts,
)
from silofl_hospital.importing.masks import ENDINGS, MASK_OPTIONS, read_values, split_ending
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.patients import TABLES, read_patients
from silofl_hospital.importing.series import SEGMENTATION, Export, Series, count_names, read_export
from silofl_hospital.importing.site_files import Case, Layout, SitePlan
from silofl_hospital.importing.tree import find_parts, shorten_names, visible_folders

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
        return [series for series in self.series if series is not None]


def list_exams(source: Path) -> list[dict[str, str]]:
    """List the series of all sites: how many of each modality, description and size there are, and of whom."""
    rows = []
    for folder in visible_folders(source):
        patients_of: dict[tuple[str, str, str], list[str]] = {}
        for series in read_export(folder).series:
            patients_of.setdefault(_describe_kind(series), []).append(key_patient(series.patient))
        for (modality, description, size), patients in sorted(patients_of.items()):
            row = {"site": folder.name, "modality": modality, "description": description, "size": size}
            rows.append(row | {"series": str(len(patients)), "patients": str(len({*patients}))})
    return rows


def _describe_kind(series: Series) -> tuple[str, str, str]:
    size = "no image" if series.size is None else " x ".join(map(str, series.size))
    if series.is_localizer:
        # It is listed, but no pattern takes it.
        size += " localizer"
    return series.modality, series.description, size


def plan_dicom(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of the series in SOURCE/<site> that a pattern names.

    Raises:
        ConfigError: No pattern is given, or it is none.
        DataError: A site has no such series or no mask of one, or it is not clear which of several is meant.
    """
    folders = visible_folders(source)
    if find_parts(source):
        raise DataError(
            f"{source.name} holds {shorten_names(folder.name for folder in folders)}, which look like the parts of one "
            "hospital's data; put them into a folder that is named as their site"
        )
    if options.image_pattern is None:
        images: list[Series] = []
        for folder in folders:
            images += read_export(folder).images
        raise ConfigError(
            "image-pattern is missing; name the series to take as MODALITY/DESCRIPTION, in which * stands for any "
            f"letters, of those in SOURCE: {count_names(images) or 'none'}"
        )
    plans = {}
    for folder in folders:
        found, left_out = find_exams(folder, options)
        plans[found.site] = plan_cases(read_patients(found), read_values(options), options, left_out)
    return plans


def find_exams(folder: Path, options: ImportOptions) -> tuple[SiteCases, list[str]]:
    """Find the cases of a site, and count what is left over.

    Args:
        options: Its patterns, and the folder in which each series gets links to its files.

    Raises:
        DataError: There is no series or mask, or it is not clear which of several is meant.
    """
    site = folder.name
    export = read_export(folder)
    contrasts, patterns = split_contrasts(options.image_pattern or "")
    wanted = options.mask_pattern or ANY_SEGMENTATION
    is_path = CASE in wanted
    if not is_path and not wanted.upper().startswith(f"{SEGMENTATION}/"):
        raise ConfigError(
            f"mask-pattern must be {SEGMENTATION}/DESCRIPTION, or a path with {CASE}, not {quote_value(wanted)}; "
            "correct it"
        )
    exams = _group_exams(folder, export, patterns, is_path)
    for pattern in patterns:
        if not any(series.fits(pattern) for series in export.images):
            shown = shorten_names({series.name for series in export.images}) or "no image"
            raise DataError(
                f"site {site!r} has no series as {pattern}, but {shown}; correct --image-pattern, or remove the folder"
            )
    masks = {}
    for exam in exams:
        mask = _find_by_path(folder, exam, wanted) if is_path else _find_segmentation(folder, exam, export, wanted)
        if mask is not None:
            masks[exam] = mask
    if not masks:
        raise DataError(
            f"site {site!r} has no mask as {wanted} for any of {len(exams)} exams; correct --mask-pattern, or add masks"
        )
    cases = _stage_cases(folder, export, masks, contrasts, options.scratch / site)
    return cases, _describe_left_over(site, export, len(masks), exams)


def _group_exams(folder: Path, export: Export, patterns: Sequence[str], is_by_folder: bool) -> list[Exam]:
    """Return what may become cases: each series of one pattern; else one of each pattern of an exam or a folder."""
    taken = [series for series in export.images if any(map(series.fits, patterns))]
    groups: dict[object, list[Series]] = {}
    # In the order of folders and numbers, so that numbered cases keep their names.
    for series in sorted(taken, key=lambda series: (series.files[0].parent, series.number, series.uid)):
        # A mask by its path belongs to a folder, contrasts to one exam, and else each series is a case.
        key: object = (key_patient(series.patient), series.uid)
        if is_by_folder:
            key = _exam_folder(folder, series)
        elif len(patterns) > 1:
            key = (key_patient(series.patient), series.study)
        groups.setdefault(key, []).append(series)
    num_exams = Counter(_exam_folder(folder, members[0]) for members in groups.values())
    used = Counter[str]()
    exams = []
    for members in groups.values():
        exam_folder = _exam_folder(folder, members[0])
        used[exam_folder] += 1
        # Of several series in one folder each gets a number.
        case = exam_folder if num_exams[exam_folder] == 1 else f"{exam_folder}-{used[exam_folder]}"
        name = f"{case} of site {folder.name!r}"
        exams.append(Exam(case, exam_folder, name, tuple(_choose_series(name, members, p) for p in patterns)))
    return exams


def _exam_folder(folder: Path, series: Series) -> str:
    """Return the name of the folder in the site's folder that holds a series; the site's own of one without."""
    parts = series.files[0].relative_to(folder).parts
    return parts[0] if len(parts) > 1 else folder.name


def _choose_series(exam: str, members: Sequence[Series], pattern: str) -> Series | None:
    fitting = [series for series in members if series.fits(pattern)]
    if len(fitting) > 1:
        raise DataError(
            f"{exam} has {len(fitting)} series as {pattern}: "
            f"{shorten_names(series.description for series in fitting)}; narrow --image-pattern, or move the others "
            "away"
        )
    return fitting[0] if fitting else None


def _find_segmentation(folder: Path, exam: Exam, export: Export, pattern: str) -> Path | None:
    """Return the one segmentation that names a series of the case."""
    uids = {series.uid for series in exam.taken}
    fitting = []
    for series in export.series:
        if series.modality == SEGMENTATION and series.refers_to & uids and series.fits(pattern):
            fitting.append(series)
    if len(fitting) > 1:
        shown = []
        for series in fitting:
            shown.append(f"{series.description or 'without a description'} ({series.files[0].relative_to(folder)})")
        raise DataError(
            f"{exam.name} has {len(fitting)} masks as {pattern}: {shorten_names(shown)}; name one with --mask-pattern, "
            "move the others out of the site's folder, or put their segments into one DICOM segmentation, for example "
            "with 3D Slicer"
        )
    return fitting[0].files[0] if fitting else None


def _find_by_path(folder: Path, exam: Exam, pattern: str) -> Path | None:
    """Return a mask by its path, in which the exam's folder stands for the case."""
    path = check_pattern(pattern, "mask-pattern")
    mask = folder / path.replace(CASE, exam.folder)
    # Here, because a link to a file of another form would be named as DICOM.
    split_ending(mask, f"mask-pattern {path}")
    return mask if mask.exists() else None


def _stage_cases(
    folder: Path, export: Export, masks: Mapping[Exam, Path], contrasts: tuple[str, ...], root: Path
) -> SiteCases:
    """Give each series a folder of links to its files, as the readers of a series want it, and each mask a link.

    A damaged file may be a slice of any series in its folder: it goes with each, whose reader then refuses it by name.
    """
    (root / "masks").mkdir(parents=True)
    cases = []
    for exam, mask in masks.items():
        images: list[Path | None] = []
        names = [f"{exam.case}/{contrast}" for contrast in contrasts] or [exam.case]
        for name, series in zip(names, exam.series, strict=True):
            if series is None:
                images.append(None)
                continue
            folders = {file.parent for file in series.files}
            damaged = [file for file in export.damaged if file.parent in folders]
            images.append(root / "images" / name)
            _link_files([*series.files, *damaged], root / "images" / name)
        staged = root / "masks" / f"{exam.case}{_ending(mask)}"
        staged.symlink_to(mask.resolve())
        cases.append(Case(exam.case, tuple(images), (staged,)))
    # The reader of patients looks beside the images, which are links.
    for table in TABLES:
        if (folder / table).exists():
            (root / table).symlink_to((folder / table).resolve())
    return SiteCases(folder.name, root, cases, contrasts, images_in="images")


def _link_files(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        # Numbered, because files of two folders may have one name.
        (folder / f"{number:05}.dcm").symlink_to(file.resolve())


def _ending(mask: Path) -> str:
    """Return a mask's ending, which tells its form; archives give none to a DICOM file."""
    if mask.is_dir():
        return ""
    return next((ending for ending in ENDINGS if mask.name.lower().endswith(ending)), ".dcm")


def _describe_left_over(site: str, export: Export, num_cases: int, exams: Sequence[Exam]) -> list[str]:
    """Return sentences that count the series that become no case, and the damaged files."""
    taken: set[Series] = set()
    for exam in exams:
        taken.update(exam.taken)
    left = [series for series in export.images if series not in taken]
    notes = []
    if len(exams) > num_cases:
        notes.append(f"{site}: {len(exams) - num_cases} of {len(exams)} exams have no mask, and are left out")
    if left:
        notes.append(f"{site}: series that no pattern names are left out: {count_names(left)}")
    if export.damaged:
        count = len(export.damaged)
        notes.append(f"{site}: no series can be read that has a damaged file in its folder: {count} files")
    return notes


LAYOUT = Layout(plan_dicom, MASK_OPTIONS, list_exams)
