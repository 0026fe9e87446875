"""What a study lead gives on the command line, to run a study on a network of hospitals."""

import argparse
from pathlib import Path

from silofl.options import JOB, KIT, add_job, add_json, add_set, parse_count, parse_natural


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl estimate``."""
    add_job(parser)
    parser.add_argument("--sites", type=parse_count, required=True, help="number of sites")
    parser.add_argument("--bandwidth", required=True, help="of the server's line, which the sites share, as 50Mbit")
    parser.add_argument(
        "--examples", type=parse_count, default=500, help="for training at the largest site; 500 by default"
    )
    add_set(parser)
    parser.add_argument("--seconds-per-step", type=float, help="of the slowest site; measured here by default")
    parser.add_argument(
        "--image-size",
        metavar="HxW",
        help="of the sites' images, or XxYxZ of their volumes, where open; voxels of 1 mm, where volumes are resampled",
    )
    parser.add_argument(
        "--patients",
        type=parse_count,
        help="in training at that site, for privacy.dp_sgd; as many as examples by default",
    )
    parser.add_argument("--write", type=Path, metavar="NEWJOB", help="copy the job with the timeouts that follow")
    parser.add_argument("--json", action="store_true", help="the estimate as JSON")


def _add_retries(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that carries out a job on a network."""
    parser.add_argument(
        "--retries", type=parse_natural, default=3, metavar="N", help="times that a stopped run goes on by itself; 3"
    )
    add_json(parser, "results.json")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl run``."""
    add_job(parser)
    parser.add_argument("--kit", type=KIT, required=True, help="the study lead's startup kit")
    parser.add_argument("--out", type=Path, required=True, metavar="DOWNLOAD", help="new folder for the results")
    _add_retries(parser)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl watch``."""
    parser.add_argument("job", metavar="JOB", help="NVFlare's id of the job, as submitting printed it")
    parser.add_argument("--kit", type=KIT, required=True, help="startup kit of the lead who submitted it")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page that loads itself again")
    parser.add_argument("--download", type=Path, metavar="DIR", help="bring the result of the ended job into DIR/JOB")
    add_json(parser, "status, run, rounds and numbers, once,")


def add_continue(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl continue``."""
    parser.add_argument(
        "run",
        help="folder that silofl run has written, or NVFlare's id of a job that has ended, or, with --job, a run's id",
    )
    parser.add_argument("--kit", type=KIT, required=True, help="the kit of the study lead who began the run")
    parser.add_argument("--job", type=JOB, help="the run's job folder, where run is a run's id")
    parser.add_argument("--out", type=Path, metavar="DOWNLOAD", help="new folder for the results; run, if a folder")
    add_set(parser)
    _add_retries(parser)
