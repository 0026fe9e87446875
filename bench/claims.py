"""Each paper's claims, looked at where their assumptions hold: one table a set of data, and a test of each claim.

    python bench/claims.py [--papers harmofl,fedsm,adafed] [--tables TABLES] [--data DATA] [--out runs/claims]
    python bench/claims.py --search [--papers ...] [--tables TABLES] [--out runs/claims]
    python bench/claims.py --check [--data DATA] [--out runs/claims]

The first trains every row with the learning rate in ``bench/rates.json`` and all seeds, each with data of its own, and
prints the tables, and writes them as ``claims.md``: one a paper where none is named. The second finds these rates,
every row by the same search: the mean over sites, and over the seeds that the table searches, of the validation. Where
the best rate is at the edge of those tried, the next one of `runs.LADDER` is tried too. Both go on where they ended:
finished runs in the folder are used again, and what ``rates.json`` has is not tried again; to search a row anew, take
it out. A table on a public set is left out where the set is not in the folder of ``--data``. The third repeats five
stored entries from the start and fails where one differs: the rates are then of another version of the code.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from runs import beyond, carry_out, is_finished, read_complete, validation_of
from verdicts import Paper, Row, Table, Wanted, describe, measure

from silofl.base.errors import ConfigError
from silofl.base.files import hold_lock
from silofl.federation.ledger import read_ledger

PAPERS = ("harmofl", "fedsm", "adafed")
RATES = Path(__file__).with_name("rates.json")
# What `--check` repeats: paper, table and row, of each paper and of both normalisations, in a few minutes.
CHECKED = (
    ("harmofl", "stains-1", "FedAvg"),
    ("harmofl", "stains-1-normalizations", "FedAvg, GroupNorm"),
    ("harmofl", "tiles-normalizations", "FedAvg, GroupNorm"),
    ("adafed", "labels-even", "FedAvg from f"),
    ("fedsm", "phantoms", "local"),
)


def main() -> None:
    """Search, or run what is not there yet and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", default=",".join(PAPERS))
    parser.add_argument("--tables", default="", help="names of tables, as stains-1; by default one a paper")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of public sets, one folder each")
    parser.add_argument("--out", type=Path, default=Path("runs/claims"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--check", action="store_true", help="repeat five stored rates; fail where one differs")
    options = parser.parse_args()
    if unknown := set(options.papers.split(",")) - set(PAPERS):
        parser.error(f"--papers must name some of {', '.join(PAPERS)}, not {', '.join(sorted(unknown))}")
    papers: dict[str, Paper] = {name: import_module(f"claim_{name}").PAPER for name in options.papers.split(",")}
    known = {table.name: table for paper in papers.values() for table in paper.tables}
    wanted = options.tables.split(",") if options.tables else [name for name, one in known.items() if one.is_main]
    if unknown := set(wanted) - known.keys():
        parser.error(f"--tables must name some of {', '.join(known)}, not {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    # Of two at once each would take the other's unfinished runs for values that a method does not bear.
    try:
        with hold_lock(options.out / "claims.lock"):
            if options.check:
                _check(options)
            else:
                _carry_out(papers, wanted, options)
    except ConfigError as error:
        sys.exit(str(error))


def _carry_out(papers: Mapping[str, Paper], wanted: Sequence[str], options: argparse.Namespace) -> None:
    """Search, or print the tables."""
    parts = []
    for name, paper in papers.items():
        tables = [table for table in paper.tables if table.name in wanted and _is_possible(table, options.data)]
        if options.search:
            for table in tables:
                _search(name, table, options)
        else:
            parts += [f"## {paper.title}", *(_show(name, table, options) for table in tables)]
    if parts:
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
    """Search what is not stored yet, all rows a step further at once, and store it after each step."""
    rows, stored = [row for row in table.rows if len(row.rates) > 1], _read_rates()
    found = stored.setdefault(paper, {}).setdefault(table.name, {})
    while tried := [
        (row, {(rate, x): [Wanted(paper, table, row, rate, seed, x) for seed in table.searched] for rate, x in left})
        for row in rows
        if (left := find_left(row, found.setdefault(row.name, {"validation": {}})))
    ]:
        _do(options, [one for _, several in tried for runs in several.values() for one in runs])
        for row, several in tried:
            note(found[row.name], {one: [options.out / run.folder for run in runs] for one, runs in several.items()})
        RATES.write_text(format_rates(stored))


def _check(options: argparse.Namespace) -> None:
    """Repeat the stored entries of `CHECKED`, and stop with a sentence where a validation is another today."""
    stored, checked, differing = _read_rates(), 0, 0
    # In a folder of its own: an earlier run of the same row would only be read again.
    with TemporaryDirectory(prefix="check-", dir=options.out) as folder:
        anew = argparse.Namespace(**vars(options) | {"out": Path(folder)})
        for paper, name, row_name in CHECKED:
            tables = {table.name: table for table in import_module(f"claim_{paper}").PAPER.tables}
            table = tables[name]
            if not _is_possible(table, options.data):
                continue
            (row,) = (row for row in table.rows if row.name == row_name)
            entry = stored[paper][name][row_name]
            runs = [Wanted(paper, table, row, entry["rate"], seed) for seed in table.searched]
            _do(anew, runs)
            score = average_validation([anew.out / run.folder for run in runs])
            expected = entry["validation"][f"{entry['rate']:g}"]
            verdict = "same" if score == expected else "differs"
            print(f"{name}: {row_name}: stored {expected}, now {score} ({verdict})", flush=True)
            checked += 1
            differing += score != expected
    if differing:
        sys.exit(
            f"{differing} of {checked} stored entries differ: {RATES.name} is from another version of the code, or "
            "from another processor. Take these rows out of it and search them again with --search."
        )


def average_validation(folders: Sequence[Path]) -> float | None:
    """Return the mean validation of runs to four decimals; None where one of them did not end."""
    known = [validation_of(results) for folder in folders if (results := read_complete(folder))]
    return round(float(np.mean(known)), 4) if len(known) == len(folders) else None


def find_left(row: Row, found: Mapping[str, Any]) -> list[tuple[float, float | None]]:
    """Return rate and value of the row's constant that come next: its rates, one beyond a best edge, its values."""
    tried = {float(rate): value for rate, value in found["validation"].items()}
    if rates := [rate for rate in row.rates if rate not in tried] or beyond(found["rate"], tried):
        return [(rate, None) for rate in rates]
    return [(found["rate"], value) for value in row.values if f"{value:g}" not in found.get("values", {})]


def note(found: dict[str, Any], tried: Mapping[tuple[float, float | None], Sequence[Path]]) -> None:
    """Add the validation of what was tried to what is stored of a row, None where a run does not end, and choose."""
    for (rate, value), folders in tried.items():
        place, key = ("validation", rate) if value is None else ("values", value)
        found.setdefault(place, {})[f"{key:g}"] = average_validation(folders)
    borne = {float(rate): one for rate, one in found["validation"].items() if one is not None}
    if not borne:
        sys.exit(f"{next(iter(tried.values()))[0].parent} must finish with one rate at least; none did: see why above")
    best = max(borne, key=borne.__getitem__)
    if best != found.get("rate"):
        found.pop("values", None)
    better = {float(value): one for value, one in found.get("values", {}).items() if one and one > borne[best]}
    found |= {"rate": best, "value": max(better, key=better.__getitem__, default=None)}
    if chosen := tried.get((best, found["value"])):
        seconds = [sum(record.seconds for record in read_ledger(folder) or ()) for folder in chosen]
        found["seconds"] = round(float(np.mean(seconds)), 1)


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
    done = {name: several for name, several in folders.items() if all(map(read_complete, several))}
    splits = [options.out / one.data for one in runs[rows[0].name]]
    test_to_train = compare_sizes(splits, table.job) if table.needs else 0.0
    chosen = {row.name: _chosen(row, stored[row.name]) for row in rows}
    lines = describe(table, measure(table, done), chosen, test_to_train)
    data = table.describe_data(splits) if table.describe_data else ""
    return "\n".join([heading, "", *([data, ""] if data else ()), *lines])


def compare_sizes(splits: Sequence[Path], job: str) -> float:
    """Return the test pictures of all splits by their training pictures.

    Args:
        splits: The folder of each, in which ``job`` holds a folder for each site.
    """
    num_test, num_training = 0, 0
    for manifest in (manifest for split in splits for manifest in split.glob(f"{job}/*/dataset.json")):
        records = json.loads(manifest.read_text())
        num_test += len(records["test"])
        num_training += len(records["training"])
    return num_test / num_training


def _final(paper: str, table: Table, row: Row, stored: Mapping[str, Any], seed: int) -> Wanted:
    return Wanted(paper, table, row, stored[row.name]["rate"], seed, stored[row.name].get("value"))


def _chosen(row: Row, found: Mapping[str, Any]) -> str:
    value = found.get("value")
    return f"{found['rate']:g}" + (f", {row.constant.rpartition('.')[2]} {value:g}" if value else "")


def _do(options: argparse.Namespace, wanted: Sequence[Wanted]) -> None:
    """Make the data of the runs that are not there yet, and carry these out."""
    left = [one for one in wanted if not is_finished(options.out / one.folder)]
    if left:
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            making = [
                pool.submit(_make, one.paper, one.table.name, options.out / folder, one.seed, options.data)
                for folder, one in {one.data: one for one in left}.items()
            ]
            for one in making:
                one.result()
    carry_out([one.alone() for one in left], options.out, options.out, options.processes)


def _make(paper: str, name: str, folder: Path, seed: int, data: Path) -> None:
    """Make the data of a table for a seed, in a process of its own."""
    (table,) = (table for table in import_module(f"claim_{paper}").PAPER.tables if table.name == name)
    table.make(folder, seed, *[data / table.needs] * bool(table.needs))


def format_rates(stored: Mapping[str, Any]) -> str:
    """Return what is stored as JSON, each row on a line."""
    return re.sub(r"\n {4,}|\n {3}(?=})", " ", json.dumps(stored, indent=1)) + "\n"


def _read_rates() -> dict[str, Any]:
    return json.loads(RATES.read_text()) if RATES.is_file() else {}


if __name__ == "__main__":
    main()
