"""How far a gradient's direction in bfloat16 is from the one in float32: why a perturbation is found in float32.

    python bench/precision.py [--seeds 5]

For each network the cosine between the gradients of one batch of noise at its first weights, in bfloat16 and in
float32, over the seeds; and, after the steps that follow either direction, the cosine of the second gradients, which
the optimiser gets. On the GPU where there is one, otherwise on the CPU.
"""

import argparse

import torch
from torch import Tensor

from silofl.algorithms.harmofl.perturbation import _perturb_parameters
from silofl.base.settings import parse
from silofl.core.steps import frozen_statistics
from silofl.models.networks import HarmonizedModel, build_plain_model
from silofl.study import Study
from silofl.training.losses import make_loss

ALPHA, BATCH, SIZE = 0.05, 8, 64
NETWORKS = {"unet": "segmentation", "densenet121": "classification", "lenet5": "classification"}
LOSSES = {"segmentation": ("dice_ce", "dice"), "classification": ("cross_entropy", "accuracy")}


def main() -> None:
    """Print one row a network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print("| network | first gradient, bfloat16 and float32 | second gradient, after either direction |")
    print("|---|---|---|")
    for name in NETWORKS:
        first, second = zip(*(cosines(name, seed) for seed in seeds), strict=True)
        print(f"| {name} | {spread(first)} | {spread(second)} |")


def cosines(name: str, seed: int) -> tuple[float, float]:
    """Return the cosines of the first and of the second gradients of one batch."""
    study = study_of(name)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, loss = build_plain_model(study, seed).to(device), make_loss(study)
    torch.manual_seed(seed)
    inputs = torch.randn(BATCH, 3, SIZE, SIZE, device=device)
    shape = (BATCH, SIZE, SIZE) if study.task == "segmentation" else (BATCH,)
    num_classes = len(study.labels) + (study.task == "segmentation")
    targets = torch.randint(num_classes, shape, device=device)
    firsts, seconds = [], []
    for is_autocast in (True, False):
        firsts.append(gradient(model, loss, inputs, targets, is_autocast))
        with frozen_statistics(model), _perturb_parameters(model, ALPHA):
            seconds.append(gradient(model, loss, inputs, targets, is_autocast=True))
    return cosine(*firsts), cosine(*seconds)


def gradient(
    model: HarmonizedModel, loss: torch.nn.Module, inputs: Tensor, targets: Tensor, is_autocast: bool
) -> Tensor:
    """Return the gradient as one vector, and leave it in the parameters."""
    model.train()
    model.zero_grad(set_to_none=True)
    model.is_autocast = is_autocast
    loss(model(inputs), targets).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


def cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine between two vectors."""
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def study_of(name: str) -> Study:
    """Return a study with a network in bfloat16."""
    task = NETWORKS[name]
    loss, metric = LOSSES[task]
    values = {
        "name": "precision",
        "task": task,
        "labels": {1: "organ"} if task == "segmentation" else {i: f"class{i}" for i in range(4)},
        "rounds": 1,
        "metric": metric,
        "data": {"channels": 3},
        "model": {"name": name, "precision": "bfloat16"},
        "training": {"loss": loss},
        "algorithm": {"name": "fedavg"},
    }
    return parse(Study, values, "the bench")


def spread(values: tuple[float, ...]) -> str:
    """Return the mean with its extremes."""
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
