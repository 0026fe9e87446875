"""``silofl report``: the page of one run, or one that compares several; each is a single file that loads no other."""

import argparse
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from markupsafe import Markup
from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl_desk.report.result_pictures import hospitals_image
from silofl_desk.report.rounds import ROUND_TEST, VALIDATION
from silofl_desk.report.run_page import page_address, write_report
from silofl_desk.report.run_records import RowRuns, RunRecords, list_result_rows, read_run
from silofl_desk.studies.comparisons.comparison import list_notes, list_trained_rows, methods_table
from silofl_desk.studies.comparisons.comparison_figures import comparison_images, curves_image
from silofl_desk.studies.comparisons.conditions import list_differences, rows_by_name
from silofl_desk.studies.comparisons.hospitals import NOTE, conclude, hospital_table, list_losses, unseen_tables
from silofl_hospital.report.page import (
    REPORT,
    Banner,
    Block,
    Heading,
    Items,
    Page,
    PageSection,
    Picture,
    Table,
    Text,
    make_items,
    make_picture,
    make_section,
    print_blocks,
    write_with_files,
)

PAYS = "Does joining pay?"
NOT_BETTER = "Not every hospital is better off with what it keeps:"
DIFFER = "The runs differ in more than their algorithms:"


def run(options: argparse.Namespace) -> int:
    """Write the page of one run, or that of several, and print its path."""
    runs = []
    for path in options.runs:
        # A downloaded job has its run's folder within it.
        inner = path / "workspace" / "silofl"
        runs.append(inner if inner.is_dir() else path)
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
        ConfigError: A folder is no run, or the page cannot be written.
    """
    return write_rows(rows_by_name([read_run(run) for run in runs]), out)


def write_rows(rows: RowRuns, out: Path, more: Sequence[str] = ()) -> Path:
    """Write one page on rows of runs with the files beside it, and return its path.

    Args:
        more: Further notes.

    Raises:
        ConfigError: The page or a file beside it cannot be written.
    """
    write_with_files(out, make_comparison_page(rows, out.parent, more), list_result_rows(rows))
    return out


def make_comparison_page(rows: RowRuns, folder: Path, more: Sequence[str] = ()) -> Page:
    """Prepare the page of a comparison.

    Args:
        folder: Of the page, from which its links lead.
        more: Further notes.
    """
    trained = list_trained_rows(rows)
    runs = list(chain(*trained.values()))
    sections = []
    joining = joining_blocks(trained)
    # What joining gave stands first: a hospital asks that, and no table of methods.
    if joining:
        sections.append(make_section("hospitals", PAYS, PAYS, make_picture(hospitals_image(trained)), joining))
    # Only a simulation's runs have pictures: hospitals keep theirs.
    pictures = [Picture(image, "titled shrink") for image in comparison_images(runs)]
    if pictures:
        sections.append(make_section("pictures", "Pictures", "The same test case in each run", pictures))
    sections.append(make_section("results", "Results", "Results", number_blocks(rows, more)))
    sections.append(_curves_section(runs))
    # The list names the runs on pooled data too, which have no curves and pictures here.
    links = []
    for name, of_row in rows.items():
        links += [_link_run(name, run, folder) for run in of_row]
    sections.append(make_section("runs", "Runs", "The runs", Items(links, "folders", True)))
    number = "1 run" if len(links) == 1 else f"{len(links)} runs"
    return Page(
        title=f"Comparison of {number}",
        kicker="Federated trainings side by side",
        sections=sections,
        footer="The page holds all it shows and loads nothing.",
        is_wide=True,
    )


def print_comparison(rows: RowRuns, console: Console, more: Sequence[str] = ()) -> None:
    """Print what joining gave, then the table with its notes."""
    print_blocks([*joining_blocks(list_trained_rows(rows)), *number_blocks(rows, more)], console)


def joining_blocks(rows: RowRuns) -> list[Block]:
    """Return what joining gave each hospital, and before it where a hospital loses by it; nothing without a choice."""
    table = hospital_table(rows)
    if table is None:
        return []
    blocks: list[Block] = []
    losses = list_losses(rows)
    if losses:
        blocks.append(Banner("bad", "BAD", NOT_BETTER, losses))
    return [*blocks, *map(Text, conclude(rows)), *map(Table, unseen_tables(rows)), Table(table), Text(NOTE, "note")]


def number_blocks(rows: RowRuns, more: Sequence[str] = ()) -> list[Block]:
    """Return the table of methods by sites with its notes, and before it what differs between its rows."""
    blocks: list[Block] = []
    differences = list_differences(list_trained_rows(rows))
    if differences:
        blocks.append(Banner("warning", "NOT ALIKE", DIFFER, differences))
    blocks.append(Table(methods_table(rows)))
    notes = make_items([*list_notes(rows), *more], "note")
    if notes:
        blocks.append(notes)
    return blocks


def _curves_section(runs: Sequence[RunRecords]) -> PageSection:
    validation = curves_image(VALIDATION, runs)
    # Most runs test only their last model.
    test = curves_image(ROUND_TEST, runs)
    return make_section(
        "curves",
        "Curves",
        "Curves",
        make_picture(validation) or Text("No run has validated a round."),
        [Heading("Test in every round"), Picture(test)] if test else None,
    )


def _link_run(name: str, run: RunRecords, folder: Path) -> Markup:
    """Return a run with its state and folder, and a link to its report where it has one."""
    address = page_address(run.path / REPORT, folder)
    link = Markup('<a href="{}">report</a> of ').format(address) if address else Markup()
    # A run that failed early has no model.
    facts = [name, f"seed {run.results.seed}", run.results.status, run.results.model]
    return Markup("{}: {}<code>{}</code>").format(", ".join(filter(None, facts)), link, run.path)
