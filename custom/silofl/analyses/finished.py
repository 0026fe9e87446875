"""A finished simulation's sites: each one's model and its data, to measure what only a simulation has in one place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from silofl.data.site_data import SiteData
from silofl.errors import ConfigError
from silofl.files import write_atomically, write_json
from silofl.inference.contents import Contents
from silofl.options import console_for
from silofl.report.canvas import Image
from silofl.report.tables import TextTable, print_lines, print_table
from silofl.studies import simulate
from silofl.studies.leave_out import assembled
from silofl.studies.simulation import read_simulation, study_file
from silofl.study import load_study


@dataclass(frozen=True)
class FinishedRun:
    """What is there of a finished simulation.

    Attributes:
        models: The sites' models, with the study.
        data: Training site -> its data.
    """

    models: Contents
    data: dict[str, SiteData]


def finished_run(path: Path) -> FinishedRun:
    """Read the sites' models and data of a finished simulation.

    Raises:
        ConfigError: The folder holds no simulation, it is not finished, or its models are gone.
        DataError: A site's data is gone or wrong.
    """
    if not (path / "run.json").is_file():
        raise ConfigError(
            f"{path} must hold a simulation, with a run.json; it holds none: name the folder given to --out"
        )
    if not simulate.is_finished(path):
        raise ConfigError(f"{path} must hold a finished run; it has no result yet: silofl resume {path}")
    # A site that was left out trained nothing.
    simulation = replace(read_simulation(path), left_out=None)
    study = load_study(study_file(path / "job"))
    return FinishedRun(assembled(path), simulate.read_data(study, simulation, path))


def tell(options: argparse.Namespace, name: str, values: Mapping[str, object], image: Image, table: TextTable) -> None:
    """Write what was measured of a run into its folder, as ``NAME.json`` and ``NAME.png``, and print the table.

    Args:
        options: With ``run``, the folder, and ``json``.
        name: Of the files.
        values: For programs.
        image: Its caption stands below the table.
        table: For people.
    """
    console, numbers, picture = console_for(options), options.run / f"{name}.json", options.run / f"{name}.png"
    write_json(numbers, values)
    write_atomically(picture, lambda stream: stream.write(image.png))
    print_table(table, console)
    print_lines([image.caption], console)
    console.print(f"{numbers}, {picture}")
    if options.json:
        print(numbers.read_text(), end="")
