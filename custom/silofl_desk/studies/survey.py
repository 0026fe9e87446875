"""``silofl survey``: what hospitals' data hold, before there is a study."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from silofl.base.errors import ConfigError, DataError, ExitCode, Faults
from silofl.base.options import make_console
from silofl.data.inventories import describe_inventories
from silofl.data.inventory import Inventory, take_inventory
from silofl_desk.studies.data_survey import list_site_folders
from silofl_hospital.report.tables import MISSING, NOT_SAID, TextTable, print_table


def run(options: argparse.Namespace) -> int:
    """Print the inventories of all sites and what follows from them."""
    console, found, faults = make_console(options), dict[str, Inventory](), Faults()
    for folder in _list_folders(options.data):
        name = folder.resolve().name
        with faults.collect_fault():
            try:
                # Nothing leaves this machine, and many public sets know no patients.
                inventory = take_inventory(folder, min_patients=0)
            except DataError as error:
                raise DataError(f"site {name!r}: {error}") from None
            found |= {name: inventory} if inventory else {}
    faults.tell()
    sentences = describe_inventories(found)
    print_table(tabulate_inventories(found), console)
    console.print()
    for sentence in sentences:
        console.print(sentence, markup=False)
    if options.json:
        sites = {site: one.model_dump(mode="json") for site, one in found.items()}
        print(json.dumps({"sites": sites, "sentences": sentences}, indent=1))
    return ExitCode.COMPLETE


def _list_folders(given: Sequence[Path]) -> list[Path]:
    """Return the sites' folders, of which no two have one name."""
    folders = {folder.resolve(): folder for data in given for folder in list_site_folders(data)}
    names: dict[str, Path] = {}
    for folder in folders:
        if names.setdefault(folder.name, folder) != folder:
            raise ConfigError(
                f"DATA must name sites of different names, not {folder} and {names[folder.name]}; rename one"
            )
    return list(folders.values())


def tabulate_inventories(inventories: Mapping[str, Inventory]) -> TextTable:
    """Return one row for each site; what no file states is said to be unknown."""
    columns = ("site", "patients, cases", "labels", "contrasts", "size", "spacing, mm")
    rows = []
    for site, one in inventories.items():
        patients = f"{one.patients}, {one.cases}" if one.unit == "patients" else f"not known, {one.cases}"
        spacing = "not known" if one.spacing_mm is None else _join_sides(one.spacing_mm)
        spacing = MISSING if one.kind != "volumes" else spacing
        contrasts = _join_counts(one.contrasts) or "no names"
        rows.append((site, patients, _join_counts(one.labels), contrasts, _join_sides(one.shape), spacing))
    return TextTable(columns, tuple(rows), num_text=len(columns))


def _join_counts(counts: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {NOT_SAID if number is None else number}" for name, number in counts.items())


def _join_sides(sides: Sequence[float]) -> str:
    return " x ".join(f"{side:g}" for side in sides)
