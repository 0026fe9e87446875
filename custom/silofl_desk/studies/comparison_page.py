"""``silofl report``: the page of one run, or one that compares several; each is a single file that loads no other."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.federation.results import Results
from silofl_desk.report.result_pictures import hospitals_image
from silofl_desk.report.rounds import ROUND_TEST, VALIDATION
from silofl_desk.report.run_page import data_blocks, page_address, write_report
from silofl_desk.report.run_records import (
    RowRuns,
    RunRecords,
    data_doubts,
    list_result_rows,
    read_run,
)
from silofl_desk.report.sentences import POOLED_MEAN
from silofl_desk.studies.comparison import (
    DRIFT_NOTE,
    ONE_SEED,
    JoiningComparison,
    compare_drift,
    compare_joining,
    comparison_notes,
    comparison_table,
    list_limits,
)
from silofl_desk.studies.comparison_figures import comparison_images, curves_image
from silofl_desk.studies.conditions import (
    data_tables,
    list_differences,
    results_by_row,
    rows_by_name,
    run_names,
    settings_rows,
)
from silofl_desk.studies.hospitals import NOTE, conclude, explain_losses, hospital_table, unseen_tables
from silofl_desk.studies.method_table import runs_table
from silofl_hospital.report.metrics import metric_sentence
from silofl_hospital.report.page import (
    REPORT,
    Banner,
    Block,
    Blocks,
    Fold,
    Heading,
    Items,
    Page,
    PageSection,
    Pairs,
    Picture,
    Table,
    Text,
    make_items,
    make_note,
    make_picture,
    make_section,
    make_table,
    print_blocks,
    write_with_files,
)
from silofl_hospital.report.tables import TextTable

PAYS = "Does joining pay?"
MEANS_NOTE = f"mean and standard deviation over a run's sites; {POOLED_MEAN}."
MODELS_NOTE = Markup(
    "A run without selector has one model. A run with a "
    "selector has four answers: <strong>global</strong>, one model for all sites; <strong>personal</strong>, each "
    "site's own model, for which one must know the site; <strong>super</strong>, where the selector looks at the "
    "images and chooses a model for each case, the run's row above; <strong>ensemble</strong>, all models averaged by "
    "the selector's scores. The mean is missing if a site is missing."
)
POOLED = Text("Trained on data pooled in one place, and so in no table of single runs:")


@dataclass(frozen=True)
class Summary:
    """The table and the notes that sum up the rows of a comparison.

    Attributes:
        table: Of all rows, where each stands for several seeds.
        notes: Sentences below it.
        centralised: Runs on the same sites' data in one place, for the links alone.
    """

    table: TextTable | None = None
    notes: Sequence[str] = ()
    centralised: Sequence[RunRecords] = ()


NO_SUMMARY = Summary()


def run(options: argparse.Namespace) -> int:
    """Write the page of one run, or that of several, and print its path."""
    # Of a downloaded job the run's folder within it.
    inner = [path / "workspace" / "silofl" for path in options.runs]
    runs = [job if job.is_dir() else path for job, path in zip(inner, options.runs, strict=True)]
    if len(runs) == 1 and options.out is None:
        print(write_report(runs[0]))
        return ExitCode.COMPLETE
    out = options.out or Path("comparison.html")
    if out.suffix != ".html":
        raise ConfigError(f"--out must end in .html, not {quote_value(out.name)}; name a page")
    print(write_comparison(runs, out))
    return ExitCode.COMPLETE


def write_comparison(runs: Sequence[Path], out: Path) -> Path:
    """Write one page with the results, curves and predictions of several runs side by side, and return its path.

    Raises:
        ConfigError: No run was named, a folder is no run, or the page cannot be written.
    """
    if not runs:
        raise ConfigError("a comparison must have at least one run, not none; name the runs' folders")
    return write_rows(rows_by_name([read_run(run) for run in runs]), out)


def write_rows(rows: RowRuns, out: Path, summary: Summary = NO_SUMMARY) -> Path:
    """Write one page on rows of runs with the files beside it, and return its path.

    Args:
        summary: What they come to.

    Raises:
        ConfigError: The page or a file beside it cannot be written.
    """
    page = make_comparison_page(rows, out.parent, summary)
    write_with_files(out, page, list_result_rows({**rows, "centralised": summary.centralised}))
    return out


def make_comparison_page(rows: RowRuns, folder: Path, summary: Summary = NO_SUMMARY) -> Page:
    """Prepare the page of a comparison.

    Args:
        folder: Of the page, from which its links lead.
        summary: What they come to.
    """
    runs = _list_runs(rows)
    number = len(runs) + len(summary.centralised)
    shown, drift = [Picture(image, "titled shrink") for image in comparison_images(runs)], compare_drift(rows)
    folders, pooled = _link_folders(runs, folder), _link_folders(summary.centralised, folder)
    pooled = [POOLED, Items(pooled, "folders")] if pooled else []
    sections = (
        _hospitals_section(rows),
        make_section("pictures", "Pictures", "The same test case in each run", shown) if shown else None,
        _numbers_section(rows, summary),
        _curves_section(runs),
        make_section("drift", "Drift", "Drift of the sites", Table(drift), make_note(DRIFT_NOTE)) if drift else None,
        make_section("data", "Data", "Data", data_blocks(data_tables(rows), data_doubts(runs))),
        _settings_section(rows),
        make_section("runs", "Runs", "The runs", Items(folders, "folders", is_numbered=True), pooled),
    )
    return Page(
        title=f"Comparison of {number} run{'s' * (number != 1)}",
        kicker="Federated trainings side by side",
        sections=[section for section in sections if section],
        footer="The page holds all it shows and loads nothing.",
        is_wide=True,
    )


def print_comparison(rows: RowRuns, console: Console) -> None:
    """Print what joining gave, in what the rows differ, their runs' values, and notes on comparing them."""
    joining = joining_blocks(compare_joining(results_by_row(rows)))
    print_blocks([*joining, *_numbers_section(rows, NO_SUMMARY).blocks], console)


def _list_runs(rows: RowRuns) -> list[RunRecords]:
    return [run for of_row in rows.values() for run in of_row]


def _hospitals_section(rows: RowRuns) -> PageSection | None:
    """Say what each hospital gains by joining; None where no hospital of any run made a choice."""
    image, joining = hospitals_image(rows), compare_joining(results_by_row(rows))
    if not image or not joining:
        return None
    # A row of several seeds has a table of its own.
    single = {name: of_row[0] for name, of_row in rows.items() if len(of_row) == 1}
    table, (first, *others) = hospital_table(single), conclude(rows)
    return make_section(
        "hospitals",
        PAYS,
        PAYS,
        Picture(image),
        Text(first, "lead"),
        [Table(one) for one in unseen_tables(rows)],
        [Table(table), make_note(NOTE)] if table else None,
        make_items([*others, *explain_losses(single)]),
        joining_blocks(joining),
    )


def joining_blocks(joining: JoiningComparison | None) -> list[Block]:
    """Return what joining gave in each row, and before it where a site loses by it; nothing without a choice."""
    if joining is None:
        return []
    better = "Not every hospital is better off with what it keeps:"
    banner: list[Block] = [Banner("bad", "BAD", better, joining.losses)] if joining.losses else []
    return [*banner, Heading("All hospitals together"), Table(joining.table), Text(joining.note, "note")]


def _numbers_section(rows: RowRuns, summary: Summary) -> PageSection:
    results = [run.results for run in _list_runs(rows)]
    differences = list_differences(rows)
    differ = "The runs differ in more than their algorithms:"
    # Of several seeds the table above marks what is best, and the notes of a summary say what limits all rows.
    has_one_seed = all(len(of_row) == 1 for of_row in rows.values())
    limits = [] if summary.notes else list_limits(results_by_row(rows))
    metrics = {run.metric: metric_sentence(run.metric, run.has_findings) for run in results if run.metric}
    return make_section(
        "results",
        "Results",
        "Results",
        Banner("warning", "NOT ALIKE", differ, differences) if differences else None,
        _summary_blocks(summary),
        _run_blocks(rows, results),
        make_items([*comparison_notes(results), *limits, *[ONE_SEED] * has_one_seed], "note"),
        make_note(MEANS_NOTE, "mean, spread, pooled"),
        [make_note(sentence, metric) for metric, sentence in metrics.items()],
    )


def _summary_blocks(summary: Summary) -> Blocks:
    if summary.table is None:
        return []
    return [Table(summary.table), make_items(summary.notes, "note"), Heading("Each run")]


def _run_blocks(rows: RowRuns, results: Sequence[Results]) -> Blocks:
    """Return one row a run, and what all of them share."""
    names = [name for name, of_row in rows.items() for _ in of_row]
    # Rows that are named by their runs' numbers have no other name.
    has_names = names != list(run_names(_list_runs(rows)))
    table, alike = comparison_table(results, names if has_names else ())
    shared = make_note(f"All runs share: {alike}." if alike else "")
    models = make_note(MODELS_NOTE) if any(run.super_model for run in results) else None
    values = runs_table({name: run.results for name, run in run_names(_list_runs(rows)).items()})
    return [Table(table), shared, make_table(values), models]


def _curves_section(runs: Sequence[RunRecords]) -> PageSection:
    validation, test = (curves_image(measure, runs) for measure in (VALIDATION, ROUND_TEST))
    return make_section(
        "curves",
        "Curves",
        "Curves",
        make_picture(validation) or Text("No run has validated a round."),
        [Heading("Test in every round"), Picture(test)] if test else None,
    )


def _settings_section(rows: RowRuns) -> PageSection:
    shared, others = settings_rows(rows)
    differing = f"Settings in which the runs differ ({len(others.rows)})" if others else ""
    return make_section(
        "settings",
        "Settings",
        "Settings",
        Fold(differing, [Table(others)]) if others else None,
        Fold(f"Settings that all runs share ({len(shared)})", [Pairs(shared)]),
    )


def _link_folders(runs: Sequence[RunRecords], folder: Path) -> list[Markup]:
    """Return each run's folder, with a link to its report where it has one."""
    found = [(run.path, page_address(run.path / REPORT, folder)) for run in runs]
    link, name = Markup('<a href="{}">report</a> of '), Markup("<code>{}</code>")
    return [(link.format(address) if address else Markup()) + name.format(path) for path, address in found]
