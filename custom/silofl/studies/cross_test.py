"""``silofl cross-test``: each site's model of a finished simulation on every site's test data.

With the algorithm ``local`` these are the rows "Client k Local" of FedSM's Tables 3 and 4 (Xu et al., CVPR 2022,
arXiv:2203.10144): how far what a site learns alone carries to the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from silofl.data.parts import Examples, joined
from silofl.data.site_data import SiteData
from silofl.errors import ExitCode
from silofl.inference.contents import Contents
from silofl.options import add_json
from silofl.report.cross_test import cross_image, cross_table
from silofl.studies.finished import finished_run, tell
from silofl.studies.leave_out import networks_of_sites
from silofl.study import Study
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
    found = finished_run(options.run)
    values, metric = cross_test(found.models, found.data), found.models.study.metric
    tell(options, "cross_test", {"metric": metric, "values": values}, cross_image(values, metric), cross_table(values))
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
    if not len(part):
        return None
    _, score = evaluate(model, part, study, device)
    return score.value if score.num_cases else None
