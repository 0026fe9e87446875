"""``silofl cross-test``: each site's model of a finished simulation on every site's test data.

With the algorithm ``local`` these are the rows "Client k Local" of FedSM's Tables 3 and 4 (Xu et al., CVPR 2022,
arXiv:2203.10144): how far what a site learns alone carries to the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from silofl.data.parts import Examples, joined
from silofl.data.site_data import SiteData
from silofl.errors import ConfigError, ExitCode
from silofl.federation.results import read_results
from silofl.files import write_atomically, write_json
from silofl.inference.contents import Contents
from silofl.options import add_json, console_for
from silofl.report.cross_test import NOTE, cross_image, cross_table
from silofl.report.tables import print_lines, print_table
from silofl.studies import simulate
from silofl.studies.leave_out import assembled, networks_of_sites
from silofl.studies.simulation import read_simulation, study_file
from silofl.study import Study, load_study
from silofl.training.device import choose_device
from silofl.training.evaluation import evaluate

# Of all sites' test data together.
EVERYONE = "all sites"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl cross-test``."""
    parser.add_argument("run", type=Path, help="folder of a finished simulation")
    add_json(parser, "cross_test.json")


def run(options: argparse.Namespace) -> int:
    """Test, print the table, and write ``cross_test.json`` and ``cross_test.png`` into the run's folder."""
    path, console = options.run, console_for(options)
    if not (path / "run.json").is_file():
        raise ConfigError(
            f"{path} must hold a simulation, with a run.json; it holds none: name the folder given to --out"
        )
    results = read_results(path)
    if results is None or not results.is_finished:
        raise ConfigError(f"{path} must hold a finished run; it has no result yet: silofl resume {path}")
    study, simulation = load_study(study_file(path / "job")), replace(read_simulation(path), left_out=None)
    values = cross_test(assembled(path), simulate.read_data(study, simulation, path))
    write_json(path / "cross_test.json", {"metric": study.metric, "values": values})
    image = cross_image(values, study.metric)
    write_atomically(path / "cross_test.png", lambda stream: stream.write(image.png))
    _show(values, path, console)
    if options.json:
        print((path / "cross_test.json").read_text(), end="")
    return ExitCode.COMPLETE


def cross_test(contents: Contents, data: Mapping[str, SiteData]) -> dict[str, dict[str, float | None]]:
    """Test each site's model on each site's test data, and on all of them together.

    Args:
        contents: The sites' models.
        data: Site -> its data.

    Returns:
        Site of the model -> site of the data, ``all sites`` last -> the study's metric; None where no case counts.
    """
    study, device = contents.study, choose_device(contents.study.device)
    tests = {site: own.test for site, own in data.items()}
    tests |= {EVERYONE: joined(tests)}
    # Set as at the sites: other thread counts round sums differently.
    torch.set_num_threads(study.torch_threads)
    found: dict[str, dict[str, float | None]] = {}
    for owner, model in networks_of_sites(contents, device):
        found[owner] = {site: _value(model, part, study, device) for site, part in tests.items()}
    return found


def _value(model: nn.Module, part: Examples, study: Study, device: torch.device) -> float | None:
    if not len(part.images):
        return None
    _, score = evaluate(model, part, study, device)
    return score.value if score.num_cases else None


def _show(values: Mapping[str, Mapping[str, float | None]], path: Path, console: Console) -> None:
    print_table(cross_table(values), console)
    print_lines([NOTE], console)
    console.print(f"{path / 'cross_test.json'}, {path / 'cross_test.png'}", markup=False)
