"""What a study lead gives on the command line, to run a study on a network of hospitals."""

import argparse
from functools import partial
from pathlib import Path

from silofl.base.options import KIT, add_by, add_json, parse_count, parse_natural
from silofl_desk.options import JOB, add_job, add_rounds, add_set, declare_command, declare_option
from silofl_hospital.command_line.clinic import SUPER_MODEL

_add_kit = declare_option("--kit", type=KIT, required=True, help="the study lead's startup kit")
_add_retries = declare_command(
    declare_option(
        "--retries",
        type=parse_natural,
        default=3,
        metavar="N",
        help="how often a stopped run is continued by itself (default: 3)",
    ),
    partial(add_json, what="results.json"),
)
# An estimate needs no data, which a lead has not: the sizes come from the study or from these options.
add_estimate = declare_command(
    add_job,
    declare_option("--sites", type=parse_count, required=True, help="number of sites"),
    add_set,
    declare_option(
        "--image-size",
        metavar="HxW",
        help="size of the images in pixels, or XxYxZ of volumes, in mm if data.volume_transforms has Spacing, else in "
        "voxels (default: as study.yaml fixes it, else 256x256, 1x128 of windows, 128x128x64 of volumes)",
    ),
    declare_option("--json", action="store_true", help="print the estimate as JSON"),
)
add_withdraw = declare_command(
    declare_option("models", nargs="*", metavar="MODEL", help="fingerprint of a model; none signs the list anew"),
    _add_kit,
    declare_option("--reason", default="not said", help="why, for those who predict"),
    declare_option("--undo", action="store_true", help="take the models from the list; they may answer again"),
    declare_option("--list", type=Path, default=Path("withdrawn.json"), help="the list (default: withdrawn.json)"),
)
add_run = declare_command(
    add_job,
    _add_kit,
    declare_option("--out", type=Path, metavar="DOWNLOAD", help="new folder for the results"),
    declare_option(
        "--rehearse",
        action="store_true",
        help="train a few steps at every site instead, and print what the study will take there and what would fail",
    ),
    _add_retries,
)
# NVFlare shows a job to the lead who submitted it only.
add_watch = declare_command(
    declare_option("job", metavar="JOB", help="NVFlare's id of the job, printed when it was submitted"),
    declare_option("--kit", type=KIT, required=True, help="startup kit of the lead who submitted it"),
    declare_option("--download", type=Path, metavar="DIR", help="download the result of an ended job into DIR/JOB"),
    partial(add_json, what="status, run, rounds and numbers once"),
)
# Another lead's kit could not read the job that began the run.
add_continue = declare_command(
    declare_option(
        "run",
        metavar="RUN",
        help="folder written by silofl run, or, with --job, the id of a run",
    ),
    declare_option("--kit", type=KIT, required=True, help="the kit of the study lead who began the run"),
    declare_option("--job", type=JOB, help="the run's job folder, if RUN is the id of a run"),
    declare_option(
        "--out", type=Path, metavar="DOWNLOAD", help="new folder for the results (default: RUN, if that is a folder)"
    ),
    add_rounds,
    add_set,
    _add_retries,
)


def add_evaluation_job(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl evaluation-job``."""
    parser.add_argument("model", type=SUPER_MODEL, metavar="MODEL", help="folder of the super model")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="NEWJOB", help="new folder for the job")
    add_by(parser)
