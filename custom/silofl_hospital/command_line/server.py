"""What a server's machine gives on the command line."""

import argparse

from silofl.base.options import KIT


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl server check``."""
    parser.add_argument("--kit", type=KIT, required=True, help="the server's startup kit, in which NVFlare runs")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
