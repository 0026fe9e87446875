"""``silofl import``: write the site folders of a data set, and print the counts of its parts and classes."""

import argparse
import json
from dataclasses import asdict

from silofl.base.errors import ExitCode, make_printable
from silofl.base.options import make_console
from silofl_hospital.importing.importers import ImportOptions, ImportSummary, import_layout, list_content
from silofl_hospital.report.partition import print_partition, write_partition


def run(options: argparse.Namespace) -> int:
    """Import data and print the counts of each site; without a target print what is there."""
    if options.target is None:
        return _print_content(options)
    labels, label_values = options.labels
    settings = ImportOptions(
        seed=options.seed,
        test=options.test,
        validation=options.validation,
        labels=labels,
        label_values=label_values,
        image_pattern=",".join(options.image_pattern) if options.image_pattern else None,
        mask_pattern=options.mask_pattern,
        arrangement=options.arrangement,
    )
    report_import(import_layout(options.layout, options.source, options.target, settings), options)
    return ExitCode.COMPLETE


def report_import(summary: ImportSummary, options: argparse.Namespace) -> None:
    """Print the counts of what an import wrote; those of classes are written to the target too.

    Args:
        options: The command's, with the target, and whether JSON is printed.
    """
    if summary.classes:
        write_partition(options.target, summary.classes, summary.examples)
    if options.json:
        print(json.dumps({key: value for key, value in asdict(summary).items() if value}))
    else:
        _print_summary(summary, options)


def _print_content(options: argparse.Namespace) -> int:
    found = list_content(options.layout, options.source)
    if options.json:
        print(json.dumps([dict(zip(found.columns, row, strict=True)) for row in found.rows]))
        return ExitCode.COMPLETE
    # Not a table that a terminal's width cuts: who pipes it looks for descriptions.
    rows = [tuple(map(make_printable, row)) for row in (found.columns, *found.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(found.advice)
    return ExitCode.COMPLETE


def _print_summary(summary: ImportSummary, options: argparse.Namespace) -> None:
    for site, examples in summary.examples.items():
        counts = ", ".join(f"{number} {part}" for part, number in examples.items())
        known = summary.patients[site]
        patients = f"{known} patient{'s' * (known != 1)}" if known else "patients unknown"
        print(f"{site}: {counts}, {patients}")
    for note in summary.notes:
        print(make_printable(note))
    if summary.classes:
        print_partition(summary.classes, summary.examples, make_console(options))
