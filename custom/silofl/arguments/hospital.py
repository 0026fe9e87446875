"""What a hospital gives on the command line, about its own site."""

import argparse
import re
from pathlib import Path

from silofl.data.patient_names import normalise_name
from silofl.errors import quote_value
from silofl.federation.egress_log import FILE
from silofl.options import KIT, add_site_config, expect_path, parse_names
from silofl.settings import SHA256

SITE_CONFIG = expect_path("a site.yaml")


def _add_kit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kit", type=KIT, required=True, help="the site's startup kit, in which NVFlare runs")
    site_config = "the site's site.yaml (default: local/site.yaml in the kit)"
    parser.add_argument("--site-config", type=SITE_CONFIG, metavar="FILE", help=site_config)


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl site check``."""
    _add_kit(parser)
    parser.add_argument(
        "--study",
        type=expect_path("a study's study.yaml"),
        required=True,
        metavar="STUDY.yaml",
        help="study.yaml of the study",
    )
    parser.add_argument(
        "--skip", type=parse_names, default=[], metavar="NAMES", help="checks to leave out, for example tls,clock"
    )
    parser.add_argument(
        "--strict",
        type=parse_names,
        default=[],
        metavar="NAMES",
        help="checks whose warnings also fail, for example certificate",
    )
    clean = "new file for dataset.json without the cases that cannot be read"
    parser.add_argument("--write-clean", type=Path, metavar="FILE", help=clean)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def parse_hash(text: str) -> str:
    """Read a hash as this command prints it, and as ``egress.md`` shows it."""
    if not re.fullmatch(SHA256, found := text.strip(" `").lower()):
        raise argparse.ArgumentTypeError(
            f"must be a hash of 64 digits, as this command prints it, not {quote_value(text)}"
        )
    return found


def add_egress_check(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl site egress-check``."""
    parser.add_argument(
        "file",
        type=expect_path("a record of what left a site"),
        metavar="FILE",
        help=f"{FILE} of a run, or the run's folder in state_dir",
    )
    noted = "an earlier last hash, noted elsewhere: check that all records up to it are unchanged"
    parser.add_argument("--noted", type=parse_hash, metavar="HASH", help=noted)


def parse_patient(text: str) -> str:
    """Read a patient's ID; an empty one would be as if none were given, and the whole study meant."""
    if not normalise_name(text):
        raise argparse.ArgumentTypeError(f"must be an ID, not {quote_value(text)}")
    return text


def add_forget(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl site forget``."""
    parser.add_argument(
        "study", metavar="STUDY", nargs="?", help="name of the study (with --patient the default is all)"
    )
    add_site_config(parser)
    parser.add_argument("--site", metavar="NAME", help="name of this site, if site.yaml contains {site}")
    patient = "delete this patient only; first take the patient out of every dataset.json"
    parser.add_argument("--patient", type=parse_patient, metavar="ID", help=patient)
    parser.add_argument(
        "--cases",
        type=parse_names,
        default=[],
        metavar="NAMES",
        help="names of the patient's cases, if no cache has them any more",
    )
    parser.add_argument("--yes", action="store_true", help="delete without asking")


def add_prune(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl site prune``."""
    _add_kit(parser)
    parser.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
