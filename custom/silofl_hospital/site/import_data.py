"""``silofl import``: write the site folders of a data set, and print the counts of its parts and classes."""

import argparse
import json
from dataclasses import asdict

from silofl.base.errors import ExitCode, make_printable
from silofl.base.options import make_console
from silofl_hospital.importing.importers import ImportSummary, import_layout, list_content
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.report.partition import print_partition, write_partition


def run(options: argparse.Namespace) -> int:
    """Import data and print the counts of each site; without a target print what is there."""
    if options.target is None:
        return _print_content(options)
    settings = ImportOptions(
        seed=options.seed,
        test=options.test,
        validation=options.validation,
        **ImportOptions.parse_labels(options.labels or (), options.layout == "table"),
        image_pattern=",".join(options.image_pattern) if options.image_pattern else None,
        mask_pattern=options.mask_pattern,
        mask_threshold=options.mask_threshold,
        resample_masks=options.resample_masks,
        skip=options.skip,
        voxel_size=options.voxel_size,
        window=options.window,
        rate=options.rate,
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
    content = list_content(options.layout, options.source)
    if options.json:
        print(json.dumps(content))
        return ExitCode.COMPLETE
    lines = [""] * (len(content) + 1)
    # No terminal's width cuts the columns: who pipes them looks for descriptions.
    for column in content[0]:
        cells = [column, *(make_printable(row[column]) for row in content)]
        width = max(map(len, cells))
        lines = [f"{line}{cell:<{width}}  " for line, cell in zip(lines, cells, strict=True)]
    print("\n".join(line.rstrip() for line in lines))
    print("take series with --image-pattern MODALITY/DESCRIPTION, as CT/*portal*")
    return ExitCode.COMPLETE


def _print_summary(summary: ImportSummary, options: argparse.Namespace) -> None:
    for site, examples in summary.examples.items():
        counts = ", ".join(f"{number} {part}" for part, number in examples.items())
        number = summary.patients[site]
        patients = "1 patient" if number == 1 else f"{number} patients"
        print(f"{site}: {counts}, {patients if number else 'patients unknown'}")
    for note in summary.notes:
        print(make_printable(note))
    if summary.classes:
        print_partition(summary.classes, summary.examples, make_console(options))
