"""``silofl resume``: continue an interrupted run after its last finished round, or a finished one with more rounds."""

import argparse

from silofl.base.options import make_console
from silofl_desk.options import read_changes
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.simulation import Moved


def run(options: argparse.Namespace) -> int:
    """Go on with a run and return its exit code."""
    code = simulate.resume(
        options.run,
        make_console(options),
        Moved(options.data, options.cache),
        options.trust_code,
        read_changes(options),
    )
    if options.json:
        simulate.print_json(options.run)
    return code
