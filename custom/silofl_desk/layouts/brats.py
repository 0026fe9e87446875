"""Brain tumours on MRI in four contrasts: BraTS in the form of 2021 or of 2023, and FeTS with its institutions.

Baid et al., The RSNA-ASNR-MICCAI BraTS 2021 Benchmark on Brain Tumor Segmentation and Radiogenomic Classification,
arXiv:2107.02314; Pati et al., The Federated Tumor Segmentation (FeTS) Challenge, arXiv:2105.05874; from Synapse after
registration, the training data::

    SOURCE/                                      SOURCE/
      north/           a folder for each site      partitioning_1.csv    Partition_ID, Subject_ID
        BraTS2021_00000/                           FeTS2022_00000/
          BraTS2021_00000_t1.nii.gz                  FeTS2022_00000_t1.nii.gz ...
          BraTS2021_00000_t1ce.nii.gz              FeTS2022_00001/ ...
          BraTS2021_00000_t2.nii.gz
          BraTS2021_00000_flair.nii.gz
          BraTS2021_00000_seg.nii.gz
      south/ ...

In the form of 2023 a case is BraTS-GLI-00000-000, a patient and a time point, and its files are
BraTS-GLI-00000-000-t1n.nii.gz, -t1c, -t2w, -t2f and -seg. BraTS itself names no institutions: the folders of the sites
are made by hand. With partitioning_1.csv, FeTS's split by institution, the sites are site-1, site-2 and so on.

The contrasts are T1, T1Gd (after gadolinium), T2 and FLAIR; one that a case lacks is null. Label 1 is the necrotic
core, 2 the oedema, 3 the enhancing tumour, which is 4 in the masks of 2021. dataset.json has the challenge's regions,
WT, TC and ET, and new-study takes them over. All time points of a patient come into one part.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from silofl.base.errors import DataError
from silofl.importing.cases import CASE, Patterns, SiteCases, find_cases, plan_cases, shorten_names
from silofl.importing.masks import Values
from silofl.importing.options import FIFTHS, ImportOptions, Layout
from silofl.importing.patients import assign_sites, read_columns
from silofl.importing.site_files import SitePlan, visible_folders
from silofl_desk.layouts.description import choose_labels

CHANNELS = ("T1", "T1Gd", "T2", "FLAIR")
LABELS = ("necrotic core", "oedema", "enhancing tumour")
# What the challenge scores: the whole tumour, its core, and its enhancing part.
REGIONS = {"WT": (1, 2, 3), "TC": (1, 3), "ET": (3,)}
TABLE = "partitioning_1.csv"
TIME_POINT = re.compile(r"-\d{3}$")


@dataclass(frozen=True)
class Edition:
    """How the files of one year are named and numbered.

    Attributes:
        separator: Between the case and the contrast.
        contrasts: In the order of `CHANNELS`.
        values: Of `LABELS` in the masks.
        has_time_points: Whether a case's name ends with the number of the patient's scan.
    """

    separator: str
    contrasts: tuple[str, ...]
    values: tuple[int, ...]
    has_time_points: bool

    @property
    def patterns(self) -> Patterns:
        """Where the files of a case lie."""
        *images, mask = (f"{CASE}/{self._file_name(CASE, contrast)}" for contrast in (*self.contrasts, "seg"))
        return Patterns(tuple(images), mask, CHANNELS)

    def has_case(self, folder: Path) -> bool:
        """Return whether a folder holds a case."""
        return any((folder / self._file_name(folder.name, name)).exists() for name in (*self.contrasts, "seg"))

    def patients(self, found: SiteCases) -> dict[str, str]:
        """Return the patient of each case."""
        return {case: TIME_POINT.sub("", case) if self.has_time_points else case for case in found.images}

    def _file_name(self, case: str, contrast: str) -> str:
        return f"{case}{self.separator}{contrast}.nii.gz"


FORMS = {
    "2021": Edition("_", ("t1", "t1ce", "t2", "flair"), (1, 2, 4), has_time_points=False),
    "2023": Edition("-", ("t1n", "t1c", "t2w", "t2f"), (1, 2, 3), has_time_points=True),
}


def plan_brats(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<site>/<case>/<case>_t1.nii.gz and so on, or of SOURCE/<case> by partitioning_1.csv.

    Raises:
        ConfigError: There are more or fewer names than labels.
        DataError: No case is found, cases are of both forms, one has no mask or no institution, or two sites have the
            same patient.
    """
    has_table = (source / TABLE).exists()
    places = [source] if has_table else visible_folders(source)
    form = _detect_form(source, places)
    for place in places:
        _check_folders(place, form)
    sites = [find_cases(place.name, place, form.patterns) for place in places]
    notes: tuple[str, ...] = ()
    if has_table:
        sites, notes = _split_by_institution(
            sites[0], read_columns(source / TABLE, TABLE, "Subject_ID", "Partition_ID")
        )
    patients = [(patient, found.site) for found in sites for patient in form.patients(found).values()]
    assign_sites(patients, "move all time points to one")
    names = choose_labels(options.labels, LABELS, first=1).values()
    values = Values(dict(zip(form.values, names, strict=True)), "download it again, or leave the case out")
    plans = {found.site: plan_cases(found, form.patients(found), values, options) for found in sites}
    return {site: replace(plan, notes=(*plan.notes, *notes), regions=REGIONS) for site, plan in plans.items()}


def _detect_form(source: Path, places: Iterable[Path]) -> Edition:
    folders = [folder for place in places for folder in visible_folders(place)]
    found = [year for year, form in FORMS.items() if any(map(form.has_case, folders))]
    if not found:
        raise DataError(
            f"{source.name} must hold a folder for each site with cases in it, as BraTS2021_00000 with "
            f"BraTS2021_00000_t1.nii.gz, or cases beside {TABLE}; neither is there: make a folder for each site"
        )
    if len(found) > 1:
        raise DataError(
            f"{source.name} must hold cases in the form of one year, not of {' and '.join(found)}, which may be the "
            "same patients under other names; import one"
        )
    return FORMS[found[0]]


def _check_folders(place: Path, form: Edition) -> None:
    odd = [folder.name for folder in visible_folders(place) if not form.has_case(folder)]
    if odd:
        wanted = form.patterns.images[0].replace(CASE, odd[0])
        raise DataError(
            f"{place.name} must hold folders of cases alone, with files as {wanted}, not {shorten_names(odd)}; remove "
            "or rename it"
        )


def _split_by_institution(
    found: SiteCases, partitions: Mapping[str, set[str]]
) -> tuple[list[SiteCases], tuple[str, ...]]:
    """Return the cases of each institution, and a note on the table's cases that are not there."""
    unknown = [case for case in found.images if case not in partitions]
    if unknown:
        raise DataError(
            f"{TABLE} must name the Partition_ID of {shorten_names(unknown)}; add rows, or remove the folders"
        )
    site_of: dict[str, str] = {}
    for case in found.images:
        site, *others = sorted(partitions[case])
        if others:
            raise DataError(
                f"{TABLE} must name one Partition_ID of {case}, not {shorten_names(partitions[case])}; correct it"
            )
        site_of[case] = f"site-{site}"
    sites = [
        replace(
            found,
            site=site,
            images={case: files for case, files in found.images.items() if site_of[case] == site},
            masks={case: file for case, file in found.masks.items() if site_of[case] == site},
        )
        # site-2 before site-10
        for site in sorted({*site_of.values()}, key=lambda site: (len(site), site))
    ]
    absent = partitions.keys() - found.images.keys()
    return sites, ((f"cases of {TABLE} that have no folder are left out: {len(absent)}",) if absent else ())


LAYOUT = Layout(plan_brats, {**FIFTHS, "resample_masks": False})
