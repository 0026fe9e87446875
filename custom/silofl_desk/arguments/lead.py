"""What a study lead gives on the command line, to run a study on a network of hospitals."""

import argparse
from pathlib import Path

from silofl.base.options import KIT, add_by, add_json, parse_count, parse_natural
from silofl_desk.options import JOB, RUN, add_job, add_rounds, add_set
from silofl_hospital.arguments.clinic import SUPER_MODEL


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl estimate``."""
    add_job(parser)
    parser.add_argument("--sites", type=parse_count, required=True, help="number of sites")
    add_set(parser)
    parser.add_argument(
        "--image-size",
        metavar="HxW",
        help="size of the images in pixels, or XxYxZ of volumes, in mm if data.volume_transforms has Spacing, else in "
        "voxels; needed if study.yaml does not give it",
    )
    parser.add_argument("--json", action="store_true", help="print the estimate as JSON")


def add_evaluation_job(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl evaluation-job``."""
    parser.add_argument("model", type=SUPER_MODEL, metavar="MODEL", help="folder of the super model")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("-o", "--out", type=Path, metavar="NEWJOB", help="new folder for the job")
    place.add_argument(
        "--results", type=RUN, metavar="RUN", help="a run of the job, whose results the model's card takes"
    )
    add_by(parser)


def add_withdraw(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl withdraw``."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="fingerprint of a model; none signs the list anew")
    parser.add_argument("--kit", type=KIT, required=True, help="the study lead's startup kit")
    parser.add_argument("--reason", default="not said", help="why, for those who predict")
    parser.add_argument("--undo", action="store_true", help="take the models from the list; they may answer again")
    parser.add_argument("--list", type=Path, default=Path("withdrawn.json"), help="the list (default: withdrawn.json)")


def _add_retries(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that carries out a job on a network."""
    parser.add_argument(
        "--retries",
        type=parse_natural,
        default=3,
        metavar="N",
        help="how often a stopped run is continued by itself (default: 3)",
    )
    add_json(parser, "results.json")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl run``."""
    add_job(parser)
    parser.add_argument("--kit", type=KIT, required=True, help="the study lead's startup kit")
    parser.add_argument("--out", type=Path, metavar="DOWNLOAD", help="new folder for the results")
    what = "train a few steps at every site instead, and print what the study will take there and what would fail"
    parser.add_argument("--rehearse", action="store_true", help=what)
    _add_retries(parser)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl watch``."""
    parser.add_argument("job", metavar="JOB", help="NVFlare's id of the job, printed when it was submitted")
    parser.add_argument("--kit", type=KIT, required=True, help="startup kit of the lead who submitted it")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="also write numbers for Prometheus (FILE.prom)")
    parser.add_argument("--download", type=Path, metavar="DIR", help="download the result of an ended job into DIR/JOB")
    add_json(parser, "status, run, rounds and numbers once")


def add_continue(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl continue``."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="folder written by silofl run, NVFlare's id of an ended job, or, with --job, the id of a run",
    )
    parser.add_argument("--kit", type=KIT, required=True, help="the kit of the study lead who began the run")
    parser.add_argument("--job", type=JOB, help="the run's job folder, if RUN is the id of a run")
    parser.add_argument(
        "--out", type=Path, metavar="DOWNLOAD", help="new folder for the results (default: RUN, if that is a folder)"
    )
    add_rounds(parser)
    add_set(parser)
    _add_retries(parser)
