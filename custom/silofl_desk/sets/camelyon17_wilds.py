"""Lymph node patches of five hospitals, with or without tumour: Camelyon17 in the form of WILDS (CC0).

Bandi et al., From Detection of Individual Metastases to Classification of Lymph Node Status at the Patient Level, IEEE
TMI 2019; Koh et al., WILDS: A Benchmark of in-the-Wild Distribution Shifts, ICML 2021, arXiv:2012.07421; downloaded by
the Python package wilds as camelyon17_v1.0::

    SOURCE/
      metadata.csv     with the columns (number), patient, node, x_coord, y_coord, tumor, slide, center, split
      patches/
        patient_004_node_4/
          patch_patient_004_node_4_x_3328_y_21792.png ...

A center is a site. Its patients are split anew, each into one part, because the split in the file tests on entire
hospitals. The patches are hard links to the set where the disk allows it, otherwise copies: do not change them there.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from silofl.base.errors import DataError
from silofl.importing.options import DEALT, FIFTHS, ImportOptions, Layout
from silofl.importing.site_files import SitePlan
from silofl.reading.access import read_bytes
from silofl_desk.layouts.description import choose_labels
from silofl_desk.sets.examples import ClassificationSet, Linked, plan_examples

COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")


class TissuePatch(NamedTuple):
    """A patch: its site, its patient, its file relative to SOURCE, and whether its centre holds tumour (0 or 1)."""

    site: str
    patient: str
    path: str
    tumor: int


def plan_camelyon17(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/metadata.csv and SOURCE/patches.

    Raises:
        DataError: metadata.csv is missing or not of this set, or a center has fewer than two patients.
    """
    patches = _read_patches(source)
    examples = ClassificationSet(
        choose_labels(options.labels, ("normal", "tumor"), first=0),
        np.array([patch.tumor for patch in patches], dtype=np.int64),
        cases=[Path(patch.path).stem.removeprefix("patch_") for patch in patches],
        content=Linked(source, [patch.path for patch in patches]),
        patients=[patch.patient for patch in patches],
        sites=[patch.site for patch in patches],
    )
    return plan_examples(examples, options)


def _read_patches(source: Path) -> list[TissuePatch]:
    name = f"metadata.csv in {source.name}"
    if not (source / "metadata.csv").exists():
        raise DataError(f"{source.name} must hold metadata.csv and patches, of camelyon17_v1.0; it has no metadata.csv")
    lines = read_bytes(source / "metadata.csv", name).decode("utf-8-sig", errors="replace").splitlines()
    rows = csv.DictReader(lines)
    missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        wanted = ", ".join(COLUMNS)
        raise DataError(f"{name} must have the columns {wanted}; {', '.join(missing)} missing: is it this set?")
    return [_parse_patch(row, f"row {number} of {name}") for number, row in enumerate(rows, start=1)]


def _parse_patch(row: dict[str, str | None], where: str) -> TissuePatch:
    try:
        patient, node, x, y, tumor, center = (int(row[column] or "") for column in COLUMNS)
    except ValueError:
        found = ", ".join(str(row[column]) for column in COLUMNS)
        raise DataError(f"{where} must hold whole numbers in {', '.join(COLUMNS)}, not {found}; correct it") from None
    if tumor not in (0, 1):
        raise DataError(f"{where} must have tumor 0 or 1, not {tumor}; correct it")
    folder = f"patient_{patient:03d}_node_{node}"
    return TissuePatch(f"center_{center}", f"{patient:03d}", f"patches/{folder}/patch_{folder}_x_{x}_y_{y}.png", tumor)


LAYOUT = Layout(plan_camelyon17, {**DEALT, **FIFTHS, "partition": "own"})
