"""What a hospital gives on the command line, about its own site."""

import argparse
import re
from pathlib import Path

from silofl.base.errors import ConfigError, quote_value
from silofl.base.options import KIT, add_site_config, expect_path, parse_count, parse_names, parse_natural, parse_share
from silofl.base.settings import SHA256
from silofl.federation.egress_log import FILE
from silofl.reading.patient_names import normalise_name

SITE_CONFIG = expect_path("a site.yaml")
STUDY = expect_path("a study's study.yaml")


def _add_kit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kit", type=KIT, required=True, help="the site's startup kit, in which NVFlare runs")
    site_config = "the site's site.yaml (default: local/site.yaml in the kit)"
    parser.add_argument("--site-config", type=SITE_CONFIG, metavar="FILE", help=site_config)


def parse_layout(text: str) -> str:
    """Read the name of a layout; one of an earlier version is refused with what has taken its place."""
    from silofl_hospital.importing.importers import refuse_former

    try:
        refuse_former(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl import``."""
    # Imported here, because no other command's arguments need what reads the data.
    from silofl_hospital.importing.arrangements import ARRANGEMENTS
    from silofl_hospital.importing.importers import LAYOUTS

    listed = [f"{name}:\n\n{layout.describe()}\n" for name, layout in LAYOUTS.items()]
    parser.epilog = "\n".join([*listed, "recipes/ in the repository imports public sets"])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    form = "the form of the files, one of those below"
    parser.add_argument("layout", type=parse_layout, choices=[*LAYOUTS], metavar="LAYOUT", help=form)
    parser.add_argument(
        "source", type=expect_path("the data to import"), metavar="SOURCE", help="folder or table of the data"
    )
    target = "new folder for the sites; without it dicom lists what SOURCE holds"
    parser.add_argument("target", type=Path, nargs="?", metavar="TARGET", help=target)
    labels = (
        "label names in the order of their numbers, organ,lesion, or with their values in the masks, 1=organ,4=lesion; "
        "of a table also with other words for them, no=nein,yes=ja"
    )
    parser.add_argument("--labels", type=parse_names, help=labels)
    arrangement = "with folders: how each site's folder is arranged, if as BIDS or nnU-Net do it"
    parser.add_argument("--layout", dest="arrangement", choices=ARRANGEMENTS, help=arrangement)
    image_pattern = "path of a site's images, for example images/{case}.png or T1={case}/t1.nii.gz,T2={case}/t2.nii.gz"
    parser.add_argument("--image-pattern", action="append", metavar="PATTERN", help=image_pattern)
    mask_pattern = (
        "path of a site's masks, for example {case}/seg.nii.gz; {label} is a label with files of its own, and all "
        "files that * stands for are joined"
    )
    parser.add_argument("--mask-pattern", metavar="PATTERN", help=mask_pattern)
    threshold = "of masks of one label with smoothed edges: the number from which on they are it, for example 128"
    parser.add_argument("--mask-threshold", type=parse_count, metavar="NUMBER", help=threshold)
    resample = "masks of pictures may have another size than these, and get the nearest pixel's number"
    parser.add_argument("--resample-masks", action="store_true", help=resample)
    skip = "leave out cases without an image or a mask, and count them"
    parser.add_argument("--skip", action="store_true", help=skip)
    voxel_size = "of NIfTI files whose sform and pixdim state other sizes of voxels: which is right"
    parser.add_argument("--voxel-size", choices=("sform", "pixdim"), help=voxel_size)
    window = "of recordings of time series: the samples of a window, into which each is cut"
    parser.add_argument("--window", type=parse_count, metavar="SAMPLES", help=window)
    rate = "of EDF: the samples in a second to which its channels are brought"
    parser.add_argument("--rate", type=parse_count, metavar="HERTZ", help=rate)
    parser.add_argument("--seed", type=parse_natural, default=0, help="seed of every random choice (default: 0)")
    test = "share of each site's patients for the test (default: 0.2)"
    parser.add_argument("--test", type=parse_share, default=0.2, help=test)
    validation = "share of the other patients for validation (default: 0.2)"
    parser.add_argument("--validation", type=parse_share, default=0.2, help=validation)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl site check``."""
    _add_kit(parser)
    parser.add_argument("--study", type=STUDY, required=True, metavar="STUDY.yaml", help="study.yaml of the study")
    parser.add_argument(
        "--skip", type=parse_names, default=[], metavar="NAMES", help="checks to leave out, for example tls,training"
    )
    parser.add_argument(
        "--strict",
        type=parse_names,
        default=[],
        metavar="NAMES",
        help="checks whose warnings also fail, for example certificate",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def add_dossier(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl site dossier``."""
    _add_kit(parser)
    parser.add_argument("--study", type=STUDY, required=True, metavar="STUDY.yaml", help="study.yaml of the study")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="new folder for the dossier")


def parse_hash(text: str) -> str:
    """Read a hash as this command prints it."""
    # It may be copied from a page, with what marks it as code.
    digits = text.strip(" `").lower()
    if not re.fullmatch(SHA256, digits):
        raise argparse.ArgumentTypeError(
            f"must be a hash of 64 digits, as this command prints it, not {quote_value(text)}"
        )
    return digits


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
    # A script whose variable is empty gives an empty one.
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


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl doctor``, which has none."""


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Add the argument of ``silofl schema``."""
    parser.add_argument("file", choices=("study", "site"), metavar="FILE", help="study or site")


def add_prune(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl site prune``."""
    _add_kit(parser)
    parser.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
