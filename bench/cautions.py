"""Count the cautions that finished runs would have been given while they trained.

    python bench/cautions.py RUNS...

RUNS are folders that hold runs, at any depth.
"""

import argparse
from pathlib import Path

from silofl.federation.cautions import find_cautions
from silofl.federation.ledger import FILE, read_ledger


def main() -> None:
    """Print a line per run: its last and best validation, and the round and the words of each caution."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    folders = sorted({path.parent for root in runs for path in root.rglob(FILE)})
    for folder in folders:
        ledger = read_ledger(folder) or []
        values = [record.validation_mean for record in ledger if record.validation_mean is not None]
        said = "; ".join(f"round {number}: {one.split(':')[0]}" for number, one in find_cautions(ledger)) or "none"
        if values:
            print(f"{folder}  last {values[-1]:.3f}, best {max(values):.3f}  {said}")


if __name__ == "__main__":
    main()
