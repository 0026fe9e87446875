"""``silofl survey``: what hospitals' data hold, before there is a study."""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from silofl.base.errors import ConfigError, DataError, ExitCode, Faults
from silofl.base.options import make_console
from silofl.data.inventories import describe_inventories
from silofl.data.inventory import Inventory, take_inventory
from silofl_desk.studies.plans.data_survey import list_site_folders
from silofl_hospital.report.tables import MISSING, NOT_SAID, TextTable, print_table


def run(options: argparse.Namespace) -> int:
    """Print the inventories of all sites and what follows from them."""
    console = make_console(options)
    inventories: dict[str, Inventory] = {}
    faults = Faults()
    for folder in _list_folders(options.data):
        name = folder.resolve().name
        with faults.collect_fault():
            try:
                # Nothing leaves this machine, and many public sets know no patients.
                inventory = take_inventory(folder, min_patients=0)
            except DataError as error:
                raise DataError(f"site {name!r}: {error}") from None
            if inventory:
                inventories[name] = inventory
    faults.tell()
    # The same sentences stand in a network's survey, so that both are read alike.
    sentences = describe_inventories(inventories)
    print_table(tabulate_inventories(inventories), console)
    console.print()
    for sentence in sentences:
        console.print(sentence, markup=False)
    if options.json:
        sites = {site: inventory.model_dump(mode="json") for site, inventory in inventories.items()}
        print(json.dumps({"sites": sites, "sentences": sentences}, indent=1))
    return ExitCode.COMPLETE


def _list_folders(given: Sequence[Path]) -> list[Path]:
    """Return the sites' folders, of which no two have one name."""
    folders: dict[str, Path] = {}
    for folder in chain.from_iterable(map(list_site_folders, given)):
        name = folder.resolve().name
        # A folder may be given twice, alone and within that of all sites.
        if folders.setdefault(name, folder).resolve() != folder.resolve():
            raise ConfigError(f"Two sites are named {name!r}: {folders[name]} and {folder}. Rename one.")
    return list(folders.values())


def tabulate_inventories(inventories: Mapping[str, Inventory]) -> TextTable:
    """Return one row for each site; what no file states is said to be unknown."""
    columns = ("site", "patients, cases", "labels", "contrasts", "size", "spacing, mm")
    rows = []
    for site, inventory in inventories.items():
        patients = inventory.patients if inventory.unit == "patients" else "not known"
        # Pictures and windows have no size in mm.
        if inventory.kind != "volumes":
            spacing = MISSING
        elif inventory.spacing_mm is None:
            spacing = "not known"
        else:
            spacing = _join_sides(inventory.spacing_mm)
        rows.append(
            (
                site,
                f"{patients}, {inventory.cases}",
                _join_counts(inventory.labels),
                _join_counts(inventory.contrasts) or "no names",
                _join_sides(inventory.shape),
                spacing,
            )
        )
    return TextTable(columns, tuple(rows), num_text=len(columns))


def _join_counts(counts: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {NOT_SAID if number is None else number}" for name, number in counts.items())


def _join_sides(sides: Sequence[float]) -> str:
    return " x ".join(f"{side:g}" for side in sides)
