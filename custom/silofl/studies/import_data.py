"""``silofl import``: write the site folders of a public data set, and print the counts of its parts and classes."""

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path

from silofl.data.importers import LAYOUTS, PARTITIONS, ImportOptions, ImportSummary, import_layout
from silofl.errors import ExitCode, quote_value
from silofl.options import make_console, parse_count, parse_names, parse_natural, parse_share

LABEL = re.compile(r"(?P<value>[0-9]{1,9})=(?P<name>.+)")


def parse_label_names(text: str) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Read ``organ,lesion``, or with their values in the masks ``1=organ,4=lesion``."""
    parts = [part.strip() for part in parse_names(text)]
    if "=" not in text:
        return tuple(parts), None
    found = [LABEL.fullmatch(part) for part in parts]
    if not all(found):
        raise argparse.ArgumentTypeError(
            f"must be names, as organ,lesion, or a value and a name for each label, as 1=organ,4=lesion, not "
            f"{quote_value(text)}"
        )
    return tuple(one["name"] for one in found), tuple(int(one["value"]) for one in found)


class _ChosenLayout(argparse.Action):
    """Keeps the layout, and lets the help that may follow end with what is to be said of it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str,
        option_string: str | None = None,
    ) -> None:
        namespace.layout = values
        parser.epilog = f"{values}:\n\n{LAYOUTS[values].description}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl import``."""
    summaries = {name: LAYOUTS[name].description.partition("\n")[0] for name in sorted(LAYOUTS)}
    listed = [f"  {name}\n      {summary}" for name, summary in summaries.items()]
    ending = "silofl import LAYOUT --help says where to get a set and what SOURCE must hold"
    parser.epilog = "\n".join(["layouts:", *listed, "", ending])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    known = {"choices": sorted(LAYOUTS), "metavar": "LAYOUT", "help": "form of the set, named below"}
    parser.add_argument("layout", action=_ChosenLayout, **known)
    parser.add_argument("source", type=Path, help="the downloaded set")
    parser.add_argument("target", type=Path, help="new folder for the sites")
    labels = "names in the order of the labels' numbers, as organ,lesion; with values in the masks 1=organ,4=lesion"
    parser.add_argument("--labels", type=parse_label_names, default=(None, None), help=labels)
    image_pattern = "where a site's images lie, as images/{case}.png or T1={case}/t1.nii.gz,T2={case}/t2.nii.gz"
    parser.add_argument("--image-pattern", metavar="PATTERN", help=image_pattern)
    parser.add_argument("--mask-pattern", metavar="PATTERN", help="where its masks lie, as {case}/seg.nii.gz")
    parser.add_argument("--seed", type=parse_natural, default=0, help="of every random choice")
    parser.add_argument("--partition", choices=PARTITIONS, help="how examples of classes come to sites")
    parser.add_argument("--sites", type=parse_count, help="number of sites to make")
    parser.add_argument("--alpha", type=float, help="of dirichlet: small values differ more")
    # None where not given, as for all options that a partition may not use.
    parser.add_argument("--equal-sizes", action="store_true", default=None, help="of dirichlet: of all sites")
    parser.add_argument("--shards", type=parse_count, help="of shards: for each site")
    parser.add_argument(
        "--test", type=parse_share, help="share of a site's patients, recordings or examples for the test"
    )
    parser.add_argument("--validation", type=parse_share, help="share of the others for validation")
    parser.add_argument("--truncate", action="store_true", help="cut every site to the smallest's training examples")
    parser.add_argument("--json", action="store_true", help="the counts as JSON")


def run(options: argparse.Namespace) -> int:
    """Import a set and print the counts of each site."""
    labels, label_values = options.labels
    settings = ImportOptions(
        seed=options.seed,
        test=options.test,
        validation=options.validation,
        num_sites=options.sites,
        labels=labels,
        label_values=label_values,
        image_pattern=options.image_pattern,
        mask_pattern=options.mask_pattern,
        alpha=options.alpha,
        is_truncated=options.truncate,
        partition=options.partition,
        num_shards=options.shards,
        is_equal=options.equal_sizes,
    )
    summary = import_layout(options.layout, options.source, options.target, settings)
    if summary.classes:
        # Imported here, because matplotlib takes seconds and segmentation sets need no plot.
        from silofl.report.maps import write_partition

        write_partition(options.target, summary.classes)
    if options.json:
        print(json.dumps({key: value for key, value in asdict(summary).items() if value}))
    else:
        _print_summary(summary, options)
    return ExitCode.COMPLETE


def _print_summary(summary: ImportSummary, options: argparse.Namespace) -> None:
    for site, examples in summary.examples.items():
        counts = ", ".join(f"{number} {part}" for part, number in examples.items())
        known = summary.patients[site]
        patients = f"{known} patient{'s' * (known != 1)}" if known else "patients unknown"
        print(f"{site}: {counts}, {patients}")
    for note in summary.notes:
        print(note)
    if summary.classes:
        from silofl.report.maps import print_partition

        print_partition(summary.classes, make_console(options))
