"""What a clinic gives on the command line, with a trained model."""

import argparse
from pathlib import Path

from silofl.base.options import add_by, add_json, add_site_config, expect_path, parse_count, parse_share

CODES = (
    "exit codes, the worst first: 130 interrupted; 2 the command or the super model is wrong; 1 all inputs failed; 4 "
    "an answer must not be used; 3 some inputs failed; 0 all answered"
)
ONE_CASE = "one case: an image file, a DICOM series folder, or NAME=FILE,NAME=FILE for several contrasts"
SUPER_MODEL = expect_path("the folder of a super model")


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl predict``."""
    parser.epilog = CODES
    parser.add_argument("super_model", type=SUPER_MODEL, metavar="SUPERMODEL", help="folder of the super model")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=ONE_CASE)
    parser.add_argument("-o", "--out", type=Path, required=True, help="new folder, or that of an earlier prediction")
    parser.add_argument("--picture", action="store_true", help="also draw the labels over each input, as PNG")
    parser.add_argument("--dicom-seg", action="store_true", help="also write a DICOM segmentation of each DICOM input")
    parser.add_argument(
        "--by-folder", action="store_true", help="name the results after each input's folder instead of its file"
    )
    parser.add_argument("--site", help="use this site's model, or global, instead of the selector's choice")
    parser.add_argument(
        "--threshold",
        type=float,
        help="selector's score, 0 to 1, above which a site's model answers (default: the super model's)",
    )
    parser.add_argument("--batch-size", type=parse_count, help="number of slices at a time; the answer is the same")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute (default: auto)"
    )
    add_json(parser, "the record")


def add_home_statistics(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl home-statistics``."""
    parser.add_argument("super_model", type=SUPER_MODEL, metavar="SUPERMODEL", help="folder of the super model")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=f"{ONE_CASE}; 16 or more, without labels")
    parser.add_argument("-o", "--out", type=Path, required=True, help="new folder for the model with your statistics")


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl evaluate``."""
    parser.add_argument(
        "model",
        type=SUPER_MODEL,
        metavar="MODEL",
        help="folder of a super model, or what a site keeps (chosen/)",
    )
    data = expect_path("the folder of a site's labelled cases, with a dataset.json")
    parser.add_argument("data", type=data, metavar="DATA", help="a site's folder of labelled cases, with dataset.json")
    parser.add_argument("-o", "--out", type=Path, required=True, help="new folder for the numbers and the page")
    add_by(parser)
    parts = ("all", "training", "validation", "test")
    parser.add_argument("--part", choices=parts, default="all", help="part of dataset.json to test on (default: all)")
    prevalence = "share of the patients who have a class, or a finding, to print its predictive values for"
    parser.add_argument("--prevalence", type=parse_share, metavar="SHARE", help=prevalence)
    add_site_config(parser, "a hospital's site.yaml, whose state_dir has hashes of its training images")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder for decoded images (default: none)")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute (default: auto)"
    )
    add_json(parser, "evaluation.json")
