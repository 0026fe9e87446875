"""``silofl resume``: continue an interrupted run after its last finished round."""

import argparse
from pathlib import Path

from silofl.options import add_json, add_moved, make_console
from silofl.studies import simulate
from silofl.studies.simulation import Moved


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl resume``."""
    parser.add_argument("run", type=Path, help="folder of the run")
    add_moved(parser)
    simulate.add_trust(parser)
    add_json(parser, "results.json")


def run(options: argparse.Namespace) -> int:
    """Go on with a run and return its exit code."""
    moved = Moved(options.data, options.cache)
    code = simulate.resume(options.run, make_console(options), moved, options.trust_code)
    if options.json:
        simulate.print_json(options.run)
    return code
