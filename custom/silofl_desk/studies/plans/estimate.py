"""``silofl estimate``: the bytes that a job will send by its declared shapes; hours and memory a rehearsal measures."""

import argparse
import json
import re
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.options import make_console
from silofl.study import Study
from silofl_desk.options import read_changes
from silofl_desk.studies.plans.declared_shapes import image_shape
from silofl_desk.studies.runs.simulation import changed_study
from silofl_desk.studies.runs.traffic import count_traffic
from silofl_hospital.report.tables import print_lines

MIB = 1 << 20


def run(options: argparse.Namespace) -> int:
    """Print an estimate."""
    study = changed_study(options.job, read_changes(options))
    console = make_console(options)
    values = estimate(study, options.sites, options.image_size)
    if options.json:
        print(json.dumps(values, indent=1))
    else:
        print_estimate(values, console)
    print_lines([f"CAUTION  {caution}" for caution in study.cautions], console)
    return ExitCode.COMPLETE


def estimate(study: Study, sites: int, image_size: str | None = None) -> dict[str, Any]:
    """Return the bytes of a study, for each site, with its digest, which hospitals compare.

    Args:
        sites: Sites that take part in every round.
        image_size: Of the sites' images, as ``96x128``, for studies that leave it open or learn from patches.

    Raises:
        ConfigError: The size is not possible, or the study does not allow so few sites.
    """
    for key, wanted in (("min_sites", study.federation.min_sites), ("sites", study.federation.num_sites or 1)):
        if wanted > sites:
            raise ConfigError(f"--sites must be at least federation.{key}, {wanted}, not {sites}")
    # A network's size does not depend on the images', but that of an input normalisation does.
    shape = image_shape(study, read_size(image_size, study) if image_size else None)
    traffic = count_traffic(study, sites, shape)
    rounds = enumerate(zip(traffic.bytes_to, traffic.bytes_from, strict=True), start=1)
    return {
        "study": study.name,
        "sites": sites,
        "image_shape": shape,
        "rounds": [{"round": number, "bytes_to": to, "bytes_from": back} for number, (to, back) in rounds],
        "finish_bytes_to": traffic.finish_bytes_to,
        "finish_bytes_from": traffic.finish_bytes_from,
        "bytes_per_site": traffic.site_bytes,
        "digest": study.digest,
    }


def read_size(text: str, study: Study) -> tuple[int, ...]:
    """Return height and width of a text as ``96x128``, or X, Y and Z of one as ``96x96x32``.

    Raises:
        ConfigError: It is not as many whole numbers above 0 as the study's examples have sides.
    """
    sides = tuple(int(side) for side in text.split("x")) if re.fullmatch(r"\d+(x\d+)*", text) else (0,)
    if len(sides) != study.data.dimensions or not all(sides):
        raise ConfigError(
            f"--image-size must have {study.data.dimensions} sides, as data.dimensions: HxW in pixels, as 96x128, or "
            f"XxYxZ of volumes, as 96x96x32 (in mm if the study has Spacing, else in voxels), not {quote_value(text)}"
        )
    return sides


def print_estimate(found: dict[str, Any], console: Console) -> None:
    """Print an estimate as a table of rounds and lines."""
    table = Table("round", "MiB to a site", "MiB from a site", box=SIMPLE_HEAD)
    # Rounds that send as much stand in one line.
    for (to, back), group in groupby(found["rounds"], key=itemgetter("bytes_to", "bytes_from")):
        numbers = [str(record["round"]) for record in group]
        table.add_row("-".join(dict.fromkeys((numbers[0], numbers[-1]))), f"{to / MIB:.2f}", f"{back / MIB:.2f}")
    table.add_row("end", f"{found['finish_bytes_to'] / MIB:.2f}", f"{found['finish_bytes_from'] / MIB:.2f}")
    console.print(table)
    # The server sends and receives what all sites do.
    of_site = found["bytes_per_site"] / MIB
    lines = [
        f"size of an example: {'x'.join(map(str, found['image_shape']))}",
        f"line of each site: {of_site:.1f} MiB in at most {len(found['rounds'])} rounds",
        f"line of the server: {found['sites'] * of_site:.1f} MiB",
        "hours, memory and differential privacy: silofl run --rehearse measures them at the hospitals",
        f"digest of the study as it is: {found['digest']}",
    ]
    print_lines(lines, console)
