"""Does one preset of HarmoFL, with one normalisation, win wherever it is tried? By the validation in ``rates.json``.

    python bench/presets.py

Every row of `claim_harmofl`'s sets is there with the validation of its best rate; the stains at three strengths are one
set, whose mean counts. For each set the row is chosen that lies least below the best one on all other sets, and the
table says how far it lies below the best of the set that was left out. Rows with stateless BatchNorm cannot be chosen:
there a patient's answer depends on the others.
"""

import argparse
import json
from collections.abc import Collection, Mapping

import numpy as np
from claims import RATES

STATELESS, ALONE = "stateless BatchNorm", "local"
PLAIN = "FedAvg"
# What the jobs that a newcomer starts from are set to.
DEFAULT = "FedAvg, GroupNorm"


def main() -> None:
    """Print a row for each set that is left out, and one for all sets."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = collect_validation(json.loads(RATES.read_text())["harmofl"])
    heads = ("set left out", "best on the others", "below the best there", "best federated row there", "FedAvg's best")
    print(f"| {' | '.join([*heads, f'{DEFAULT}: below the best'])} |")
    print(f"|{'---|' * (len(heads) + 1)}")
    for name, rows in found.items():
        others = [rows for other, rows in found.items() if other != name]
        chosen = choose_row(others, rows)
        plain = {row: value for row, value in rows.items() if row.startswith(PLAIN)}
        cells = (chosen, f"{shortfall(chosen, [rows]):.3f}", describe_best(rows), describe_best(plain))
        cells += (f"{shortfall(DEFAULT, [rows]):.3f}",)
        print(f"| {name} | {' | '.join(cells)} |")
    best = choose_row(found.values(), {row for rows in found.values() for row in rows})
    print(f"\nOn all sets: {best}, {shortfall(best, found.values()):.3f} below the best on average.")


def collect_validation(stored: Mapping[str, Mapping[str, Mapping]]) -> dict[str, dict[str, float]]:
    """Return set -> federated row -> its validation with its best rate, of rows that may be chosen."""
    found: dict[str, dict[str, list[float]]] = {}
    for table, rows in stored.items():
        # As stains-0.5-normalizations.
        values = found.setdefault(table.partition("-")[0], {})
        for row, one in rows.items():
            if STATELESS not in row and row != ALONE:
                values.setdefault(row, []).append(max(filter(None, one["validation"].values())))
    return {name: {row: float(np.mean(several)) for row, several in rows.items()} for name, rows in found.items()}


def choose_row(sets: Collection[Mapping[str, float]], allowed: Collection[str]) -> str:
    """Return the allowed row that lies least below the best one, on average over the sets that have it."""
    return min(allowed, key=lambda row: shortfall(row, sets))


def shortfall(row: str, sets: Collection[Mapping[str, float]]) -> float:
    """Return by how much a row lies below the best one, mean over the sets that have it; infinite where none has."""
    below = [max(values.values()) - values[row] for values in sets if row in values]
    return float(np.mean(below)) if below else float("inf")


def describe_best(rows: Mapping[str, float]) -> str:
    """Return the best row with its validation."""
    best = max(rows, key=rows.__getitem__)
    return f"{best}, {rows[best]:.3f}"


if __name__ == "__main__":
    main()
