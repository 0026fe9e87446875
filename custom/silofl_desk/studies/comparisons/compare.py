"""``silofl compare``: run every job and every method with each seed on the same data, and write one table."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.console import Console

from silofl.base.errors import ExitCode, SiloFLError
from silofl.base.files import write_json, write_text
from silofl.base.options import make_console
from silofl.federation.results import read_results
from silofl_desk.options import path_to_text, read_changes
from silofl_desk.report.run_records import RowRuns, RunRecords, read_run
from silofl_desk.report.sentences import changes_sentence
from silofl_desk.studies.comparisons import pooled as centralised
from silofl_desk.studies.comparisons.compared_runs import (
    ComparedRun,
    ComparisonPlan,
    list_other_methods,
    plan_runs,
)
from silofl_desk.studies.comparisons.comparison import (
    CENTRALISED,
    compared_sites,
    list_notes,
    list_trained_rows,
    methods_table,
    methods_values,
)
from silofl_desk.studies.comparisons.comparison_page import print_comparison, write_rows
from silofl_desk.studies.comparisons.conditions import list_differences
from silofl_desk.studies.comparisons.hospitals import NOTE, conclude, hospital_table, list_losses
from silofl_desk.studies.comparisons.side_by_side import run_side_by_side
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.simulation import changed_study, check_no_file
from silofl_desk.studies.runs.weights import find_weights_file
from silofl_hospital.report.tables import markdown_table


def run(options: argparse.Namespace) -> int:
    """Run a comparison and return its exit code."""
    asked = ComparisonPlan(
        jobs=tuple(options.jobs),
        methods=tuple(options.methods),
        variants=options.variants,
        changes=read_changes(options),
        seeds=tuple(dict.fromkeys(options.seeds)),
        data=path_to_text(options.data),
        is_pooled=options.pooled,
        pretrained=path_to_text(options.pretrained),
        weights=path_to_text(options.weights and find_weights_file(options.weights)),
        is_in_process=options.in_process,
        cache=path_to_text(options.cache),
        skip_unreadable=options.skip_unreadable,
        has_equal_rounds=options.equal_rounds,
    )
    code = compare(asked, options.out, make_console(options), options.processes)
    # An interrupted comparison has written no table.
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
    check_no_file(out, "--out")
    runs = plan_runs(asked, out)
    # A method that is what the first job does has no row of its own.
    further_methods = list_other_methods(asked)
    same_methods = [name for name in asked.methods if name not in further_methods]
    if same_methods:
        console.print(
            f"{', '.join(same_methods)}: the row {runs[0].name}, which is what the first job does", markup=False
        )
    if asked.is_pooled:
        runs += centralised.plan_centralised_runs(asked, out, console)
    # Local training leaves its models, trained to their end, to the other rows, which compare with them.
    alone = [run for run in runs if changed_study(run.job, run.changes).recipe.trains_alone]
    failures: dict[Path, str] = {}
    try:
        for group in (alone, [run for run in runs if run not in alone]):
            if processes == 1:
                failures |= _run_in_turn(group, console)
            elif group:
                failures |= run_side_by_side(group, out, processes, console)
    except KeyboardInterrupt:
        console.print("to go on with the comparison, give the same command again")
        return ExitCode.INTERRUPTED
    rows, unfinished = collect_rows(runs, failures)
    more = [f"{name}, seed {seed}: no numbers: {why}" for (name, seed), why in unfinished.items()]
    for name, changes in {"every row": asked.changes, **asked.variants}.items():
        if changes:
            more.append(f"Set for {name}: {changes_sentence(changes)}.")
    _write_table(rows, more, runs, out, console)
    # A run without numbers weighs more than one in which a site failed.
    if unfinished:
        return ExitCode.FAILED
    if any(run.results.status == "INCOMPLETE" for run in chain(*rows.values())):
        return ExitCode.INCOMPLETE
    return ExitCode.COMPLETE


def _run_in_turn(runs: Sequence[ComparedRun], console: Console) -> dict[Path, str]:
    """Carry out one run after another in this process; returns the folder of each that could not be -> why."""
    failures = {}
    for run in runs:
        console.print(f"\n{run.name}, seed {run.seed}:", markup=False)
        try:
            if _carry_out_run(run, console) == ExitCode.INTERRUPTED:
                # The runs that are left must not begin.
                raise KeyboardInterrupt
        except (SiloFLError, OSError) as error:
            # The other rows are trained all the same: a comparison may take days.
            console.print(f"the run failed: {error}", markup=False)
            failures[run.path] = str(error)
    return failures


def _carry_out_run(run: ComparedRun, console: Console) -> int:
    if not run.has_started:
        return simulate.start_simulation(run.job, run.path, run.wanted, run.changes, console)
    if not simulate.is_finished(run.path):
        return simulate.resume(run.path, console)
    console.print(f"already finished: {run.path}", markup=False)
    return ExitCode.COMPLETE


def collect_rows(
    runs: Sequence[ComparedRun], failures: Mapping[Path, str]
) -> tuple[RowRuns, dict[tuple[str, int], str]]:
    """Return row -> its runs with numbers, and row and seed -> why there are none.

    Args:
        runs: In the order of the rows.
        failures: Folder -> why a run could not be carried out.
    """
    unfinished: dict[tuple[str, int], str] = {}
    rows: dict[str, list[RunRecords]] = {}
    for run in runs:
        # A row without any number keeps its place in the table.
        of_row = rows.setdefault(run.name, [])
        results = read_results(run.path)
        if results is None:
            early = f"it ended early, and {run.path / 'log.txt'} says why"
            unfinished[run.name, run.seed] = failures.get(run.path, early)
        elif not results.is_finished:
            unfinished[run.name, run.seed] = "; ".join(results.reasons)
        else:
            records = read_run(run.path)
            # A run on pooled data has its results by the sites that the cases come from.
            if run.name == CENTRALISED:
                records = replace(records, results=centralised.regroup_by_site(run.path, results))
            of_row.append(records)
    return rows, unfinished


def _write_table(rows: RowRuns, more: Sequence[str], runs: Sequence[ComparedRun], out: Path, console: Console) -> None:
    """Print what joining gave and the table with its notes, and write them for readers and for programs."""
    trained = list_trained_rows(rows)
    notes = [*list_notes(rows), *more]
    console.print()
    print_comparison(rows, console, more)
    differences = list_differences(trained)
    text = markdown_table(methods_table(rows), notes, differences)
    joining = hospital_table(trained)
    if joining:
        # What joining gave stands first: it is what a hospital asks.
        text = markdown_table(joining, [NOTE], [*list_losses(trained), *conclude(trained)]) + "\n" + text
    write_text(out / "table.md", text)
    statuses = {run.path: run.results.status for run in chain(*rows.values())}
    # A program finds all runs here, also those without numbers.
    values = {
        "seeds": sorted({run.seed for run in runs}),
        "sites": compared_sites(rows),
        "rows": methods_values(rows),
        "differences": differences,
        "notes": notes,
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "folder": str(run.path),
                "status": statuses.get(run.path, "FAILED"),
                "changes": dict(run.changes),
            }
            for run in runs
        ],
    }
    write_json(out / "table.json", values)
    console.print(f"table: {out / 'table.md'}, {out / 'table.json'}", markup=False)
    if trained:
        console.print(f"page: {write_rows(rows, out / 'comparison.html', more)}", markup=False)
