"""``silofl compare``: run every job and every method with each seed on the same data, and write one table."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode, SiloFLError
from silofl.base.files import write_json, write_text
from silofl.base.options import (
    check_backend,
    make_console,
    path_to_text,
    read_changes,
)
from silofl.base.schema import read_file
from silofl.data.counts import FILE as DATA
from silofl.data.counts import DataCounts
from silofl.federation.results import Results, read_results
from silofl.report.page import print_blocks
from silofl.report.tables import MISSING, format_duration, markdown_table, print_lines, print_table
from silofl_desk.report.run_records import RunRecords, read_run
from silofl_desk.report.sentences import changes_sentence
from silofl_desk.studies import pooled as centralised
from silofl_desk.studies import side_by_side, simulate
from silofl_desk.studies.compared_runs import CENTRALISED, ComparedRun, ComparisonPlan, plan_runs
from silofl_desk.studies.comparison import DRIFT_NOTE, compare_drift, compare_joining
from silofl_desk.studies.comparison_page import Summary, joining_blocks, write_rows
from silofl_desk.studies.conditions import list_differences
from silofl_desk.studies.hospitals import describe_starts
from silofl_desk.studies.method_rows import Method, method_sites
from silofl_desk.studies.method_table import is_comparable, methods_notes, methods_table, methods_values
from silofl_desk.studies.simulation import changed_study
from silofl_desk.studies.sweep import ROUNDS, read_sweep, short_names, value_text
from silofl_desk.studies.swept import NOTE, Sweep, SweptRow, sweep_image
from silofl_desk.studies.weights import find_weights_file


def run(options: argparse.Namespace) -> int:
    """Run a comparison and return its exit code."""
    check_backend(options)
    asked = ComparisonPlan(
        jobs=tuple(options.jobs),
        methods=tuple(options.methods),
        variants=options.variants,
        changes=read_changes(options),
        seeds=options.seeds,
        data=path_to_text(options.data),
        threads=options.threads,
        is_pooled=options.pooled,
        pretrained=path_to_text(options.pretrained),
        weights=path_to_text(options.weights and find_weights_file(options.weights)),
        is_alone=options.alone,
        cache=path_to_text(options.cache),
        skip_unreadable=options.skip_unreadable,
        sweep=read_sweep(options),
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
    if own := [name for name in asked.methods if name not in {run.row for run in runs}]:
        console.print(f"{', '.join(own)}: the row {runs[0].name}, which is what the first job does", markup=False)
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
    methods = collect_methods(runs, failures)
    _show_table(methods, runs, asked, out, console)
    return _exit_code(methods)


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


def collect_methods(runs: Sequence[ComparedRun], failures: Mapping[Path, str]) -> list[Method]:
    """Group the results of all runs by method, in the order of the runs.

    Args:
        failures: Folder -> why a run could not be carried out.
    """
    methods = []
    for name in dict.fromkeys(run.name for run in runs):
        results: dict[int, Results] = {}
        unfinished = {}
        for run in (run for run in runs if run.name == name):
            try:
                results[run.seed] = _read_result(run, failures.get(run.path))
            except ConfigError as error:
                unfinished[run.seed] = str(error)
        data = {run.seed: _identify_data(run) for run in runs if run.name == name and run.seed in results}
        methods.append(Method(name, results, name == CENTRALISED, unfinished, data))
    return methods


def _identify_data(run: ComparedRun) -> tuple[str | None, ...]:
    """Return the folder of a run's data, whose like elsewhere may have other images, and the digest of each site's."""
    counts = read_file(DataCounts, run.path / DATA)
    digests = [one.digest for _, one in sorted(counts.sites.items())] if counts else []
    return (run.wanted.data, *digests)


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
    if run.name != CENTRALISED:
        return results
    return centralised.regroup_by_site(results, centralised.read_scores(run.path, results))


def _show_table(
    methods: Sequence[Method], runs: Sequence[ComparedRun], asked: ComparisonPlan, out: Path, console: Console
) -> None:
    """Print the table with its notes, below the sentences on what differs between its rows, and write all of it."""
    rows = _read_rows_records(methods, runs, is_pooled=False)
    summary = _summarise(methods, runs, asked)
    unlike = list_differences(rows, summary.known)
    joining = compare_joining({method.name: list(method.results.values()) for method in methods})
    drift, tables = compare_drift(rows), [found for found in (summary.swept, summary.table) if found]
    console.print()
    starts = describe_starts(rows)
    print_lines([*starts, ""] if starts else [], console)
    print_blocks(joining_blocks(joining), console)
    print_lines([*unlike, ""], console)
    for table in tables:
        print_table(table, console)
        console.print()
    print_lines(summary.notes, console)
    if drift:
        console.print()
        print_table(drift, console)
        print_lines([DRIFT_NOTE], console)
    *before, table = tables
    head = "".join(f"{sentence}\n\n" for sentence in starts)
    head += f"{markdown_table(joining.table, [joining.note], joining.losses)}\n" if joining else ""
    head += "".join(f"{markdown_table(one, [], [])}\n" for one in before)
    end = f"\n{markdown_table(drift, [DRIFT_NOTE])}" if drift else ""
    write_text(out / "table.md", head + markdown_table(table, summary.notes, unlike) + end)
    values = {
        "seeds": list(asked.seeds),
        "sites": method_sites(methods),
        "rows": methods_values(methods),
        **({"drift": [dict(zip(drift.columns, row, strict=True)) for row in drift.rows]} if drift else {}),
        "differences": unlike,
        "notes": summary.notes,
    }
    write_json(out / "table.json", values | {"runs": [_describe_run(run, methods) for run in runs]})
    console.print(f"table: {out / 'table.md'}, {out / 'table.json'}", markup=False)
    if rows:
        try:
            console.print(f"page: {write_rows(rows, out / 'comparison.html', summary)}", markup=False)
        except (ConfigError, OSError) as error:
            console.print(f"no page: {error}", markup=False)


def _summarise(methods: Sequence[Method], runs: Sequence[ComparedRun], asked: ComparisonPlan) -> Summary:
    """Return the table of all rows with its notes, and those of the sweep."""
    table = methods_table(methods, len(asked.seeds), is_comparable(methods))
    changed = {"every row": asked.changes, **asked.variants}
    notes = methods_notes(methods, asked.seeds)
    notes += [f"Set for {name}: {changes_sentence(changes)}." for name, changes in changed.items() if changes]
    centralised_runs = [run for of_row in _read_rows_records(methods, runs, is_pooled=True).values() for run in of_row]
    summary = Summary(table, notes, centralised=centralised_runs)
    if not asked.sweep.values:
        return summary
    swept = _swept_rows(methods, runs, asked)
    known = [*asked.sweep.values]
    if asked.sweep.total_epochs is not None:
        known.append(ROUNDS)
        notes.append(f"Rounds times local epochs are {asked.sweep.total_epochs} in every row.")
    metrics = {str(run.metric) for method in methods for run in method.results.values()}
    sweep = Sweep(swept, " or ".join(sorted(metrics)) or MISSING)
    return replace(summary, notes=[NOTE, *notes], known=known, swept=sweep.table(), figure=sweep_image(sweep))


def _swept_rows(methods: Sequence[Method], runs: Sequence[ComparedRun], asked: ComparisonPlan) -> list[SweptRow]:
    names = short_names(asked.sweep.values)
    # Of several seeds any: they differ in nothing that is read here.
    one = {run.name: run for run in runs}
    return [
        SweptRow(
            one[method.name].row,
            {names[key]: value_text(key, value) for key, value in one[method.name].point.values.items()},
            method,
        )
        for method in methods
    ]


def _read_rows_records(
    methods: Sequence[Method], runs: Sequence[ComparedRun], is_pooled: bool
) -> dict[str, list[RunRecords]]:
    """Return the rows of which runs have numbers with their records: those on pooled data, or all others."""
    rows = [method for method in methods if method.needs_pool == is_pooled]
    finished = {row.name: [run for run in runs if run.name == row.name and run.seed in row.results] for row in rows}
    return {name: [read_run(run.path) for run in of_row] for name, of_row in finished.items() if of_row}


def _describe_run(run: ComparedRun, methods: Sequence[Method]) -> dict[str, Any]:
    (method,) = (method for method in methods if method.name == run.name)
    status = method.results[run.seed].status if run.seed in method.results else "FAILED"
    return {
        "name": run.name,
        "seed": run.seed,
        "folder": str(run.path),
        "status": status,
        "changes": dict(run.changes),
    }


def _exit_code(methods: Sequence[Method]) -> int:
    if any(method.unfinished for method in methods):
        return ExitCode.FAILED
    statuses = {run.status for method in methods for run in method.results.values()}
    return ExitCode.INCOMPLETE if "INCOMPLETE" in statuses else ExitCode.COMPLETE
