"""The examples of each class at each site of imported data, as a table: Fig. 5 of AdaFed (arXiv:2112.00734)."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from silofl.base.files import write_text
from silofl.data.manifest import PARTS
from silofl_hospital.report.tables import TextTable, markdown_table, print_lines, print_table

Counts = Mapping[str, Mapping[str, Mapping[str, int]]]
Examples = Mapping[str, Mapping[str, int]]
NOTE = "A class's column counts training examples; the last three columns count all examples of each part."


def partition_table(counts: Counts, examples: Examples) -> TextTable:
    """Return one row a site with its training examples by class, then all examples of each part.

    Args:
        counts: Site -> part -> class -> number of examples; what is missing is 0.
        examples: Site -> part -> number of examples, of which one may have several findings, or none.
    """
    # In the order in which the sites name the classes.
    names: dict[str, None] = {}
    for parts in counts.values():
        for part in parts.values():
            names |= dict.fromkeys(part)
    classes = list(names)
    rows = []
    for site, parts in counts.items():
        training = parts.get("training", {})
        rows.append([training.get(name, 0) for name in classes] + [examples[site].get(part, 0) for part in PARTS])
    rows.append([sum(column) for column in zip(*rows, strict=True)])
    cells = tuple((name, *map(str, row)) for name, row in zip((*counts, "all sites"), rows, strict=True))
    return TextTable(("site", *classes, *PARTS), cells, num_summary=1)


def write_partition(folder: Path, counts: Counts, examples: Examples) -> Path:
    """Write the table as ``partition.md`` and return its path; arguments as for `partition_table`."""
    path = folder / "partition.md"
    write_text(path, markdown_table(partition_table(counts, examples), [NOTE]))
    return path


def print_partition(counts: Counts, examples: Examples, console: Console) -> None:
    """Print the table and how to read it."""
    print_table(partition_table(counts, examples), console)
    print_lines([NOTE], console)
