"""Import data: write a dataset.json and its files for each site, or nothing if anything fails."""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from silofl.base.errors import ConfigError, DataError, Faults, quote_value, suggest_nearest
from silofl.base.files import fill_folder, is_free
from silofl.base.naming import check_name, is_one_line
from silofl.data.progress import track_slow_progress
from silofl.reading.access import open_error
from silofl_hospital.importing import dicom, folders, table
from silofl_hospital.importing.arrangements import ARRANGEMENTS
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.patients import warn_unknown_patients
from silofl_hospital.importing.site_files import Layout, SitePlan, Writer

LAYOUTS: Mapping[str, Layout] = {"folders": folders.LAYOUT, "dicom": dicom.LAYOUT, "table": table.LAYOUT}
# Public sets that earlier versions imported.
RECIPES = (
    *("brats", "camelyon17-wilds", "covid-xray", "fundus-disc-cup", "hmp", "medmnist", "nuclei-dsb2018"),
    *("nuclei-histology", "nuclei-tiles", "pamap2", "prostate-saml", "spine-gm"),
)
# NVFlare uses a site's name in folders, certificates and addresses.
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ImportSummary:
    """The counts of what an import wrote.

    Attributes:
        examples: By site and part, how many pictures, slices or windows.
        patients: By site, how many patients are known.
        classes: By site, part and label name, how many examples; empty for segmentation.
        notes: Sentences that whoever imports should read.
    """

    examples: dict[str, dict[str, int]]
    patients: dict[str, int]
    classes: dict[str, dict[str, dict[str, int]]]
    notes: tuple[str, ...]


def refuse_former(layout: str) -> None:
    """Refuse a layout of earlier versions, and say what has taken its place.

    Raises:
        ConfigError: It is one of these.
    """
    if layout in RECIPES:
        script = layout.replace("-", "_")
        raise ConfigError(f"'import {layout}' is a recipe now. Call python recipes/{script}.py SOURCE TARGET.")
    if layout in ARRANGEMENTS:
        raise ConfigError(
            f"'import {layout}' is an option now. Call silofl import folders SOURCE TARGET --layout {layout}, with a "
            "folder for each site in SOURCE."
        )


def import_layout(layout: str, source: Path, target: Path, options: ImportOptions | None = None) -> ImportSummary:
    """Write TARGET/<site>/dataset.json and the files it names, from a known layout.

    Everything is written beside TARGET first, so an interrupted import leaves nothing behind.

    Args:
        layout: A name in `LAYOUTS`.
        source: The data's folder or file.
        target: A folder that is empty or absent.
        options: What is chosen.

    Raises:
        ConfigError: The layout is not known, or an option cannot go with it.
        DataError: SOURCE is not of this layout, or TARGET cannot be written or is not empty.
    """
    chosen = _find_layout(layout, source)
    # Before the data are read, which may take long.
    _check_target(target)
    options = options or ImportOptions()
    chosen.check(layout, options)
    # Layouts put links into it, which are read until all files are written.
    with tempfile.TemporaryDirectory(prefix="silofl-import-") as scratch:
        try:
            plans = chosen.plan(source, replace(options, scratch=Path(scratch)))
        except OSError as error:
            raise open_error(source.name, error) from None
        summary = write_plans(plans, target)
    return replace(summary, notes=(*warn_unknown_patients(plans), *summary.notes))


def write_plans(plans: Mapping[str, SitePlan], target: Path) -> ImportSummary:
    """Write TARGET/<site>/dataset.json and the files it names, from a plan for each site.

    Raises:
        DataError: A name cannot be used, a file cannot be read, or TARGET cannot be written or is not empty.
    """
    # Recipes call this without `import_layout`.
    _check_target(target)
    plans = _check_names(plans)
    try:
        with fill_folder(target) as folder:
            _write_masks(plans, folder)
            for site, plan in plans.items():
                _write_site(plan, folder / site)
    except OSError as error:
        raise DataError(f"TARGET cannot be written ({error.strerror}). Name another.") from None
    return _summarise_import(plans)


def _check_target(target: Path) -> None:
    if not is_free(target):
        raise DataError(f"TARGET {target.name} is not empty. Name another, or remove this one to import again.")


def list_content(layout: str, source: Path) -> list[dict[str, str]]:
    """List what SOURCE holds, by column, for who does not know yet what to import of it.

    Raises:
        ConfigError: The layout is not known, or lists nothing.
        DataError: SOURCE is not of this layout.
    """
    chosen = _find_layout(layout, source)
    if chosen.list_content is None:
        raise ConfigError(f"TARGET is missing, and layout {layout!r} lists nothing without it; name a new folder")
    try:
        content = chosen.list_content(source)
    except OSError as error:
        raise open_error(source.name, error) from None
    if not content:
        raise DataError(f"{source.name} has no folder of a site with DICOM files; make one")
    return content


def _find_layout(layout: str, source: Path) -> Layout:
    if layout not in LAYOUTS:
        raise ConfigError(
            f"the layout must be one of {', '.join(LAYOUTS)}, not {layout!r}{suggest_nearest(layout, LAYOUTS)}"
        )
    if not source.exists():
        raise DataError(f"SOURCE {source.name} is missing; give the folder of the data")
    return LAYOUTS[layout]


def _check_names(plans: Mapping[str, SitePlan]) -> dict[str, SitePlan]:
    """Return the plans with labels and regions as they are kept; refuse names that other programs take for commands."""
    if not plans:
        raise DataError("SOURCE has no folder of a site; make one for each, or choose another layout")
    checked = {}
    for site, plan in plans.items():
        if not SITE_NAME.fullmatch(site):
            raise DataError(f"a site's name must be letters, digits, '_', '.' and '-', not {site!r}; rename its folder")
        remedy = "name all labels with --labels" if plan.task == "segmentation" else "rename it in the table"
        labels = {number: check_name(name, "a label", DataError, remedy) for number, name in plan.labels.items()}
        regions = {check_name(name, "a region", DataError): numbers for name, numbers in plan.regions.items()}
        checked[site] = replace(plan, labels=labels, regions=regions)
        for record in plan.list_records():
            for key in ("case", "patient"):
                if key in record and not is_one_line(str(record[key])):
                    raise DataError(
                        f"the {key} of site {site!r} must be a text on one line, without control characters, not "
                        f"{quote_value(record[key])}; rename it"
                    )
    return checked


def _write_masks(plans: Mapping[str, SitePlan], folder: Path) -> None:
    # Writing a mask checks it: all wrong ones are counted before any image is copied, which may take hours.
    faults = Faults()
    for site, plan in plans.items():
        for name in track_slow_progress(list(plan.masks), len(plan.masks), f"checking {site}", unit="masks"):
            with faults.collect_fault():
                _write_file(plan.masks[name], folder / site / name)
    faults.tell()


def _write_file(write: Writer, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    write(target)


def _write_site(plan: SitePlan, folder: Path) -> None:
    for name, write in plan.files.items():
        _write_file(write, folder / name)
    folder.mkdir(exist_ok=True)
    content = json.dumps(plan.describe(), indent=1, ensure_ascii=False) + "\n"
    (folder / "dataset.json").write_text(content, encoding="utf-8")


def _summarise_import(plans: Mapping[str, SitePlan]) -> ImportSummary:
    examples = {}
    patients = {}
    classes = {}
    notes: dict[str, None] = {}
    for site, plan in plans.items():
        examples[site] = {part: len(records) for part, records in plan.records.items()}
        patients[site] = len({record["patient"] for record in plan.list_records() if "patient" in record})
        if plan.task != "segmentation":
            classes[site] = _count_classes(plan)
        # Sentences that several sites share are told once, in the order of the sites.
        notes |= dict.fromkeys(plan.notes)
    return ImportSummary(examples, patients, classes, tuple(notes))


def _count_classes(plan: SitePlan) -> dict[str, dict[str, int]]:
    counts = {}
    for part, records in plan.records.items():
        # A case of several findings counts for each of them.
        numbers = Counter[int]()
        for record in records:
            label = record["label"]
            numbers.update(label if isinstance(label, list) else [label])
        counts[part] = {name: numbers[number] for number, name in plan.labels.items()}
    return counts
