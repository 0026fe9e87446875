"""``silofl compare``: run every job and every method with each seed on the same data, and write one table."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode, SiloFLError
from silofl.base.files import write_json, write_text
from silofl.base.options import make_console
from silofl.federation.results import Results, read_results
from silofl_desk.options import path_to_text, read_changes
from silofl_desk.report.run_records import RowRuns, RunRecords, read_run
from silofl_desk.report.sentences import changes_sentence
from silofl_desk.studies import pooled as centralised
from silofl_desk.studies import side_by_side, simulate
from silofl_desk.studies.compared_runs import (
    ComparedRun,
    ComparisonPlan,
    list_other_methods,
    list_with_batchnorm,
    plan_runs,
)
from silofl_desk.studies.comparison import DRIFT_NOTE, are_comparable, compare_drift, compare_joining
from silofl_desk.studies.comparison_page import Summary, joining_blocks, write_rows
from silofl_desk.studies.conditions import NORMALIZATION, list_differences
from silofl_desk.studies.hospitals import describe_starts
from silofl_desk.studies.method_rows import CENTRALISED, method_sites
from silofl_desk.studies.method_table import methods_notes, methods_table, methods_values
from silofl_desk.studies.simulation import changed_study
from silofl_desk.studies.weights import find_weights_file
from silofl_hospital.report.page import print_blocks
from silofl_hospital.report.tables import format_duration, markdown_table, print_lines, print_table


def run(options: argparse.Namespace) -> int:
    """Run a comparison and return its exit code."""
    asked = ComparisonPlan(
        jobs=tuple(options.jobs),
        methods=tuple(options.methods),
        variants=options.variants,
        changes=read_changes(options),
        seeds=options.seeds,
        data=path_to_text(options.data),
        is_pooled=options.pooled,
        pretrained=path_to_text(options.pretrained),
        weights=path_to_text(options.weights and find_weights_file(options.weights)),
        is_alone=options.alone,
        cache=path_to_text(options.cache),
        skip_unreadable=options.skip_unreadable,
        has_equal_rounds=options.equal_rounds,
    )
    code = compare(asked, options.out, make_console(options), options.processes)
    if options.json and code != ExitCode.INTERRUPTED:
        print((options.out / "table.json").read_text(), end="")
    return code


def compare(asked: ComparisonPlan, out: Path, console: Console, processes: int = 1) -> int:
    """Run all runs that are not finished, print the table and write it as ``table.md`` and ``table.json``.

    Finished runs of the same study are used again and unfinished ones continue; the others run even if one fails.

    Args:
        out: Folder of the runs and the table.
        console: Shows progress and the table.
        processes: Runs at a time.

    Returns:
        The exit code: 0; 1 where a run FAILED, else 3 where one is INCOMPLETE; 130 interrupted.

    Raises:
        ConfigError: A job, a method or a seed is wrong, or an earlier run in ``out`` is another; before any training.
        DataError: A site's data is wrong; before any training.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder, not {out}, which is a file; name a folder")
    runs = plan_runs(asked, out)
    others = list_other_methods(asked)
    if own := [name for name in asked.methods if name not in others]:
        console.print(f"{', '.join(own)}: the row {runs[0].name}, which is what the first job does", markup=False)
    if needing := list_with_batchnorm(asked, runs):
        console.print(f"{', '.join(needing)}: with {NORMALIZATION} batch, which is needed", markup=False)
    if asked.is_pooled:
        runs += centralised.plan_centralised_runs(asked, out, console)
    # Local training leaves its models, trained to their end, to the other rows, which compare with them.
    alone = [run for run in runs if changed_study(run.job, run.changes).recipe.trains_alone]
    others = [run for run in runs if run not in alone]
    try:
        if processes > 1:
            failures = side_by_side.run_side_by_side(alone, out, processes, console) if alone else {}
            failures |= side_by_side.run_side_by_side(others, out, processes, console) if others else {}
        else:
            failures = _run_in_turn([*alone, *others], console)
    except KeyboardInterrupt:
        console.print("to go on with the comparison, give the same command again")
        return ExitCode.INTERRUPTED
    rows = collect_rows(runs, failures)
    _show_table(rows, runs, asked, out, console)
    statuses = {run.status for of_row in rows.results.values() for run in of_row}
    if rows.unfinished:
        return ExitCode.FAILED
    return ExitCode.INCOMPLETE if "INCOMPLETE" in statuses else ExitCode.COMPLETE


def _run_in_turn(runs: Sequence[ComparedRun], console: Console) -> dict[Path, str]:
    """Carry out one run after another; returns the folder of each that could not be -> why."""
    started, failures = time.monotonic(), {}
    for number, run in enumerate(runs, start=1):
        so_far = format_duration(time.monotonic() - started)
        console.print(f"\nrun {number} of {len(runs)}: {run.name}, seed {run.seed} ({so_far} so far)", markup=False)
        try:
            if _carry_out_run(run, console) == ExitCode.INTERRUPTED:
                raise KeyboardInterrupt
        except (SiloFLError, OSError) as error:
            console.print(f"the run failed: {error}", markup=False)
            failures[run.path] = str(error)
    return failures


@dataclass(frozen=True)
class ComparedRows:
    """What the runs of a comparison came to.

    Attributes:
        records: Row -> the records of its runs that have numbers.
        results: Row -> their results; those on pooled data by the sites that the cases come from.
        unfinished: Row and seed -> why a run has no numbers.
    """

    records: Mapping[str, list[RunRecords]]
    results: Mapping[str, list[Results]]
    unfinished: Mapping[tuple[str, int], str]

    @property
    def trained(self) -> RowRuns:
        """The rows with numbers, without the one on pooled data."""
        return {name: runs for name, runs in self.records.items() if runs and name != CENTRALISED}


def collect_rows(runs: Sequence[ComparedRun], failures: Mapping[Path, str]) -> ComparedRows:
    """Read what is finished of all runs.

    Args:
        runs: In the order of the rows.
        failures: Folder -> why a run could not be carried out.
    """
    unfinished: dict[tuple[str, int], str] = {}
    rows = ComparedRows({run.name: [] for run in runs}, {run.name: [] for run in runs}, unfinished)
    for run in runs:
        try:
            results = _read_result(run, failures.get(run.path))
            records = read_run(run.path)
        except ConfigError as error:
            unfinished[run.name, run.seed] = str(error)
            continue
        rows.results[run.name].append(results)
        rows.records[run.name].append(records)
    return rows


def _carry_out_run(run: ComparedRun, console: Console) -> int:
    if run.has_started and simulate.is_finished(run.path):
        console.print(f"already finished: {run.path}", markup=False)
        return ExitCode.COMPLETE
    if run.has_started:
        return simulate.resume(run.path, console)
    return simulate.start_simulation(run.job, run.path, run.wanted, run.changes, console)


def _read_result(run: ComparedRun, failure: str | None) -> Results:
    results = read_results(run.path) if failure is None else None
    if results is None:
        raise ConfigError(failure or f"it ended early, and {run.path / 'log.txt'} says why")
    if not results.is_finished:
        raise ConfigError("; ".join(results.reasons))
    return centralised.regroup_by_site(run.path, results) if run.name == CENTRALISED else results


def _show_table(
    rows: ComparedRows, runs: Sequence[ComparedRun], asked: ComparisonPlan, out: Path, console: Console
) -> None:
    """Print the table with its notes, below the sentences on what differs between its rows, and write all of it."""
    trained = rows.trained
    summary, values = _summarise(rows, runs, asked)
    unlike = list_differences(trained)
    joining = compare_joining(rows.results)
    drift = compare_drift(trained)
    console.print()
    starts = describe_starts(trained)
    print_lines([*starts, ""] if starts else [], console)
    print_blocks(joining_blocks(joining), console)
    print_lines([*unlike, ""], console)
    print_table(summary.table, console)
    console.print()
    print_lines(summary.notes, console)
    if drift:
        console.print()
        print_table(drift, console)
        print_lines([DRIFT_NOTE], console)
    head = "".join(f"{sentence}\n\n" for sentence in starts)
    head += f"{markdown_table(joining.table, [joining.note], joining.losses)}\n" if joining else ""
    end = f"\n{markdown_table(drift, [DRIFT_NOTE])}" if drift else ""
    write_text(out / "table.md", head + markdown_table(summary.table, summary.notes, unlike) + end)
    values |= {
        **({"drift": [dict(zip(drift.columns, row, strict=True)) for row in drift.rows]} if drift else {}),
        "differences": unlike,
        "notes": summary.notes,
        "runs": [_describe_run(run, rows) for run in runs],
    }
    write_json(out / "table.json", values)
    console.print(f"table: {out / 'table.md'}, {out / 'table.json'}", markup=False)
    if trained:
        try:
            console.print(f"page: {write_rows(trained, out / 'comparison.html', summary)}", markup=False)
        except (ConfigError, OSError) as error:
            console.print(f"no page: {error}", markup=False)


def _summarise(
    rows: ComparedRows, runs: Sequence[ComparedRun], asked: ComparisonPlan
) -> tuple[Summary, dict[str, Any]]:
    """Return the table of all rows with its notes, and the table as plain values."""
    methods, is_ranked = rows.results, are_comparable([*chain.from_iterable(rows.trained.values())])
    table = methods_table(methods, len(asked.seeds), is_ranked)
    with_batchnorm = list_with_batchnorm(asked, runs)
    changed = {"every row": asked.changes, **asked.variants}
    changed |= dict.fromkeys(with_batchnorm, {NORMALIZATION: "batch"})
    notes = methods_notes(methods, asked.seeds, is_ranked)
    notes += [f"{name}, seed {seed}: no numbers: {why}" for (name, seed), why in rows.unfinished.items()]
    notes += [f"Set for {name}: {changes_sentence(changes)}." for name, changes in changed.items() if changes]
    values = {
        "seeds": list(asked.seeds),
        "sites": method_sites(methods),
        "rows": methods_values(methods, len(asked.seeds), is_ranked),
    }
    summary = Summary(table, notes, rows.records.get(CENTRALISED, ()))
    return summary, values


def _describe_run(run: ComparedRun, rows: ComparedRows) -> dict[str, Any]:
    statuses = [one.status for one in rows.results[run.name] if one.seed == run.seed]
    return {
        "name": run.name,
        "seed": run.seed,
        "folder": str(run.path),
        "status": statuses[0] if statuses else "FAILED",
        "changes": dict(run.changes),
    }
