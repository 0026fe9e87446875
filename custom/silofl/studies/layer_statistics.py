"""``silofl layer-statistics``: do BatchNorm's running statistics stand for those of a layer's inputs?

AdaFed's Fig. 4 (Chen et al., arXiv:2112.00734): what f-AdaFed compares sites by, the running mean and variance of each
BatchNorm layer, beside what AdaFed collects, mean and variance of the layer's inputs over the site's training data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from silofl.algorithms.adafed import collect_statistics
from silofl.data.batches import evaluation_batches
from silofl.errors import ConfigError, ExitCode
from silofl.options import add_json
from silofl.report.layer_statistics import Pair, correlations, statistics_image, statistics_table
from silofl.studies.finished import FinishedRun, finished_run, tell
from silofl.studies.leave_out import networks_of_sites
from silofl.training.device import choose_device


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl layer-statistics``."""
    parser.add_argument("run", type=Path, help="folder of a finished simulation whose network has BatchNorm")
    add_json(parser, "layer_statistics.json")


def run(options: argparse.Namespace) -> int:
    """Measure, print the correlations, and write them and the figure into the run's folder."""
    pairs = layer_pairs(finished_run(options.run))
    tell(options, "layer_statistics", correlations(pairs), statistics_image(pairs), statistics_table(pairs))
    return ExitCode.COMPLETE


def layer_pairs(found: FinishedRun) -> dict[str, dict[str, list[Pair]]]:
    """Return site -> ``mean`` and ``variance`` -> for each BatchNorm layer (running, of the inputs), each (channels,).

    Raises:
        ConfigError: The network has no BatchNorm with running statistics.
    """
    study, device = found.models.study, choose_device(found.models.study.device)
    if study.model.normalization != "batch":
        raise ConfigError(
            f"the run's network must have BatchNorm, not normalization {study.model.normalization}; name another run"
        )
    torch.set_num_threads(study.torch_threads)
    pairs = {}
    for site, model in networks_of_sites(found.models, device):
        batches = evaluation_batches(found.data[site].training, study.training.batch_size, device)
        collected = collect_statistics(model, (inputs for inputs, _ in batches))
        running = running_statistics(model)
        pairs[site] = {
            kind: [(own[place], of_inputs[place]) for own, of_inputs in zip(running, collected, strict=True)]
            for place, kind in enumerate(("mean", "variance"))
        }
    return pairs


def running_statistics(model: nn.Module) -> list[tuple[NDArray, NDArray]]:
    """Return running mean and variance of each BatchNorm layer, each of shape (channels,), in the model's order."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    return [(layer.running_mean.cpu().numpy(), layer.running_var.cpu().numpy()) for layer in layers]
