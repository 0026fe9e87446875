"""Folders of images and masks for each site, as many hospitals keep their annotated images.

Own data, from nowhere else::

    SOURCE/
      north/                 a folder for each site
        images/a.png ...     pictures, NIfTI, MHA or NRRD volumes, or folders of a DICOM series
        masks/a.png ...      of the same name but for the ending; 0 is the background, 1 or 255 the label
        patients.csv         whose image it is, in the columns file and patient (or patients.tsv)
      south/ ...

Without patients.csv nobody knows whose images they are: they are split by file.
"""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from silofl.data.access import read_bytes
from silofl.data.formats import PICTURES, READERS
from silofl.data.layouts.options import ImportOptions
from silofl.data.layouts.plan import (
    Pair,
    SitePlan,
    Writer,
    copy_of,
    mask_png,
    numbered_labels,
    plan_pairs,
    visible_folders,
)
from silofl.errors import DataError


def plan_folders(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<site>/images and SOURCE/<site>/masks.

    Raises:
        DataError: No site is found, an image has no mask or a mask no image, or patients.csv does not fit.
    """
    folders = visible_folders(source)
    if not folders:
        raise DataError(f"{source.name} must hold a folder for each site with images and masks in it, not none")
    labels = numbered_labels(options.labels or ("foreground",), first=1)
    pairs = {folder.name: _pairs(folder, labels) for folder in folders}
    plans = {site: plan_pairs(site, found, labels, options) for site, found in pairs.items()}
    unknown = {site: len(pairs[site]) for site, plan in plans.items() if plan.split_unit == "unknown"}
    return plans | {site: replace(plans[site], notes=(_unknown_sentence(unknown),)) for site in unknown}


def _unknown_sentence(files: Mapping[str, int]) -> str:
    """Say what follows from sites without a table of patients, by the number of each one's images."""
    counts = ", ".join(f"{site} {count}" for site, count in files.items())
    return (
        f"PATIENTS UNKNOWN: no patients.csv says whose the {sum(files.values())} images are ({counts}); the split is "
        "by file, so that one person may be in training and test, min_patients counts them as none, and the study "
        "needs split_unit: unknown; put patients.csv with the columns file and patient into each site's folder and "
        "import again"
    )


def _pairs(folder: Path, labels: dict[int, str]) -> list[Pair]:
    images, masks = _by_stem(folder, "images"), _by_stem(folder, "masks")
    for present, absent, what in ((images, masks, "masks"), (masks, images, "images")):
        missing = sorted(present.keys() - absent.keys())
        if missing:
            raise DataError(
                f"site {folder.name!r} must have {what} for {_some(missing)}; add them or remove the others"
            )
    patients = _patients(folder, images)
    return [
        Pair(stem, patients[stem], ((f"images/{image.name}", copy_of(image)),), _mask(masks[stem], stem, labels))
        for stem, image in sorted(images.items())
    ]


def _mask(mask: Path, stem: str, labels: dict[int, str]) -> tuple[str, Writer]:
    if mask.name.lower().endswith(PICTURES):
        return f"masks/{stem}.png", mask_png(mask, labels)
    return f"masks/{mask.name}", copy_of(mask)


def _by_stem(folder: Path, kind: str) -> dict[str, Path]:
    if not (folder / kind).is_dir():
        raise DataError(f"site {folder.name!r} must have the folder {kind!r}; it is not there: SOURCE/<site>/{kind}")
    found: dict[str, Path] = {}
    for path in sorted((folder / kind).iterdir()):
        if path.name.startswith("."):
            continue
        stem = _stem(path)
        if stem.encode(errors="ignore").decode() != stem:
            raise DataError(f"site {folder.name!r} must have file names in UTF-8, not {path.name!r}; rename the file")
        if stem in found:
            raise DataError(
                f"site {folder.name!r} must have one file {stem!r} in {kind}, not {found[stem].name} and {path.name}"
            )
        found[stem] = path
    if not found:
        raise DataError(f"site {folder.name!r} must have files in {kind!r}, not none")
    return found


def _stem(path: Path) -> str:
    endings = [e for e in READERS if path.name.lower().endswith(e) and e != ".npz"]
    if path.is_dir():
        return path.name
    if not endings:
        known = ", ".join(e for e in READERS if e != ".npz")
        raise DataError(
            f"{path.parent.name}/{path.name} must end in one of {known}, not {path.suffix!r}; remove or convert it"
        )
    return path.name[: -len(endings[0])]


def _patients(folder: Path, images: dict[str, Path]) -> dict[str, str] | dict[str, None]:
    tables = [folder / name for name in ("patients.csv", "patients.tsv") if (folder / name).exists()]
    if not tables:
        return dict.fromkeys(images)
    rows = _rows(tables[0])
    patients = {stem: rows.get(image.name, rows.get(stem, "")) for stem, image in images.items()}
    missing = sorted(stem for stem, patient in patients.items() if not patient)
    if missing:
        raise DataError(f"{tables[0].name} of site {folder.name!r} must name the patient of {_some(missing)}; add rows")
    return patients


def _rows(table: Path) -> dict[str, str]:
    try:
        lines = read_bytes(table, table.name).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{table.name} must be text in UTF-8, not something else; save it anew") from None
    header = lines[0] if lines else ""
    delimiter = next((d for d in "\t;," if d in header), ",")
    rows = list(csv.DictReader(lines, delimiter=delimiter))
    columns = [column.strip() for column in header.split(delimiter)]
    if not {"file", "patient"} <= set(columns):
        raise DataError(f"{table.name} must have the columns file and patient, not {', '.join(columns)}; rename them")
    return {(row["file"] or "").strip(): (row["patient"] or "").strip() for row in rows}


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
