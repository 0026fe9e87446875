"""Each paper's claims, looked at where their assumptions hold: one table a set of data, and a verdict on each claim.

    python bench/claims.py [--papers harmofl,fedsm,adafed] [--data DATA] [--out runs/claims] [--processes 2]
    python bench/claims.py --search [--papers ...] [--out runs/claims] [--processes 2]

The first trains every row with the learning rate in ``bench/rates.json`` and three seeds, each with data of its own,
and prints the tables; the second finds these rates, every row by the same search: the mean over sites, and over the
seeds that the table searches, of the validation. Finished runs in the folder are used again, so that a search goes on
where it was ended, and what it has found by then is written after every row. The tables are written as ``claims.md``
there too.
A table on a public set is left out where the set is not in the folder of ``--data``.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runs import carry_out, is_finished, validation_of
from verdicts import Paper, Row, Table, Wanted, describe, measure

from silofl.federation.ledger import read_ledger
from silofl.federation.results import read_results

PAPERS = ("harmofl", "fedsm", "adafed")
RATES = Path(__file__).with_name("rates.json")


def main() -> None:
    """Search, or run what is not there yet and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", default=",".join(PAPERS))
    parser.add_argument("--tables", default="", help="names of tables, as stains-1; by default all that judge a claim")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of public sets, one folder each")
    parser.add_argument("--out", type=Path, default=Path("runs/claims"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--search", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.papers.split(",")) - set(PAPERS):
        parser.error(f"--papers must name some of {', '.join(PAPERS)}, not {', '.join(sorted(unknown))}")
    papers: dict[str, Paper] = {name: import_module(f"claim_{name}").PAPER for name in options.papers.split(",")}
    known = {table.name: table for paper in papers.values() for table in paper.tables}
    wanted = options.tables.split(",") if options.tables else [name for name, one in known.items() if not one.is_extra]
    if unknown := set(wanted) - known.keys():
        parser.error(f"--tables must name some of {', '.join(known)}, not {', '.join(sorted(unknown))}")
    parts = []
    for name, paper in papers.items():
        tables = [table for table in paper.tables if table.name in wanted and _is_possible(table, options.data)]
        if options.search:
            for table in tables:
                _search(name, table, options)
        else:
            parts += [f"## {paper.title}", *(_show(name, table, options) for table in tables)]
    if parts:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "claims.md").write_text("\n\n".join(parts) + "\n")
        print("\n\n".join(parts))


def _is_possible(table: Table, data: Path) -> bool:
    """Return whether the public set and the GPU that a table needs are there; say so where they are not."""
    if table.needs and not (data / table.needs).is_dir():
        print(f"{table.name} is left out: {data / table.needs} is not there; name the folder of public sets by --data")
        return False
    if table.needs_gpu and not torch.cuda.is_available():
        print(f"{table.name} is left out: it takes a GPU, and there is none")
        return False
    return True


def _search(paper: str, table: Table, options: argparse.Namespace) -> None:
    """Run every row with every rate, and write the best one after each row."""
    for row in (row for row in table.rows if len(row.rates) > 1):
        tried = [Wanted(paper, table, row, rate, seed) for rate in row.rates for seed in table.searched]
        _do(options, tried)
        stored = _read_rates()
        stored.setdefault(paper, {}).setdefault(table.name, {})[row.name] = _choose(tried, options.out)
        RATES.write_text(json.dumps(stored, indent=1) + "\n")


def _choose(tried: Sequence[Wanted], out: Path) -> dict[str, Any]:
    """Return the rate that validates best, what each does, and how long a run takes; of rates that all runs bear."""
    found: dict[float, list[Path]] = {}
    for one in tried:
        found.setdefault(one.rate, []).append(out / one.folder)
    found = {rate: folders for rate, folders in found.items() if all(map(is_finished, folders))}
    validation = {
        rate: float(np.mean([validation_of(read_results(folder)) for folder in folders]))
        for rate, folders in found.items()
    }
    if not validation:
        sys.exit(f"{tried[0].row.name} must finish with one rate at least; it has with none: see why above")
    best = max(validation, key=validation.get)
    seconds = np.mean([sum(record.seconds for record in read_ledger(folder) or ()) for folder in found[best]])
    return {
        "rate": best,
        "validation": {f"{rate:g}": round(value, 4) for rate, value in validation.items()},
        "seconds": round(float(seconds), 1),
    }


def _show(paper: str, table: Table, options: argparse.Namespace) -> str:
    """Run what is not there yet of a table with the chosen rates, and return it in Markdown with its verdicts."""
    heading = f"### {table.name}"
    fixed = {row.name: {"rate": row.rates[0], "seconds": 0} for row in table.rows if len(row.rates) == 1}
    stored = fixed | _read_rates().get(paper, {}).get(table.name, {})
    rows = [row for row in table.rows if row.name in stored]
    if not rows:
        return f"{heading}\n\nNo rates are stored: `python bench/claims.py --search --papers {paper}`."
    runs = {row.name: [_final(paper, table, row, stored, seed) for seed in table.seeds] for row in rows}
    seconds = sum(stored[row.name]["seconds"] for row in rows) * len(table.seeds)
    print(f"{table.name}: about {seconds / 3600:.2f} hours of one core", flush=True)
    _do(options, [one for several in runs.values() for one in several])
    folders = {name: [options.out / one.folder for one in several] for name, several in runs.items()}
    done = {name: several for name, several in folders.items() if all(map(is_finished, several))}
    lines = describe(table, measure(table, done), {name: stored[name]["rate"] for name in done})
    data = table.describe_data([options.out / one.data for one in runs[rows[0].name]]) if table.describe_data else ""
    return "\n".join([heading, "", *([data, ""] if data else ()), *lines])


def _final(paper: str, table: Table, row: Row, stored: Mapping[str, Any], seed: int) -> Wanted:
    return Wanted(paper, table, row, stored[row.name]["rate"], seed)


def _do(options: argparse.Namespace, wanted: Sequence[Wanted]) -> None:
    """Make the data of the runs that are not there yet, and carry these out."""
    left = [one for one in wanted if not is_finished(options.out / one.folder)]
    for folder, one in {one.data: one for one in left}.items():
        needed = [options.data / one.table.needs] * bool(one.table.needs)
        one.table.make(options.out / folder, one.seed, *needed)
    carry_out([one.alone() for one in left], options.out, options.out, options.processes)


def _read_rates() -> dict[str, Any]:
    return json.loads(RATES.read_text()) if RATES.is_file() else {}


if __name__ == "__main__":
    main()
