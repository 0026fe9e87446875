"""``silofl advise``: measure in what the sites' training data differ, before anything trains."""

import argparse
import json
from pathlib import Path
from shlex import join

import numpy as np
from rich.console import Console

from silofl.algorithms.advice.comparison import KINDS, Advice, advise, check_dimensions
from silofl.algorithms.advice.sketch import build_fixed_network, sketch
from silofl.bundled_jobs import name_job
from silofl.data.parts import check_same_size
from silofl.errors import ConfigError, ExitCode
from silofl.options import format_set_options, make_console, path_to_text, read_changes
from silofl.report.tables import TextTable, print_table
from silofl.studies import simulate
from silofl.studies.progress import announce
from silofl.studies.simulation import Simulation, settle_job, study_file
from silofl.studies.weights import find_weights_file
from silofl.study import Study, load_study
from silofl.training.device import set_threads

# Methods that were made for sites that differ so, with BatchNorm in the network and without.
METHODS = {"amplitude": ("fedbn,harmofl", "harmofl"), "labels": ("f-adafed", "softpull")}


def run(options: argparse.Namespace) -> int:
    """Print what the sites differ in, and the command that compares methods on their data."""
    console = make_console(options)
    wanted = Simulation(
        data=path_to_text(options.data),
        pretrained=path_to_text(options.pretrained),
        weights=path_to_text(options.weights and find_weights_file(options.weights)),
        cache=path_to_text(options.cache),
        is_alone=True,
    )
    changes = read_changes(options)
    study, simulation = settle_job(options.job, wanted, changes)
    found = advise_simulation(study, simulation, console)
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
        return ExitCode.COMPLETE
    print_advice(found, console)
    has_batchnorm = study.model.normalization == "batch"
    made_for = [METHODS[kind][not has_batchnorm] for kind, one in found.findings.items() if one.is_yes]
    # The algorithm of the command is the job's, and each method's own; a comparison has several seeds.
    others = {key: value for key, value in changes.items() if key.partition(".")[0] not in ("algorithm", "seed")}
    is_needed = load_study(study_file(options.job)).recipe.needs_pretrained
    given = {
        "--data": simulation.data,
        "--out": "RUNS",
        "--methods": ",".join(["local,fedavg", *made_for]),
        "--pretrained": simulation.pretrained or ("f.pt" if is_needed else None),
        "--seeds": changes.get("seed"),
        "--weights": simulation.weights,
        "--cache": simulation.cache,
    }
    words = [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    command = join(["python", "-m", "silofl", "compare", name_job(options.job), *words, *format_set_options(others)])
    console.print(f"\nwhich method suits them only a comparison tells:\n  {command}", markup=False)
    return ExitCode.COMPLETE


def advise_simulation(study: Study, simulation: Simulation, console: Console) -> Advice:
    """Compare the sites of a simulation by their training data.

    Raises:
        ConfigError: There is one site only, or the pretrained model is of another network.
        DataError: A site's data is wrong, too little to be cut into halves, or its images have another size.
    """
    check_dimensions(study.data.dimensions)
    model = build_fixed_network(study, simulation.pretrained, simulation.weights)
    if len(simulation.sites) < 2:
        raise ConfigError(f"--data must hold at least 2 sites to compare, not {len(simulation.sites)}; add another")
    with announce("reading the training data", console):
        sites = simulate.read_data(study, simulation, Path(simulation.data))
    check_same_size({site: data.training for site, data in sites.items()})
    set_threads(study.torch_threads)
    with announce(f"measuring {len(sites)} sites and halves of them", console):
        return advise({site: sketch(site, data.training, study, model) for site, data in sites.items()})


def print_advice(found: Advice, console: Console) -> None:
    """Print the ratios as a table, and the answers to both questions."""
    print_table(_ratio_table(found), console)
    console.print()
    for sentence in found.sentences():
        console.print(sentence, markup=False)


def _ratio_table(found: Advice) -> TextTable:
    """Return one row for each kind of distance: the ratio, its range, and the two sites that differ most."""
    sites, rows = list(found.cases), []
    for kind, ratio in found.ratios.items():
        left, right = np.unravel_index(ratio.pairs.argmax(), ratio.pairs.shape)
        low, high = ratio.range
        farthest = f"{sites[left]}, {sites[right]}: {ratio.pairs[left, right]:.2f}"
        rows.append((KINDS[kind], farthest, f"{ratio.value:.2f}", f"{low:.2f} to {high:.2f}"))
    columns = ("sites differ in", "most", "between / within sites", "90 % of the halves")
    return TextTable(columns, tuple(rows), num_text=2)
