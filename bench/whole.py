"""The promises of whole runs: a study beside a plain loop of the same, twenty sites, and many parameters."""

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import scale
import torch
from echo import echoed
from measured import Row, medians
from memory import GIB
from reading import write_tiles

from silofl.data.batches import training_batches
from silofl.data.site_data import SiteData, load_site_data
from silofl.data.transforms import build_augmentation
from silofl.models import build_plain_model
from silofl.study import Study
from silofl.training.device import derive_seed
from silofl.training.evaluation import evaluate
from silofl.training.loop import make_optimizer
from silofl.training.losses import make_loss
from silofl_desk.phantoms.phantoms import SITES, make_phantoms
from silofl_desk.studies.runs.simulation import changed_study

JOB = Path(__file__).parents[1] / "jobs" / "fedavg_phantoms"
ROUNDS = 8
# Eight small tiles train, one batch, so that the parameters weigh most.
FEW_TILES = (10, (32, 32))
# A U-Net of 31 million parameters, trained without all that a tile of 32 x 32 does not need.
LARGE_NETWORK = (
    "data.transforms=[]",
    "data.volume_transforms=[]",
    "data.augment=[]",
    "model.features=[64, 128, 256, 512, 1024, 64]",
    "model.normalization=group",
    "labels={1: nucleus}",
    "rounds=4",
)
# No baseline comparison, whose local model the plain loop does not train.
CHANGES = {"baseline_comparison": False, "rounds": ROUNDS, "device": "cpu"}
CPU = torch.device("cpu")


def whole_run(is_short: bool) -> Iterator[Row]:
    """Compare four phantom sites and eight rounds of the demonstration's FedAvg with a plain loop over the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_phantoms(folder / "phantoms", 0)
        study = changed_study(JOB, CHANGES)
        started = time.perf_counter()
        data = {site: load_site_data(folder / "phantoms" / site, study, folder / "cache", False) for site in SITES}
        reading = time.perf_counter() - started
        rounds, plain = plain_loop(study, data)
        plain += reading
        alone, _ = silofl(folder, "alone", "--in-process")
        network, ledger = silofl(folder, "network")
        nvflare = echoed(folder / "echo", study, len(SITES), data[SITES[0]].image_shape)
    cores = len(os.sched_getaffinity(0))
    what = f"4 sites, {ROUNDS} rounds of FedAvg on phantoms, "
    yield Row(f"{what}--in-process", alone, "a plain loop, reading, rounds and test", plain, 1.5, aim=1.15)
    yield Row(f"{what}simulator", network, "a plain loop, reading, rounds and test", plain, 1.5, aim=0.9)
    round_s = statistics.median(ledger[1:])
    beside = f"the plain round on {cores} cores"
    yield Row("of that, the simulator's round", round_s, beside, rounds / cores, 1.5, aim=1.15)
    others, rest = network - ROUNDS * round_s, plain - ROUNDS * rounds + import_seconds() + nvflare.rest_s
    yield Row("of that, all that is no round", others, "-", None, 30, aim=15)
    beside = "the same of the plain loop, with its imports, and of NVFlare alone"
    yield Row("of that, all that is no round, once more", others, beside, rest, 1.1)


def plain_loop(study: Study, data: Mapping[str, SiteData]) -> tuple[float, float]:
    """Train and validate as FedAvg does, in the shortest code; returns the median round's seconds, and all."""
    model, loss, augment = build_plain_model(study, 0), make_loss(study), build_augmentation(study)
    optimizers = {site: make_optimizer(study.training, model).state_dict() for site in data}
    total = sum(len(one.training) for one in data.values())
    started, times, shared = time.perf_counter(), [], copy.deepcopy(model.state_dict())
    for number in range(1, study.rounds + 1):
        begun = time.perf_counter()
        mean = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in shared.items()}
        for site, one in data.items():
            model.load_state_dict(shared)
            if number > 1:
                evaluate(model, one.validation, study, CPU)
            optimizer = make_optimizer(study.training, model)
            optimizer.load_state_dict(optimizers[site])
            model.train()
            seed = derive_seed(0, site, number, 1)
            for inputs, targets in training_batches(one.training, study.training.batch_size, augment, seed, "cpu"):
                optimizer.zero_grad()
                loss(model(inputs), targets).backward()
                optimizer.step()
            optimizers[site] = copy.deepcopy(optimizer.state_dict())
            for name, value in model.state_dict().items():
                mean[name] += len(one.training) / total * value
        shared = {name: value.to(shared[name].dtype) for name, value in mean.items()}
        times.append(time.perf_counter() - begun)
    model.load_state_dict(shared)
    for one in data.values():
        evaluate(model, one.validation, study, CPU)
        evaluate(model, one.test, study, CPU)
    return statistics.median(times), time.perf_counter() - started


def import_seconds() -> float:
    """Return the seconds that a new Python takes to import what the plain loop needs."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {__name__}"], cwd=Path(__file__).parent, check=True)
    return time.perf_counter() - started


def command_line(is_short: bool) -> Iterator[Row]:
    """Compare what is said of a command line before its work with an import of torch, each in a new Python."""
    lines = {"--help": ["--help"], "a job that is not there": ["simulate", "no/such/job"]}
    lines |= {"a super model that is not there": ["predict", "no/such", "image.png"]}
    programs = [["-c", "import torch"], *(["-m", "silofl", *line] for line in lines.values())]
    torch_s, *found = medians(*(partial(answer, program) for program in programs), repeats=1 if is_short else 11)
    for what, seconds in zip(lines, found, strict=True):
        yield Row(f"silofl: {what}", seconds, "import torch", torch_s, 0.5)


def answer(program: Sequence[str]) -> None:
    """Run Python to its end, whatever it says."""
    subprocess.run([sys.executable, *program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def silofl(folder: Path, name: str, *options: str) -> tuple[float, list[float]]:
    """Simulate the demonstration's FedAvg with a cache of its own; returns its seconds, and those of each round."""
    choices = [f"{key}={json.dumps(value)}" for key, value in CHANGES.items()]
    cache = ("--cache", str(folder / f"cache-{name}"))
    command = scale.simulation(JOB, folder / "phantoms", folder / name, choices, *cache, *options)
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - started
    return seconds, [record["seconds"] for record in json.loads((folder / name / "ledger.json").read_text())]


def many_sites(is_short: bool) -> Iterator[Row]:
    """Measure twenty sites with LeNet-5 in the simulator: what a round costs beyond the work, and all their memory."""
    yield from beside_echoes("20 sites, LeNet-5, simulator", scale.of_sites(sites=20, rounds=12), 1.15, 1.2)


def many_parameters(is_short: bool) -> Iterator[Row]:
    """Measure a model of 31 M parameters for each of four sites, beside the work alone; takes 14 GiB of disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for site in SITES:
            write_tiles(folder / "data" / site, *FEW_TILES)
        choices = (*LARGE_NETWORK, "algorithm={name: softpull}", "baseline_comparison=false", "device=cpu")
        found = scale.both_ways(JOB, folder, choices, (1, *FEW_TILES[1]))
    yield from beside_echoes("31 M parameters, a model of its own to each of 4 sites, simulator", found, 2.0, 1.2)


def beside_echoes(what: str, found: scale.Scale, time_bound: float, memory_bound: float) -> Iterator[Row]:
    """Compare what a round takes beyond the sites' work with NVFlare alone, and so the memory of all."""
    echoes = "NVFlare alone, with one plain step of Adam"
    beyond = f"{what}: a round beyond the sites' work"
    yield Row(beyond, found.overhead_s, echoes, found.echo.round_s, time_bound, aim=1.15)
    yield Row(f"{what}: memory of all", found.peak / GIB, echoes, found.echo.peak / GIB, memory_bound, "GiB")


MEASURES = (whole_run, many_sites, many_parameters)
