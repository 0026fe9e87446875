"""HarmoFL's claims, where hospitals differ in appearance and not in content: stained tissue, simulated and real.

Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images,
AAAI 2022, arXiv:2112.10775. The simulated hospitals lie as far apart as a dial says.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loss_surface import Landscape, draw_filter_directions, mean_loss, measure_losses, plane_points
from runs import BATCH, Choices, run_recipe
from torch import nn
from verdicts import (
    COLUMNS,
    QUICK,
    REAL,
    SIMULATED,
    Claim,
    Measure,
    Paper,
    Row,
    Table,
    find_data,
    mean_over_sites,
    of_site,
    spread_over_sites,
)

from silofl.data.batches import evaluation_batches
from silofl.data.site_data import SiteData, load_site_data
from silofl.federation.ledger import read_ledger
from silofl.federation.results import read_results
from silofl.training.evaluation import compute_softmax
from silofl.training.losses import make_loss
from silofl.training.metrics import mean_of_known
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.phantoms.stains import make_stains
from silofl_desk.studies.comparisons.methods import find_method_algorithm
from silofl_desk.studies.runs.leave_out import assemble_models, load_site_networks

JOB = "harmofl_stains"
STRENGTHS = (1.0, 0.5, 0.25)
RATES = (0.01, 0.03, 0.1, 0.3)
# Beside BatchNorm.
NORMS = {
    "GroupNorm": {"model.normalization": "group"},
    "InstanceNorm": {"model.normalization": "instance"},
    "stateless BatchNorm": {"model.normalization": "batch_stateless"},
}
# A validation of 200 images in one deal does not tell two rates apart.
SEARCHED = (1, 2, 3)
# Of Fig. 6: how far a model is moved, in lengths of its filters, and points from the model to the border.
SCALES, STEPS = (0.125, 1.0), 2
# Of two classes with as many images each, the accuracy below which nothing is learnt.
CHANCE = 0.55
NOTE = f"A run with a mean below {CHANCE} is at chance: it has collapsed, and has no spread."
NOTE_ON_BATCHES = f"{NOTE} One at a time: balanced accuracy where each image is a batch of its own."


# Of Fig. 5(c), where the paper searches them; 0.05 is the preset's.
ALPHA, ALPHAS = "algorithm.perturbation.alpha", (1.0, 0.5, 0.005, 0.0005)


def _row(name: str, method: str, normalization: Choices = BATCH) -> Row:
    return Row(name, {"algorithm": find_method_algorithm(method), **normalization}, RATES)


LOCAL, FEDAVG, FEDBN = _row("local", "local"), _row("FedAvg", "fedavg"), _row("FedBN", "fedbn")
PAPERS_OWN = replace(_row("HarmoFL paper", "harmofl:paper"), constant=ALPHA, values=ALPHAS)
AMPLITUDE = _row("amplitude alone", "harmofl-amplitude")
PERTURBATION = _row("perturbation alone", "harmofl-perturbation")
REFERENCE = _row("HarmoFL reference (mean only)", "harmofl:reference")
# Where no layer is BatchNorm, `recommended` is `reference`.
METHODS = {
    FEDAVG.name: "fedavg",
    REFERENCE.name: "harmofl:reference",
    PAPERS_OWN.name: "harmofl:paper",
    AMPLITUDE.name: "harmofl-amplitude",
    PERTURBATION.name: "harmofl-perturbation",
}
ROWS = (
    LOCAL,
    FEDAVG,
    FEDBN,
    PAPERS_OWN,
    REFERENCE,
    _row("HarmoFL recommended (mean only)", "harmofl:recommended"),
    AMPLITUDE,
    PERTURBATION,
)
# As the authors' released code trains, with each image answered alone.
HOME: Choices = {"model.normalization": "batch_home"}
LOCAL_GROUP = _row("local, GroupNorm", "local", NORMS["GroupNorm"])
LOCAL_HOME = _row("local, home statistics", "local", HOME)
FEDBN_HOME = _row("FedBN, home statistics", "fedbn", HOME)
REFERENCE_HOME = _row("HarmoFL reference (mean only), home statistics", "harmofl:reference", HOME)
OTHERWISE_NORMALIZED = tuple(
    _row(f"{name}, {norm}", method, own) for name, method in METHODS.items() for norm, own in NORMS.items()
)


def _with_rates(rows: Iterable[Row], *rates: float) -> tuple[Row, ...]:
    """Return the rows with other rates to search."""
    return tuple(replace(row, rates=rates) for row in rows)


def _above(*rows: Row, column: str = "mean") -> tuple[tuple[tuple[str, str], tuple[str, str]], ...]:
    """Return the pairs of a claim that each row lies above the next."""
    return tuple(((a.name, column), (b.name, column)) for a, b in zip(rows, rows[1:], strict=False))


CLAIMS = (
    Claim(
        "the previous SOTA (FedBN) for the feature non-iid problem", _above(FEDBN, FEDAVG), about="FedBN above FedAvg"
    ),
    Claim("HarmoFL significantly outperforms the SOTA method of FedBN", _above(PAPERS_OWN, FEDBN)),
    Claim("the amplitude normalization (the second row) exceeds the baseline", _above(AMPLITUDE, FEDAVG)),
    Claim(
        "adding the weight perturbation (the third row) to mitigate the global drifts can further boost the "
        "performance",
        _above(PAPERS_OWN, AMPLITUDE),
    ),
    Claim(
        "clients show a testing accuracy with a small standard deviation on average, while other methods show larger "
        "variance across clients",
        tuple(((row.name, "spread"), (PAPERS_OWN.name, "spread")) for row in (FEDAVG, FEDBN)),
    ),
)


HOME_CLAIMS = (
    Claim("HarmoFL significantly outperforms the SOTA method of FedBN", _above(REFERENCE_HOME, FEDBN_HOME)),
    Claim("help all heterogeneous clients benefit from the federated learning", _above(REFERENCE_HOME, LOCAL_HOME)),
)


def _claim_with_sites(sites: int) -> dict[str, Any]:
    """Return the claims of a table, that of all hospitals too, for which each of them has a test of its own."""
    hidden: dict[str, Measure] = {f"hospital {place + 1}": partial(of_site, place) for place in range(sites)}
    pairs = tuple(_above(PAPERS_OWN, LOCAL, column=name)[0] for name in hidden)
    help_all = Claim("help all heterogeneous clients benefit from the federated learning", pairs)
    return {"claims": (*CLAIMS, help_all), "hidden": hidden}


def spread_where_learnt(run: Path) -> float | None:
    """Return the standard deviation of the test over sites; None of a collapsed run, which is alike everywhere."""
    return None if mean_over_sites(run) < CHANCE else spread_over_sites(run)


def one_at_a_time(run: Path) -> float | None:
    """Return the balanced accuracy where each image is a batch of its own, as a patient is; mean over sites.

    None where the answer to an image does not depend on its batch.
    """
    if read_results(run).normalization != "batch_stateless":
        return None
    accuracies = []
    for network, data in _load_networks(run):
        targets = data.test.targets
        is_right = compute_softmax(network, data.test.images, 1, torch.device("cpu")).argmax(axis=1) == targets
        accuracies.append(np.mean([is_right[targets == label].mean() for label in np.unique(targets)]))
    return float(np.mean(accuracies))


@cache
def _load_networks(run: Path) -> tuple[tuple[nn.Module, SiteData], ...]:
    contents, torch_device = assemble_models(run), torch.device("cpu")
    torch.set_num_threads(1)
    (folder,) = find_data(run).iterdir()
    return tuple(
        (network, load_site_data(folder / site, contents.study, folder / ".cache", has_progress=False))
        for site, network in load_site_networks(contents, torch_device)
    )


def _describe_data(folders: Sequence[Path]) -> str:
    """Say whether mean intensity alone tells the classes, and how far the hospitals lie apart, over all seeds."""
    areas, shifts = [], []
    for folder in folders:
        sites = [_read_tests(site) for site in sorted(folder.glob(f"{JOB}/*/dataset.json"))]
        colours = [images.mean(axis=(1, 2)) for images, _ in sites]
        for colour, (_, labels) in zip(colours, sites, strict=True):
            light = colour.mean(axis=1)
            area = np.mean(light[labels == 1, None] > light[labels == 0])
            areas.append(max(area, 1 - area))
        between = np.std([colour.mean(axis=0) for colour in colours], axis=0)
        shifts.append(between.mean() / np.mean([colour.std(axis=0) for colour in colours]))
    return (
        f"Mean intensity alone tells the classes of a hospital's test with an AUC of {min(areas):.2f} to "
        f"{max(areas):.2f}, where 0.5 is chance. Hospitals' mean colours lie {min(shifts):.1f} to {max(shifts):.1f} "
        "times as far apart as the images of one."
    )


def _read_tests(manifest: Path) -> tuple[np.ndarray, np.ndarray]:
    records = json.loads(manifest.read_text())["test"]
    with np.load(manifest.with_name("images.npz")) as arrays:
        images = arrays["images"][[record["index"] for record in records]] / 255
    return images, np.array([record["label"] for record in records])


def drift(run: Path) -> float | None:
    """Return the mean over rounds of the sites' mean squared distance to the round's start (Eq. 9)."""
    return mean_of_known(record.drift for record in read_ledger(run))


def dissimilarity(run: Path) -> float | None:
    """Return the mean over rounds of the sites' mean squared update over that of their mean; 1 where all agree."""
    return mean_of_known(record.dissimilarity for record in read_ledger(run))


def rise(scale: float, run: Path) -> float:
    """Return by how much the test loss of a site's model rises where it is moved so far, mean over sites (Fig. 6)."""
    loss, found = make_loss(assemble_models(run).study), []
    points = plane_points(scale, STEPS)
    for network, data in _load_networks(run):
        batches = list(evaluation_batches(data.test, len(data.test), torch.device("cpu")))
        directions = draw_filter_directions(network, points.shape[1], seed=0)
        losses = measure_losses(network, directions, points, partial(mean_loss, network, batches, loss))
        found.append(Landscape(points, losses).mean_rise)
    return float(np.mean(found))


COLUMNS_WHERE_LEARNT = COLUMNS | {"spread": spread_where_learnt}
COLUMNS_OF_BATCHES = COLUMNS_WHERE_LEARNT | {"one at a time": one_at_a_time}


def _stains(strength: float) -> Table:
    return Table(
        f"stains-{strength:g}",
        JOB,
        lambda folder, seed: make_stains(folder / JOB, seed, strength),
        ROWS,
        {},
        COLUMNS_WHERE_LEARNT,
        note=NOTE,
        seeds=QUICK,
        searched=SEARCHED,
        describe_data=_describe_data,
        is_main=strength == 1,
        **_claim_with_sites(5),
    )


def _with_home_statistics(table: Table, local: float, fedbn: float, reference: float) -> Table:
    """Return the table of the same data whose BatchNorm has home statistics, with each image answered alone.

    Beside it stands a site alone with GroupNorm, whose rate is searched.

    Args:
        local: Learning rate of the row, not searched: that of BatchNorm.
        fedbn: The same.
        reference: That of stateless BatchNorm; of nuclei, where it was not searched, of BatchNorm.
    """
    rows = (
        LOCAL_GROUP,
        replace(LOCAL_HOME, rates=(local,)),
        replace(FEDBN_HOME, rates=(fedbn,)),
        replace(REFERENCE_HOME, rates=(reference,)),
    )
    return replace(
        table,
        name=f"{table.name}-home",
        rows=rows,
        claims=HOME_CLAIMS,
        hidden={},
        describe_data=None,
        is_main=False,
    )


def _with_other_normalizations(table: Table, rows: Iterable[Row] = OTHERWISE_NORMALIZED) -> Table:
    """Return the table of the same data whose rows have another normalisation than BatchNorm."""
    return replace(
        table,
        name=f"{table.name}-normalizations",
        rows=_with_rates(rows, *table.rows[0].rates),
        columns=COLUMNS_OF_BATCHES,
        claims=(),
        seeds=table.seeds[: len(SIMULATED)],
        hidden={},
        note=NOTE_ON_BATCHES,
        describe_data=None,
        is_main=False,
    )


def _import(recipe: str, job: str, options: Sequence[object], folder: Path, seed: int, source: Path) -> None:
    """Deal a public set to the hospitals, each deal by its seed."""
    if not (folder / job).exists():
        run_recipe(recipe, source, folder / job, *options, "--seed", seed)


TILES = Table(
    "tiles",
    JOB,
    partial(_import, "nuclei_tiles", JOB, ()),
    ROWS,
    {"labels": {0: "few", 1: "many"}},
    COLUMNS_WHERE_LEARNT,
    note=NOTE,
    needs="nuclei_dsb2018",
    seeds=REAL,
    searched=SEARCHED,
    describe_data=_describe_data,
    **_claim_with_sites(4),
)
# Of other real sets no run is taken for a collapsed one.
PNEUMONIA = replace(
    TILES,
    name="pneumonia",
    job="adafed_pneumonia",
    make=partial(
        _import,
        "medmnist",
        "adafed_pneumonia",
        ("--labels", "normal,pneumonia", "--sites", 8, "--alpha", 0.5, "--test", 0.3, "--validation", 0.3),
    ),
    rows=_with_rates(ROWS, 0.01, 0.03, 0.1),
    changes={"rounds": 20, "training.momentum": 0.9},
    columns=COLUMNS,
    note="",
    needs="pneumoniamnist_balanced",
    describe_data=None,
    **_claim_with_sites(8),
)
PNEUMONIA_OTHERWISE = replace(
    _with_other_normalizations(PNEUMONIA),
    columns=COLUMNS | {"one at a time": one_at_a_time},
    note="One at a time: balanced accuracy where each image is a batch of its own.",
)
# Table 1, but for the network and the size of the images.
NUCLEI = replace(
    PNEUMONIA,
    name="nuclei",
    job="harmofl_nuclei",
    make=partial(_import, "nuclei_dsb2018", "harmofl_nuclei", ()),
    rows=_with_rates(ROWS, 0.001, 0.003),
    changes={"baseline_comparison": False, "rounds": 20, "data.transforms": [{"Resize": {"spatial_size": [64, 64]}}]},
    needs="nuclei_dsb2018",
    **_claim_with_sites(7),
)
NUCLEI_OTHERWISE = replace(
    _with_other_normalizations(NUCLEI, [row for row in OTHERWISE_NORMALIZED if "GroupNorm" in row.name]),
    columns=COLUMNS,
    note="",
)
# The demonstration's hospitals, with every normalisation.
PHANTOMS = Table(
    "phantoms-normalizations",
    "harmofl_phantoms",
    lambda folder, seed: make_phantoms(folder / "harmofl_phantoms", seed),
    _with_rates((*ROWS, *OTHERWISE_NORMALIZED), 0.003, 0.01),
    {
        "baseline_comparison": False,
        "rounds": 16,
        "data.transforms": [{"Resize": {"spatial_size": [64, 64]}}],
        "model.features": [8, 16, 32, 64, 64, 8],
    },
    COLUMNS,
    searched=SEARCHED,
)
# One rate for all rows, since drift grows with it.
DRIFT = replace(
    _stains(1.0),
    name="stains-1-drift",
    rows=_with_rates((FEDAVG, FEDBN, PAPERS_OWN, AMPLITUDE, PERTURBATION), 0.1),
    changes={"training.measures_drift": True},
    columns={
        "mean": mean_over_sites,
        "drift": drift,
        "dissimilarity": dissimilarity,
        **{f"rise at {scale:g}": partial(rise, scale) for scale in SCALES},
    },
    claims=(
        Claim(
            "mitigate the local update drift by normalizing amplitudes of images",
            _above(FEDAVG, AMPLITUDE, column="drift"),
        ),
        Claim("it reduces gradients dissimilarity between clients", _above(FEDAVG, AMPLITUDE, column="dissimilarity")),
        Claim(
            "the loss variation is smaller than FedAvg and robust to the parameter changes",
            _above(FEDAVG, PAPERS_OWN, column=f"rise at {SCALES[0]:g}"),
        ),
        Claim(
            "even with 8 times wider parameter change range",
            _above(FEDAVG, PAPERS_OWN, column=f"rise at {SCALES[1]:g}"),
        ),
    ),
    note="Drift: mean squared distance of a site's steps to the received model, mean over steps, sites and rounds "
    "(Eq. 9). Dissimilarity: mean squared length of the sites' updates over that of their mean, 1 where all agree. "
    "Rise: of the test loss from a site's model to the border of a plane of two random directions, 0.125 or 1 lengths "
    "of its filters away (Fig. 6). All rows have the rate 0.1.",
    hidden={},
    describe_data=None,
    is_main=False,
)
# The paper's own network, with the rate of the job: no search.
DENSENET_121 = replace(
    _stains(1.0),
    name="stains-1-densenet121",
    rows=_with_rates((LOCAL, FEDAVG, FEDBN, PAPERS_OWN, AMPLITUDE), 0.03),
    changes={"model.name": "densenet121", "model.network": None, "model.arguments": {}},
    needs_gpu=True,
    is_main=False,
)
SETS = (*map(_stains, STRENGTHS), TILES)
PAPER = Paper(
    "HarmoFL (Jiang et al., AAAI 2022)",
    (
        *SETS,
        DRIFT,
        PNEUMONIA,
        NUCLEI,
        DENSENET_121,
        *map(_with_other_normalizations, SETS),
        _with_home_statistics(SETS[0], 0.01, 0.1, 0.1),
        _with_home_statistics(TILES, 0.03, 0.1, 0.01),
        _with_home_statistics(NUCLEI, 0.01, 0.003, 0.001),
        PNEUMONIA_OTHERWISE,
        NUCLEI_OTHERWISE,
        PHANTOMS,
    ),
)
