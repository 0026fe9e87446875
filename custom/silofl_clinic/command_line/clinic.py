"""What a clinic gives on the command line for its archive: nearly all stands in clinic.yaml."""

import argparse
from pathlib import Path

from silofl.base.options import add_json, expect_path
from silofl_hospital.command_line.clinic import SUPER_MODEL


def add_receive(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl receive``."""
    purpose = "the clinic's settings (default: clinic.yaml)"
    path = expect_path("a clinic.yaml")
    parser.add_argument("--config", type=path, metavar="FILE", default=Path("clinic.yaml"), help=purpose)


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl serve``."""
    parser.add_argument("model", type=SUPER_MODEL, metavar="MODEL", help="folder of the super model")
    add_receive(parser)


def add_fetch(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl fetch``."""
    add_receive(parser)
    purpose = "CSV file with a column accession and, where known, a column patient, which is then compared"
    parser.add_argument("--list", type=expect_path("a CSV file"), required=True, metavar="FILE", help=purpose)


def add_monitor(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl monitor``."""
    folder = expect_path("a folder with prediction.json, or with folders that hold one")
    parser.add_argument("records", type=folder, metavar="RECORDS", help="folder of predict's or serve's results")
    parser.add_argument(
        "--model", type=SUPER_MODEL, required=True, metavar="SUPERMODEL", help="the model that answered"
    )
    purpose = "also write which patient had an answer of which model (CSV)"
    parser.add_argument("--answers", type=Path, metavar="FILE", help=purpose)
    add_json(parser, "months and alarms")
