"""What the recipes of segmentation sets share: a folder as `silofl import folders` reads it, made and imported."""

import csv
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from silofl.command_line.cli import main


def import_folders(fill: Callable[[Path, Path], None], *options: str) -> None:
    """Fill a folder from SOURCE and import it to TARGET, as the command line names them.

    Args:
        fill: Writes or links the files of all sites of a set, the first path, into a folder, the second.
        options: Of `silofl import folders`; further ones on the command line count more.
    """
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(f"python {sys.argv[0]} SOURCE TARGET [options of silofl import folders]")
    source, target, *given = sys.argv[1:]
    with TemporaryDirectory() as name:
        fill(Path(source), Path(name))
        code = main(["import", "folders", name, target, *options, *given])
    if code:
        sys.exit(code)


def link(file: Path, place: Path) -> None:
    """Link a file of the set to its place in the folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.resolve(strict=True))


def write_patients(site: Path, patients: Mapping[str, str]) -> None:
    """Write a site's patients.csv: case -> patient."""
    with (site / "patients.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "patient"), *patients.items()])
