"""The promises of speed in one table, each beside what it is compared with in the same run; about a quarter of an hour.

    python bench/speed.py [--short] [--only mixing,local_model]

On two quiet cores. ``--short`` takes smaller sizes and leaves whole runs out, and fails only on gross breaks: beyond
twice a bound. The exit code is 1 where a promise is broken.
"""

import argparse
import sys
from collections.abc import Iterator

import kernels
import reading
import torch
import whole
from measured import Row, show

from silofl.training.device import keep_freed_memory

MEASURES = {
    measure.__name__: measure for measure in (*kernels.MEASURES, *reading.MEASURES, whole.command_line, *whole.MEASURES)
}
# A gross break, on a machine that does other work beside.
SLACK = 2.0


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default=",".join(MEASURES), help=f"of {', '.join(MEASURES)}")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(MEASURES)
    if unknown:
        parser.error(f"--only must name some of {', '.join(MEASURES)}, not {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    keep_freed_memory()
    return int(not show(rows(options.only.split(","), options.short), SLACK if options.short else 1.0))


def rows(names: list[str], is_short: bool) -> Iterator[Row]:
    """Measure by name; whole runs are too long for the short form."""
    for name in names:
        measure = MEASURES[name]
        if not (is_short and measure in whole.MEASURES):
            yield from measure(is_short)


if __name__ == "__main__":
    sys.exit(main())
